"""What a run adds to usage: the rule for one run and one window, in plain Python.

The usage tables hold the same for many runs at once; `bins_numpy` makes their rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from slurmkit.formats.memory import parse_mib
from slurmkit.formats.tres import gpu_types, parse_tres
from slurmkit_accounting.ledger.schema.usage import SUMS

NO_GPU = "-"
UNKNOWN_UID = -1
# Numbers of sacct beyond these are wrong measurements, and unknown: RAPL counters that wrapped, "no
# value" printed as a number. Sums of what is believed stay far below 2^63, see `refuse_overflow`.
# One run never used or held this much of anything, in milliseconds or MiB-seconds.
IMPLAUSIBLE_AMOUNT = 2**55
# No node takes 20 kilowatts, or has as many CPUs or MiB. The largest machines take 40 megawatts.
NODE_MILLIWATTS = 20_000_000
NODE_CPUS = 2**14
NODE_MIB = 2**27
MOST_JOULES = 2**45
MOST_MILLIWATTS = 2**37
_MOST_MEMORY = 2**34  # MiB of one run


class UsageRun(NamedTuple):
    """The part of a run that its usage depends on; the fields are columns of table `runs`.

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
    gpu_energy_joules: int | None = None
    era: int = 0


class UsageKey(NamedTuple):
    """What a report can group usage by: the columns of table `usage_keys` without its id."""

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


class AllocatedTres(NamedTuple):
    """Memory and GPUs of an AllocTRES text.

    Attributes:
        mem_mib: whole MiB, rounded down; 0 for no amount or an absurd one.
        gpus: GPUs by type, sorted; `shard` and `mps` only if there are no GPUs.
    """

    mem_mib: int
    gpus: tuple[tuple[str, int], ...]


class Eras:
    """The times at which anything about people changed; between two of them lies one era."""

    def __init__(self, times: Iterable[int]) -> None:
        self._times = sorted({0, *times})

    def of(self, submit: int) -> int:
        """Return the era of a run submitted at a time."""
        return self._times[max(bisect_right(self._times, submit) - 1, 0)]

    def each(self, submits: Sequence[int]) -> Sequence[int]:
        """Return the eras of many runs."""
        return [0] * len(submits) if len(self._times) == 1 else list(map(self.of, submits))


def ever_held_resources(run: UsageRun) -> bool:
    """Return whether a run ever held resources.

    Old releases print a Start even for a run that was cancelled before it started.
    """
    return run.start is not None and bool(run.cpus or run.gpus or run.nodes)


@lru_cache(maxsize=65536)
def parse_alloc_tres(text: str) -> AllocatedTres:
    """Parse an AllocTRES text."""
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
    mem, nodes = parse_mebibytes(parts.get("mem", "")) or 0, parts.get("node", "")
    if nodes.isdecimal() and mem > max(int(nodes), 1) * NODE_MIB:
        mem = 0
    return AllocatedTres(mem, tuple(gpus))


def parse_mebibytes(text: str) -> int | None:
    """Parse an amount of memory (`62.50G`, `1024K`, `4096`: MiB) as whole MiB, rounded down.

    Returns:
        None for a text that is no amount, and for an absurd amount.
    """
    amount = parse_mib(text, rounding="down")
    return amount if amount is not None and amount <= _MOST_MEMORY else None


def make_usage_key(run: UsageRun, gpu_type: str) -> UsageKey:
    """Return the usage key of a run for one type of GPU."""
    uid = UNKNOWN_UID if run.uid is None else run.uid
    return UsageKey(
        run.cluster_id, run.user, uid, run.account, run.partition, run.qos, run.state,
        bool(run.redone), gpu_type, run.era,
    )  # fmt: skip


def usage_in_window(
    run: UsageRun, begin: int, end: int
) -> Iterator[tuple[UsageKey, tuple[int, ...]]]:
    """Compute what a run adds to the window [begin, end), once for each type of GPU it held.

    For a run without an end, set `run.end` to the time up to which it counts.

    Yields:
        The usage key, and a number for each of `SUMS`. All but the GPUs are in the first item.
    """
    if not ever_held_resources(run) or run.start is None or run.end is None or run.end < run.start:
        return
    length = run.end - run.start
    seconds = max(min(run.end, end) - max(run.start, begin), 0)
    began = begin <= run.start < end
    if not (seconds or (began and not length)):
        return
    done = begin < run.end <= end or not length
    used = measured_use(run, parse_alloc_tres(run.alloc_tres)) if done else (0,) * 7
    first, *others = held_per_second(run)
    key, rates = first
    held = [rate * seconds for rate in rates[:-1]]
    wait = max(run.start - run.submit, 0) if began else 0
    yield key, (*held, _energy(run, length, begin, end), 1, int(began), wait, *used)
    for key, rates in others:
        if seconds:
            yield key, (rates[0] * seconds, *((0,) * (len(SUMS) - 1)))


