"""Answers composed from several Slurm commands, the ledger, or the doctor."""

from __future__ import annotations

import time
from collections import Counter
from types import ModuleType
from typing import Any

import msgspec

from slurmkit.cluster.cluster import Cluster
from slurmkit.config.extras import missing_extra
from slurmkit.doctor.case import Diagnosis
from slurmkit.errors import LedgerError, MissingExtra, Refused
from slurmkit.state.arrays import count_tasks
from slurmkit.state.fairshare import FairshareRow, PriorityFactors, read_factors, read_shares
from slurmkit.state.nodes import read_nodes

_DAYS = 30
_DAYS_BY_HOUR = 3


class FairshareAnswer(msgspec.Struct, frozen=True):
    """Fairshare of all accounts, and the priority factors of my pending jobs.

    Attributes:
        factors: priority factors of my pending jobs, highest priority first.
        without_factors: why the factors are unknown; empty when they are known.
        half_life: PriorityDecayHalfLife as slurm.conf has it; empty while unknown.
        taken: epoch seconds at which Slurm was asked.
        reset: PriorityUsageResetPeriod; empty while unknown.
    """

    rows: tuple[FairshareRow, ...]
    factors: tuple[PriorityFactors, ...]
    without_factors: str
    half_life: str
    taken: float
    reset: str = ""


class LedgerUsage(msgspec.Struct, frozen=True):
    """GPU-hours of this month and the last one, as in `slurmkit report usage`.

    Attributes:
        rows: rows of a report by month, PI and user.
        budgets: rows of `report budget` that this person may see.
        notes: remarks on the report, with the age of the data.
        taken: epoch seconds at which the report was made.
    """

    rows: tuple[dict[str, Any], ...]
    budgets: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    taken: float


class CurrentUse(msgspec.Struct, frozen=True):
    """Number of GPUs and CPUs that exist and are allocated at this moment.

    Attributes:
        gpus: number of GPUs by type; the key of untyped GPUs is "".
        gpus_held: number allocated to jobs, by type.
        gpus_wanted: number that pending jobs request; None if this Slurm release does not say.
    """

    gpus: dict[str, int]
    gpus_held: dict[str, int]
    gpus_wanted: int | None
    cpus: int
    cpus_held: int


class Utilization(msgspec.Struct, frozen=True):
    """GPU-hours of the last days, with the GPUs and CPUs of this moment.

    Attributes:
        rows: rows of a usage report by one dimension.
        by: that dimension: `day`, `hour`, `gpu-type`, `partition` or `account`.
        days: number of days the report covers.
        without_history: why there are no rows; empty when there are.
        taken: epoch seconds.
    """

    now: CurrentUse
    rows: tuple[dict[str, Any], ...]
    by: str
    days: float
    without_history: str
    taken: float


class ClusterHealth(msgspec.Struct, frozen=True):
    """What `slurmkit doctor` finds: current activity and settings."""

    rows: tuple[Diagnosis, ...]
    taken: float


def read_fairshare(cluster: Cluster, me: str) -> FairshareAnswer:
    """Read fairshare and priority factors from slurmctld.

    Raises:
        SlurmError: when it does not answer.
    """
    shares = read_shares(cluster.slurm, everybody=True)
    config = cluster.capabilities().config
    try:
        factors, missing = read_factors(cluster.slurm, me), ""
    except Refused as error:  # another priority plugin
        factors, missing = (), str(error)
    half_life = config.get("PriorityDecayHalfLife", "")
    reset = config.get("PriorityUsageResetPeriod", "")
    return FairshareAnswer(shares.rows, factors, missing, half_life, shares.taken, reset)


def read_usage() -> LedgerUsage:
    """Read GPU-hours from the ledger: the site's (through its service) or the person's own.

    Raises:
        LedgerError: when the ledger cannot be read.
        MissingExtra: when the ledger is not installed.
    """
    read = _import_ledger()
    now = time.time()
    with read.ledger() as ledger:
        report = read.usage(ledger, _first_of_last_month(now), by=["month", "pi", "user"])
        budgets = read.budget(ledger)
    meta = report.meta
    age = "never ingested" if meta.data_age is None else f"ingested {meta.data_age:.0f} s before"
    notes = (f"{meta.source}; {age}", *meta.notes)
    return LedgerUsage(tuple(report.rows), tuple(budgets.rows), notes, now)


def _import_ledger() -> ModuleType:
    """Return `slurmkit_accounting.read`.

    Raises:
        MissingExtra: when the accounting extra is not installed.
    """
    try:
        from slurmkit_accounting import read  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "", "accounting", "the ledger of GPU-hours") from error
    return read


def read_utilization(cluster: Cluster, by: str) -> Utilization:
    """Read current use from slurmctld, and the GPU-hours of the last days from the ledger.

    Raises:
        SlurmError: when slurmctld does not answer. A missing ledger is no error.
    """
    taken = time.time()
    now = _current_use(cluster)
    rows: tuple[dict[str, Any], ...] = ()
    missing = ""
    days = _DAYS_BY_HOUR if by == "hour" else _DAYS
    begin = int(taken - days * 86400) // 86400 * 86400
    try:
        read = _import_ledger()
        with read.ledger() as ledger:
            first = time.strftime("%Y-%m-%d", time.gmtime(begin))
            found = read.usage(ledger, first, by=[by], timezone="UTC").rows
            # The ledger's columns are spelt with an underscore: `gpu_type`.
            rows = tuple({**row, by: row[by.replace("-", "_")]} for row in found)
    except (LedgerError, MissingExtra) as error:
        missing = str(error)
    return Utilization(now, rows, by, (taken - begin) / 86400, missing, taken)


def _current_use(cluster: Cluster) -> CurrentUse:
    """Count GPUs and CPUs of all nodes, and those that pending jobs request."""
    nodes = read_nodes(cluster.slurm).rows
    queue = cluster.queue().rows
    waiting = [row for row in queue if row.waits]
    gpus: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for node in nodes:
        for gres in node.gpus:
            gpus[gres.type or ""] += gres.total
            held[gres.type or ""] += gres.used
    without_tres = any("=" not in row.tres for row in waiting)
    wanted = None if without_tres else sum(row.gpus * count_tasks(row) for row in waiting)
    cpus = sum(node.cpus for node in nodes), sum(node.cpus_allocated for node in nodes)
    return CurrentUse(dict(gpus), dict(held), wanted, *cpus)


def _first_of_last_month(now: float) -> str:
    today = time.localtime(now)
    year, month = (today.tm_year, today.tm_mon - 1) if today.tm_mon > 1 else (today.tm_year - 1, 12)
    return f"{year}-{month:02}-01"


def read_health(cluster: Cluster) -> ClusterHealth:
    """Run all checks of `slurmkit doctor`, also those of current activity."""
    from slurmkit.doctor import activity, checks  # noqa: PLC0415 - much of it, seldom used

    now = time.time()
    return ClusterHealth(
        tuple(checks.run_checks(cluster.slurm, (*activity.CHECKS, *checks.CHECKS))), now
    )
