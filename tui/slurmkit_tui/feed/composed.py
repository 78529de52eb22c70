"""Answers composed from several Slurm commands, the ledger, or the doctor."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from slurmkit.cluster.cluster import Cluster
from slurmkit.config.extras import missing_extra
from slurmkit.config.files import default_cluster_name
from slurmkit.config.prices import UNTYPED, canonical_type, gpu_settings, partition_gpu_types
from slurmkit.doctor.case import Diagnosis
from slurmkit.errors import BadInput, LedgerError, MissingExtra, Refused
from slurmkit.state.arrays import count_tasks
from slurmkit.state.fairshare import FairshareRow, PriorityFactors, read_factors, read_shares
from slurmkit.state.gpu_use import SPANS
from slurmkit.state.gpumap_model import GpuMap, count_gpus
from slurmkit.state.nodes import NodeRow, NodesSnapshot, read_nodes
from slurmkit.state.queue import Queue
from slurmkit.state.queue_rows import QueueRow
from slurmkit_tui.feed.budgets import read_budgets
from slurmkit_tui.feed.history import HeldGpus, HourlyGpus
from slurmkit_tui.jobform.gpu_use import RECENT_SECONDS, GpusNow, GpusOfJob

OUTAGE_DAYS = 30
"""How far back the health view looks for outages of nodes."""
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
        budgets: what is left of the allocations of my accounts, and of budgets that this person may
            see, as `read_budgets` returns it.
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
        curve: everybody's GPUs by type and hour or day, as far as the ledger has read them; empty
            where it shows this person only some runs, and in a recording of an older slurmkit.
        source: the ledger of the rows and of the curve, with its age; empty without one.
        everybody: whether the rows are of all runs of the cluster.
        last_sample: epoch seconds of the newest sample of a running job's GPU; None if no source
            measures them.
    """

    now: CurrentUse
    rows: tuple[dict[str, Any], ...]
    by: str
    days: float
    without_history: str
    taken: float
    curve: tuple[HeldGpus, ...] = ()
    source: str = ""
    everybody: bool = True
    last_sample: float | None = None


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
        budgets, remarks = read_budgets(read, ledger)
    notes = (_ledger_source(report.meta), *report.meta.notes, *remarks)
    return LedgerUsage(tuple(report.rows), budgets, notes, now)


def _import_ledger() -> ModuleType:
    """Return `slurmkit_accounting.read`.

    Raises:
        LedgerError: over SSH: the ledger of this machine is not that of the cluster.
        MissingExtra: when the accounting extra is not installed.
    """
    if where := default_cluster_name():
        raise LedgerError(
            f"the ledger cannot be read over SSH; use slurmkit tui on the login node of {where}"
        )
    try:
        from slurmkit_accounting import read  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "", "accounting", "the ledger of GPU-hours") from error
    return read


def read_gpus_now() -> GpusNow:
    """Read what the GPUs of all running jobs do that this person may see, in one question.

    Raises:
        LedgerError: when the ledger cannot be read.
        MissingExtra: when the ledger is not installed.
    """
    read = _import_ledger()
    taken = time.time()
    with read.ledger() as ledger:
        return GpusNow(read.gpu_use_now(ledger, seconds=RECENT_SECONDS), taken)


def read_gpus_of_job(job_id: str) -> GpusOfJob:
    """Read what the GPUs of a job did, in each of its runs.

    Raises:
        BadInput: when the ledger has no run of the job that this person may see.
        LedgerError: when the ledger cannot be read.
        MissingExtra: when the ledger is not installed.
    """
    read = _import_ledger()
    taken = time.time()
    with read.ledger() as ledger:
        return GpusOfJob(read.gpu_use_of(ledger, job_id), taken)


