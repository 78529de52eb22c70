"""What blocks a pending job, and its priority.

Blockers are jobs on its nodes, jobs ahead of it, dependencies and reservations. The priority and
its factors come from sprio.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from slurmkit.diagnose.free_resources import consumable_tres, usable_nodes
from slurmkit.diagnose.model import Blocker, Factor, Priority, Rank
from slurmkit.diagnose.snapshot import (
    PendingSnapshot,
    expand_node_list,
    holds_nodes,
    is_eligible,
    job_tres,
    latest_end,
)
from slurmkit.errors import SlurmError
from slurmkit.formats import display
from slurmkit.formats.job_ids import group_by_id
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.records import record_mark, split_records
from slurmkit.state.model import Reservation
from slurmkit.state.queue_rows import QueueRow

_DEPENDENCY = re.compile(
    r"(?P<kind>after\w*|singleton)(?::(?P<job>\d+(?:_(?:\d+|\*))?))?(?:\+\d+)?"
    r"(?:\((?P<state>\w+)\))?"
)
_DEPENDENCY_MEANINGS = {
    "afterok": "must succeed first",
    "afternotok": "must fail first",
    "afterany": "must end first",
    "after": "must start first",
    "aftercorr": "its task of the same number must succeed first",
    "afterburstbuffer": "must end and stage out first",
}
# src/sprio/sprio.c: of a job that is held, or waits for another, it prints this to standard output.
_NO_JOBS = "Unable to find jobs"
# For each factor: the sprio --format field of its weighted value (sprio(1)), and the slurm.conf
# parameter of its weight.
_FACTORS = {
    "age": ("%A", "PriorityWeightAge"),
    "association": ("%B", "PriorityWeightAssoc"),
    "fairshare": ("%F", "PriorityWeightFairShare"),
    "job size": ("%J", "PriorityWeightJobSize"),
    "partition": ("%P", "PriorityWeightPartition"),
    "QOS": ("%Q", "PriorityWeightQOS"),
    "site": ("%S", ""),
    "TRES": ("%T", ""),
    "nice": ("%N", ""),
}
_FACTOR_MEANINGS = {
    "age": "it grows while the job waits",
    "association": "an administrator sets it for accounts and people",
    "fairshare": "who has used less of their share goes first",
    "job size": "the site favours larger or smaller jobs",
    "partition": "other partitions may have more",
    "QOS": "another QOS may have more",
}


def job_blocker(row: QueueRow, text: str = "") -> Blocker:
    """Describe a job as a blocker; `text` replaces the list of its resources."""
    where = f" on {row.node_list}" if row.node_list else ""
    return Blocker(
        kind="job",
        name=row.job_id,
        user=row.user,
        account=row.account,
        state=row.state,
        holds=text or f"{display.describe_holding(job_tres(row))}{where}",
        until=None if row.state == "PENDING" else latest_end(row),
    )


def sort_by_end(blockers: Iterable[Blocker]) -> list[Blocker]:
    """Sort blockers by their latest end; those without an end come last."""
    return sorted(blockers, key=lambda b: (b.until is None, b.until or 0, b.name))


def jobs_on_its_nodes(snapshot: PendingSnapshot) -> list[Blocker]:
    """Return the jobs that hold what this one waits for.

    They run where backfill plans the job; without a plan, on any node where it could run.
    """
    planned = expand_node_list(snapshot.asked.planned_nodes)
    short = (room.node.name for room in usable_nodes(snapshot) if room.lacks(snapshot.per_node))
    nodes = set(planned or short)
    wanted = _competing(consumable_tres(snapshot.per_node))
    running = [
        row
        for row in snapshot.rows
        if holds_nodes(row)
        and not nodes.isdisjoint(expand_node_list(row.node_list))
        and (not wanted or any(name in wanted for name in job_tres(row)))
    ]
    return sort_by_end(job_blocker(row) for row in running)


def _competing(names: Iterable[str]) -> set[str]:
    """Return the GRES that compete with these: GPUs of any type, shards and MPS are one pool."""
    asked = {name for name in names if name.startswith("gres/")}
    gpus = {"gres/gpu", "gres/shard", "gres/mps"}
    return asked | (gpus if any(n.startswith(("gres/gpu", *gpus)) for n in asked) else set())


def jobs_ahead(snapshot: PendingSnapshot) -> list[Blocker]:
    """Return the eligible pending jobs of its partitions that are scheduled first."""
    partitions = set(snapshot.partitions)
    ahead = [
        row
        for row in snapshot.rows
        if is_eligible(row, snapshot.taken)
        and partitions & set(row.partition.split(","))
        and row.raw_id != snapshot.job.raw_id
        and comes_before(row, snapshot.job)
    ]
    ahead.sort(key=lambda row: (-row.priority, int(row.raw_id)))
    return [
        job_blocker(row, f"is ahead, and waits for {display.describe_holding(job_tres(row))}")
        for row in ahead
    ]


def dependency_blockers(snapshot: PendingSnapshot, states: dict[str, str]) -> list[Blocker]:
    """Return the jobs that it depends on.

    Args:
        snapshot: the snapshot of the job.
        states: states of jobs that have left the queue, by id.
    """
    in_queue = group_by_id(parse_dependency_ids(snapshot.job.dependency), snapshot.rows)
    blockers = []
    for match in _DEPENDENCY.finditer(snapshot.job.dependency):
        if match["kind"] == "singleton":
            blockers += _singletons(snapshot)
            continue
        job_id, means = (
            _dependency_job_id(match),
            _DEPENDENCY_MEANINGS.get(match["kind"], match["kind"]),
        )
        condition = f"{means} ({match['kind']})"
        blockers += [job_blocker(row, condition) for row in in_queue.get(job_id, ())]
        if not in_queue.get(job_id):
            state = states.get(job_id, "not in the queue")
            blockers.append(Blocker(kind="job", name=job_id, state=state, holds=condition))
    return blockers


def _dependency_job_id(match: re.Match[str]) -> str:
    """Return the job id of a dependency; squeue writes a whole array as `12_*`."""
    return (match["job"] or "?").removesuffix("_*")


def parse_dependency_ids(text: str) -> list[str]:
    """Parse the job ids out of a row's dependency."""
    return [_dependency_job_id(match) for match in _DEPENDENCY.finditer(text) if match["job"]]


