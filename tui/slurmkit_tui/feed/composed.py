"""Answers composed from several Slurm commands, the ledger, or the doctor."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from slurmkit.cluster.cluster import Cluster
from slurmkit.config.extras import missing_extra
from slurmkit.doctor.case import Diagnosis
from slurmkit.errors import LedgerError, MissingExtra, Refused
from slurmkit.state.arrays import count_tasks
from slurmkit.state.fairshare import FairshareRow, PriorityFactors, read_factors, read_shares
from slurmkit.state.nodes import read_nodes
from slurmkit.state.queue_rows import QueueRow
from slurmkit_tui.feed.history import HOUR, HeldGpus

_FRESH_INGEST = 600.0  # seconds; after so short a time, the ledger is as good as up to date


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
        curve: GPUs by type and hour or day, as far as the ledger has read them; empty in a
            recording of an older slurmkit.
        source: the ledger of the rows and of the curve, with its age; empty without one.
    """

    now: CurrentUse
    rows: tuple[dict[str, Any], ...]
    by: str
    days: float
    without_history: str
    taken: float
    curve: tuple[HeldGpus, ...] = ()
    source: str = ""


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
    notes = (_ledger_source(report.meta), *report.meta.notes)
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


def read_utilization(cluster: Cluster, by: str, span: str = "30d") -> Utilization:
    """Read current use from slurmctld, and the GPU-hours of a time until now from the ledger.

    Args:
        cluster: the cluster.
        by: dimension of the rows: `gpu-type`, `partition` or `account`.
        span: a key of `SPANS`.

    Raises:
        SlurmError: when slurmctld does not answer. A missing ledger is no error.
    """
    taken = time.time()
    now = _current_use(cluster)
    length = SPANS[span]
    begin = length.begin(taken)
    first = _utc_text(begin)
    try:
        read = _import_ledger()
        with read.ledger() as ledger:
            found = read.usage(ledger, first, by=[by], timezone="UTC")
            curve = read.usage(ledger, first, by=[length.dimension, "gpu-type"], timezone="UTC")
    except (LedgerError, MissingExtra) as error:
        return Utilization(now, (), by, (taken - begin) / 86400, str(error), taken)
    # The ledger's columns are spelt with an underscore: `gpu_type`.
    rows = tuple({**row, by: row[by.replace("-", "_")]} for row in found.rows)
    return Utilization(
        now,
        rows,
        by,
        (taken - begin) / 86400,
        "",
        taken,
        _ledger_curve(curve.rows, curve.meta, length, taken),
        _ledger_source(found.meta),
    )


class Span(NamedTuple):
    """A length of time until now, in stretches of an hour or a day.

    Attributes:
        hours: its length.
        step: seconds of a stretch.
        dimension: the ledger's dimension of such stretches.
        words: for the screen: `24 hours`.
    """

    hours: int
    step: int
    dimension: str
    words: str

    def begin(self, now: float) -> int:
        """Return the begin of its first stretch, in epoch seconds; the last one contains `now`."""
        last = int(now) // self.step * self.step
        return last - self.hours * HOUR + self.step


SPANS = {
    "24h": Span(24, HOUR, "hour", "24 hours"),
    "7d": Span(7 * 24, HOUR, "hour", "7 days"),
    "30d": Span(30 * 24, 24 * HOUR, "day", "30 days"),
}


def _ledger_curve(
    rows: Sequence[Mapping[str, Any]], meta: Any, span: Span, now: float
) -> tuple[HeldGpus, ...]:
    """Return mean numbers of GPUs held by type, of the stretches that the ledger has read.

    A stretch that no ingest has read, or only a part of it, is left out: it is unknown, not 0.
    The present stretch counts if the last ingest is at most ten minutes old.
    """
    known_from = _epoch(meta.missing_before) if meta.missing_before else float("-inf")
    known_to = meta.last_ingest or float("-inf")
    gaps = [(_epoch(begin), _epoch(end)) for _, begin, end in meta.gaps]
    hours: dict[int, dict[str, float | None]] = {}
    for row in rows:
        begin = _epoch(str(row[span.dimension]))
        hours.setdefault(begin, {})[str(row["gpu_type"] or "")] = row["gpu_hours"]
    curve = []
    for begin in range(span.begin(now), int(now) + 1, span.step):
        end = min(begin + span.step, now)
        seconds = max(end - begin, 1.0)
        is_read = known_from <= begin and end <= known_to + _FRESH_INGEST
        in_gap = any(gap_begin < end and gap_end > begin for gap_begin, gap_end in gaps
                     if gap_end < known_to)  # fmt: skip
        found = hours.get(begin, {})
        held = {name: value * HOUR / seconds for name, value in found.items() if value is not None}
        if is_read and not in_gap and len(held) == len(found):
            curve.append(HeldGpus(begin, seconds, held))
    return tuple(curve)


def _epoch(text: str) -> int:
    """Convert the ledger's text of a time in UTC: a day, an hour, or with an offset."""
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _utc_text(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).isoformat()


def _ledger_source(meta: Any) -> str:
    age = "never ingested" if meta.data_age is None else f"ingested {meta.data_age:.0f} s before"
    return f"{meta.source}; {age}"


def _current_use(cluster: Cluster) -> CurrentUse:
    """Count GPUs and CPUs of all nodes, and those that pending jobs request."""
    nodes = read_nodes(cluster.slurm).rows
    queue = cluster.queue().rows
    gpus: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for node in nodes:
        for gres in node.gpus:
            gpus[gres.type or ""] += gres.total
            held[gres.type or ""] += gres.used
    cpus = sum(node.cpus for node in nodes), sum(node.cpus_allocated for node in nodes)
    return CurrentUse(dict(gpus), dict(held), gpus_wanted(queue), *cpus)


def gpus_wanted(rows: Iterable[QueueRow]) -> int | None:
    """Count the GPUs that pending jobs request; None if this Slurm release does not say."""
    waiting = [row for row in rows if row.waits]
    if any("=" not in row.tres for row in waiting):
        return None
    return sum(row.gpus * count_tasks(row) for row in waiting)


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
