"""Rows of the list of my jobs: a job or a whole array, with GPUs, efficiency, and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import msgspec

from slurmkit.cluster.my_jobs import MyJobs
from slurmkit.formats import job_ids
from slurmkit.formats import job_states as slurm_states
from slurmkit.formats.durations import parse_elapsed, reformat_elapsed
from slurmkit.formats.tres import format_gpus, gpu_count
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.steps import Efficiency, array_shares
from slurmkit.state import arrays
from slurmkit.state.arrays import shown_id, user_array_id
from slurmkit.state.gpu_use import GpuUseNow, GpuUseOfRun
from slurmkit.state.queue_rows import QueueRow, pending_reason
from slurmkit_tui.jobform.gpu_use import GpusNow, GpusOfJob, JobUse, sum_up, sum_up_ended

NO_EFFICIENCIES: Mapping[str, Efficiency] = MappingProxyType({})
_MOST_ENDED = 50  # runs; the ledger takes at most 100, and one may have been requeued
_SOON = 900  # seconds; with less time left, a job is marked


class MyJobRow(msgspec.Struct, frozen=True, gc=False):
    """A job, or a whole array in one row.

    Attributes:
        job_id: `12`, or `12_[1-40]` for the tasks of an array.
        key: stays the same in the next answer.
        state: Slurm's state, or counts of an array's states: `R 2, PD 38`.
        kind: the state that gives the colour.
        gpus: GPUs allocated or requested: `2 a100`; `?` if Slurm does not say.
        held: indices of the allocated GPUs by node: `n1:0-3  n2:0`.
        where: nodes, the reason of a pending job, and restarts.
        left: seconds until the time limit; None while pending, or without a limit.
        ended: epoch seconds; None for a job in the queue.
        rows: its rows of the queue, for actions on the job; empty once it ended.
        last_run: its last run, once it ended; for a whole array, with the array's id.
        started: whether it has run, so that efficiency can be measured.
        cpu: used share of the allocated CPU time; None is unknown.
        mem: peak share of the allocated memory, of tasks the worst; None is unknown.
        use: what its GPUs do, or did once it ended; None without GPUs.
    """

    job_id: str
    key: str
    name: str
    partition: str
    account: str
    state: str
    kind: str
    gpus: str
    held: str
    where: str
    elapsed: str
    left: int | None
    submitted: int | None
    ended: int | None
    exit_code: str
    rows: tuple[QueueRow, ...] = ()
    last_run: JobInfo | None = None
    started: bool = False
    cpu: float | None = None
    mem: float | None = None
    use: JobUse | None = None

    @property
    def whole(self) -> str:
        """Id of the job, or of the whole array."""
        return self.job_id.partition("_[")[0]

    @property
    def ends_soon(self) -> bool:
        """Whether it reaches its time limit within 15 minutes."""
        return self.left is not None and self.left < _SOON


def my_job_rows(
    mine: MyJobs,
    of: Mapping[str, Efficiency] = NO_EFFICIENCIES,
    gpus: GpusNow | None = None,
    *,
    ended_gpus: GpusOfJob | None = None,
    cluster: str | None = None,
) -> tuple[MyJobRow, ...]:
    """Return the rows: jobs in the queue first, then ended jobs, the latest first.

    Args:
        mine: the jobs.
        of: known efficiencies by Slurm's raw job id.
        gpus: what the GPUs of running jobs do; None is unknown.
        ended_gpus: what the GPUs of ended jobs did; None is unknown.
        cluster: name of the cluster; None while unknown.
    """
    queued = [_queued(rows, mine, of) for rows in arrays.group_by_array(mine.rows)]
    by_job = gpus.by_job(cluster) if gpus else {}
    queued = _with_use(queued, by_job, max(mine.taken - gpus.taken, 0.0) if gpus else 0.0)
    alive = {job.key for job in queued}
    ended: dict[str, list[JobInfo]] = {}
    for run in mine.ended:
        key = whole_array_id(run, mine.wholes)
        ended.setdefault(f"{key} ended" if key in alive else key, []).append(run)
    measured: dict[tuple[str, int | None], GpuUseOfRun] = {
        (run.job_id, run.start): run
        for run in (ended_gpus.runs if ended_gpus else ())
        if cluster in (None, run.cluster)
    }
    over = (_over(key, runs, of, measured) for key, runs in ended.items())
    named = (msgspec.structs.replace(job, name=_name(ended[job.key][0], mine)) for job in over)
    return (*queued, *named)


def _with_use(
    jobs: Sequence[MyJobRow], by_job: Mapping[str, Sequence[GpuUseNow]], passed: float
) -> list[MyJobRow]:
    """Add what the GPUs of the running jobs do, `passed` seconds after the answer about them."""
    return [
        msgspec.structs.replace(job, use=_use(job, by_job, passed)) if job.started else job
        for job in jobs
    ]


def _use(job: MyJobRow, by_job: Mapping[str, Sequence[GpuUseNow]], passed: float) -> JobUse | None:
    """Return what the GPUs of the running tasks do; None for a job without GPUs."""
    running = [row for row in job.rows if not row.waits]
    known = [gpu for row in running for gpu in by_job.get(row.job_id, ())]
    if job.gpus == "0" and not known:
        return None
    return sum_up(known, sum(row.gpus for row in running) or None, passed)


def ids_of_ended_gpus(mine: MyJobs) -> str:
    """Return the ids of the last ended runs with GPUs, as many as are asked about at once."""
    ids = dict.fromkeys(run.job_id for run in mine.ended if run.started and "gres/" in run.tres)
    return ",".join(list(ids)[:_MOST_ENDED])


def _use_of_ended(
    runs: Sequence[JobInfo], measured: Mapping[tuple[str, int | None], GpuUseOfRun]
) -> JobUse | None:
    """Return what the GPUs of ended runs did; None for runs without GPUs."""
    with_gpus = [run for run in runs if "gres/" in run.tres]
    if not with_gpus:
        return None
    known = [measured.get((run.job_id, run.started)) for run in with_gpus]
    held = sum(gpu_count(run.tres) for run in with_gpus)
    return sum_up_ended([run for run in known if run is not None], held or None)


def _name(job: QueueRow | JobInfo, mine: MyJobs) -> str:
    """Return the name of a job; in a workflow, the name there."""
    return mine.flows.get(job_ids.whole_id(job.job_id), job.name)


def whole_array_id(run: JobInfo, wholes: Mapping[str, str]) -> str:
    """Return the id of the job's array; if Slurm holds it as several arrays, that of the first."""
    own = run.job_id.partition("_")[0]
    return wholes.get(own, own)


