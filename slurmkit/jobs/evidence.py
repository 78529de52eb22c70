"""Collect what slurmctld, slurmdbd and a job's log know of its end."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import msgspec

from slurmkit.errors import DatabaseDown, LogUnavailable, NoSuchJob, NotOver, Refused, SshError
from slurmkit.jobs.ids import group
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.logpaths import LogFile, find
from slurmkit.jobs.lookup import (
    exit_code_in_queue,
    in_database,
    in_queue,
    is_part,
    parts_of,
    summary,
    worst,
)
from slurmkit.jobs.outcome import Evidence, Outcome
from slurmkit.jobs.progress import LAG_SECONDS
from slurmkit.jobs.ranks import RankFailure, first_failure, of_its_own
from slurmkit.jobs.sacct import read_steps
from slurmkit.jobs.uses import last_use
from slurmkit.jobs.verdict import MEMORY_MESSAGE, outcome_of
from slurmkit.machine import machine_of
from slurmkit.plugins import Backend
from slurmkit.slurm import Slurm
from slurmkit.survive.history import RunEnd, history_of

_LOG_END = 1 << 18  # bytes
_AGAIN_SECONDS = 1.0


def read_outcome(backend: Backend, slurm: Slurm, job_id: str) -> Outcome:
    """How a job ended; of an array or het job how the worst of its parts did.

    Raises:
        NotOver: while it, or a part of it, has not ended.
        NoSuchJob: when neither slurmctld nor slurmdbd knows it.
        DatabaseDown: when it has left the queue and slurmdbd does not answer.
    """
    parts, runs = _ended_parts(backend, slurm, job_id)
    info = worst(list(parts.values()))
    found = _judged(slurm, info, group([info.job_id], runs)[info.job_id])
    if len(parts) == 1 and not is_part(job_id, info.job_id):
        return found
    whole = summary(job_id, parts)
    states = ", ".join(f"{count} {state}" for state, count in whole.tally.items())
    return msgspec.structs.replace(
        found,
        job_id=job_id,
        started=whole.started,
        ended=whole.ended,
        elapsed=whole.ended - whole.started if whole.ended and whole.started else None,
        nodes=whole.node_list,
        log=None,
        tally=whole.tally,
        words=f"{states}; {info.job_id}: {found.words}",
    )


def _ended_parts(
    backend: Backend, slurm: Slurm, job_id: str
) -> tuple[dict[str, JobInfo], Sequence[JobInfo]]:
    """The last run of each part, and all runs; slurmdbd has some seconds to hear of the end."""
    end = time.monotonic() + LAG_SECONDS
    while True:
        rows = in_queue(backend, [job_id])[job_id]
        heard, runs = _runs(slurm, job_id, required=not rows)
        runs = last_use(runs, rows)
        parts = parts_of(job_id, rows, runs)
        if not parts:
            raise NoSuchJob(f"no job {job_id} in the queue or in the accounting database")
        for info in parts.values():
            if not info.is_over:
                raise NotOver(f"job {info.job_id} has not ended ({info.state}); wait for it first")
        told = all(info.source == "sacct" for info in parts.values())
        if told or not heard or time.monotonic() >= end:
            return parts, runs
        time.sleep(_AGAIN_SECONDS)


def _runs(slurm: Slurm, job_id: str, *, required: bool) -> tuple[bool, Sequence[JobInfo]]:
    try:
        return True, in_database(slurm, [job_id])[job_id]
    except (DatabaseDown, Refused):  # Refused: this cluster keeps no accounts
        if required:
            raise
        return False, ()


def _judged(slurm: Slurm, info: JobInfo, runs: Sequence[JobInfo]) -> Outcome:
    if info.source == "squeue":
        code = exit_code_in_queue(slurm, info.job_id) if info.state == "FAILED" else None
        return outcome_of(msgspec.structs.replace(info, exit_code=code), Evidence(log=info.output))
    steps = read_steps(slurm, info.job_id) if info.state in {"FAILED", "TIMEOUT"} else ()
    failed = info.state == "FAILED"
    end = _end_of_log(slurm, info, LogFile(stderr=True)) if failed else b""
    # With a file for each rank, slurmstepd writes into that of the first.
    first = _end_of_log(slurm, info, LogFile(rank=0)) if failed else b""
    evidence = Evidence(
        runs=tuple(runs),
        restarts=_restarts(slurm, info, runs),
        steps=steps,
        memory_said=any(map(MEMORY_MESSAGE.search, (end, first))),
        first_failure=_first_failure(slurm, info, end),
        log=_path(slurm, info, LogFile()) if info.started else None,
    )
    return outcome_of(info, evidence)


def _restarts(slurm: Slurm, info: JobInfo, runs: Sequence[JobInfo]) -> tuple[RunEnd, ...]:
    """The history of a job that was requeued; of another nothing is read."""
    return history_of(slurm, info.job_id) if len(runs) > 1 else ()


def _first_failure(slurm: Slurm, info: JobInfo, end: bytes) -> RankFailure | None:
    """Its last lines are in the job's log, or in a file of its own (`--log-per-rank`)."""
    found = first_failure(end.decode("utf-8", "replace"))
    if found is None or found.lines:
        return found
    own = _end_of_log(slurm, info, LogFile(rank=found.rank))
    return of_its_own(found, own.decode("utf-8", "replace"))


def _path(slurm: Slurm, info: JobInfo, which: LogFile) -> str | None:
    try:
        return find(slurm, info, which)
    except LogUnavailable:
        return None


def _end_of_log(slurm: Slurm, info: JobInfo, which: LogFile) -> bytes:
    """The end of a job's file, as far as we can see: nothing where we cannot."""
    path = _path(slurm, info, which)
    try:
        if path is None:
            return b""
        with machine_of(slurm).open(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_END))
            return file.read()
    except (OSError, SshError):
        return b""
