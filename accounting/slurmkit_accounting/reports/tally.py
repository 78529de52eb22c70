"""Add usage up into the columns of a report, in whole numbers and fractions until the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from operator import add
from typing import NamedTuple, TypeAlias

from slurmkit_accounting.bins import NO_GPU, Key
from slurmkit_accounting.held import Sums
from slurmkit_accounting.query import AT, CARRIED
from slurmkit_accounting.reports.model import Column, Value
from slurmkit_accounting.reports.periods import Part
from slurmkit_accounting.reports.rates import Cost, Kind, Rates
from slurmkit_accounting.schema import SUMS

OUTCOMES = (
    "completed", "failed", "timeout", "cancelled", "preempted", "out_of_memory", "node_fail",
    "other", "running",
)  # fmt: skip
_KEPT = frozenset(("completed", "running"))
# States of runs that go on; whatever else is not an outcome by name is `other`.
_GOING_ON = frozenset(
    "RUNNING SUSPENDED PENDING RESIZING COMPLETING CONFIGURING STAGE_OUT SIGNALING STOPPED".split()
)
_HOURS = ("cpu", "node", "wall")
COLUMNS = (
    Column("jobs", "count"),
    Column("users", "count"),
    Column("gpu_hours", "hours"),
    *(Column(f"{name}_hours", "hours") for name in _HOURS),
    Column("memory_gib_hours", "hours"),
    Column("wait_hours", "hours"),
    *(Column(f"gpu_hours_{outcome}", "hours") for outcome in OUTCOMES),
    Column("gpu_hours_lost", "hours"),
    *(Column(f"{name}_efficiency", "share") for name in ("cpu", "memory", "gpu")),
    Column("energy_kwh", "number"),
    Column("energy_kwh_estimated", "number"),
    Column("cost", "money"),
    Column("cloud_cost", "money"),
)
_ZERO = Fraction(0)
_NOTHING = (0,) * len(SUMS)
_HOUR = 3600
_GIB = 1024
_KWH = 3_600_000  # joules


class _Detail(NamedTuple):
    """What must be told apart until weights and prices are applied."""

    gpu_type: str
    partition: str
    state: str
    redone: bool
    part: int


Details: TypeAlias = dict[_Detail, Sums]


class Tally:
    """What one row of a report is made of."""

    def __init__(self) -> None:
        self._details: Details = {}
        self.users: set[str] = set()
        self.jobs = 0
        self.tracked = False

    def add(self, key: Key, part: int, sums: Sums, *, first: bool) -> None:
        """Add usage of one key in one part of the window.

        Args:
            key: its.
            part: place of the part.
            sums: as `query.usage` gives them.
            first: whether the row has no part before it, so that runs going on into it are new.
        """
        detail = _Detail(key.gpu_type, key.partition, key.state, key.redone, part)
        there = self._details.get(detail)
        self._details[detail] = sums if there is None else tuple(map(add, there, sums))
        self.users.add(key.user)
        self.jobs += sums[AT["started"]] + (sums[CARRIED] if first else 0)

    def gpu_hours(self, rates: Rates) -> Fraction:
        """Whole GPUs times hours."""
        return sum((hours for _, _, hours in self._gpu_hours(rates)), _ZERO)

    def values(self, rates: Rates, parts: list[Part]) -> dict[str, Value]:
        """The values of `COLUMNS`."""
        total = tuple(map(sum, zip(*self._details.values(), _NOTHING, strict=True)))
        energy = total[AT["energy_joules"]]
        return {
            "jobs": self.jobs,
            "users": len(self.users),
            **self._gpu_columns(rates),
            **{f"{name}_hours": total[AT[f"{name}_seconds"]] / _HOUR for name in _HOURS},
            "memory_gib_hours": total[AT["mem_mib_seconds"]] / (_HOUR * _GIB),
            "wait_hours": total[AT["waited_seconds"]] / _HOUR,
            "cpu_efficiency": _part_of(total, "cpu_used_ms", "cpu_measured_ms"),
            "memory_efficiency": _part_of(
                total, "mem_used_mib_seconds", "mem_measured_mib_seconds"
            ),
            "gpu_efficiency": _part_of(total, "gpu_used_ms", "gpu_measured_ms"),
            "energy_kwh": energy / _KWH if energy else None,
            "energy_kwh_estimated": _number(self._estimated(rates)),
            **self._money(rates, parts),
        }

    def _gpu_columns(self, rates: Rates) -> dict[str, Value]:
        """GPU-hours, all and by outcome; unknown where no cluster of the row tracks GPUs."""
        names = ("gpu_hours", *(f"gpu_hours_{one}" for one in OUTCOMES), "gpu_hours_lost")
        if not self.tracked:
            return dict.fromkeys(names)
        found: dict[str, Fraction] = defaultdict(Fraction)
        for detail, _, hours in self._gpu_hours(rates):
            outcome = outcome_of(detail.state)
            lost = outcome not in _KEPT and not detail.redone
            for name in ("gpu_hours", f"gpu_hours_{outcome}", *(["gpu_hours_lost"] * lost)):
                found[name] += hours
        return {name: float(found[name]) for name in names}

    def _gpu_hours(self, rates: Rates) -> Iterator[tuple[_Detail, Kind, Fraction]]:
        for detail, sums in self._details.items():
            kind = rates.kind(detail.gpu_type, detail.partition)
            yield detail, kind, (kind.weight or _ZERO) * sums[AT["gpu_seconds"]] / _HOUR

    def _estimated(self, rates: Rates) -> Fraction | None:
        """What the GPUs drew if they all were under load."""
        whole = _ZERO
        for detail, sums in self._details.items():
            if sums[AT["gpu_seconds"]]:
                kilowatts = rates.kilowatts(rates.kind(detail.gpu_type, detail.partition))
                if kilowatts is None:
                    return None
                whole += kilowatts * sums[AT["gpu_seconds"]] / _HOUR
        return whole or None

    def _money(self, rates: Rates, parts: list[Part]) -> dict[str, Value]:
        """Unknown as a whole where the price of any part of it is."""
        if rates.currency is None or not self.tracked:
            return {"cost": None, "cloud_cost": None}
        sums: list[Fraction | None] = [_ZERO, _ZERO]
        for amount, price in self._priced(rates, parts):
            for place, each in enumerate(price):
                there = sums[place]
                sums[place] = None if each is None or there is None else there + amount * each
        return {"cost": _number(sums[0]), "cloud_cost": _number(sums[1])}

    def _priced(self, rates: Rates, parts: list[Part]) -> Iterator[tuple[Fraction, Cost]]:
        """Hours, and what one of them costs."""
        for detail, sums in self._details.items():
            day = parts[detail.part].day
            if detail.gpu_type != NO_GPU and sums[AT["gpu_seconds"]]:
                kind = rates.kind(detail.gpu_type, detail.partition)
                yield Fraction(sums[AT["gpu_seconds"]], _HOUR), rates.gpu_hour(kind, day)
            if rates.of_cpus and sums[AT["cpu_seconds"]]:
                yield Fraction(sums[AT["cpu_seconds"]], _HOUR), rates.cpu_hour(day)
            if rates.of_memory and sums[AT["mem_mib_seconds"]]:
                hours = Fraction(sums[AT["mem_mib_seconds"]], _HOUR * _GIB)
                yield hours, rates.gib_hour(day)


def outcome_of(state: str) -> str:
    """What became of a run, one of `OUTCOMES`."""
    if state in _GOING_ON:
        return "running"
    name = state.lower()
    return name if name in OUTCOMES[:-2] else "other"


def _part_of(sums: Sums, used: str, held: str) -> float | None:
    return sums[AT[used]] / sums[AT[held]] if sums[AT[held]] else None


def _number(amount: Fraction | None) -> float | None:
    return None if amount is None else float(amount)
