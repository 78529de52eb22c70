"""Wait for jobs: until many have ended, or until the program in one is ready.

One poller asks Slurm about all of them with one query.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeVar

from slurmkit.errors import BadInput, NotOver, SlurmkitError
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.job import Job
from slurmkit.jobs.pending_reasons import explain_reason

ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]
_RETURN_WHEN = ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION")
NO_REASON_YET = ("", "None", "Prolog")
"""Reasons of a pending job that say nothing yet."""
AddressT = TypeVar("AddressT")


class DoneAndNotDoneJobs(NamedTuple):
    """The jobs that have ended, and the others."""

    done: set[Job]
    not_done: set[Job]


def wait(
    jobs: Iterable[Job],
    timeout: float | None = None,
    return_when: ReturnWhen = "ALL_COMPLETED",
) -> DoneAndNotDoneJobs:
    """Block until jobs have ended, and return those that have and those that have not.

    A job that Slurm does not know is done; its own `wait` and `outcome` raise the error.

    Args:
        jobs: handles of jobs on one cluster; arrays and plans count as one job each.
        timeout: seconds to wait; for ever by default. The jobs go on.
        return_when: `ALL_COMPLETED`; `FIRST_COMPLETED` once any has ended; `FIRST_EXCEPTION` once
            any has ended other than COMPLETED, or all have ended. `concurrent.futures` has
            constants of these names.

    Raises:
        BadInput: for jobs of several clusters, or another `return_when`.
    """
    if return_when not in _RETURN_WHEN:
        raise BadInput(f"return_when is one of {', '.join(_RETURN_WHEN)}, not {return_when!r}")
    left, done = set(jobs), set[Job]()
    with suppress(NotOver):  # the time is over
        for ended in _ended_jobs(list(left), timeout):
            done.update(ended)
            first = return_when == "FIRST_COMPLETED"
            failed = return_when == "FIRST_EXCEPTION" and not all(ended.values())
            if ended and (first or failed):
                break
    return DoneAndNotDoneJobs(done, left - done)


def as_completed(jobs: Iterable[Job], timeout: float | None = None) -> Iterator[Job]:
    """Yield jobs as they end; those that have ended already come first.

    A job that Slurm does not know is yielded, too; its own `wait` and `outcome` raise the error.

    Args:
        jobs: handles of jobs on one cluster; arrays and plans count as one job each.
        timeout: seconds to wait for all of them; for ever by default.

    Raises:
        NotOver: a TimeoutError, when the timeout ends first; the jobs go on.
        BadInput: for jobs of several clusters.
    """
    for ended in _ended_jobs(list(dict.fromkeys(jobs)), timeout):
        yield from ended


def _ended_jobs(jobs: Sequence[Job], timeout: float | None) -> Iterator[dict[Job, bool]]:
    """Yield at each change the jobs that have ended, and whether they completed."""
    if not jobs:
        return
    pollers = {id(job.cluster.poller): job.cluster.poller for job in jobs}
    if len(pollers) > 1:
        raise BadInput("the jobs are on several clusters; wait for the jobs of each by themselves")
    (poller,) = pollers.values()
    left = list(jobs)
    with poller.watch(part.id for job in jobs for part in job.parts) as watch:
        for known in watch.changes(timeout):
            over, waited = list[Job](), left
            left = []
            for job in waited:
                (over if all(known[part.id].settled for part in job.parts) else left).append(job)
            ended = {}
            for job in over:
                try:
                    ended[job] = job.take_end(known).state == "COMPLETED"
                except SlurmkitError:
                    ended[job] = False
            yield ended


def why_by_reason(job: Job, meaning: str) -> str:
    """Return why a job waits, by its pending reason alone."""
    return f"job {job.id} waits: {meaning}"


def wait_until_ready(
    job: Job,
    find: Callable[[], AddressT | None],
    notice: Callable[[str], None],
    *,
    no_answer: Callable[[], str],
    patience: float,
    why_pending: Callable[[Job, str], str] = why_by_reason,
    waiting_for: str = "",
) -> AddressT | None:
    """Wait until a job runs and the program in it is ready, and return the program's address.

    Args:
        job: the job.
        find: returns the address of the program, or None until the program is ready. It is called
            only while the job runs: an earlier run may have left an address.
        notice: called with a line that says why the job waits, or that it runs.
        no_answer: returns the message of `NotOver`: what is still missing, and where to look.
        patience: seconds that the program may take once the job runs. They start again when the
            job is requeued.
        why_pending: makes words of why a job waits, from the meaning of its pending reason.
        waiting_for: the event that a running job still lacks, e.g. "Jupyter to answer"; without
            it, there is no notice when the job starts.

    Returns:
        What `find` returned; None when the job has ended first.

    Raises:
        NotOver: when the program is not ready in that time; the job goes on.
        NoSuchJob: when Slurm does not know the job.
    """
    last, since = "", None
    with job.cluster.poller.watch([job.id]) as watch:
        for known in watch.changes(every=1.0):
            one = known[job.id]
            if one.error is not None:
                raise one.error
            runs = one.info is not None and one.info.state == "RUNNING"
            address = find() if runs else None
            if address is not None:
                return address
            line = _status_line(job, one.info, last, why_pending, waiting_for)
            if line != last:
                notice(line)
                last = line
            since = (since or time.monotonic()) if runs else None
            if since and time.monotonic() - since > patience:
                raise NotOver(no_answer())
    return None


def _status_line(
    job: Job,
    info: JobInfo | None,
    last: str,
    why_pending: Callable[[Job, str], str],
    waiting_for: str,
) -> str:
    """Return the current status line, or the last one if nothing changed."""
    if info is None or info.is_over:
        return last
    if info.state != "PENDING":
        runs = f"job {job.id} runs on {info.node_list}; waiting for {waiting_for}"
        return runs if waiting_for else last
    if info.reason in NO_REASON_YET:
        return last
    meaning = explain_reason(info.reason, job.id).meaning
    return last if meaning in last else why_pending(job, meaning)
