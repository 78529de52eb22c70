"""`slurmkit cancel`, `hold`, `release`, `requeue` and `update`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from slurmkit.cli.each import each, fail_with
from slurmkit.cli.show import table
from slurmkit.cluster import Cluster
from slurmkit.errors import BadInput
from slurmkit.jobs.changes import Changes, check_signal
from slurmkit.jobs.ids import whole_id
from slurmkit.jobs.job import Job
from slurmkit.logical import shown_id
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import QueueFilter
from slurmkit.survive.rehearsal import REHEARSALS

_SHOWN = ("JOBID", "USER", "PARTITION", "STATE", "NAME")


@click.command("cancel")
@click.argument("job_ids", nargs=-1, metavar="[JOB_ID]...")
@click.option("--me", is_flag=True, help="All my jobs, or those that meet the next options.")
@click.option("-t", "--state", metavar="STATES", help="With --me: only jobs in these states.")
@click.option("-n", "--name", metavar="NAMES", help="With --me: only jobs of these names.")
@click.option("-p", "--partition", metavar="NAMES", help="With --me: only jobs in these.")
@click.option("-s", "--signal", metavar="SIGNAL", help="Send USR1, or B:USR1 to the batch shell.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def cancel_command(
    job_ids: tuple[str, ...], *, me: bool, signal: str | None, yes: bool, **given: str | None
) -> None:
    """Cancel jobs, or send them a signal.

    Of an array all tasks that have not ended are cancelled. With --me it shows what would be
    cancelled and asks first.

    \b
    Examples:
      slurmkit cancel 12 13_4
      slurmkit cancel --me --state PENDING --partition gpu
      slurmkit cancel --signal B:USR1 12
    """
    cluster = Cluster()
    if signal:
        check_signal(signal)
    if bool(job_ids) == me or (any(given.values()) and not me):
        raise BadInput("give either job ids, or --me with or without --state, --name, --partition")
    if job_ids:
        fail_with(each(cluster.handles(job_ids), lambda job: _cancel(job, signal)))
        return
    rows = _mine(cluster, given, running=signal is not None)
    if not _agreed(rows, f"send {signal} to" if signal else "cancel", yes=yes):
        return
    ids = _ids(rows, every=not any(given.values()))
    failed = cluster.cancel(ids, signal=signal)
    for job_id in ids:
        if job_id not in failed:
            _tell(job_id, signal)
    fail_with(list(failed.values()))


def _cancel(job: Job, signal: str | None) -> None:
    job.cancel(signal=signal)
    _tell(job.named(job.id), signal)


def _tell(job_id: str, signal: str | None) -> None:
    click.echo(f"{f'sent {signal} to' if signal else 'cancelled'} job {job_id}")


def _mine(cluster: Cluster, given: dict[str, str | None], *, running: bool) -> list[QueueRow]:
    def several(option: str) -> tuple[str, ...]:
        text = given[option]
        return () if text is None else tuple(part.strip() for part in text.split(","))

    only = QueueFilter(
        me=True, states=several("state"), names=several("name"), partitions=several("partition")
    )
    rows = cluster.queue(only).rows
    return [row for row in rows if not row.ended and not (running and row.state == "PENDING")]


def _agreed(rows: Sequence[QueueRow], doing: str, *, yes: bool) -> bool:
    """Show what it is about, and ask."""
    if not rows:
        click.echo("no such job of yours in the queue", err=True)
        return False
    if yes:
        return True
    table(_SHOWN, [(shown_id(r), r.user, r.partition, r.state, r.name) for r in rows])
    if not sys.stdin.isatty():
        raise BadInput(
            f"will not {doing} jobs unasked, and this is no terminal to ask on: add --yes"
        )
    return click.confirm(f"{doing} {'these jobs' if len(rows) > 1 else 'this job'}?", err=True)


def _ids(rows: Sequence[QueueRow], *, every: bool) -> list[str]:
    """Ids to cancel: an array as a whole where all of it is meant, a het job always."""
    ids = (whole_id(r.job_id) if every or "+" in r.job_id else _as_asked(r.job_id) for r in rows)
    return list(dict.fromkeys(ids))


def _as_asked(job_id: str) -> str:
    """`12_[4-9]` of `12_[4-9%2]`."""
    tasks, limited, _ = job_id.partition("%")
    return f"{tasks}]" if limited else tasks


@click.command("hold")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
def hold_command(job_ids: tuple[str, ...]) -> None:
    """Keep jobs from starting.

    A job that runs goes on, and is held should it be requeued.

    \b
    Examples:
      slurmkit hold 12
      slurmkit hold 12_3 12_4
    """
    _all(job_ids, Job.hold, "held")


@click.command("release")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
def release_command(job_ids: tuple[str, ...]) -> None:
    """Let held jobs start.

    \b
    Example:
      slurmkit release 12 13
    """
    _all(job_ids, Job.release, "released")


@click.command("requeue")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
def requeue_command(job_ids: tuple[str, ...]) -> None:
    """Stop jobs and put them back in the queue, to run from their beginning.

    One that has ended a short while ago runs again. Jobs submitted with --no-requeue are refused.

    \b
    Example:
      slurmkit requeue 12
    """
    _all(job_ids, Job.requeue, "requeued")


@click.command("interrupt")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@click.option(
    "--as", "ending", type=click.Choice(tuple(REHEARSALS)), required=True, help="What to rehearse."
)
def interrupt_command(job_ids: tuple[str, ...], ending: str) -> None:
    """Rehearse an ending on running jobs that survive (`--on-timeout`, `--on-preempt`).

    The work is asked for a checkpoint as it would be then, and the job does what its policy says.

    \b
    Examples:
      slurmkit interrupt 12 --as timeout
      slurmkit interrupt 12_3 --as preempt
    """
    _all(job_ids, lambda job: job.interrupt(ending), f"rehearses {ending}:")


@click.command("update")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@click.option("-t", "--time", "time_limit", metavar="TIME", help="Time limit, e.g. 4:00:00.")
@click.option("--priority", type=int, help="Priority; most sites let only operators set it.")
@click.option("-p", "--partition", help="Partition of a job that waits.")
@click.option("-q", "--qos", help="Quality of service of a job that waits.")
@click.option("-J", "--job-name", help="Name of the job.")
@click.option("--nice", type=int, help="Lowers the priority of a job that waits, by as much.")
def update_command(job_ids: tuple[str, ...], **given: Any) -> None:
    """Change jobs.

    Users may only lower the time limit of a running job; that of a waiting one can be raised up to
    its partition's.

    \b
    Examples:
      slurmkit update 12 --time 2:00:00
      slurmkit update 12 13 --partition gpu --qos high
    """
    changes = {name: value for name, value in given.items() if value is not None}
    Changes(**changes)  # bad input is told before any job is changed
    _all(job_ids, lambda job: job.update(**changes), "updated")


def _all(job_ids: tuple[str, ...], act: Callable[[Job], None], done: str) -> None:
    cluster = Cluster()

    def act_and_tell(job: Job) -> None:
        act(job)
        click.echo(f"{done} job {job.named(job.id)}")

    fail_with(each(cluster.handles(job_ids), act_and_tell))
