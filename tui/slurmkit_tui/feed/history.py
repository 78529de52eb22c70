"""GPUs by hour: as the screen's answers showed them, and as the ledger counts them.

The screen's own answers are kept for 30 days in the state folder. They alone know how many GPUs
pending jobs wanted at that time, and how many GPUs there were.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from slurmkit.config.paths import state_folder
from slurmkit_tui.state_files import write_state_file

HOUR = 3600
_KEPT = 30 * 24  # hours
_SAVE_EVERY = 300.0  # seconds


class HeldGpus(msgspec.Struct, frozen=True):
    """Mean numbers of GPUs in one stretch of time, from the ledger.

    Attributes:
        begin: epoch seconds.
        seconds: its length.
        held: GPUs held by jobs, by type; the key of untyped GPUs is "".
        used: GPUs that worked, by type; None while no source has measured them.
    """

    begin: float
    seconds: float
    held: dict[str, float]
    used: dict[str, float] | None = None


class SeenHour(msgspec.Struct):
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


class ClusterMemory(msgspec.Struct):
    """What is kept of one cluster between two starts.

    Attributes:
        hours: oldest first.
        looked: epoch seconds at which the person last saw Home; None if never.
    """

    hours: list[SeenHour] = []
    looked: float | None = None


def memory_path() -> Path:
    """Return the path of the file of what is kept between two starts."""
    return state_folder() / "tui-history.json"


class HourlyGpus:
    """Numbers of GPUs by hour, from the screen's own answers. Its methods may run in threads.

    Attributes:
        since: when the person looked at Home before this start; None if never, or unknown.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.since: float | None = None
        self._keep = keep
        self._lock = threading.Lock()
        self._cluster: str | None = None
        self._hours: dict[int, SeenHour] = {}
        self._looked: float | None = None
        self._saved = 0.0

    def open(self, cluster: str | None) -> None:
        """Load what is kept of a cluster, once its name is known."""
        with self._lock:
            if not self._keep or cluster is None or self._cluster is not None:
                return
            self._cluster = cluster
            kept = ClusterMemory()
            with suppress(OSError):
                kept = _load_memories().get(cluster, kept)
            self.since = kept.looked
            self._hours = {each.begin: each for each in kept.hours} | self._hours

    def add_nodes(self, at: float, there: Mapping[str, int], held: Mapping[str, int]) -> None:
        """Add an answer about all nodes: numbers of GPUs by type at a time."""
        with self._lock:
            hour = self._hour(at)
            hour.nodes += 1
            hour.there = _mean(hour.there, there, hour.nodes)
            hour.held = _mean(hour.held, held, hour.nodes)

    def add_wanted(self, at: float, wanted: int | None) -> None:
        """Add the number of GPUs that pending jobs requested at a time; None is unknown."""
        if wanted is None:
            return
        with self._lock:
            hour = self._hour(at)
            hour.queues += 1
            before = hour.wanted or 0.0
            hour.wanted = before + (wanted - before) / hour.queues

    def look(self, at: float) -> None:
        """Note that the person saw Home, and save now and then."""
        with self._lock:
            self._looked = at
            due = at >= self._saved + _SAVE_EVERY
            if due:
                self._saved = at
        if due:
            self.save()

    def hours(self, begin: float, end: float) -> tuple[SeenHour, ...]:
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
            kept = _load_memories()
            before = kept.get(self._cluster, ClusterMemory())  # another app may run beside this one
            hours = {each.begin: each for each in before.hours} | self._hours
            newest = [hours[begin] for begin in sorted(hours)[-_KEPT:]]
            looked = max((at for at in (before.looked, self._looked) if at), default=None)
            kept[self._cluster] = ClusterMemory(newest, looked)
            write_state_file(memory_path(), msgspec.json.encode(kept))

    def _hour(self, at: float) -> SeenHour:
        begin = int(at) // HOUR * HOUR
        return self._hours.setdefault(begin, SeenHour(begin))


def _mean(before: Mapping[str, float], now: Mapping[str, int], count: int) -> dict[str, float]:
    """Return the means by type after one more answer; `count` includes it."""
    return {
        name: before.get(name, 0.0) + (now.get(name, 0) - before.get(name, 0.0)) / count
        for name in {**before, **now}
    }


def _load_memories() -> dict[str, ClusterMemory]:
    """Load the file; a missing or broken one is empty, as only old curves are lost.

    Raises:
        OSError: when the file is there and cannot be read.
    """
    try:
        return msgspec.json.decode(memory_path().read_bytes(), type=dict[str, ClusterMemory])
    except (FileNotFoundError, ValueError):  # msgspec's errors are ValueErrors
        return {}


class GpuCurve(msgspec.Struct, frozen=True):
    """Mean numbers of GPUs in equal stretches of time, oldest first; None is unknown.

    Attributes:
        begins: epoch seconds of each stretch.
        seconds: length of each.
        held: by type, GPUs held by jobs; the type with the most first.
        used: GPUs that worked; all None while no source has measured them.
        there: all GPUs.
        wanted: GPUs that pending jobs requested.
    """

    begins: tuple[int, ...]
    seconds: int
    held: dict[str, tuple[float | None, ...]]
    used: tuple[float | None, ...]
    there: tuple[float | None, ...]
    wanted: tuple[float | None, ...]

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
    seen: Sequence[SeenHour],
    *,
    now: float,
    hours: int,
    step: int = HOUR,
) -> GpuCurve:
    """Join what the ledger and the screen's own answers know of the last hours.

    The ledger counts every second, so it goes first; hours after its last ingest come from the
    screen's own answers.

    Args:
        ledger: from the ledger, in stretches of `step` seconds.
        seen: from the screen's own answers.
        now: epoch seconds; the last stretch contains it.
        hours: length of the whole time.
        step: seconds of a stretch: an hour or a day.
    """
    last = int(now) // step * step
    begins = tuple(range(last - (hours * HOUR // step - 1) * step, last + 1, step))
    by_begin = {int(use.begin) // step * step: use for use in ledger}
    seen_by_begin: dict[int, list[SeenHour]] = {}
    for hour in seen:
        seen_by_begin.setdefault(hour.begin // step * step, []).append(hour)
    held = [_held(by_begin.get(begin), seen_by_begin.get(begin, ())) for begin in begins]
    used = [by_begin[begin].used if begin in by_begin else None for begin in begins]
    total: Counter[str] = Counter()
    for found in held:
        total.update(found or {})
    return GpuCurve(
        begins=begins,
        seconds=step,
        held={
            name: tuple(None if found is None else found.get(name, 0.0) for found in held)
            for name in sorted(total, key=lambda name: (-total[name], name))
        },
        used=tuple(None if each is None else sum(each.values()) for each in used),
        there=tuple(
            _average([sum(hour.there.values()) for hour in seen_by_begin.get(begin, ())
                      if hour.nodes])
            for begin in begins
        ),
        wanted=tuple(
            _average([hour.wanted for hour in seen_by_begin.get(begin, ())
                      if hour.wanted is not None])
            for begin in begins
        ),
    )  # fmt: skip


def _held(use: HeldGpus | None, hours: Sequence[SeenHour]) -> Mapping[str, float] | None:
    if use is not None:
        return use.held
    counted = [hour.held for hour in hours if hour.nodes]
    if not counted:
        return None
    return {
        name: sum(each.get(name, 0.0) for each in counted) / len(counted)
        for name in {name for each in counted for name in each}
    }


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
