"""`slurmkit job`, `log` and `wait`, and the loop over several jobs that other commands use."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import click
import msgspec

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import format_key_values
from slurmkit.cli.watch import show_repeatedly, watch_option
from slurmkit.cluster.cluster import Cluster
from slurmkit.config.files import default_cluster_name
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.formats.display import format_time, printable
from slurmkit.formats.durations import format_duration
from slurmkit.jobs.describe import (
    Fact,
    format_state,
    format_state_counts,
    job_gpu_facts,
    outcome_facts,
    output_fact,
    progress_facts,
    restart_facts,
)
from slurmkit.jobs.exit_codes import is_in_doubt
from slurmkit.jobs.info import UNKNOWN, JobInfo
from slurmkit.jobs.job import Job
from slurmkit.jobs.log import LogFile
from slurmkit.jobs.outcome import Outcome, OutcomeEvidence, judge_outcome
from slurmkit.jobs.poller import Watch, WatchedJob, settle_watched_codes
from slurmkit.jobs.run_history import RunRecord

_PROGRESS_SECONDS = 1.0
_MOST_LOOKUPS = 10  # failed jobs to look up in detail; each takes some commands
_CLEAR = "\r\x1b[K"


@click.command("job")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@click.option(
    "--gpus", is_flag=True, help="Show what each GPU of the jobs did, also after they ended."
)
@json_option("slurmkit.job/1", "slurmkit.job.gpus/1", text="Print the facts as JSON.")
@watch_option
def job_command(
    job_ids: tuple[str, ...], *, gpus: bool, as_json: JsonOutput | None, seconds: float | None
) -> None:
    """Show jobs: their state, nodes, the GPUs they hold there, and how they ended.

    With --json, `outcome` is null until the job has ended. --gpus reads the ledger.

    \b
    Examples:
      slurmkit job 12
      slurmkit job 12 --watch
      slurmkit job 12 --gpus
      slurmkit job 12 13_4 14+1
      slurmkit job 12 --json | jq '.rows[].gpu_indices'
    """
    if gpus:
        if seconds is not None:
            raise BadInput("--gpus shows what the ledger has; leave out --watch")
        if where := default_cluster_name():  # the ledger of this machine has other jobs
            raise BadInput(
                f"slurmkit job --gpus does not work over SSH; run it on the login node of {where}"
            )
        ledger = import_module("slurmkit_accounting.cli.job_gpus")
        ledger.print_job_gpus(job_ids, as_json)
        return
    handles = Cluster().handles(job_ids)
    if seconds is None:
        raise_failures(_print_jobs(handles, as_json=as_json))
        return

    def look() -> tuple[Sequence[str], str]:
        lines: list[str] = []
        failed = _print_jobs(handles, as_json=as_json, echo=lines.append)
        if not lines:
            raise_failures(failed)
        notes = [f"read at {format_time(time.time())}", *(printable(str(why)) for why in failed)]
        return lines, "; ".join(notes)

    show_repeatedly(look, seconds, in_place=not as_json)


def _print_jobs(
    handles: Sequence[Job], *, as_json: JsonOutput | None, echo: Callable[[str], None] = click.echo
) -> list[SlurmkitError]:
    """Print the facts of jobs; return the failures."""
    shown: list[dict[str, Any]] = []
    taken = time.time()

    def show(job: Job) -> None:
        info = job.info()
        outcome = job.outcome() if info.is_over and info.state != UNKNOWN else None
        before = job.restarts() if outcome is None else ()
        info = msgspec.structs.replace(info, job_id=job.named(info.job_id))
        if as_json:
            facts = msgspec.to_builtins(info)
            facts["outcome"] = msgspec.to_builtins(outcome)
            shown.append(facts | {"restarts": msgspec.to_builtins(before)})
            return
        if shown:
            echo("")
        shown.append({})
        for line in format_key_values(_job_facts(info, outcome, before)):
            echo(line)

    failed = act_on_each(handles, show)
    if as_json and shown:
        echo(as_json.encode(shown, taken=taken))
    return failed


def _job_facts(info: JobInfo, outcome: Outcome | None, before: tuple[RunRecord, ...]) -> list[Fact]:
    """Return the facts to print about a job; `before` are its earlier runs."""
    who = f"{info.user}, account {info.account}, partition {info.partition}"
    return [
        ("Job", f"{info.job_id}  {info.name}"),
        ("User", who),
        *progress_facts(info),
        *(outcome_facts(outcome) if outcome else restart_facts(before)),
        *job_gpu_facts(info),
        output_fact(info),
        ("Source", f"{info.source}, now"),
    ]


@click.command("log")
@click.argument("job_id")
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the job has ended.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), help="Print only this many lines from the end."
)
@click.option("-e", "--error", "stderr", is_flag=True, help="Print its standard error instead.")
@click.option(
    "--file",
    "pattern",
    metavar="PATTERN",
    help="Print a file that its steps write with srun --output.",
)
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    help="Print the output of one rank, with --log-per-rank or %t in --file.",
)
def log_command(job_id: str, *, follow: bool, lines: int | None, **which: Any) -> int:
    """Print a job's output.

    For an array or a sweep name one task, as ID_INDEX. --follow continues after a requeue. Ctrl-C
    stops it, and the job runs on.

    \b
    Examples:
      slurmkit log 12
      slurmkit log -f 12_3
      slurmkit log --lines 50 --error 12
      slurmkit log --rank 3 12
      slurmkit log --file 'out-%j-%t' --rank 3 12
    """
    file = LogFile(**which)
    job = Cluster().handle(job_id)
    shown = job.named(job.id)
    try:
        for chunk in job.log(follow=follow, lines=lines, file=file, notice=print_notice):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        print_notice(
            f"no longer following, but not cancelled: job {shown}; to cancel: slurmkit cancel"
            f" {shown}"
        )
        return 128 + signal.SIGINT
    if follow:
        click.echo(f"job {shown} ended: {dict(progress_facts(job.info()))['State']}", err=True)
    return 0


def act_on_each(jobs: Iterable[Job], act: Callable[[Job], None]) -> list[SlurmkitError]:
    """Act on every job; return the errors of those that failed, for `raise_failures`."""
    failed: list[SlurmkitError] = []
    for job in jobs:
        try:
            act(job)
        except SlurmkitError as error:
            failed.append(error)
    return failed


def raise_failures(failed: Sequence[SlurmkitError]) -> None:
    """Print all errors but the last, and raise the last; do nothing without errors.

    Raises:
        SlurmkitError: the last error.
    """
    for error in failed[:-1]:
        print_notice(str(error))
    if failed:
        raise failed[-1]


def print_notice(words: str) -> None:
    """Print a line about the command's progress to standard error."""
    click.echo(f"slurmkit: {printable(words)}", err=True)


