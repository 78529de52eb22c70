"""What slurmctld and slurmdbd together say of jobs: never guessed, the source always named."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress

import msgspec
from ClusterShell.NodeSet import NodeSet

from slurmkit.durations import format_duration
from slurmkit.errors import DatabaseDown, NoSuchJob, Refused
from slurmkit.jobs.ids import group, one_of, tasks, whole_id
from slurmkit.jobs.info import JobInfo, from_queue, output_path
from slurmkit.jobs.sacct import read_runs
from slurmkit.jobs.uses import last_use
from slurmkit.plugins import Backend
from slurmkit.queue.rows import QueueRow, record_mark
from slurmkit.queue.snapshot import QueueFilter
from slurmkit.slurm import Slurm
from slurmkit.tres import parse_tres

Rows = Sequence[QueueRow]
Runs = Sequence[JobInfo]

# States in which the parts of an array may end, worst first.
WORST_FIRST = (
    "UNKNOWN NODE_FAIL BOOT_FAIL OUT_OF_MEMORY FAILED TIMEOUT DEADLINE PREEMPTED CANCELLED"
    " COMPLETED".split()
)


def look_up(backend: Backend, slurm: Slurm, job_id: str) -> JobInfo:
    """Look one job up: in the queue, and once it or a part of it has ended in the database too.

    Raises:
        NoSuchJob: when neither knows it.
        DatabaseDown: when it is not in the queue and slurmdbd does not answer.
    """
    info = look_up_all(backend, slurm, [job_id])[job_id]
    if info is None:
        raise NoSuchJob(f"no job {job_id} in the queue or in the accounting database")
    return info


def look_up_all(
    backend: Backend, slurm: Slurm, job_ids: Sequence[str]
) -> dict[str, JobInfo | None]:
    """Look jobs up together; None for those that neither slurmctld nor slurmdbd knows.

    Raises:
        DatabaseDown: when some are not in the queue and slurmdbd does not answer.
    """
    rows = in_queue(backend, job_ids)
    more = [job_id for job_id in job_ids if not _is_all(job_id, rows[job_id])]
    runs: Mapping[str, Runs] = {}
    # Refused: this cluster keeps no accounts. What is not in the queue is nowhere else.
    with nullcontext() if not all(rows.values()) else suppress(DatabaseDown, Refused):
        runs = in_database(slurm, more) if more else {}
    return {job_id: combine(job_id, own, runs.get(job_id, ())) for job_id, own in rows.items()}


def _is_all(job_id: str, rows: Rows) -> bool:
    """Whether squeue says all there is: of one job that has not ended."""
    return len(rows) == 1 and not rows[0].ended and not is_part(job_id, rows[0].job_id)


def in_queue(
    backend: Backend, job_ids: Sequence[str], user: str | None = None
) -> dict[str, list[QueueRow]]:
    """Rows of squeue by job, also of those that ended and that slurmctld still remembers.

    Args:
        backend: how slurmctld is asked.
        job_ids: which jobs; a job that slurmctld does not know has no rows.
        user: whose they all are, when that is known: slurmctld has less to send.
    """
    users = (user,) if user else ()
    only = QueueFilter(job_ids=tuple(job_ids), users=users, states=("all",))
    return group(job_ids, backend.queue(only).rows)


def exit_code_in_queue(slurm: Slurm, job_id: str) -> str | None:
    """Exit code as `code:signal` of an ended job that slurmctld still remembers."""
    mark = record_mark()
    argv = ["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "-O", f"exit_code:{mark}"]
    said, found, _ = slurm.run(argv).partition(mark)
    if not found or not said.isdigit():
        return said if found else None
    status = int(said)  # to 23.02 as wait(2) has it
    ended_by = status & 0x7F
    return f"0:{ended_by}" if ended_by else f"{status >> 8}:0"


def in_database(slurm: Slurm, job_ids: Iterable[str]) -> dict[str, list[JobInfo]]:
    """Runs in the database by job, oldest first.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
    """
    found = group(job_ids, read_runs(slurm, job_ids))
    # A task that never ran has no record of its own: it is among those of its array.
    arrays = {whole_id(job_id) for job_id, runs in found.items() if not runs and "_" in job_id}
    if arrays:
        found |= group([one for one, runs in found.items() if not runs], read_runs(slurm, arrays))
    return found


def combine(job_id: str, rows: Rows, runs: Runs) -> JobInfo | None:
    """Make one account of a job, of an array or het job that of all its parts; None for nobody's.

    What slurmctld says of a job that has not ended counts; of one that has, the database knows
    more, unless it lags behind.
    """
    parts = parts_of(job_id, rows, runs)
    if not parts:
        return None
    if len(parts) == 1 and not is_part(job_id, next(iter(parts))):
        return next(iter(parts.values()))
    return summary(job_id, parts)


def parts_of(job_id: str, rows: Rows, runs: Runs) -> dict[str, JobInfo]:
    """The last run of each part of a job by its id, `12_[4-9]` for tasks that wait together."""
    rows = [msgspec.structs.replace(row, job_id=_named(job_id, row.job_id)) for row in rows]
    together = {row.raw_id: row.job_id for row in rows if "[" in row.job_id}
    runs = [
        msgspec.structs.replace(run, job_id=_named(job_id, _as_queued(run, together)))
        for run in last_use(runs, rows)
    ]
    parts = {run.job_id: run for run in runs if _is_current(run, rows)}
    for row in rows:
        parts[row.job_id] = _merge(row, parts.get(row.job_id))
    if any(part.startswith(f"{job_id}+") for part in parts):
        parts.pop(job_id, None)  # how sacct shows a het job before it starts
    return parts


def _named(asked: str, job_id: str) -> str:
    """A task that waits among others is called by its own id."""
    return asked if "_" in asked and "[" in job_id else job_id


def _as_queued(run: JobInfo, together: Mapping[str, str]) -> str:
    """Tasks that waited together, by the id that squeue has for them."""
    return together.get(run.raw_id, run.job_id) if "[" in run.job_id else run.job_id


def _is_current(run: JobInfo, rows: Rows) -> bool:
    """Whether a record counts: what waits together is known better by slurmctld."""
    if not run.is_over and any(row.job_id.startswith(f"{run.job_id}_") for row in rows):
        return False  # slurmdbd has not heard yet that the last task of the array has started
    if "[" not in run.job_id or not rows:
        return True
    return run.is_over and not any("[" in row.job_id and not row.ended for row in rows)


def _merge(row: QueueRow, past: JobInfo | None) -> JobInfo:
    if not row.ended or past is None or not past.is_over or _is_older(past, row):
        return from_queue(row)
    reason = "" if row.reason == "None" else row.reason
    return msgspec.structs.replace(
        past, output=output_path(row), reason=reason, time_limit=row.time_limit
    )


def _is_older(past: JobInfo, row: QueueRow) -> bool:
    """Whether the database has not heard of the last run yet."""
    return (past.submitted or 0) < (row.submitted or 0)


def is_part(asked: str, part: str) -> bool:
    """Whether `part` is only one of those that `asked` may have."""
    return part.startswith((f"{asked}_", f"{asked}+"))


def summary(job_id: str, parts: Mapping[str, JobInfo]) -> JobInfo:
    """What the parts of an array or het job come to."""
    infos = list(parts.values())
    live = [info for info in infos if not info.is_over]
    state = _live_state(live) if live else worst(infos).state
    first = min((info.started for info in infos if info.started), default=None)
    last = max((info.ended for info in infos if info.ended), default=None)
    holding = [info for info in live if info.state != "PENDING"]
    return msgspec.structs.replace(
        infos[0],
        job_id=job_id,
        state=state,
        reason=live[0].reason if live else worst(infos).reason,
        tally=tally(parts),
        part=infos[0].part or _an_example(parts),
        node_list=str(NodeSet.fromlist(info.node_list for info in (holding or infos))),
        tres=_together(info.tres for info in holding),
        elapsed=_elapsed(first, None if live else last),
        submitted=min((info.submitted for info in infos if info.submitted), default=None),
        started=first,
        ended=None if live else last,
        exit_code=None if live else worst(infos).exit_code,
        cancelled_by=None if live else worst(infos).cancelled_by,
        output=None,
        source="sacct" if all(info.source == "sacct" for info in infos) else "squeue",
    )


def _elapsed(first: int | None, last: int | None) -> str:
    return format_duration(max(0, (last or int(time.time())) - first)) if first else ""


def tally(parts: Mapping[str, JobInfo]) -> dict[str, int]:
    """Count parts by state; tasks with a record of their own are not counted with the others."""
    named = {at for part in parts if "[" not in part for span in tasks(part) for at in span}
    counts: dict[str, int] = {}
    for part, info in parts.items():
        for state, number in info.tally.items():  # it is itself an array
            counts[state] = counts.get(state, 0) + number
        if info.tally:
            continue
        several = "[" in part
        size = sum(at not in named for span in tasks(part) for at in span) if several else 1
        if size:
            counts[info.state] = counts.get(info.state, 0) + size
    return counts


def _an_example(parts: Mapping[str, JobInfo]) -> str:
    """A part that can be asked about: of tasks that wait together the first."""
    return one_of(next((part for part in parts if "[" not in part), next(iter(parts))))


def worst(infos: Sequence[JobInfo]) -> JobInfo:
    """The part that ended worst."""
    ranks = {state: rank for rank, state in enumerate(WORST_FIRST)}
    return min(infos, key=lambda info: ranks.get(info.state, -1))


def _live_state(live: Sequence[JobInfo]) -> str:
    states = [info.state for info in live]
    return "RUNNING" if "RUNNING" in states else max(states, key=lambda s: (s != "PENDING", s))


def _together(texts: Iterable[str]) -> str:
    """Add TRES up; sizes are left out, since releases write them differently."""
    total: dict[str, int] = {}
    for text in texts:
        for name, value in parse_tres(text).items():
            if value.isdigit():
                total[name] = total.get(name, 0) + int(value)
    return ",".join(f"{name}={value}" for name, value in total.items())
