"""From a job's id to why it is where it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from slurmkit.errors import NoSuchJob, SlurmError
from slurmkit.jobs.ids import check_job_id, group, whole_id
from slurmkit.jobs.sacct import read_runs
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import QueueFilter, read_queue
from slurmkit.why import blockers as find
from slurmkit.why import details, reasons, words
from slurmkit.why.alternatives import Found
from slurmkit.why.alternatives import find as look_for
from slurmkit.why.model import Explanation, Start, Waiting
from slurmkit.why.rank import place_in, read_priority
from slurmkit.why.scene import Scene, ends_by, read_scene

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

_SHOWN = 5
_STATES = {
    "CONFIGURING": "has its nodes, which are being prepared (prolog, or powering up)",
    "COMPLETING": "has ended on its own, and its nodes are being cleaned up (epilog)",
    "SUSPENDED": "is suspended: it keeps its nodes and GPUs, and does not run",
    "STOPPED": "is stopped: it keeps its nodes and GPUs, and does not run",
    "STAGE_OUT": "has ended, and its burst buffer is being staged out",
}


def explain(cluster: Cluster, job_id: str, *, alternatives: bool = True) -> Explanation:
    """Say why a job waits, what is in its way and what would start sooner; or why it failed.

    Args:
        cluster: where.
        job_id: `12`, `12_3` or `12+1`; of an array those tasks that wait, else those that run.
        alternatives: also look for what would start sooner, with at most five questions to
            slurmctld, each of which uses up a job id.

    Raises:
        BadInput: when `job_id` does not have the form of one.
        NoSuchJob: when neither slurmctld nor slurmdbd knows it.
        SlurmError: when Slurm does not answer.
    """
    row = _row(cluster, check_job_id(job_id))
    if row is None or row.ended:
        from slurmkit.why.failure import explain_end  # noqa: PLC0415 - half of the calls need it

        return explain_end(cluster, job_id)
    if not row.waits:
        return _going_on(row)
    pending = msgspec.structs.replace(row, state="PENDING")  # it may be SPECIAL_EXIT
    return _waiting(cluster, pending, alternatives=alternatives)


def _row(cluster: Cluster, job_id: str) -> QueueRow | None:
    try:
        only = QueueFilter(job_ids=(job_id,), states=("all",))
        rows = read_queue(cluster.slurm, only).rows
    except NoSuchJob:
        return None
    waiting = [row for row in rows if row.waits]
    going_on = [row for row in rows if not row.ended]
    return next(iter([*waiting, *going_on, *rows]), None)


def _explanation(row: QueueRow, answer: str, **more: object) -> Explanation:
    return Explanation(
        job_id=row.job_id,
        name=row.name,
        user=row.user,
        account=row.account,
        partition=row.partition,
        qos=row.qos,
        state=row.state,
        answer=answer,
        source="squeue",
        **{"taken": time.time(), **more},  # type: ignore[arg-type]
    )


def _going_on(row: QueueRow) -> Explanation:
    now = time.time()
    end = ends_by(row)
    last = "has no time limit" if end is None else f"ends by {words.moment(end, now)} at the latest"
    runs = f"runs on {row.node_list} since {words.moment(row.started, now)} and {last}"
    return _explanation(row, f"job {row.job_id} {_STATES.get(row.state, runs)}")


def _waiting(cluster: Cluster, row: QueueRow, *, alternatives: bool) -> Explanation:
    scene = read_scene(cluster.slurm, row)
    said = reasons.in_words(row.reason, _number(row))
    found = details.facts(scene) if row.dependency == "" else _dependent(cluster, scene)
    start = _start(scene)
    priority = read_priority(cluster.slurm, row, scene.capabilities.config)
    sooner = Found()
    if alternatives:
        sooner = look_for(cluster.slurm, scene, start.at if start else None)
    ranks = (place_in(name, row, scene.rows, scene.taken) for name in scene.partitions)
    waiting = Waiting(
        reason=row.reason,
        meaning=said.meaning,
        who=said.who,
        advice=said.advice,
        details=(*found.details, *_runs_before(cluster, scene)),
        blockers=found.blockers[:_SHOWN],
        more_blockers=max(0, len(found.blockers) - _SHOWN),
        ranks=tuple(rank for rank in ranks if rank),
        priority=priority,
        start=start,
        alternatives=sooner.alternatives,
        no_alternatives=sooner.why_none,
    )
    when = f"; it may start {words.moment(start.at, scene.taken)}" if start else ""
    answer = f"job {row.job_id} waits: {said.meaning}{when}"
    return _explanation(row, answer, waiting=waiting, notes=_notes(scene), taken=scene.taken)


def _notes(scene: Scene) -> tuple[str, ...]:
    """What could not be seen."""
    hidden = "PrivateData may hide other people's jobs: rank and blockers count only those shown"
    return (*scene.standing.hidden, *([hidden] if scene.hides_jobs else []))


def _number(row: QueueRow) -> str:
    """What commands take for it: an array's own number for all its tasks that wait."""
    return whole_id(row.job_id) if "[" in row.job_id else row.job_id


def _start(scene: Scene) -> Start | None:
    """Backfill's plan, or the begin time where that is all there is."""
    job = scene.job
    if job.started is None or job.priority == 0:
        return None
    if job.reason == "BeginTime" or not scene.asked.planned_nodes:
        if job.started <= scene.taken:  # when a limit last refused it: no plan
            return None
        source = "its begin time: not before" if job.started == job.eligible else "squeue --start"
        return Start(job.started, source, scene.asked.evaluated)
    return Start(
        max(job.started, int(scene.taken)),
        "squeue --start (backfill's plan)",
        scene.asked.evaluated,
        scene.asked.planned_nodes,
    )


def _dependent(cluster: Cluster, scene: Scene) -> details.Facts:
    """The jobs it depends on; those that have left the queue are looked up in sacct."""
    there = group(find.depends_on(scene.job.dependency), scene.rows)
    states: dict[str, str] = {}
    for job_id in [job_id for job_id, rows in there.items() if not rows][:_SHOWN]:
        try:
            states[job_id] = cluster.job(job_id).info().state
        except SlurmError:
            states[job_id] = "unknown"
    return details.Facts((), tuple(find.dependencies(scene, states)))


def _runs_before(cluster: Cluster, scene: Scene) -> list[str]:
    """What became of the last run of a job that was put back into the queue."""
    times = scene.asked.restarts
    if not times:
        return []
    said = f"it was put back into the queue {times} time{'' if times == 1 else 's'}"
    try:
        runs = [run for run in read_runs(cluster.slurm, [scene.job.raw_id]) if run.started]
    except SlurmError:
        return [said]
    if not runs:
        return [said]
    last = runs[-1]
    ended = words.moment(last.ended, scene.taken)
    return [f"{said}; its last run, on {last.node_list}, ended {last.state} {ended}"]
