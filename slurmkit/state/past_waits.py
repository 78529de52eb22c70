"""How long earlier jobs waited, by kind of job, and the Protocol of plugins that know it."""

from __future__ import annotations

import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, Protocol, cast

import msgspec

from slurmkit.config.plugins import OWN_DISTRIBUTION, plugins
from slurmkit.errors import BrokenPlugin, NoLedger, SlurmkitError
from slurmkit.formats.display import format_distance, format_number, format_time
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.cache import cluster_key, load_cached, save_cached

DAYS = 30
"""Days that past waits look back."""
FEWEST_JOBS = 20
"""Smallest number of jobs of one kind whose waits are reported."""

_SIZES = (1, 4, 8, 32)  # the largest of each class but the last: 1, 2-4, 5-8, 9-32, more
_LIMITS = (3600, 4 * 3600, 86400)  # seconds; likewise
# Times are written in minutes, hours or days, whichever has two digits (`format_distance`).
_STEPS = ((89 * 60, 60), (47 * 3600, 3600), (math.inf, 86400))
_CACHED_SECONDS = 3600.0  # waits of a month change slowly
_RETRY_SECONDS = 600.0  # until a source that had no answer is asked again
_DEADLINE = 5.0  # seconds that a plan waits for this optional information


class AmountClass(NamedTuple):
    """A class of sizes or of time limits, both ends included; no end for the largest."""

    least: int
    most: int | None


NO_GPUS = AmountClass(0, 0)


class JobKind(msgspec.Struct, frozen=True, kw_only=True):
    """What makes jobs wait alike; None stands for any.

    Attributes:
        partition: the partition they ran in.
        gpus: number of GPUs.
        qos: the QOS they ran under.
        gpu_type: type of their GPUs as Slurm counts them.
        nodes: number of nodes; only of jobs without GPUs.
        limit: seconds of the time limit; without one they are in the largest class.
    """

    partition: str
    gpus: AmountClass
    qos: str | None = None
    gpu_type: str | None = None
    nodes: AmountClass | None = None
    limit: AmountClass | None = None

    def wider(self) -> tuple[JobKind, ...]:
        """Return this kind and ever wider ones: of any limit, QOS and number, then of any type."""
        any_type = msgspec.structs.replace(self, gpu_type=None)
        return tuple(dict.fromkeys((*self._of_any_size(), *any_type._of_any_size())))  # noqa: SLF001 - also a JobKind

    def _of_any_size(self) -> Iterator[JobKind]:
        kind = self
        yield kind
        for left_out in ("limit", "qos", "nodes"):
            kind = msgspec.structs.replace(kind, **{left_out: None})
            yield kind
        if kind.gpus != NO_GPUS:  # jobs without GPUs wait for something else
            yield msgspec.structs.replace(kind, gpus=AmountClass(1, None))

    def describe(self) -> str:
        """Describe it: `with 2 to 4 a100 GPUs in partition gpu, QOS normal, limit up to 4 h`."""
        if self.gpus != NO_GPUS:
            noun = f"{self.gpu_type} GPU" if self.gpu_type else "GPU"
            what = f"with {_range(self.gpus, noun)}"
        else:
            what = f"on {_range(self.nodes, 'node')} without GPUs" if self.nodes else "without GPUs"
        qos = f", QOS {self.qos}" if self.qos else ""
        limit = f", time limit {_limits(self.limit)}" if self.limit else ""
        return f"{what} in partition {self.partition}{qos}{limit}"


class WaitsOfKind(msgspec.Struct, frozen=True, kw_only=True):
    """How long jobs of one kind waited, from when nothing of their own held them to their start.

    Attributes:
        jobs: how many started, at least; a source may round it down.
        half: seconds that half of them waited at most.
        nine_in_ten: seconds that nine in ten of them waited at most.
    """

    kind: JobKind
    jobs: int
    half: int
    nine_in_ten: int


class PastWaits(msgspec.Struct, frozen=True, kw_only=True):
    """What a source knows of the waits on one cluster.

    Attributes:
        kinds: those with at least `FEWEST_JOBS` jobs.
        begin: epoch seconds from which starts were counted.
        end: epoch seconds up to which the source knows of starts.
        source: name of the plugin.
        only_user: whose jobs these are, if the source knows no others; else empty.
        problem: why nothing is known; empty when something is, and where there is no source.
        asked: epoch seconds at which the source was asked.
    """

    kinds: tuple[WaitsOfKind, ...] = ()
    begin: int = 0
    end: int = 0
    source: str = ""
    only_user: str = ""
    problem: str = ""
    asked: float = 0

    def find(self, kind: JobKind) -> WaitsOfKind | None:
        """Return the waits of this kind of job, or of the next wider kind that is known."""
        known = {each.kind: each for each in self.kinds}
        return next((known[each] for each in kind.wider() if each in known), None)

    def describe(self, kind: JobKind) -> str:
        """Describe how long jobs like one waited; empty where no source knows past waits."""
        if self.problem:
            return f"unknown: {self.problem}"
        if not self.source:
            return ""
        whose = f", only jobs of {self.only_user}" if self.only_user else ""
        when = f"from {_day(self.begin)} to {format_time(self.end)} ({self.source}{whose})"
        found = self.find(kind)
        if found is None:
            return f"unknown: too few jobs like this started {when}"
        half, nine = _at_most(found.half), _at_most(found.nine_in_ten)
        return (
            f"half up to {half}, nine in ten up to {nine}: {format_number(found.jobs)} or more jobs"
            f" {found.kind.describe()} that started {when}"
        )