def held_per_second(run: UsageRun) -> Iterator[tuple[UsageKey, tuple[int, ...]]]:
    """Yield what a run holds, once for each type of GPU.

    Yields:
        The usage key, and a number for each of `RATES`. All but the GPUs are in the first item.
    """
    tres = parse_alloc_tres(run.alloc_tres)
    (kind, count), *others = tres.gpus or ((NO_GPU, 0),)
    power, energy = find_power(run)
    metered = run.nodes if energy else 0
    rest = (run.cpus, run.nodes, 1, tres.mem_mib, int(not run.nodes), metered, power)
    yield make_usage_key(run, kind), (count, *rest)
    for kind, count in others:
        yield make_usage_key(run, kind), (count, *((0,) * len(rest)))


def measured_use(run: UsageRun, tres: AllocatedTres) -> tuple[int, ...]:
    """Return CPU, memory and GPU, each used and held by the whole run, and the joules of its GPUs.

    What was not measured is 0. So are the joules if Slurm measured the energy of the run, which has
    that of the GPUs in it.
    """
    length = (run.end or 0) - (run.start or 0)
    gpus = sum(count for _, count in tres.gpus) if run.gpus else 0
    nodes = max(run.nodes, 1)
    cpu_ms = _at_most(run.cpu_used_ms, nodes * NODE_CPUS * length * 1000)
    mem = _at_most(run.mem_peak_mib, nodes * NODE_MIB)
    return (
        *_plausible_use(cpu_ms, run.cpus * length * 1000),
        *_plausible_use(None if mem is None else mem * length, tres.mem_mib * length),
        *_plausible_use(
            None if run.gpu_used_permille is None else run.gpu_used_permille * gpus * length,
            gpus * length * 1000,
        ),
        _plausible_joules(run),
    )


def _plausible_joules(run: UsageRun) -> int:
    joules = run.gpu_energy_joules or 0
    return joules if not (run.energy_joules or 0) > 0 and 0 <= joules < MOST_JOULES else 0


def _at_most(used: int | None, most: int) -> int | None:
    return used if used is not None and used <= most else None


def _plausible_use(used: int | None, held: int) -> tuple[int, int]:
    """Return used and held; zeros if `used` was not measured or a number is absurd."""
    if used is None or not 0 < held < IMPLAUSIBLE_AMOUNT or used >= IMPLAUSIBLE_AMOUNT:
        return 0, 0
    return used, held


def find_power(run: UsageRun) -> tuple[int, int]:
    """Return the milliwatts of a run, and the millijoules of the whole run.

    The power is rounded down; what that leaves of the energy counts at the end of the run. Both are
    0 if the energy is unknown: not measured, or more than the nodes can take.
    """
    length, joules = (run.end or 0) - (run.start or 0), run.energy_joules or 0
    milliwatts = joules * 1000 // length if length > 0 else 0
    most = min(max(run.nodes, 1) * NODE_MILLIWATTS, MOST_MILLIWATTS)
    if length <= 0 or joules >= MOST_JOULES or milliwatts >= most:
        return 0, 0
    return milliwatts, joules * 1000


def _energy(run: UsageRun, length: int, begin: int, end: int) -> int:
    """Return the millijoules of a window, so that all windows add up exactly to the run."""
    start, (milliwatts, whole) = run.start or 0, find_power(run)

    def until(edge: int) -> int:
        passed = edge - start
        return whole if passed >= length else milliwatts * max(passed, 0)

    return until(end) - until(begin)


def _without_totals(parts: dict[str, int]) -> dict[str, int]:
    """Subtract the typed parts (`shard:a100`) from the total `shard`; the untyped rest is left."""
    untyped = dict(parts)
    for name in ("shard", "mps"):
        typed = sum(count for kind, count in parts.items() if kind.startswith(f"{name}:"))
        if name in untyped:
            untyped[name] -= typed
    return untyped


assert SUMS[0] == "gpu_seconds" and len(SUMS) == 18  # noqa: S101, PT018  `usage_in_window` relies on the order
