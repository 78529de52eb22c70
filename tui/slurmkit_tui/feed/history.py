"""GPUs by hour: as the screen's answers showed them, and as the ledger counts them.

The screen's own answers are saved in the state folder for 30 days. They alone know how many GPUs
pending jobs wanted at that time, and how many GPUs there were.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from slurmkit.config.paths import state_folder
from slurmkit.state.gpu_use import SPANS, Span, begin_of_hour
from slurmkit_tui.state_files import write_state_file

HOUR = 3600
_MOST_HOURS = 30 * 24  # hours
_SAVE_EVERY = 300.0  # seconds
_LEAST_STRETCHES = 4  # of a curve


def span_of_days(days: float) -> Span:
    """Return the shortest span that has a number of days; a day in it may have an hour more."""
    seconds = (days - 0.05) * 86400
    return next(
        (span for span in SPANS.values() if seconds <= span.step * span.stretches), SPANS["30d"]
    )


class HeldGpus(msgspec.Struct, frozen=True):
    """Mean numbers of GPUs in one stretch of time, from the ledger.

    Attributes:
        begin: epoch seconds.
        seconds: its length.
        held: GPUs held by jobs, by type; the key of untyped GPUs is "".
        used: of the measured GPUs, those that worked, by type; None if nothing was measured.
        measured: held GPUs whose utilization was measured, by type.
    """

    begin: float
    seconds: float
    held: dict[str, float]
    used: dict[str, float] | None = None
    measured: dict[str, float] | None = None


class ObservedHour(msgspec.Struct):
    """Mean numbers of GPUs in one hour, from the answers that the screen showed.

    Attributes:
        begin: epoch seconds.
        nodes: number of answers about nodes.
        queues: number of answers about pending jobs.
        there: all GPUs by type.
        held: GPUs held by jobs, by type.
        wanted: GPUs that pending jobs request; None is unknown.
    """

    begin: int
    nodes: int = 0
    queues: int = 0
    there: dict[str, float] = {}
    held: dict[str, float] = {}
    wanted: float | None = None


class SavedHistory(msgspec.Struct):
    """Saved numbers of one cluster.

    Attributes:
        hours: oldest first.
        looked: epoch seconds at which the person last saw Home; None if never.
    """

    hours: list[ObservedHour] = []
    looked: float | None = None


def memory_path() -> Path:
    """Return the path of the file of saved numbers."""
    return state_folder() / "tui-history.json"


class HourlyGpus:
    """Numbers of GPUs by hour, from the screen's own answers. Its methods may run in threads.

    Attributes:
        since: when the person looked at Home before this start; None if never, or unknown.
        wanted: GPUs that pending jobs requested by the last answer; None is unknown.
        wanted_taken: epoch seconds of that answer; None while there is none.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.since: float | None = None
        self.wanted: int | None = None
        self.wanted_taken: float | None = None
        self._keep = keep
        self._lock = threading.Lock()
        self._cluster: str | None = None
        self._hours: dict[int, ObservedHour] = {}
        self._looked: float | None = None
        self._saved = 0.0
        self._counted: dict[str, float] = {}  # when the last answer of each kind was taken

    def open(self, cluster: str | None) -> None:
        """Load the saved numbers of a cluster, once its name is known."""
        with self._lock:
            if not self._keep or cluster is None or self._cluster is not None:
                return
            self._cluster = cluster
            saved = SavedHistory()
            with suppress(OSError):
                saved = _load_memories().get(cluster, saved)
            self.since = saved.looked
            self._hours = {each.begin: each for each in saved.hours} | self._hours

    def is_new(self, kind: str, at: float) -> bool:
        """Return whether an answer of a kind has not been counted yet; from now on it has."""
        with self._lock:
            known = self._counted.get(kind)
            self._counted[kind] = at
            return known != at

    def add_nodes(self, at: float, there: Mapping[str, int], held: Mapping[str, int]) -> None:
        """Add an answer about all nodes: numbers of GPUs by type at a time."""
        with self._lock:
            hour = self._hour(at)
            hour.nodes += 1
            hour.there = _mean(hour.there, there, hour.nodes)
            hour.held = _mean(hour.held, held, hour.nodes)

    def add_wanted(self, at: float, wanted: int | None) -> None:
        """Add the number of GPUs that pending jobs requested at a time; None is unknown."""
        with self._lock:
            # An answer that took longer may be older than the last one.
            if self.wanted_taken is None or at >= self.wanted_taken:
                self.wanted, self.wanted_taken = wanted, at
            if wanted is None:
                return
            hour = self._hour(at)
            hour.queues += 1
            before = hour.wanted or 0.0
            hour.wanted = before + (wanted - before) / hour.queues

    def look(self, at: float) -> None:
        """Note that the person saw Home."""
        with self._lock:
            self._looked = at

    def save_when_due(self, at: float) -> None:
        """Save every five minutes."""
        with self._lock:
            due = at >= self._saved + _SAVE_EVERY
            if due:
                self._saved = at
        if due:
            self.save()

    def hours(self, begin: float, end: float) -> tuple[ObservedHour, ...]:
        """Return the hours that begin in a time, oldest first."""
        with self._lock:
            return tuple(
                msgspec.structs.replace(hour)
                for at, hour in sorted(self._hours.items())
                if begin <= at < end
            )

    def save(self) -> None:
        """Save the hours for the next start. A full disk is ignored, so that work can go on."""
        with self._lock, suppress(OSError):
            if self._cluster is None:
                return
            saved = _load_memories()
            before = saved.get(self._cluster, SavedHistory())  # another app may run, too
            hours = {each.begin: each for each in before.hours} | self._hours
            newest = [hours[begin] for begin in sorted(hours)[-_MOST_HOURS:]]
            looked = max((at for at in (before.looked, self._looked) if at), default=None)
            saved[self._cluster] = SavedHistory(newest, looked)
            write_state_file(memory_path(), msgspec.json.encode(saved))

    def _hour(self, at: float) -> ObservedHour:
        begin = begin_of_hour(at)
        return self._hours.setdefault(begin, ObservedHour(begin))


