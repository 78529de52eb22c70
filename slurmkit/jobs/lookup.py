"""The lookup of jobs in slurmctld (squeue) and slurmdbd (sacct). The source is always named.

Slurm uses job ids again. Runs of an older job with the same id are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress

import msgspec

from slurmkit.errors import DatabaseDown, NoSuchJob, Refused, SlurmError
from slurmkit.formats.durations import format_duration
from slurmkit.formats.job_ids import group_by_id, parse_task_indices, queryable_id, whole_id
from slurmkit.formats.scontrol import merge_node_lists
from slurmkit.formats.tres import parse_tres
from slurmkit.jobs.accounting_records import read_runs
from slurmkit.jobs.backends.protocol import Backend
from slurmkit.jobs.exit_codes import is_in_doubt, settle_exit_codes
from slurmkit.jobs.info import JobInfo, info_from_row, output_path
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.queue import QueueFilter
from slurmkit.state.queue_rows import QueueRow

Rows = Sequence[QueueRow]
Runs = Sequence[JobInfo]

# States in which parts of an array end, worst first.
WORST_FIRST = (
    "UNKNOWN NODE_FAIL BOOT_FAIL OUT_OF_MEMORY FAILED TIMEOUT DEADLINE PREEMPTED CANCELLED"
    " COMPLETED".split()
)
# A job can be requeued while slurmctld remembers it: MinJobAge (usually 300 s) after its end. Its
# id can be reused only after that.
_REQUEUE_SECONDS = 3600


def read_job(backend: Backend, slurm: SlurmCommands, job_id: str) -> JobInfo:
    """Read one job from the queue; also from the database once the job or a part has ended.

    Raises:
        NoSuchJob: when neither knows it.
        DatabaseDown: when it is not in the queue and slurmdbd does not answer.
    """
    info = read_jobs(backend, slurm, [job_id])[job_id]
    if info is None:
        raise NoSuchJob(f"no job {job_id} in the queue or in the accounting database")
    return info


def read_batch_script(slurm: SlurmCommands, job_id: str) -> str:
    """Read the batch script of a job that slurmctld remembers.

    Raises:
        SlurmError: when Slurm does not show it. scontrol itself says so on stderr only, and exits
            with 0 (its `scontrol_batch_script`, up to 26.05).
    """
    script = slurm.run(["scontrol", "write", "batch_script", job_id, "-"])
    if not script.startswith("#!"):  # which sbatch asks for
        raise SlurmError(
            f"Slurm does not show the batch script of job {job_id}: its user and operators of"
            " Slurm may read it, and jobs of salloc and srun have none"
        )
    return script


def read_jobs(
    backend: Backend, slurm: SlurmCommands, job_ids: Sequence[str]
) -> dict[str, JobInfo | None]:
    """Read several jobs at once; None for those that neither slurmctld nor slurmdbd knows.

    Raises:
        DatabaseDown: when some are not in the queue and slurmdbd does not answer.
    """
    rows = read_queue_rows(backend, job_ids)
    more = [job_id for job_id in job_ids if not _is_one_live_job(job_id, rows[job_id])]
    runs: Mapping[str, Runs] = {}
    # Refused: this cluster keeps no accounts. A job that is not in the queue is nowhere else.
    with nullcontext() if not all(rows.values()) else suppress(DatabaseDown, Refused):
        runs = read_database_runs(slurm, more) if more else {}
    infos = {
        job_id: merge_job_facts(job_id, own, runs.get(job_id, ())) for job_id, own in rows.items()
    }
    ids = [job_id for job_id, info in infos.items() if info and is_in_doubt(info)]
    settled = settle_exit_codes(slurm, filter(None, map(infos.get, ids)))
    return infos | dict(zip(ids, settled, strict=True))


def _is_one_live_job(job_id: str, rows: Rows) -> bool:
    """Return whether squeue alone tells everything: one job, not ended, no part of another."""
    return len(rows) == 1 and not rows[0].ended and not is_part(job_id, rows[0].job_id)


def read_queue_rows(
    backend: Backend, job_ids: Sequence[str], user: str | None = None
) -> dict[str, list[QueueRow]]:
    """Read squeue's rows by job, including ended jobs that slurmctld still remembers.

    Args:
        backend: runs the squeue.
        job_ids: which jobs; a job that slurmctld does not know has no rows.
        user: the owner of all these jobs, if known: slurmctld then has less to send.
    """
    users = (user,) if user else ()
    only = QueueFilter(job_ids=tuple(job_ids), users=users, states=("all",))
    return group_by_id(job_ids, backend.queue(only).rows)


def read_queued_ids(backend: Backend, job_ids: Iterable[str]) -> set[str]:
    """Return which of these jobs wait or run; each is asked for by its id.

    Ask before you remove something because a job is missing in a list of the queue.
    """
    asked = set(job_ids)
    if not asked:
        return set()
    rows = backend.queue(QueueFilter(job_ids=tuple(sorted(asked)), states=("all",))).rows
    live = (row for row in rows if not row.ended)
    return asked & {job_id for row in live for job_id in (row.raw_id, whole_id(row.job_id))}


def read_database_runs(slurm: SlurmCommands, job_ids: Iterable[str]) -> dict[str, list[JobInfo]]:
    """Read the runs of jobs from sacct, by job, oldest first.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
    """
    runs_of = group_by_id(job_ids, read_runs(slurm, job_ids))
    # A task that never ran has no record of its own; the record of its array includes it.
    missing = [job_id for job_id, runs in runs_of.items() if not runs]
    arrays = {whole_id(job_id) for job_id in missing if "_" in job_id}
    if arrays:
        runs_of |= group_by_id(missing, read_runs(slurm, arrays))
    return runs_of


def merge_job_facts(job_id: str, rows: Rows, runs: Runs) -> JobInfo | None:
    """Merge squeue's rows and sacct's runs into one JobInfo; None if both are empty.

    An array or het job becomes one summary of its parts. slurmctld counts for jobs that have not
    ended. The database counts for ended jobs, unless it lags behind.
    """
    parts = merge_parts(job_id, rows, runs)
    if not parts:
        return None
    if len(parts) == 1 and not is_part(job_id, next(iter(parts))):
        return next(iter(parts.values()))
    return summarize_parts(job_id, parts)


def merge_parts(job_id: str, rows: Rows, runs: Runs) -> dict[str, JobInfo]:
    """Return the last run of each part of a job by id; pending tasks share one: `12_[4-9]`."""
    rows = [msgspec.structs.replace(row, job_id=_own_id(job_id, row.job_id)) for row in rows]
    pending_ids = {row.raw_id: row.job_id for row in rows if "[" in row.job_id}
    named_runs = []
    for run in newest_job_runs(runs, rows):
        part = run.job_id
        if "[" in part:  # pending tasks have the id that squeue gives them
            part = pending_ids.get(run.raw_id, part)
        named_runs.append(msgspec.structs.replace(run, job_id=_own_id(job_id, part)))
    parts = {run.job_id: run for run in named_runs if _is_current(run, rows)}
    for row in rows:
        parts[row.job_id] = _merge(row, parts.get(row.job_id))
    if any(part.startswith(f"{job_id}+") for part in parts):
        parts.pop(job_id, None)  # sacct's record of a het job before it starts
    return parts


def _own_id(asked: str, job_id: str) -> str:
    """Return the id of the task that was asked for, where it waits in `12_[4-9]`."""
    return asked if "_" in asked and "[" in job_id else job_id


def _is_current(run: JobInfo, rows: Rows) -> bool:
    """Return whether a record of sacct counts: slurmctld knows pending tasks better."""
    if not run.is_over and any(row.job_id.startswith(f"{run.job_id}_") for row in rows):
        return False  # slurmdbd has not heard yet that the last task of the array has started
    if "[" not in run.job_id or not rows:
        return True
    return run.is_over and not any("[" in row.job_id and not row.ended for row in rows)


def _merge(row: QueueRow, past: JobInfo | None) -> JobInfo:
    """Take sacct's facts for an ended run that it knows, squeue's for any other."""
    if not row.ended or past is None or not past.is_over:
        return info_from_row(row)
    if (past.submitted or 0) < (row.submitted or 0):  # slurmdbd only knows an earlier run
        return info_from_row(row)
    reason = "" if row.reason == "None" else row.reason
    return msgspec.structs.replace(
        past, output=output_path(row), reason=reason, time_limit=row.time_limit
    )


def is_part(asked: str, part: str) -> bool:
    """Return whether `part` is a task or component of the array or het job `asked`."""
    return part.startswith((f"{asked}_", f"{asked}+"))


def summarize_parts(job_id: str, parts: Mapping[str, JobInfo]) -> JobInfo:
    """Merge the parts of an array or het job into one JobInfo."""
    infos = list(parts.values())
    live = [info for info in infos if not info.is_over]
    worst = worst_job(infos)
    first = min((info.started for info in infos if info.started), default=None)
    last = max((info.ended for info in infos if info.ended), default=None)
    end = int(time.time()) if live else last or int(time.time())
    single = next((info for info in infos if "[" not in info.job_id), infos[0])
    example = single if live else worst
    holding = [info for info in live if info.state != "PENDING"]
    return msgspec.structs.replace(
        infos[0],
        job_id=job_id,
        # The exit code is asked for by these two.
        raw_id=example.raw_id,
        part=example.part or queryable_id(example.job_id),
        state=_live_state(live) if live else worst.state,
        reason=live[0].reason if live else worst.reason,
        tally=count_states(parts),
        node_list=merge_node_lists(info.node_list for info in (holding or infos)),
        tres=_add_tres(info.tres for info in holding),
        elapsed=format_duration(max(0, end - first)) if first else "",
        submitted=min((info.submitted for info in infos if info.submitted), default=None),
        started=first,
        ended=None if live else last,
        exit_code=None if live else worst.exit_code,
        cancelled_by=None if live else worst.cancelled_by,
        output=None,
        source="sacct" if all(info.source == "sacct" for info in infos) else "squeue",
    )


def count_tasks(parts: Mapping[str, JobInfo]) -> dict[str, int]:
    """Return how many tasks each part stands for; 1 for what is no array.

    A task with a record of its own is not counted again in `12_[4-9]`.
    """
    single = {
        index
        for part in parts
        if "[" not in part
        for span in parse_task_indices(part)
        for index in span
    }
    return {
        part: sum(index not in single for span in parse_task_indices(part) for index in span)
        if "[" in part
        else sum(info.tally.values()) or 1
        for part, info in parts.items()
    }


def count_states(parts: Mapping[str, JobInfo]) -> dict[str, int]:
    """Count the tasks of all parts by state."""
    counts: dict[str, int] = {}
    for part, size in count_tasks(parts).items():
        info = parts[part]
        for state, number in (info.tally or {info.state: size}).items():
            if number:
                counts[state] = counts.get(state, 0) + number
    return counts


def worst_job(infos: Sequence[JobInfo]) -> JobInfo:
    """Return the part with the worst end, by `WORST_FIRST`."""
    ranks = {state: rank for rank, state in enumerate(WORST_FIRST)}
    return min(infos, key=lambda info: ranks.get(info.state, -1))


def _live_state(live: Sequence[JobInfo]) -> str:
    """Return RUNNING if any part runs, PENDING if all wait, else another state of them."""
    states = [info.state for info in live]
    return "RUNNING" if "RUNNING" in states else max(states, key=lambda s: (s != "PENDING", s))


def _add_tres(texts: Iterable[str]) -> str:
    """Add up TRES. Memory is left out: releases write sizes differently."""
    total: dict[str, int] = {}
    for text in texts:
        for name, value in parse_tres(text).items():
            if value.isdigit():
                total[name] = total.get(name, 0) + int(value)
    return ",".join(f"{name}={value}" for name, value in total.items())


def newest_job_runs(runs: Sequence[JobInfo], rows: Sequence[QueueRow] = ()) -> list[JobInfo]:
    """Return the runs of the newest job (or array) with an id, without those of older ones.

    All runs of one array follow each other without a gap between an end and the next submit.

    Args:
        runs: runs in sacct, in the order of submit.
        rows: rows of squeue. If they are newer, all of `runs` may belong to an older job.
    """
    newest: list[JobInfo] = []
    until = float("-inf")
    for run in runs:
        if newest and (
            (run.submitted or 0) > until + _REQUEUE_SECONDS or run.user != newest[-1].user
        ):
            newest, until = [], float("-inf")
        newest.append(run)
        until = max(until, run.ended or float("inf"))
    first = min((row.submitted or 0 for row in rows), default=until)
    return newest if first <= until + _REQUEUE_SECONDS else []