def _singletons(snapshot: PendingSnapshot) -> list[Blocker]:
    same = [
        row
        for row in snapshot.rows
        if (row.name, row.user) == (snapshot.job.name, snapshot.job.user)
        and not row.ended
        and int(row.raw_id) < int(snapshot.job.raw_id)
    ]
    return [job_blocker(row, "has the same name and must end first (singleton)") for row in same]


def running_array_tasks(snapshot: PendingSnapshot) -> list[Blocker]:
    """Return the running tasks of the same array."""
    own = snapshot.job.array_id
    return sort_by_end(
        job_blocker(r) for r in snapshot.rows if holds_nodes(r) and r.array_id == own
    )


def reservation_blocker(reservation: Reservation) -> Blocker:
    """Describe a reservation as a blocker."""
    flags = f" ({','.join(reservation.flags)})" if reservation.flags else ""
    return Blocker(
        kind="reservation",
        name=reservation.name,
        holds=f"reserves {display.join_names(list(reservation.nodes), 8) or 'resources'}{flags}",
        until=reservation.end,
    )


def other_reservations_on(snapshot: PendingSnapshot, nodes: Iterable[str]) -> list[Reservation]:
    """Return the reservations of these nodes, except the job's own."""
    wanted = set(nodes)
    return [
        each
        for each in snapshot.reservations
        if wanted & set(each.nodes) and each.name != snapshot.job.reservation
    ]


def rank_in_partition(
    partition: str, job: QueueRow, rows: Iterable[QueueRow], now: float
) -> Rank | None:
    """Return a pending job's rank in one partition; None for a job that is not eligible."""
    pending = [r for r in rows if r.state == "PENDING" and partition in r.partition.split(",")]
    eligible = [row for row in pending if is_eligible(row, now)]
    if not is_eligible(job, now):
        return None
    before = sum(comes_before(row, job) for row in eligible)
    return Rank(partition, before + 1, len(eligible), len(pending) - len(eligible))


def comes_before(other: QueueRow, job: QueueRow) -> bool:
    """Return whether another pending job is scheduled first: by priority, then by job id."""
    return (-other.priority, int(other.raw_id)) < (-job.priority, int(job.raw_id))


def read_priority(slurm: SlurmCommands, job: QueueRow) -> tuple[str, str]:
    """Read a pending job's priority with sprio.

    Returns:
        The text and the mark that `parse_priority` takes; an empty text if Slurm has none.
    """
    mark = record_mark()
    signs = ["%r", "%Y", *(sign for sign, _ in _FACTORS.values())]
    try:
        argv = ["sprio", "--noheader", f"--jobs={job.raw_id}", f"--format={mark.join(signs)}{mark}"]
        return slurm.run(argv), mark
    except SlurmError:
        return "", mark


def parse_priority(text: str, mark: str, config: Mapping[str, str]) -> tuple[Priority, ...]:
    """Parse sprio's output: one row for each partition the job waits in.

    Args:
        text: the output.
        mark: the separator after each field.
        config: `scontrol show config`, for the weights.
    """
    if text.startswith(_NO_JOBS):
        return ()
    rows = split_records(text, mark, len(_FACTORS) + 2, "sprio")
    return tuple(_priority([value.strip() for value in row], config) for row in rows)


def _priority(row: list[str], config: Mapping[str, str]) -> Priority:
    partition, total, *points = row
    factors = []
    for (name, (_, parameter)), text in zip(_FACTORS.items(), points, strict=True):
        weight = config.get(parameter, "")
        factor = Factor(
            name, _points(name, text), float(weight) if weight.isdigit() and int(weight) else None
        )
        if factor.points or factor.most:
            factors.append(factor)
    return Priority(partition, int(float(total)), tuple(factors), describe_weakest_factor(factors))


def _points(name: str, text: str) -> float:
    """Return a factor's points; TRES such as `cpu=1.0,mem=2.0` are added up, nice is negative."""
    values = [item.rpartition("=")[2] for item in text.split(",") if item]
    return sum(float(value) for value in values) * (-1 if name == "nice" else 1)


def describe_weakest_factor(factors: Iterable[Factor]) -> str:
    """Describe in one sentence the factor that is furthest below its weight."""
    weighted = [(f.most - f.points, f) for f in factors if f.most is not None]
    if not weighted:
        return "no factor has a weight here: jobs start in the order of their ids"
    lack, weakest = max(weighted, key=lambda pair: pair[0])
    if lack <= 0:
        return "every factor is at its maximum"
    means = _FACTOR_MEANINGS.get(weakest.name, "")
    return (
        f"{weakest.name} is its weakest factor: {weakest.points:.0f} of {weakest.most:.0f} points"
        + (f" ({means})" if means else "")
    )
