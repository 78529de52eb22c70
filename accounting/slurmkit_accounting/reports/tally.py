"""Add up usage into the columns of a report; exact integers and fractions until the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from operator import add
from typing import NamedTuple, TypeAlias

from slurmkit_accounting.calendar import WindowPart
from slurmkit_accounting.ledger.schema.usage import SUMS
from slurmkit_accounting.reports.model import Column, Value
from slurmkit_accounting.reports.rates import Cost, Rates
from slurmkit_accounting.usage.bins import NO_GPU, UsageKey
from slurmkit_accounting.usage.partial import Sums
from slurmkit_accounting.usage.query import CARRIED, SUM_INDEX

OUTCOMES = (
    "completed", "failed", "timeout", "cancelled", "preempted", "out_of_memory", "node_fail",
    "other", "running",
)  # fmt: skip
_NOT_LOST = frozenset(("completed", "running"))
# States of runs without an end. Any other state that is not an outcome by name is `other`.
OPEN_STATES = frozenset(
    "RUNNING SUSPENDED PENDING RESIZING COMPLETING CONFIGURING STAGE_OUT SIGNALING STOPPED".split()
)
_HOURS = ("cpu", "node", "wall")
COLUMNS = (
    Column("jobs", "count", adds_up=True),
    Column("users", "count"),
    Column("gpu_hours", "hours", adds_up=True),
    *(Column(f"{name}_hours", "hours", adds_up=True) for name in _HOURS),
    Column("memory_gib_hours", "hours", adds_up=True),
    Column("wait_hours", "hours", adds_up=True),
    *(Column(f"gpu_hours_{outcome}", "hours", adds_up=True) for outcome in OUTCOMES),
    Column("gpu_hours_lost", "hours", adds_up=True),
    Column("gpu_hours_used", "hours", adds_up=True),
    Column("gpu_hours_measured", "hours", adds_up=True),
    *(Column(f"{name}_efficiency", "share") for name in ("cpu", "memory", "gpu")),
    Column("energy_kwh", "number", adds_up=True),
    Column("energy_measured", "share", known_of="energy_kwh"),
    Column("gpu_energy_kwh", "number", adds_up=True),
    Column("energy_kwh_estimated", "number", adds_up=True),
    Column("co2_kg", "number", adds_up=True),
    Column("cost", "money", adds_up=True),
    Column("cloud_cost", "money", adds_up=True),
)
_ZERO = Fraction(0)
_NOTHING = (0,) * len(SUMS)
_NODELESS_SECONDS = SUM_INDEX["nodeless_seconds"]
_GPU_JOULES = SUM_INDEX["gpu_joules"]
_MEASURED = ("gpu_hours_used", "gpu_hours_measured")
_HOUR = 3600
_GIB = 1024
_KWH = 3_600_000_000  # millijoules


class _TallyKey(NamedTuple):
    """Attributes of usage that weights, prices and outcomes depend on."""

    gpu_type: str
    partition: str
    state: str
    redone: bool
    part: int


Details: TypeAlias = dict[_TallyKey, Sums]


class Tally:
    """The usage of one row of a report.

    Attributes:
        users: user names with usage; `add` leaves them to the caller.
        jobs: number of runs.
        tracked: whether any cluster of the row tracks GPUs.
    """

    def __init__(self) -> None:
        self._details: Details = {}
        self.users: set[str] = set()
        self.jobs = 0
        self.tracked = False

    def add(self, key: UsageKey, part: int, sums: Sums, *, first: bool) -> None:
        """Add usage of one key in one part of the window.

        Args:
            key: the usage key.
            part: index of the part.
            sums: sums as `query_usage` returns them.
            first: whether no earlier part belongs to the row: then runs that began before this
                part count as jobs too.
        """
        detail = _TallyKey(key.gpu_type, key.partition, key.state, key.redone, part)
        there = self._details.get(detail)
        self._details[detail] = sums if there is None else tuple(map(add, there, sums))
        self.jobs += sums[SUM_INDEX["started"]] + (sums[CARRIED] if first else 0)

    def merge(self, other: Tally) -> None:
        """Add another row, of other usage; users of both count once."""
        for detail, sums in other._details.items():
            there = self._details.get(detail)
            self._details[detail] = sums if there is None else tuple(map(add, there, sums))
        self.jobs += other.jobs
        self.users |= other.users
        self.tracked = self.tracked or other.tracked

    @property
    def started(self) -> int:
        """The number of runs that started in the window."""
        return sum(sums[SUM_INDEX["started"]] for sums in self._details.values())

    @property
    def waited_seconds(self) -> int:
        """The time that those waited, summed."""
        return sum(sums[SUM_INDEX["waited_seconds"]] for sums in self._details.values())

    def gpu_hours(self, rates: Rates) -> Fraction:
        """Return the GPU-hours, in whole GPUs."""
        hours = _WeightedSeconds()
        for (gpu_type, partition, *_), seconds in self._gpu_seconds().items():
            hours.add(rates, gpu_type, partition, seconds)
        return hours.hours

    def values(self, rates: Rates, parts: list[WindowPart]) -> dict[str, Value]:
        """Return the values of `COLUMNS`."""
        total = tuple(map(sum, zip(*self._details.values(), _NOTHING, strict=True)))
        energy = total[SUM_INDEX["energy_millijoules"]]
        # Of a run in a file, the number of nodes may be unknown, and with it that of the whole row.
        nodes_known = not any(sums[_NODELESS_SECONDS] for sums in self._details.values())
        return {
            "jobs": self.jobs,
            "users": len(self.users),
            **self._gpu_columns(rates),
            **{f"{name}_hours": total[SUM_INDEX[f"{name}_seconds"]] / _HOUR for name in _HOURS},
            **({} if nodes_known else {"node_hours": None}),
            "memory_gib_hours": total[SUM_INDEX["mem_mib_seconds"]] / (_HOUR * _GIB),
            "wait_hours": total[SUM_INDEX["waited_seconds"]] / _HOUR,
            "cpu_efficiency": _ratio(total, "cpu_used_ms", "cpu_measured_ms"),
            "memory_efficiency": _ratio(total, "mem_used_mib_seconds", "mem_measured_mib_seconds"),
            "gpu_efficiency": _ratio(total, "gpu_used_ms", "gpu_measured_ms"),
            "energy_kwh": energy / _KWH if energy else None,
            "energy_measured": _share_measured(total) if nodes_known and energy else None,
            "gpu_energy_kwh": total[_GPU_JOULES] * 1000 / _KWH if total[_GPU_JOULES] else None,
            "energy_kwh_estimated": _as_float(self._estimated_energy(rates)),
            "co2_kg": _as_float(self._co2(rates, parts)),
            **self._money(rates, parts),
        }

    def _gpu_columns(self, rates: Rates) -> dict[str, Value]:
        """Return GPU-hours, in total and by outcome; None if no cluster of the row tracks GPUs."""
        names = (
            "gpu_hours",
            *(f"gpu_hours_{one}" for one in OUTCOMES),
            "gpu_hours_lost",
            *_MEASURED,
        )
        if not self.tracked:
            return dict.fromkeys(names)
        totals: dict[str, _WeightedSeconds] = defaultdict(_WeightedSeconds)
        for (gpu_type, partition, outcome, lost), seconds in self._gpu_seconds().items():
            for name in ("gpu_hours", f"gpu_hours_{outcome}", *(["gpu_hours_lost"] * lost)):
                totals[name].add(rates, gpu_type, partition, seconds)
        values: dict[str, Value] = dict.fromkeys(names, 0.0)
        values |= {name: float(each.hours) for name, each in totals.items()}
        return values | self._measured_gpu_hours(rates)

    def _measured_gpu_hours(self, rates: Rates) -> dict[str, Value]:
        """Return GPU-hours used, and held by the runs for which that is known; None if no run is.

        Both count in full where a run ends.
        """
        used_ms, measured_ms = _WeightedSeconds(), _WeightedSeconds()
        for detail, sums in self._details.items():
            of = (rates, detail.gpu_type, detail.partition)
            used_ms.add(*of, sums[SUM_INDEX["gpu_used_ms"]])
            measured_ms.add(*of, sums[SUM_INDEX["gpu_measured_ms"]])
        used, measured = used_ms.hours / 1000, measured_ms.hours / 1000
        if not measured:
            return dict.fromkeys(_MEASURED)
        return {"gpu_hours_used": float(used), "gpu_hours_measured": float(measured)}

    def _co2(self, rates: Rates, parts: list[WindowPart]) -> Fraction | None:
        """Return the kg of CO2 of all measured energy; None if a day has no factor."""
        total = _ZERO
        for detail, sums in self._details.items():
            energy = sums[SUM_INDEX["energy_millijoules"]] + sums[_GPU_JOULES] * 1000
            if energy:
                factor = rates.co2_per_kwh(parts[detail.part].day)
                if factor is None:
                    return None
                total += factor * energy / _KWH
        return total or None

    def _gpu_seconds(self) -> Mapping[tuple[str, str, str, bool], int]:
        """Return GPU-seconds by GPU type, partition, outcome, and whether the work was lost.

        Whole numbers are added up, and only their sums become fractions, which are slow.
        """
        found: dict[tuple[str, str, str, bool], int] = defaultdict(int)
        for detail, sums in self._details.items():
            lost = is_lost(detail.state, redone=detail.redone)
            of = (detail.gpu_type, detail.partition, run_outcome(detail.state), lost)
            found[of] += sums[SUM_INDEX["gpu_seconds"]]
        return found

    def _estimated_energy(self, rates: Rates) -> Fraction | None:
        """Estimate the energy of the GPUs under full load, in kWh; None if a type is unknown."""
        energy = _ZERO
        for detail, sums in self._details.items():
            if sums[SUM_INDEX["gpu_seconds"]]:
                kilowatts = rates.kilowatts(rates.kind(detail.gpu_type, detail.partition))
                if kilowatts is None:
                    return None
                energy += kilowatts * sums[SUM_INDEX["gpu_seconds"]] / _HOUR
        return energy or None

    def _money(self, rates: Rates, parts: list[WindowPart]) -> dict[str, Value]:
        """Return the costs; a cost is None if any price that it needs is unknown."""
        if rates.currency is None or not self.tracked:
            return {"cost": None, "cloud_cost": None}
        costs: list[Fraction | None] = [_ZERO, _ZERO]
        for hours, price in self._priced_hours(rates, parts):
            for place, per_hour in enumerate(price):
                cost = costs[place]
                costs[place] = None if per_hour is None or cost is None else cost + hours * per_hour
        return {"cost": _as_float(costs[0]), "cloud_cost": _as_float(costs[1])}

    def _priced_hours(
        self, rates: Rates, parts: list[WindowPart]
    ) -> Iterator[tuple[Fraction, Cost]]:
        """Yield hours (of a GPU, a CPU or a GiB of memory) and the price of one hour."""
        for detail, sums in self._details.items():
            day = parts[detail.part].day
            if detail.gpu_type != NO_GPU and sums[SUM_INDEX["gpu_seconds"]]:
                kind = rates.kind(detail.gpu_type, detail.partition)
                yield Fraction(sums[SUM_INDEX["gpu_seconds"]], _HOUR), rates.gpu_hour(kind, day)
            if rates.of_cpus and sums[SUM_INDEX["cpu_seconds"]]:
                yield Fraction(sums[SUM_INDEX["cpu_seconds"]], _HOUR), rates.cpu_hour(day)
            if rates.of_memory and sums[SUM_INDEX["mem_mib_seconds"]]:
                hours = Fraction(sums[SUM_INDEX["mem_mib_seconds"]], _HOUR * _GIB)
                yield hours, rates.gib_hour(day)


class _WeightedSeconds:
    """Seconds of GPUs by what they count as; only sums become fractions, which are slow."""

    def __init__(self) -> None:
        self._seconds: dict[Fraction, int] = {}

    def add(self, rates: Rates, gpu_type: str, partition: str, seconds: int) -> None:
        """Add seconds of a GPU type in a partition."""
        if not seconds:
            return
        weight = rates.kind(gpu_type, partition).weight or _ZERO
        self._seconds[weight] = self._seconds.get(weight, 0) + seconds

    @property
    def hours(self) -> Fraction:
        """Hours of whole GPUs."""
        weighted = (weight * seconds for weight, seconds in self._seconds.items())
        return sum(weighted, _ZERO) / _HOUR


def run_outcome(state: str) -> str:
    """Return the outcome of a run with a state, one of `OUTCOMES`."""
    if state in OPEN_STATES:
        return "running"
    name = state.lower()
    return name if name in OUTCOMES[:-2] else "other"


def is_lost(state: str, *, redone: bool) -> bool:
    """Return whether the GPU-hours of a run count as lost."""
    return run_outcome(state) not in _NOT_LOST and not redone


def _ratio(sums: Sums, used: str, held: str) -> float | None:
    return sums[SUM_INDEX[used]] / sums[SUM_INDEX[held]] if sums[SUM_INDEX[held]] else None


def _share_measured(sums: Sums) -> float | None:
    """Return the share of the node-hours whose energy is known; None for sums of corrections."""
    share = _ratio(sums, "metered_node_seconds", "node_seconds")
    # Time while suspended, which --suspended skip leaves out of the node-hours, was measured too.
    return min(share, 1.0) if share is not None and share >= 0 else None


def _as_float(amount: Fraction | None) -> float | None:
    return None if amount is None else float(amount)