def _mean(before: Mapping[str, float], now: Mapping[str, int], count: int) -> dict[str, float]:
    """Return the means by type after one more answer; `count` includes it."""
    return {
        name: before.get(name, 0.0) + (now.get(name, 0) - before.get(name, 0.0)) / count
        for name in {**before, **now}
    }


def _load_memories() -> dict[str, SavedHistory]:
    """Load the file; a missing or broken one is empty, as only old curves are lost.

    Raises:
        OSError: when the file is there and cannot be read.
    """
    try:
        return msgspec.json.decode(memory_path().read_bytes(), type=dict[str, SavedHistory])
    except (FileNotFoundError, ValueError):  # msgspec's errors are ValueErrors
        return {}


class GpuCurve(msgspec.Struct, frozen=True):
    """Mean numbers of GPUs in stretches of time, oldest first; None is unknown.

    Attributes:
        begins: epoch seconds of each stretch.
        seconds: length of each; a local day may have an hour more or less.
        held: by type, GPUs held by jobs; the type with the most GPUs first.
        used: of the measured GPUs, those that worked; None if nothing was measured.
        measured: share of the held GPUs that was measured; None if nothing was held.
        there: all GPUs.
        wanted: GPUs that pending jobs requested.
        used_by_type: `used` by type, 0 where nothing was measured.
    """

    begins: tuple[int, ...]
    seconds: int
    held: dict[str, tuple[float | None, ...]]
    used: tuple[float | None, ...]
    measured: tuple[float | None, ...]
    there: tuple[float | None, ...]
    wanted: tuple[float | None, ...]
    used_by_type: dict[str, tuple[float, ...]] = {}

    @property
    def is_known(self) -> bool:
        """Whether any number of held or wanted GPUs is known."""
        series = (*self.held.values(), self.wanted)
        return any(value is not None for values in series for value in values)

    def held_at(self, at: int) -> float | None:
        """Return the GPUs of all types that were held in one stretch; None is unknown."""
        known = [value for values in self.held.values() if (value := values[at]) is not None]
        return sum(known) if known else None