class PastWaitReader(Protocol):
    """A source of past waits. The entry point names the class, called without arguments."""

    def read_past_waits(self, cluster: str) -> PastWaits:
        """Read how long the jobs of a cluster waited that started in the last `DAYS` days.

        Raises:
            NoLedger: when there is no ledger here.
            SlurmkitError: when the source cannot be read.
        """
        ...


def job_kind(
    partition: str, qos: str | None, tres: Mapping[str, int], seconds: int | None
) -> JobKind:
    """Return the kind of a job.

    Args:
        partition: it starts in.
        qos: it runs under.
        tres: of the whole job: `node`, `gres/gpu`, `gres/gpu:TYPE`.
        seconds: its time limit; None when it has none.
    """
    typed = {name: n for name, n in tres.items() if name.startswith("gres/gpu:")}
    gpus = max(tres.get("gres/gpu", 0), sum(typed.values()))
    return JobKind(
        partition=partition,
        gpus=_span(gpus, _SIZES) if gpus else NO_GPUS,
        qos=qos,
        gpu_type=next(iter(typed)).removeprefix("gres/gpu:") if len(typed) == 1 else None,
        nodes=None if gpus else _span(max(tres.get("node", 1), 1), _SIZES),
        limit=_span(seconds, _LIMITS)
        if seconds is not None
        else AmountClass(_LIMITS[-1] + 1, None),
    )


def _span(value: int, ends: tuple[int, ...]) -> AmountClass:
    """Return the class that holds a value of at least 1."""
    least = 1
    for end in ends:
        if value <= end:
            return AmountClass(least, end)
        least = end + 1
    return AmountClass(least, None)


def load_past_waits(slurm: SlurmCommands, cluster: str) -> PastWaits:
    """Load the past waits of a cluster from the cache, or ask the first source that knows them.

    A source that does not answer within some seconds is asked again after some minutes. A
    stand-in for Slurm has no past waits.
    """
    key = cluster_key(slurm)
    if key is None:
        return PastWaits()
    if named := os.environ.get("SLURMKIT_DB"):  # another ledger than usual
        key = f"{key}-{zlib.crc32(named.encode()):08x}"
    copy = load_cached("past-waits", key, PastWaits)
    if copy is not None and -60 < time.time() - copy.asked < _cache_seconds(copy):
        return copy
    found: list[PastWaits] = []
    asking = threading.Thread(target=lambda: found.append(_read(cluster)), daemon=True)
    asking.start()
    asking.join(_DEADLINE)
    fresh = found[0] if found else PastWaits(problem=f"no answer within {_DEADLINE:g} s")
    fresh = msgspec.structs.replace(fresh, asked=time.time())
    save_cached("past-waits", key, fresh)
    return fresh


def _cache_seconds(copy: PastWaits) -> float:
    return _CACHED_SECONDS if copy.kinds else _RETRY_SECONDS


def _read(cluster: str) -> PastWaits:
    problems = []
    for name, plugin in plugins("past_waits").items():
        try:
            reader = cast("Callable[[], PastWaitReader]", plugin.load())()
            found = reader.read_past_waits(cluster)
        except NoLedger:
            continue
        except BrokenPlugin as error:
            if plugin.distribution != OWN_DISTRIBUTION:  # else the extra is not installed
                problems.append(str(error))
        except SlurmkitError as error:
            problems.append(f"{name}: {error}")
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            problems.append(f"{plugin.title}: {type(error).__name__}: {error}")
        else:
            if not found.problem:
                return msgspec.structs.replace(found, source=name)
            problems.append(f"{name}: {found.problem}")
    return PastWaits(problem="; ".join(problems))


def _day(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).astimezone().strftime("%Y-%m-%d")


def _length(seconds: int) -> str:
    return format_distance(seconds).removeprefix("in ")


def _at_most(seconds: int) -> str:
    """Write a time rounded up, so that it was not exceeded: `2 min` for 61 seconds."""
    step = next(size for most, size in _STEPS if seconds <= most)
    return _length(max(-(-seconds // step), 1) * step)


def _range(span: AmountClass, noun: str) -> str:
    if span.most is None:
        return f"{span.least} or more {noun}s"
    if span.least == span.most:
        return f"{span.most} {noun}{'' if span.most == 1 else 's'}"
    return f"{span.least} to {span.most} {noun}s"


def _limits(span: AmountClass) -> str:
    if span.most is None:
        return f"above {_length(span.least)}"
    least = "" if span.least == 1 else f"{_length(span.least)} to "
    return f"{least or 'up to '}{_length(span.most)}"
