"""What a run adds to usage, split exactly at the edges of hours and days.

`contributions` is the rule, in words of plain Python. `bins_bulk` does the same for many runs at
once with numpy, which an ingest of millions of runs needs; a test holds them equal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from slurmkit.tres import gpu_types, parse_tres
from slurmkit_accounting.schema import SUMS

NO_GPU = "-"
UNKNOWN_UID = -1
# More than this, in seconds or milliseconds of whatever, was never used or held by one run.
ABSURD = 2**60
LONGEST = 2**31  # seconds of a run whose energy is believed
_MOST_MEMORY = 2**36  # MiB
_UNITS = {"K": -10, "M": 0, "G": 10, "T": 20, "P": 30}


class Held(NamedTuple):
    """All of a run that its usage depends on, named as the columns of `runs`.

    Attributes:
        era: the last time at or before `submit` at which anything about people changed.
    """

    cluster_id: int
    user: str
    uid: int | None
    account: str
    partition: str
    qos: str
    state: str
    submit: int
    start: int | None
    end: int | None
    nodes: int
    cpus: int
    gpus: int
    alloc_tres: str
    energy_joules: int | None
    redone: bool = False
    cpu_used_ms: int | None = None
    mem_peak_mib: int | None = None
    gpu_used_permille: int | None = None
    era: int = 0


class Key(NamedTuple):
    """What runs can be told apart by in a report; the columns of `usage_keys` but its number."""

    cluster_id: int
    user: str
    uid: int
    account: str
    partition: str
    qos: str
    state: str
    redone: bool
    gpu_type: str
    era: int


class Tres(NamedTuple):
    """What an AllocTRES text holds.

    Attributes:
        mem_mib: whole MiB, rounded down; 0 where it says none or an absurd amount.
        gpus: GPUs by type, sorted; parts (`shard`, `mps`) only where there are no GPUs.
    """

    mem_mib: int
    gpus: tuple[tuple[str, int], ...]


class Eras:
    """The times at which anything about people changed."""

    def __init__(self, times: Iterable[int]) -> None:
        self._times = sorted({0, *times})

    def of(self, submit: int) -> int:
        """The era of a run submitted then."""
        return self._times[max(bisect_right(self._times, submit) - 1, 0)]

    def each(self, submits: Sequence[int]) -> Sequence[int]:
        """The eras of many runs."""
        return [0] * len(submits) if len(self._times) == 1 else list(map(self.of, submits))


def counts(run: Held) -> bool:
    """Whether it ever held anything; older releases give a Start to a run cancelled before it."""
    return run.start is not None and bool(run.cpus or run.gpus or run.nodes)


@lru_cache(maxsize=65536)
def read_tres(text: str) -> Tres:
    """Read an AllocTRES text."""
    parts = parse_tres(text)
    held = gpu_types(text)
    if not any(held.values()):
        held = {
            name.removeprefix("gres/"): int(value)
            for name, value in parts.items()
            if name.startswith(("gres/shard", "gres/mps")) and value.isdigit()
        }
        held = _without_totals(held)
    gpus = sorted((kind, count) for kind, count in held.items() if count > 0)
    return Tres(mebibytes(parts.get("mem", "")) or 0, tuple(gpus))


def mebibytes(text: str) -> int | None:
    """Read an amount of memory as Slurm prints it (`62.50G`, `1024K`, `4096`: MiB), rounded down.

    None for what is no amount, or an absurd one.
    """
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "M")
    if unit not in _UNITS or not number.replace(".", "", 1).isdecimal():
        return None
    whole, _, fraction = number.partition(".")
    shift = _UNITS[unit]
    scaled = int(whole + fraction) << max(shift, 0) >> max(-shift, 0)
    amount = scaled // 10 ** len(fraction)
    return amount if amount <= _MOST_MEMORY else None


def key_of(run: Held, gpu_type: str) -> Key:
    """Its key, for what it held of one type of GPU."""
    uid = UNKNOWN_UID if run.uid is None else run.uid
    return Key(
        run.cluster_id, run.user, uid, run.account, run.partition, run.qos, run.state,
        bool(run.redone), gpu_type, run.era,
    )  # fmt: skip


def contributions(run: Held, width: int) -> Iterator[tuple[Key, int, tuple[int, ...]]]:
    """What a run that has ended adds to each bin of `width` seconds.

    Yields:
        Its key, the bin's begin, and a number for each of `SUMS`.
    """
    if not counts(run) or run.start is None or run.end is None:
        return
    last = max(run.end - 1, run.start) // width
    for place in range(run.start // width, last + 1):
        for key, sums in within(run, place * width, (place + 1) * width):
            yield key, place * width, sums


def within(run: Held, begin: int, end: int) -> Iterator[tuple[Key, tuple[int, ...]]]:
    """What a run adds to the window [begin, end), by type of GPU; see `Tres` and `SUMS`.

    `run.end` must be set; for one without an end, set it to the time up to which it counts.
    """
    if not counts(run) or run.start is None or run.end is None or run.end < run.start:
        return
    length = run.end - run.start
    seconds = max(min(run.end, end) - max(run.start, begin), 0)
    began = begin <= run.start < end
    if not (seconds or (began and not length)):
        return
    tres = read_tres(run.alloc_tres)
    kinds = tres.gpus or ((NO_GPU, 0),)
    done = begin < run.end <= end or not length
    used = measured(run, tres) if done else (0,) * 6
    rest = (
        run.cpus * seconds,
        run.nodes * seconds,
        seconds,
        tres.mem_mib * seconds,
        _energy(run, length, begin, end),
        1,
        int(began),
        max(run.start - run.submit, 0) if began else 0,
        *used,
    )
    yield key_of(run, kinds[0][0]), (kinds[0][1] * seconds, *rest)
    for kind, count in kinds[1:]:
        if seconds:
            yield key_of(run, kind), (count * seconds, *((0,) * len(rest)))


def measured(run: Held, tres: Tres) -> tuple[int, ...]:
    """CPU, memory and GPU: used and held by the whole run; zeros for what was not measured."""
    length = (run.end or 0) - (run.start or 0)
    gpus = sum(count for _, count in tres.gpus) if run.gpus else 0
    return (
        *_believed(run.cpu_used_ms, run.cpus * length * 1000),
        *_believed(None if run.mem_peak_mib is None else run.mem_peak_mib * length,
                   tres.mem_mib * length),
        *_believed(None if run.gpu_used_permille is None else run.gpu_used_permille * gpus * length,
                   gpus * length * 1000),
    )  # fmt: skip


def _believed(used: int | None, held: int) -> tuple[int, int]:
    if used is None or not 0 < held < ABSURD or used >= ABSURD:
        return 0, 0
    return used, held


def sane_energy(run: Held) -> int:
    """Joules of the whole run; 0 for what was not measured or cannot be."""
    length, joules = (run.end or 0) - (run.start or 0), run.energy_joules or 0
    return joules if 0 < length < LONGEST and joules < ABSURD else 0


def _energy(run: Held, length: int, begin: int, end: int) -> int:
    """Its share of the window, so that the shares of all windows add up exactly."""
    start, joules = run.start or 0, sane_energy(run)
    if not joules:
        return 0
    ends = (min(max(edge - start, 0), length) for edge in (end, begin))
    upper, lower = (joules * edge // length for edge in ends)
    return upper - lower


def _without_totals(parts: dict[str, int]) -> dict[str, int]:
    """`shard` is the total of `shard:a100` and its like; only what has no type is left of it."""
    left = dict(parts)
    for name in ("shard", "mps"):
        typed = sum(count for kind, count in parts.items() if kind.startswith(f"{name}:"))
        if name in left:
            left[name] -= typed
    return left


assert SUMS[0] == "gpu_seconds" and len(SUMS) == 15  # noqa: S101, PT018  the order used above
