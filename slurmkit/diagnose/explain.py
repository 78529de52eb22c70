"""Explain one job: why it waits, whether it is slow or stuck, or why it ended as it did."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from slurmkit.diagnose import blockers, details
from slurmkit.diagnose.alternatives import (
    FoundAlternatives,
    find_alternatives,
    is_own,
    why_not_sought,
)
from slurmkit.diagnose.blockers import parse_priority, rank_in_partition, read_priority
from slurmkit.diagnose.compared_runs import RunNow, compare_with_earlier, what_differs
from slurmkit.diagnose.failure import explain_end
from slurmkit.diagnose.model import Explanation, StartEstimate, WaitExplanation
from slurmkit.diagnose.render import format_exact_moment
from slurmkit.diagnose.running import RunningQuestion, explain_running
from slurmkit.diagnose.snapshot import PendingSnapshot, latest_end, read_pending_snapshot
from slurmkit.errors import NoSuchJob, SlurmError
from slurmkit.formats import display
from slurmkit.formats.job_ids import check_job_id, group_by_id, whole_id
from slurmkit.jobs import pending_reasons
from slurmkit.jobs.accounting_records import read_runs
from slurmkit.state.queue import QueueFilter, read_queue
from slurmkit.state.queue_rows import QueueRow

if TYPE_CHECKING:
    from slurmkit.jobs.job import JobCluster

_SHOWN = 5
_COMPARED = ("COMPLETED", "TIMEOUT")  # what failed or was cancelled ended for another reason
_STATES = {
    "CONFIGURING": "has its nodes, which are being prepared (prolog, or powering up)",
    "COMPLETING": "has ended, and its nodes are being cleaned up (epilog)",
    "SUSPENDED": "is suspended: it keeps its nodes and GPUs, and does not run",
    "STOPPED": "is stopped: it keeps its nodes and GPUs, and does not run",
    "STAGE_OUT": "has ended, and its burst buffer is being staged out",
}


def explain(
    cluster: JobCluster,
    job_id: str,
    *,
    alternatives: bool = True,
    probe: bool = False,
    stacks: bool = False,
) -> Explanation:
    """Explain why a job waits and what would start sooner, why it is slow, or why it failed.

    Args:
        cluster: the cluster of the job.
        job_id: `12`, `12_3` or `12+1`. Of an array, the pending tasks are explained, else the
            running ones.
        alternatives: also look for changes that would start sooner. This runs
            `sbatch --test-only` at most five times, and each run uses up a job id.
        probe: look at the processes of a running job, with a short step in the job. Only the job's
            owner can. The step appears in sacct as `slurmkit-why`.
        stacks: with `probe`, also read Python stacks with py-spy, where the nodes have it.

    Raises:
        BadInput: when `job_id` is not a job id.
        NoSuchJob: when neither slurmctld nor slurmdbd knows the job.
        SlurmError: when Slurm does not answer.
    """
    row = _find_row(cluster, check_job_id(job_id))
    if row is None or row.ended:
        return _ended(cluster, job_id)
    if not row.waits:
        return _running(cluster, row, RunningQuestion(probe, stacks))
    pending = msgspec.structs.replace(row, state="PENDING")  # also for SPECIAL_EXIT, for example
    return _waiting(cluster, pending, alternatives=alternatives)


def _find_row(cluster: JobCluster, job_id: str) -> QueueRow | None:
    try:
        only = QueueFilter(job_ids=(job_id,), states=("all",))
        rows = read_queue(cluster.slurm, only).rows
    except NoSuchJob:
        return None
    pending = [row for row in rows if row.waits]
    unfinished = [row for row in rows if not row.ended]
    return next(iter([*pending, *unfinished, *rows]), None)


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


def _running(cluster: JobCluster, row: QueueRow, question: RunningQuestion) -> Explanation:
    now = time.time()
    end = latest_end(row)
    last = (
        "has no time limit"
        if end is None
        else f"ends by {display.format_moment(end, now)} at the latest"
    )
    runs = f"on {row.node_list} since {display.format_moment(row.started, now)}, {last}"
    if row.state != "RUNNING":
        return _explanation(row, f"job {row.job_id} {_STATES.get(row.state, f'runs {runs}')}")
    found = explain_running(cluster, row, question, runs)
    if found.step_failed and not _still_runs(cluster, row.job_id):
        return explain(cluster, row.job_id, alternatives=False)
    elapsed = max(0.0, now - (row.started or now))
    compared, notes = compare_with_earlier(
        cluster, RunNow(row.job_id, started=row.started, elapsed=elapsed)
    )
    answer = found.answer
    findings = found.running.findings
    if compared and findings and findings[0].kind == "slower" and what_differs(compared.facts):
        answer = f"{answer}; {what_differs(compared.facts)}"
    return _explanation(
        row, answer, running=found.running, compared=compared, notes=(*found.notes, *notes)
    )


def _still_runs(cluster: JobCluster, job_id: str) -> bool:
    try:
        row = _find_row(cluster, job_id)
    except SlurmError:  # then what was found counts
        return True
    return row is not None and row.state == "RUNNING"


def _ended(cluster: JobCluster, job_id: str) -> Explanation:
    """Explain the end of a job; compare one that ran to its end or limit with earlier runs."""
    found = explain_end(cluster, job_id)
    if found.state not in _COMPARED or found.ended is None:
        return found
    run = RunNow(found.job_id, ended=found.ended.ended)
    compared, notes = compare_with_earlier(cluster, run)
    slower = f"; {compared.text}" if compared and compared.is_slower else ""
    return msgspec.structs.replace(
        found,
        answer=f"{found.answer}{slower}",
        compared=compared,
        notes=(*found.notes, *notes),
    )


def _who(cluster: JobCluster, row: QueueRow, reason: pending_reasons.ReasonText) -> str:
    """Return who can act; of somebody else's job, it is that user who is `you` in the texts."""
    if not reason.who.startswith(pending_reasons.YOU) or is_own(cluster.slurm, row):
        return reason.who
    return f"its user ({row.user}){reason.who.removeprefix(pending_reasons.YOU)}"