def make_curve(
    ledger: Sequence[HeldGpus],
    seen: Sequence[ObservedHour],
    span: Span,
    *,
    now: float,
    types: Mapping[str, float] | None = None,
) -> GpuCurve:
    """Join what the ledger and the screen's own answers know of a time until now.

    It begins with the first stretch of which anything is known.

    The ledger counts every second, so it goes first; hours after its last ingest come from the
    screen's own answers.

    Args:
        ledger: from the ledger.
        seen: from the screen's own answers.
        span: the time.
        now: epoch seconds; the last stretch contains it.
        types: all GPUs there are, by type: the order of the types must not change with their use.
    """
    begins = _known_part(span.begins(now), ledger, seen)
    by_stretch = {_stretch(begins, use.begin, use.seconds): use for use in ledger}
    seen_by_stretch: dict[int, list[ObservedHour]] = defaultdict(list)
    for hour in seen:
        seen_by_stretch[_stretch(begins, hour.begin, HOUR)].append(hour)
    stretches = [(by_stretch.get(at), seen_by_stretch.get(at, ())) for at in range(len(begins))]
    held = [_held(use, hours) for use, hours in stretches]
    total: Counter[str] = Counter()
    for found in held:
        total.update(found or {})
    names = by_size(types or {})
    names += [name for name in by_size(total) if name not in names]
    return GpuCurve(
        begins=begins,
        seconds=span.step,
        held={
            name: tuple(None if found is None else found.get(name, 0.0) for found in held)
            for name in names
        },
        used=tuple(
            sum(use.used.values()) if use and use.used is not None else None for use, _ in stretches
        ),
        measured=tuple(_measured_share(use) for use, _ in stretches),
        there=tuple(
            _average(sum(hour.there.values()) for hour in hours if hour.nodes)
            for _, hours in stretches
        ),
        wanted=tuple(
            _average(hour.wanted for hour in hours if hour.wanted is not None)
            for _, hours in stretches
        ),
        used_by_type={
            name: tuple(((use and use.used) or {}).get(name, 0.0) for use, _ in stretches)
            for name in names
        },
    )


def _known_part(
    begins: Sequence[int], ledger: Sequence[HeldGpus], seen: Sequence[ObservedHour]
) -> tuple[int, ...]:
    """Leave out the stretches before the first known one, so that a new cluster's curve is wide."""
    known = [_stretch(begins, use.begin, use.seconds) for use in ledger]
    known += [_stretch(begins, hour.begin, HOUR) for hour in seen]
    first = min((at for at in known if at >= 0), default=0)
    return tuple(begins[min(first, max(0, len(begins) - _LEAST_STRETCHES)) :])


def by_size(types: Mapping[str, float]) -> list[str]:
    """Return names of GPU types, the one with the most GPUs first."""
    return sorted(types, key=lambda name: (-types[name], name))


def _stretch(begins: Sequence[int], begin: float, seconds: float) -> int:
    """Return the index of the stretch that holds the middle of a time; -1 if it is earlier."""
    return bisect_right(begins, begin + seconds / 2) - 1


def _held(use: HeldGpus | None, hours: Sequence[ObservedHour]) -> Mapping[str, float] | None:
    if use is not None:
        return use.held
    counted = [hour.held for hour in hours if hour.nodes]
    if not counted:
        return None
    return {
        name: sum(each.get(name, 0.0) for each in counted) / len(counted)
        for name in {name for each in counted for name in each}
    }


def _measured_share(use: HeldGpus | None) -> float | None:
    held = sum(use.held.values()) if use else 0.0
    if use is None or not held:
        return None
    return min(1.0, sum((use.measured or {}).values()) / held)


def _average(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None