def _queued(rows: Sequence[QueueRow], mine: MyJobs, of: Mapping[str, Efficiency]) -> MyJobRow:
    first = rows[0]
    one = len(rows) == 1 and "[" not in first.job_id
    running = [row for row in rows if not row.waits]
    held = [_indices(mine.indices[row.raw_id]) for row in running if row.raw_id in mine.indices]
    waits = ",".join(dict.fromkeys(filter(None, map(pending_reason, rows))))
    cpu, mem = array_shares([of.get(row.raw_id) for row in running]) if of else (None, None)
    nodes = ",".join(dict.fromkeys(row.node_list for row in rows if row.node_list))
    return MyJobRow(
        job_id=shown_id(first) if len(rows) == 1 else f"{user_array_id(first)}_[…]",
        key=user_array_id(first) or first.job_id,
        name=_name(first, mine),
        partition=",".join(dict.fromkeys(row.partition for row in rows)),
        account=first.account,
        state=first.state if one else arrays.format_task_states(rows),
        kind=(running or rows)[0].state,
        gpus=_gpus(first.tres),
        held="  ".join(held),
        where=" ".join(
            filter(None, [nodes, f"({waits})" if waits else "", _restarted(rows, mine)])
        ),
        elapsed=_longest([row.time_used for row in rows]),
        left=min((left for row in running if (left := _left(row)) is not None), default=None),
        submitted=first.submitted,
        ended=None,
        exit_code="",
        rows=tuple(rows),
        started=bool(running),
        cpu=cpu,
        mem=mem,
    )


@lru_cache(maxsize=4096)  # many jobs are alike
def _gpus(tres: str) -> str:
    return ", ".join(format_gpus(tres)) or ("0" if "=" in tres else "?")


def _longest(times: Sequence[str]) -> str:
    return times[0] if len(times) == 1 else max(times, key=lambda t: parse_elapsed(t) or 0)


def _restarted(rows: Sequence[QueueRow], mine: MyJobs) -> str:
    """Return that a job was requeued, and why; for an array, how many tasks were."""
    restarts = [mine.restarts[row.job_id] for row in rows if row.job_id in mine.restarts]
    if not restarts:
        return ""
    return restarts[0] if len(rows) == 1 else f"{len(restarts)} restarted"


def _left(row: QueueRow) -> int | None:
    limit, used = parse_elapsed(row.time_limit), parse_elapsed(row.time_used)
    return None if limit is None or used is None else max(0, limit - used)


def _indices(held: dict[str, list[int]]) -> str:
    return " ".join(f"{node}:{arrays.format_indices(at)}" for node, at in held.items())


def _over(
    key: str,
    runs: Sequence[JobInfo],
    of: Mapping[str, Efficiency],
    measured: Mapping[tuple[str, int | None], GpuUseOfRun],
) -> MyJobRow:
    """Make the row of an ended job or array. A requeued job counts by its last run.

    The worst state of an array gives the colour.
    """
    last = runs[0]
    tasks: dict[str, JobInfo] = {}
    for run in runs:
        tasks.setdefault(run.job_id, run)
    tally: dict[str, int] = {}
    for run in tasks.values():
        tally[run.state] = tally.get(run.state, 0) + 1
    worst = next((s for s in tally if slurm_states.state_kind(s) == "bad"), last.state)
    several = len(tasks) > 1
    whole = key.partition(" ")[0]
    ran = [run for run in tasks.values() if run.started]
    cpu, mem = array_shares([of.get(run.raw_id) for run in ran])
    states = ", ".join(
        f"{slurm_states.state_code(state)} {count}" for state, count in tally.items()
    )
    return MyJobRow(
        job_id=f"{whole}_[…]" if several else last.job_id,
        key=key,
        name=last.name,
        partition=last.partition,
        account=last.account,
        state=states if several else last.state,
        kind=worst,
        gpus=", ".join(format_gpus(last.tres)) or ("0" if "=" in last.tres else "-"),
        held="",
        where=last.node_list,
        elapsed=reformat_elapsed(last.elapsed),  # an old recording holds sacct's format
        left=None,
        submitted=last.submitted,
        ended=last.ended,
        exit_code=last.exit_code or "",
        last_run=msgspec.structs.replace(last, job_id=whole) if several else last,
        started=bool(ran),
        cpu=cpu,
        mem=mem,
        use=_use_of_ended(ran, measured),
    )