def _waiting(cluster: JobCluster, row: QueueRow, *, alternatives: bool) -> Explanation:
    slurm = cluster.slurm
    sought = alternatives and not why_not_sought(slurm, row)
    with ThreadPoolExecutor(1) as pool:  # sprio runs in parallel with the other commands
        sprio = pool.submit(read_priority, slurm, row)
        snapshot = read_pending_snapshot(slurm, row, plans=sought)
    # Commands take an array's own id for all its pending tasks.
    job_id = whole_id(row.job_id) if "[" in row.job_id else row.job_id
    facts = (
        details.collect_reason_facts(snapshot)
        if row.dependency == ""
        else _dependent(cluster, snapshot)
    )
    reason = facts.text or pending_reasons.explain_reason(row.reason, job_id)
    planned = facts.text is None and pending_reasons.may_be_planned(row.reason)
    start = _start(snapshot) if planned else None
    sooner = FoundAlternatives()
    if alternatives:
        sooner = find_alternatives(slurm, snapshot, start.at if start else None)
    ranks = [
        rank
        for name in snapshot.partitions
        if (rank := rank_in_partition(name, row, snapshot.rows, snapshot.taken))
    ]
    waiting = WaitExplanation(
        reason=row.reason,
        meaning=reason.meaning,
        who=_who(cluster, row, reason),
        advice=reason.advice,
        details=(*facts.details, *_runs_before(cluster, snapshot)),
        blockers=facts.blockers[:_SHOWN],
        more_blockers=max(0, len(facts.blockers) - _SHOWN),
        ranks=tuple(ranks),
        priority=parse_priority(*sprio.result(), snapshot.capabilities.config),
        start=start,
        alternatives=sooner.alternatives,
        no_alternatives=sooner.why_none,
    )
    is_next = row.reason == "Resources" and ranks and all(rank.place == 1 for rank in ranks)
    answer = (
        f"job {row.job_id} waits: {'it is next, but ' if is_next else ''}{reason.meaning}"
        f"{_when(row.reason, start, snapshot.taken)}"
    )
    hidden = "PrivateData may hide other people's jobs: only jobs that you may see are counted here"
    notes = (*snapshot.standing.hidden, *([hidden] if snapshot.hides_jobs else []))
    return _explanation(row, answer, waiting=waiting, notes=notes, taken=snapshot.taken)


def _when(reason: str, start: StartEstimate | None, now: float) -> str:
    if start is None:
        return ""
    if reason == "BeginTime":
        return f", {format_exact_moment(start.at, now)}"
    return f"; it may start {display.format_moment(start.at, now)}"


def _start(snapshot: PendingSnapshot) -> StartEstimate | None:
    """Return backfill's planned start; without a plan, the begin time."""
    job = snapshot.job
    if job.started is None or job.priority == 0:
        return None
    if job.reason == "BeginTime" or not snapshot.asked.planned_nodes:
        if job.started <= snapshot.taken:  # the time at which a limit last refused the job
            return None
        own = "its begin time (it cannot start before)"
        source = own if job.started == job.eligible else "squeue --start"
        return StartEstimate(job.started, source, snapshot.asked.evaluated)
    return StartEstimate(
        max(job.started, int(snapshot.taken)),
        "squeue --start (backfill's plan)",
        snapshot.asked.evaluated,
        snapshot.asked.planned_nodes,
    )


def _dependent(cluster: JobCluster, snapshot: PendingSnapshot) -> details.ReasonFacts:
    """Return the jobs that it depends on; sacct gives the states of those that left the queue."""
    in_queue = group_by_id(blockers.parse_dependency_ids(snapshot.job.dependency), snapshot.rows)
    states: dict[str, str] = {}
    for job_id in [job_id for job_id, rows in in_queue.items() if not rows][:_SHOWN]:
        try:
            states[job_id] = cluster.job(job_id).info().state
        except SlurmError:
            states[job_id] = "unknown"
    return details.ReasonFacts((), tuple(blockers.dependency_blockers(snapshot, states)))


def _runs_before(cluster: JobCluster, snapshot: PendingSnapshot) -> list[str]:
    """Describe how the last run of a requeued job ended."""
    times = snapshot.asked.restarts
    if not times:
        return []
    requeued = f"it was put back into the queue {times} time{'' if times == 1 else 's'}"
    try:
        runs = [run for run in read_runs(cluster.slurm, [snapshot.job.raw_id]) if run.started]
    except SlurmError:
        return [requeued]
    if not runs:
        return [requeued]
    last = runs[-1]
    ended = display.format_moment(last.ended, snapshot.taken)
    return [f"{requeued}; its last run, on {last.node_list}, ended {last.state} {ended}"]
