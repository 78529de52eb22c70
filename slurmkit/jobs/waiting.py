"""Wait for many jobs at once, as `concurrent.futures` waits for futures.

One poller asks Slurm about all of them with one query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from slurmkit.errors import BadInput, NotOver, SlurmkitError
from slurmkit.jobs.job import Job

ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]
_RETURN_WHEN = ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION")


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
