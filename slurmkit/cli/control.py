"""`slurmkit cancel`, `hold`, `release`, `requeue`, `interrupt` and `update`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from slurmkit.cli.jobs import act_on_each, raise_failures
from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import Fit, print_table
from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.formats.job_ids import whole_id
from slurmkit.jobs.job import REHEARSALS, Changes, Job, check_signal
from slurmkit.state.arrays import shown_id
from slurmkit.state.queue import QueueFilter
from slurmkit.state.queue_rows import QueueRow

_SHOWN = ("JOBID", "USER", "PARTITION", "STATE", "NAME")


def _json_of(command: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return json_option(f"slurmkit.{command}/1", text="Print the jobs as JSON.")


@click.command("cancel")
@click.argument("job_ids", nargs=-1, metavar="[JOB_ID]...")
@click.option(
    "--me", is_flag=True, help="All your jobs, or only those that the next options choose."
)
@click.option("-t", "--state", metavar="STATES", help="With --me: only jobs in these states.")
@click.option("-n", "--name", metavar="NAMES", help="With --me: only jobs of these names.")
@click.option(
    "-p", "--partition", metavar="NAMES", help="With --me: only jobs in these partitions."
)
@click.option(
    "-s",
    "--signal",
    metavar="SIGNAL",
    help="Send a signal instead: USR1 to the steps, B:USR1 to the batch shell.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@_json_of("cancel")
def cancel_command(
    job_ids: tuple[str, ...],
    *,
    me: bool,
    signal: str | None,
    yes: bool,
    as_json: JsonOutput | None,
    **given: str | None,
) -> None:
    """Cancel jobs, or send them a signal.

    All unfinished tasks of an array are cancelled. With --me slurmkit first shows the jobs and asks
    for confirmation.

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
        raise BadInput("give either job ids or --me; --state, --name and --partition need --me")
    done = _Done(f"sent {signal} to" if signal else "cancelled", as_json)

    def cancel(job: Job) -> None:
        job.cancel(signal=signal)
        done.tell(job.named(job.id))

    if job_ids:
        done.end(act_on_each(cluster.handles(job_ids), cancel))
        return
    rows = _own_jobs(cluster, given, running=signal is not None)
    if as_json and not yes:
        raise BadInput("--json does not ask for confirmation; add --yes")
    if not _confirm(rows, f"send {signal} to" if signal else "cancel", yes=yes):
        done.end([])
        return
    ids = _ids_to_cancel(rows, every=not any(given.values()))
    failed = cluster.cancel(ids, signal=signal)
    for job_id in ids:
        if job_id not in failed:
            done.tell(job_id)
    done.end(list(failed.values()))


class _Done:
    """Collects the jobs that a command has changed, and prints them in words or as JSON.

    Args:
        words: what was done.
        as_json: collect the jobs for JSON instead of printing a line for each.
    """

    def __init__(self, words: str, as_json: JsonOutput | None) -> None:
        self._words, self._as_json = words, as_json
        self._ids: list[str] = []

    def tell(self, job_id: str) -> None:
        """Note a job."""
        self._ids.append(job_id)
        if not self._as_json:
            click.echo(f"{self._words} job {job_id}")

    def end(self, failed: Sequence[SlurmkitError]) -> None:
        """Print the JSON; raise the last error of the jobs that failed."""
        if self._as_json and (self._ids or not failed):
            self._as_json.print({"job_id": job_id, "done": self._words} for job_id in self._ids)
        raise_failures(failed)


def _own_jobs(cluster: Cluster, given: dict[str, str | None], *, running: bool) -> list[QueueRow]:
    """Return your own jobs that match the options; with `running` no pending ones."""

    def several(option: str) -> tuple[str, ...]:
        text = given[option]
        return () if text is None else tuple(part.strip() for part in text.split(","))

    only = QueueFilter(
        me=True, states=several("state"), names=several("name"), partitions=several("partition")
    )
    rows = cluster.queue(only).rows
    return [row for row in rows if not row.ended and not (running and row.state == "PENDING")]


