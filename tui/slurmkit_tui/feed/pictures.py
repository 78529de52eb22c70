"""Answers that are put together from several sources."""

from __future__ import annotations

import time
from collections import Counter
from types import ModuleType
from typing import Any

import msgspec

from slurmkit.arrays import count
from slurmkit.cluster import Cluster
from slurmkit.doctor.model import Diagnosis
from slurmkit.errors import LedgerError, MissingExtra, Refused
from slurmkit.fairshare import Factors, Share, read_factors, read_shares
from slurmkit.nodes.read import read_nodes

_DAYS = 30
_DAYS_BY_HOUR = 3


class Fairness(msgspec.Struct, frozen=True):
    """Shares of the cluster and their use, and what my jobs' priority is made of.

    Attributes:
        factors: of my pending jobs, highest first.
        without_factors: why they are unknown; empty when they are not.
        half_life: PriorityDecayHalfLife as slurm.conf has it; empty while unknown.
        taken: epoch seconds at which Slurm was asked.
        reset: PriorityUsageResetPeriod; empty while unknown.
    """

    rows: tuple[Share, ...]
    factors: tuple[Factors, ...]
    without_factors: str
    half_life: str
    taken: float
    reset: str = ""


class Usage(msgspec.Struct, frozen=True):
    """GPU-hours of this month and the last one, as `slurmkit report usage` has them.

    Attributes:
        rows: of a report by month, PI and user.
        budgets: of `report budget`; those that the reader may see.
        notes: what a reader must know, with the age of the data.
        taken: epoch seconds at which the report was made.
    """

    rows: tuple[dict[str, Any], ...]
    budgets: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    taken: float


class Now(msgspec.Struct, frozen=True):
    """GPUs and CPUs at this moment.

    Attributes:
        gpus: how many there are by type; empty text for untyped ones.
        gpus_held: of those, held by jobs.
        gpus_wanted: by jobs that wait; None where the release does not say.
    """

    gpus: dict[str, int]
    gpus_held: dict[str, int]
    gpus_wanted: int | None
    cpus: int
    cpus_held: int


class Utilization(msgspec.Struct, frozen=True):
    """GPU-hours of the last days, beside what there is now.

    Attributes:
        rows: of a report by one dimension.
        by: that dimension.
        days: how many days it is about.
        without_history: why there are no rows; empty when there are.
        taken: epoch seconds.
    """

    now: Now
    rows: tuple[dict[str, Any], ...]
    by: str
    days: float
    without_history: str
    taken: float


class Health(msgspec.Struct, frozen=True):
    """What goes on now, and what `slurmkit doctor` finds."""

    rows: tuple[Diagnosis, ...]
    taken: float


def read_fairness(cluster: Cluster, me: str) -> Fairness:
    """Ask slurmctld for shares and factors.

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
    return Fairness(shares.rows, factors, missing, half_life, shares.taken, reset)


def read_usage() -> Usage:
    """Ask the ledger: the site's through its service, or the person's own.

    Raises:
        LedgerError: when it cannot be read.
        MissingExtra: when the ledger is not installed.
    """
    try:
        from slurmkit_accounting import read  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise MissingExtra(
            "GPU-hours need the ledger: pip install 'slurmkit[accounting]'"
        ) from error

    now = time.time()
    with read.ledger() as books:
        found = read.usage(books, _last_month(now), by=["month", "pi", "user"])
        budgets = read.budget(books)
    meta = found.meta
    age = "never ingested" if meta.data_age is None else f"ingested {meta.data_age:.0f} s before"
    notes = (f"{meta.source}; {age}", *meta.notes)
    return Usage(tuple(found.rows), tuple(budgets.rows), notes, now)


def _ledger() -> ModuleType:
    try:
        from slurmkit_accounting import read  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        what = "GPU-hours need the ledger: pip install 'slurmkit[accounting]'"
        raise MissingExtra(what) from error
    return read


def read_utilization(cluster: Cluster, by: str) -> Utilization:
    """Ask slurmctld for what there is and what of it is held, and the ledger for the last days.

    Raises:
        SlurmError: when slurmctld does not answer; the ledger may be away.
    """
    taken = time.time()
    now = _now(cluster)
    rows: tuple[dict[str, Any], ...] = ()
    missing = ""
    days = _DAYS_BY_HOUR if by == "hour" else _DAYS
    begin = int(taken - days * 86400) // 86400 * 86400
    try:
        read = _ledger()
        with read.ledger() as books:
            first = time.strftime("%Y-%m-%d", time.gmtime(begin))
            rows = tuple(read.usage(books, first, by=[by], timezone="UTC").rows)
    except (LedgerError, MissingExtra) as error:
        missing = str(error)
    return Utilization(now, rows, by, (taken - begin) / 86400, missing, taken)


def _now(cluster: Cluster) -> Now:
    nodes = read_nodes(cluster.slurm).rows
    queue = cluster.queue().rows
    waiting = [row for row in queue if row.waits]
    gpus: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for node in nodes:
        for of in node.gpus:
            gpus[of.type or ""] += of.total
            held[of.type or ""] += of.used
    unsaid = any("=" not in row.tres for row in waiting)
    wanted = None if unsaid else sum(row.gpus * count(row) for row in waiting)
    cpus = sum(node.cpus for node in nodes), sum(node.cpus_allocated for node in nodes)
    return Now(dict(gpus), dict(held), wanted, *cpus)


def _last_month(now: float) -> str:
    today = time.localtime(now)
    year, month = (today.tm_year, today.tm_mon - 1) if today.tm_mon > 1 else (today.tm_year - 1, 12)
    return f"{year}-{month:02}-01"


def read_health(cluster: Cluster) -> Health:
    """Let doctor look, also at what passes."""
    from slurmkit.doctor import now as passing  # noqa: PLC0415 - much of it, seldom used
    from slurmkit.doctor.checks import CHECKS, examine  # noqa: PLC0415

    now = time.time()
    return Health(tuple(examine(cluster.slurm, (*passing.CHECKS, *CHECKS))), now)
