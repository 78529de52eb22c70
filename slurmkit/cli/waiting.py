"""`slurmkit wait`, and what `slurmkit submit --wait` ends with."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import click

from slurmkit.cli.each import each, fail_with, say
from slurmkit.cluster import Cluster
from slurmkit.durations import format_duration
from slurmkit.facts import tally
from slurmkit.jobs.job import Job
from slurmkit.jobs.outcome import Evidence, Outcome
from slurmkit.jobs.progress import Known
from slurmkit.jobs.verdict import outcome_of
from slurmkit.jobs.watch import Watch
from slurmkit.text import printable

_PICTURE_SECONDS = 1.0
_MOST_LOOKS = 10  # for more than the poller saw: each takes some commands
_CLEAR = "\r\x1b[K"


@click.command("wait")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer.")
def wait_command(job_ids: tuple[str, ...], *, timeout: float | None) -> int:
    """Wait until jobs have ended, and end with their exit code.

    That is 0 when a job completed, its own exit code when it failed, 128 + N when signal N ended
    it, and 1 for anything else (cancelled, time limit, ...); of several jobs the highest. Ctrl-C
    leaves the jobs alone.

    \b
    Examples:
      slurmkit wait 12 && ./evaluate.sh
      slurmkit wait 12 13 14_3 --timeout 3600
    """
    cluster = Cluster()
    return _wait(cluster.handles(job_ids), timeout)


def wait_and_exit_code(job: Job) -> int:
    """Wait until a job has ended, tell how on standard error, and return its exit code.

    On a terminal it shows what the job does meanwhile. Ctrl-C leaves the job alone and returns 130.

    Raises:
        SlurmkitError: when the job cannot be followed.
    """
    return _wait([job], None)


def _wait(jobs: Sequence[Job], timeout: float | None) -> int:
    ids = [part.id for job in jobs for part in job.parts]
    statuses: list[int] = []
    try:
        with jobs[0].cluster.poller.watch(ids) as watch:
            show_progress(watch, timeout)
            looks = iter(range(_MOST_LOOKS))
            failed = each(jobs, lambda job: statuses.append(_told(job, looks).exit_status))
    except KeyboardInterrupt:
        named = [job.named(job.id) for job in jobs]
        left = ", ".join(named)
        say(f"no longer waiting; left as it is: job {left} (slurmkit cancel {named[0]})")
        return 128 + signal.SIGINT
    fail_with(failed)
    return max(statuses)


def show_progress(watch: Watch, timeout: float | None) -> None:
    """Show on a terminal how far the jobs are; tell when Slurm does not answer."""
    terminal = sys.stderr.isatty()
    began, said = time.monotonic(), None
    try:
        for known in watch.changes(timeout, _PICTURE_SECONDS if terminal else None):
            if watch.trouble and watch.trouble != said:
                click.echo(_CLEAR if terminal else "", nl=False, err=True)
                say(f"{watch.trouble}; asking again")
            said = watch.trouble
            if terminal:
                click.echo(_CLEAR + _picture(known.values(), began), nl=False, err=True)
    finally:
        if terminal:
            click.echo(_CLEAR, nl=False, err=True)


def _picture(known: Iterable[Known], began: float) -> str:
    states = Counter(one.info.state if one.info else "asking" for one in known)
    waited = format_duration(int(time.monotonic() - began))
    return printable(f"waiting for {states.total()}: {tally(dict(states))}; {waited}")


def _told(job: Job, looks: Iterator[int]) -> Outcome:
    """How a job that is over ended, told on standard error; of some that failed also why."""
    info = job.wait()
    completed = not info.tally and info.state == "COMPLETED"
    seen = completed or next(looks, None) is None
    outcome = outcome_of(info, Evidence()) if seen else job.outcome()
    parts = f"{tally(info.tally)}; " if seen and info.tally else ""
    click.echo(printable(f"job {job.named(job.id)}: {parts}{outcome.words}"), err=True)
    return outcome