def _confirm(rows: Sequence[QueueRow], doing: str, *, yes: bool) -> bool:
    """Show the jobs, and ask whether to go on."""
    if not rows:
        click.echo("no job of yours in the queue matches", err=True)
        return False
    if yes:
        return True
    print_table(
        _SHOWN,
        [(shown_id(r), r.user, r.partition, r.state, r.name) for r in rows],
        fit=Fit(("JOBID",), ("NAME",), least=("PARTITION",)),
    )
    if not sys.stdin.isatty():
        raise BadInput(
            f"no terminal to ask for confirmation on; to {doing} jobs without asking: add --yes"
        )
    return click.confirm(f"{doing} {'these jobs' if len(rows) > 1 else 'this job'}?", err=True)


def _ids_to_cancel(rows: Sequence[QueueRow], *, every: bool) -> list[str]:
    """Return the ids to cancel: het jobs as a whole, arrays as a whole if `every` is set."""
    ids = []
    for row in rows:
        tasks, limited, _ = row.job_id.partition("%")  # 12_[4-9%2] is cancelled as 12_[4-9]
        whole = every or "+" in row.job_id
        ids.append(whole_id(row.job_id) if whole else f"{tasks}]" if limited else tasks)
    return list(dict.fromkeys(ids))


@click.command("hold")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@_json_of("hold")
def hold_command(job_ids: tuple[str, ...], *, as_json: JsonOutput | None) -> None:
    """Keep jobs from starting.

    A running job continues. If it is requeued later, it is held.

    \b
    Examples:
      slurmkit hold 12
      slurmkit hold 12_3 12_4
    """
    _change_all(job_ids, Job.hold, _Done("held", as_json))


@click.command("release")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@_json_of("release")
def release_command(job_ids: tuple[str, ...], *, as_json: JsonOutput | None) -> None:
    """Let held jobs start.

    \b
    Example:
      slurmkit release 12 13
    """
    _change_all(job_ids, Job.release, _Done("released", as_json))


@click.command("requeue")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@_json_of("requeue")
def requeue_command(job_ids: tuple[str, ...], *, as_json: JsonOutput | None) -> None:
    """Stop jobs and put them back in the queue, to run again from their beginning.

    A job that ended a short while ago can be requeued, too. Jobs submitted with --no-requeue are
    refused.

    \b
    Example:
      slurmkit requeue 12
    """
    _change_all(job_ids, Job.requeue, _Done("requeued", as_json))


@click.command("interrupt")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@click.option(
    "--as", "ending", type=click.Choice(tuple(REHEARSALS)), required=True, help="What to test."
)
@_json_of("interrupt")
def interrupt_command(job_ids: tuple[str, ...], ending: str, *, as_json: JsonOutput | None) -> None:
    """Test how running jobs handle a time limit or a preemption, without waiting for one.

    Your program gets the same checkpoint signal as at the real ending. Then the job does what its
    `--on-timeout` or `--on-preempt` says.

    \b
    Examples:
      slurmkit interrupt 12 --as timeout
      slurmkit interrupt 12_3 --as preempt
    """
    done = _Done(f"testing {ending} on", as_json)
    _change_all(job_ids, lambda job: job.interrupt(ending), done)


@click.command("update")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@click.option("-t", "--time", "time_limit", metavar="TIME", help="Time limit, e.g. 4:00:00.")
@click.option("--priority", type=int, help="Priority; most sites let only operators set it.")
@click.option("-p", "--partition", help="Partition of a pending job.")
@click.option("-q", "--qos", help="Quality of service of a pending job.")
@click.option("-J", "--job-name", help="Name of the job.")
@click.option("--nice", type=int, help="Lower the priority of a pending job by this much.")
@_json_of("update")
def update_command(job_ids: tuple[str, ...], *, as_json: JsonOutput | None, **given: Any) -> None:
    """Change the time limit, partition or other options of jobs.

    Users may only lower the time limit of a running job. They may raise the time limit of a pending
    job up to the partition's limit.

    \b
    Examples:
      slurmkit update 12 --time 2:00:00
      slurmkit update 12 13 --partition gpu --qos high
    """
    changes = {name: value for name, value in given.items() if value is not None}
    Changes(**changes)  # raises for bad input before any job is changed
    _change_all(job_ids, lambda job: job.update(**changes), _Done("updated", as_json))


def _change_all(job_ids: tuple[str, ...], act: Callable[[Job], None], done: _Done) -> None:
    """Act on each job and print what was `done`; end with an error if one failed."""
    cluster = Cluster()

    def act_and_tell(job: Job) -> None:
        act(job)
        done.tell(job.named(job.id))

    done.end(act_on_each(cluster.handles(job_ids), act_and_tell))