def read_ended_gpus(job_ids: str) -> GpusOfJob:
    """Read what the GPUs of several jobs did, without their curves.

    Args:
        job_ids: at most 50, separated by commas.

    Raises:
        BadInput: when the ledger has no run of the jobs that this person may see.
        LedgerError: when the ledger cannot be read.
        MissingExtra: when the ledger is not installed.
    """
    found = read_gpus_of_job(job_ids)
    runs = (
        msgspec.structs.replace(
            run, gpus=tuple(msgspec.structs.replace(gpu, points=(), step=0) for gpu in run.gpus)
        )
        for run in found.runs
    )
    return msgspec.structs.replace(found, runs=tuple(runs))


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
    nodes, now = _current_use(cluster)
    name = _cluster_name(cluster)
    begin = SPANS[span].begins(taken)[0]
    days = (taken - begin) / 86400
    try:
        read = _import_ledger()
        with read.ledger() as ledger:
            found = read.usage(
                ledger, _utc_text(begin), by=[by], timezone="UTC", filters={"cluster": [name]}
            )
            over_time = _read_use_over_time(read, ledger, span, name)
        types = slurm_types(nodes)
    except (BadInput, LedgerError, MissingExtra) as error:
        return Utilization(now, (), by, days, str(error), taken)
    if name not in found.meta.clusters:
        return Utilization(now, (), by, days, f"the ledger has no runs of {name}", taken)
    rows = tuple({**row, by: _name_on_screen(row, by, types)} for row in found.rows)
    of_all = over_time is not None and over_time.everybody
    return Utilization(
        now,
        rows,
        by,
        days,
        "",
        taken,
        _ledger_curve(over_time, found.meta, taken, types) if of_all else (),
        _ledger_source(found.meta),
        # Only readers of everything get the number of rejected lines.
        of_all and found.meta.rejects is not None,
        over_time and over_time.last_sample,
    )


class SlurmType(NamedTuple):
    """A GPU type as the nodes have it.

    Attributes:
        name: "" for untyped GPUs.
        weight: number of whole GPUs that the ledger counts one as; less than 1 for a MIG slice.
    """

    name: str
    weight: float


def slurm_types(nodes: Iterable[NodeRow]) -> dict[str, SlurmType]:
    """Return the GPU types of the nodes by the names that the ledger's reports have for them.

    Reports use the names of the configuration: `[gpu.TYPE]` for an alias, the type of a partition
    for untyped GPUs. Where typed and untyped GPUs have one name there, it means the typed ones.

    Raises:
        BadConfig: for a wrong configuration.
    """
    settings, partitions = gpu_settings(), partition_gpu_types()
    found: dict[str, SlurmType] = {}
    kinds = {(gpus.type or "", node.partitions) for node in nodes for gpus in node.gpus}
    for name, own in sorted(kinds):
        of_partition = next((partitions[each] for each in own if each in partitions), UNTYPED)
        reported = canonical_type(name or of_partition, settings)
        weight = settings[reported].weight if reported in settings else 1.0
        found[reported] = SlurmType(name, weight or 1.0)  # typed ones come last
    return found


def _name_on_screen(row: Mapping[str, Any], by: str, types: Mapping[str, SlurmType]) -> Any:
    """Return the name of a row; GPU types have Slurm's names."""
    name = row[by.replace("-", "_")]  # the ledger's columns are spelt with an underscore
    return types[name].name if by == "gpu-type" and name in types else name


def _cluster_name(cluster: Cluster) -> str:
    return cluster.capabilities().cluster_name


def _read_use_over_time(read: ModuleType, ledger: Any, span: str, cluster: str) -> Any:
    """Read GPUs held and used by type; None from an older service, which does not know them."""
    try:
        return read.gpu_use_over_time(ledger, span, cluster=cluster)
    except BadInput:
        return None


def _ledger_curve(
    over_time: Any, meta: Any, now: float, types: Mapping[str, SlurmType]
) -> tuple[HeldGpus, ...]:
    """Return mean numbers of GPUs by type, of the stretches that the ledger has read.

    Types have Slurm's names, and MIG slices count as one each, as in the answers of slurmctld.
    A stretch that no ingest has read, or only a part of it, is left out: it is unknown, not 0.
    The present stretch counts if the last ingest is at most ten minutes old.
    """
    known_from = _epoch(meta.missing_before) if meta.missing_before else float("-inf")
    known_to = meta.last_ingest or float("-inf")
    gaps = [
        (_epoch(begin), _epoch(end)) for name, begin, end in meta.gaps if name == over_time.cluster
    ]
    found = defaultdict(list)
    for row in over_time.rows:
        found[row.begin].append(row)
    curve = []
    for begin, end in pairwise((*over_time.begins, now)):
        is_read = known_from <= begin and end <= known_to + _FRESH_INGEST
        in_gap = any(gap_begin < end and gap_end > begin for gap_begin, gap_end in gaps
                     if gap_end < known_to)  # fmt: skip
        if not is_read or in_gap:
            continue
        held: dict[str, float] = defaultdict(float)
        used: dict[str, float] = defaultdict(float)
        measured: dict[str, float] = defaultdict(float)
        for row in found[begin]:
            name, weight = types.get(row.gpu_type, SlurmType(row.gpu_type, 1.0))
            held[name] += row.held / weight
            measured[name] += row.measured / weight
            if row.used is not None:
                used[name] += row.used / weight
        seconds = max(end - begin, 1.0)
        curve.append(HeldGpus(begin, seconds, dict(held), dict(used) or None, dict(measured)))
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