@click.command("wait")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait at most this long."
)
@json_option("slurmkit.wait/1", text="Print how the jobs ended as JSON.")
def wait_command(
    job_ids: tuple[str, ...], *, timeout: float | None, as_json: JsonOutput | None
) -> int:
    """Wait until jobs have ended, and exit with their exit code.

    The exit code is 0 when a job completed, its own code when it failed, 128 + N when signal N
    ended it, and 1 for anything else (cancelled, time limit, ...). For several jobs it is the
    highest. Ctrl-C leaves the jobs alone.

    \b
    Examples:
      slurmkit wait 12 && ./evaluate.sh
      slurmkit wait 12 13 14_3 --timeout 3600
      slurmkit wait 12 --json | jq '.rows[].outcome.kind'
    """
    cluster = Cluster()
    return _wait_for_jobs(cluster.handles(job_ids), timeout, as_json)


def wait_and_exit_code(job: Job) -> int:
    """Wait until a job has ended, print how to standard error, and return its exit code.

    On a terminal the job's state is shown meanwhile. Ctrl-C leaves the job alone and returns 130.

    Raises:
        SlurmkitError: when the job cannot be followed.
    """
    return _wait_for_jobs([job], None, None)


def _wait_for_jobs(jobs: Sequence[Job], timeout: float | None, as_json: JsonOutput | None) -> int:
    """Wait for jobs and return the highest exit code; raise what failed."""
    ids = [part.id for job in jobs for part in job.parts]
    ended: list[tuple[str, Outcome]] = []
    try:
        with jobs[0].cluster.poller.watch(ids) as watch:
            show_progress(watch, timeout)
            known = watch.known
        if sum(bool(one.info and is_in_doubt(one.info)) for one in known.values()) > _MOST_LOOKUPS:
            known = settle_watched_codes(jobs[0].cluster.slurm, known)
        looks = iter(range(_MOST_LOOKUPS))
        failed = act_on_each(
            jobs,
            lambda job: ended.append((job.named(job.id), _print_outcome(job, looks, known))),
        )
    except KeyboardInterrupt:
        named = [job.named(job.id) for job in jobs]
        left = ", ".join(named)
        print_notice(
            f"no longer waiting, but not cancelled: job {left}; to cancel: slurmkit cancel"
            f" {named[0]}"
        )
        return 128 + signal.SIGINT
    if as_json and ended:
        as_json.print({"job_id": name, "exit_status": outcome.exit_status, "outcome": outcome}
                      for name, outcome in ended)  # fmt: skip
    raise_failures(failed)
    return max(outcome.exit_status for _, outcome in ended)


def show_progress(watch: Watch, timeout: float | None) -> None:
    """Wait for jobs; show their states on a terminal, and say when Slurm does not answer."""
    terminal = sys.stderr.isatty()
    began, last_trouble = time.monotonic(), None
    try:
        for known in watch.changes(timeout, _PROGRESS_SECONDS if terminal else None):
            if watch.trouble and watch.trouble != last_trouble:
                click.echo(_CLEAR if terminal else "", nl=False, err=True)
                print_notice(f"{watch.trouble}; asking again")
            last_trouble = watch.trouble
            if terminal:
                click.echo(_CLEAR + _progress_line(known.values(), began), nl=False, err=True)
    finally:
        if terminal:
            click.echo(_CLEAR, nl=False, err=True)


def _progress_line(known: Iterable[WatchedJob], began: float) -> str:
    """Return a line with the number of jobs in each state and the time waited."""
    states = Counter(
        format_state(one.info.state, one.info.reason) if one.info else "asking" for one in known
    )
    waited = format_duration(int(time.monotonic() - began))
    return printable(f"waiting for {states.total()}: {format_state_counts(dict(states))}; {waited}")


def _print_outcome(job: Job, looks: Iterator[int], known: Mapping[str, WatchedJob]) -> Outcome:
    """Print how an ended job ended, and return it; for as many failed jobs as `looks`, also why."""
    info = job.take_end(known)
    completed = not info.tally and info.state == "COMPLETED"
    state_only = completed or next(looks, None) is None
    outcome = judge_outcome(info, OutcomeEvidence()) if state_only else job.outcome()
    parts = f"{format_state_counts(info.tally)}; " if state_only and info.tally else ""
    click.echo(printable(f"job {job.named(job.id)}: {parts}{outcome.words}"), err=True)
    return outcome
