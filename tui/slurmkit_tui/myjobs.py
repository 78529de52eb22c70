"""My jobs as they are listed: an array in one row, what it holds, how it ended, what it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from slurmkit import arrays
from slurmkit import states as slurm_states
from slurmkit.durations import as_squeue_does, parse_elapsed
from slurmkit.jobs import ids
from slurmkit.jobs.efficiency import Efficiency, together
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.mine import Mine
from slurmkit.logical import shown_id, whole_of
from slurmkit.queue.cells import waiting_for
from slurmkit.queue.rows import QueueRow
from slurmkit.tres import gres

NOTHING: Mapping[str, Efficiency] = MappingProxyType({})


class MyJob(msgspec.Struct, frozen=True):
    """A job, or an array in one row.

    Attributes:
        job_id: `12`, or `12_[1-40]` for the tasks of an array.
        state: Slurm's, or a tally of an array's: `R 2, PD 38`.
        kind: a state to colour it by.
        gpus: what it holds, held or asks for: `2 a100`; `?` where Slurm does not say.
        held: GPU indices by node, in words.
        where: its nodes, or why it waits, and that it was requeued.
        left: seconds until its time limit; None while it waits, or without a limit.
        ended: epoch seconds; None in the queue.
        rows: of the queue, for what can be done to it; empty once it ended.
        started: whether it ran, so that there is something to measure.
        cpu: of the CPU time it had so far, or had, what it used; None is unknown.
        mem: of its memory, what it took at its peak; of tasks that of the worst; None is unknown.
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
    started: bool = False
    cpu: float | None = None
    mem: float | None = None

    @property
    def whole(self) -> str:
        """The id of the job, or of the whole array."""
        return self.job_id.partition("_[")[0]


def my_jobs(mine: Mine, of: Mapping[str, Efficiency] = NOTHING) -> tuple[MyJob, ...]:
    """In the queue first; then those that ended, the last one first.

    Args:
        mine: the jobs.
        of: what is known of their efficiency, by Slurm's own number.
    """
    queued = [_queued(rows, mine, of) for rows in arrays.collapse(mine.rows)]
    alive = {job.key for job in queued}
    ended: dict[str, list[JobInfo]] = {}
    for run in mine.ended:
        key = whole_id(run, mine.wholes)
        ended.setdefault(f"{key} ended" if key in alive else key, []).append(run)
    over = (_over(key, runs, of) for key, runs in ended.items())
    named = (msgspec.structs.replace(job, name=_name(ended[job.key][0], mine)) for job in over)
    return (*queued, *named)


def _name(job: QueueRow | JobInfo, mine: Mine) -> str:
    """Its own, or that in its workflow, which stands before it."""
    return mine.flows.get(ids.whole_id(job.job_id), job.name)


def whole_id(run: JobInfo, wholes: Mapping[str, str]) -> str:
    """The id of its array: where that is in several of Slurm's, that of the first."""
    own = run.job_id.partition("_")[0]
    return wholes.get(own, own)


def _queued(rows: Sequence[QueueRow], mine: Mine, of: Mapping[str, Efficiency]) -> MyJob:
    first = rows[0]
    one = len(rows) == 1 and "[" not in first.job_id
    running = [row for row in rows if not row.waits]
    held = [_indices(mine.indices[row.raw_id]) for row in running if row.raw_id in mine.indices]
    waits = ",".join(dict.fromkeys(filter(None, map(waiting_for, rows))))
    cpu, mem = together([of.get(row.raw_id) for row in running])
    nodes = ",".join(dict.fromkeys(row.node_list for row in rows if row.node_list))
    return MyJob(
        job_id=shown_id(first) if len(rows) == 1 else f"{whole_of(first)}_[…]",
        key=whole_of(first) or first.job_id,
        name=_name(first, mine),
        partition=",".join(dict.fromkeys(row.partition for row in rows)),
        account=first.account,
        state=first.state if one else arrays.tally(rows),
        kind=(running or rows)[0].state,
        gpus=", ".join(gres(first.tres)) or ("0" if "=" in first.tres else "?"),
        held="  ".join(held),
        where=" ".join(filter(None, [nodes, f"({waits})" if waits else "", _again(rows, mine)])),
        elapsed=max((row.time_used for row in rows), key=lambda t: parse_elapsed(t) or 0),
        left=min((left for row in running if (left := _left(row)) is not None), default=None),
        submitted=first.submitted,
        ended=None,
        exit_code="",
        rows=tuple(rows),
        started=bool(running),
        cpu=cpu,
        mem=mem,
    )


def _again(rows: Sequence[QueueRow], mine: Mine) -> str:
    """That a job was requeued, and why; of an array how many of its tasks."""
    said = [mine.restarts[row.job_id] for row in rows if row.job_id in mine.restarts]
    return said[0] if len(rows) == 1 and said else f"{len(said)} restarted" if said else ""


def _left(row: QueueRow) -> int | None:
    limit, used = parse_elapsed(row.time_limit), parse_elapsed(row.time_used)
    return None if limit is None or used is None else max(0, limit - used)


def _indices(held: dict[str, list[int]]) -> str:
    return " ".join(f"{node}:{arrays.fold(at)}" for node, at in held.items())


def _over(key: str, runs: Sequence[JobInfo], of: Mapping[str, Efficiency]) -> MyJob:
    """Of an array the worst state gives the colour; a run that was requeued is told by its last."""
    last = runs[0]
    tasks: dict[str, JobInfo] = {}
    for run in runs:
        tasks.setdefault(run.job_id, run)
    tally: dict[str, int] = {}
    for run in tasks.values():
        tally[run.state] = tally.get(run.state, 0) + 1
    worst = next((s for s in tally if slurm_states.kind(s) == "bad"), last.state)
    several = len(tasks) > 1
    ran = [run for run in tasks.values() if run.started]
    cpu, mem = together([of.get(run.raw_id) for run in ran])
    said = ", ".join(f"{slurm_states.code(state)} {count}" for state, count in tally.items())
    return MyJob(
        job_id=f"{key.partition(' ')[0]}_[…]" if several else last.job_id,
        key=key,
        name=last.name,
        partition=last.partition,
        account=last.account,
        state=said if several else last.state,
        kind=worst,
        gpus=", ".join(gres(last.tres)) or ("0" if "=" in last.tres else "-"),
        held="",
        where=last.node_list,
        elapsed=as_squeue_does(last.elapsed),  # an old recording has it in sacct's form
        left=None,
        submitted=last.submitted,
        ended=last.ended,
        exit_code=last.exit_code or "",
        started=bool(ran),
        cpu=cpu,
        mem=mem,
    )