def _current_use(cluster: Cluster) -> tuple[Sequence[NodeRow], CurrentUse]:
    """Read all nodes; count their GPUs and CPUs, and the GPUs that pending jobs request."""
    nodes = read_nodes(cluster.slurm).rows
    queue = cluster.queue().rows
    cpus = sum(node.cpus for node in nodes), sum(node.cpus_allocated for node in nodes)
    return nodes, CurrentUse(*gpus_by_type(nodes), gpus_wanted(queue), *cpus)


def gpus_by_type(nodes: Iterable[NodeRow]) -> tuple[dict[str, int], dict[str, int]]:
    """Return all GPUs by type, and those held by jobs; the key of untyped GPUs is ""."""
    counts = count_gpus(nodes)
    total = {each.type or "": each.total for each in counts}
    return total, {each.type or "": each.held for each in counts}


def add_to_history(history: HourlyGpus, value: Any) -> None:
    """Add the numbers of GPUs that an answer contains to the history, once for each answer."""
    if not history.is_new(type(value).__name__, value.taken):
        return
    match value:
        case NodesSnapshot():
            history.add_nodes(value.taken, *gpus_by_type(value.rows))
        case GpuMap():
            history.add_nodes(value.taken, *gpus_by_type(value.nodes))
        case Queue():
            history.add_wanted(value.taken, gpus_wanted(value.rows))
        case Utilization():
            history.add_nodes(value.taken, value.now.gpus, value.now.gpus_held)
            history.add_wanted(value.taken, value.now.gpus_wanted)
    history.save_when_due(value.taken)


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
    """Run all checks of `slurmkit doctor`, also of current activity; add the outages of nodes."""
    from slurmkit.doctor import activity, checks  # noqa: PLC0415 - much of it, seldom used

    now = time.time()
    found = checks.run_checks(cluster.slurm, (*activity.CHECKS, *checks.CHECKS))
    return ClusterHealth((*found, *_read_outages(_cluster_name(cluster), now)), now)


def _read_outages(cluster: str, now: float) -> tuple[Diagnosis, ...]:
    """Return one line about the outages of nodes; none without a ledger that knows them."""
    begin = _utc_text(int(now) - OUTAGE_DAYS * 86400)
    try:
        read = _import_ledger()
        with read.ledger() as ledger:
            report = read.nodes(ledger, begin, timezone="UTC", filters={"cluster": [cluster]})
    except (BadInput, LedgerError, MissingExtra):
        return ()
    return (describe_outages(report.rows),)


def describe_outages(rows: Sequence[Mapping[str, Any]]) -> Diagnosis:
    """Put the rows of `report nodes` into one line, with the nodes that failed again."""
    outages = sum(row["outages"] for row in rows)
    if not outages:
        text = f"no node was down or drained in the last {OUTAGE_DAYS} days"
        return Diagnosis("node-history", "ok", text)
    lost = [row["gpu_hours_lost"] for row in rows]
    cost = "" if None in lost else f", {sum(lost):,.0f} GPU-hours lost"
    again = sorted((row for row in rows if row["repeated"]), key=lambda row: -row["repeated"])
    names = ", ".join(f"{row['node']} ({row['checks']})" for row in again[:5])
    text = (
        f"{OUTAGE_DAYS} days: {outages} outage{'s' if outages > 1 else ''} of {len(rows)}"
        f" node{'s' if len(rows) > 1 else ''}{cost}{f'; again and again: {names}' if again else ''}"
    )
    return Diagnosis(
        "node-history",
        "warning" if again else "note",
        text,
        meaning="A node or GPU that fails again for the same check ends one job after another.",
        fix="slurmkit report nodes --by gpu",
        where="the ledger",
    )
