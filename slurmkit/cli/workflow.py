"""`slurmkit workflow`: several jobs that wait for each other, handled as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from slurmkit.cli.jobs import print_notice, raise_failures
from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import print_key_values
from slurmkit.cli.workflow_tables import (
    print_workflow_findings,
    print_workflow_jobs,
    print_workflow_plan,
    print_workflow_plan_json,
    print_workflows,
    wait_for_workflow,
    workflow_job_json,
)
from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.workflow import ResumePlan, SentWorkflow
from slurmkit.cluster.workflow_plan import WorkflowPlan, plan_workflow
from slurmkit.cluster.workflow_record import FOLDER, WorkflowRecord, tokens_in
from slurmkit.config.paths import state_folder
from slurmkit.errors import BadInput
from slurmkit.formats.display import format_time
from slurmkit.spec.workflow import Workflow, load_workflow


def _complete_workflow(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the names and tokens of your workflows on all clusters, from their records."""
    words: set[str] = set()
    for folder in state_folder(FOLDER).glob("*"):
        for token in tokens_in(folder):
            words.add(token)
            try:
                record = msgspec.json.decode(
                    (folder / f"{token}.json").read_bytes(), type=WorkflowRecord
                )
            except (OSError, msgspec.DecodeError):
                continue
            words.add(record.name)
    return sorted(word for word in words if word.startswith(incomplete))


_FILE_ARGUMENT = click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
_WORKFLOW_ARGUMENT = click.argument(
    "workflow", metavar="WORKFLOW", shell_complete=_complete_workflow
)
_SHOWN = 4  # names of jobs shown in a list
_FORCE = click.option(
    "--force", is_flag=True, help="Submit jobs in spite of errors, except unsafe ones."
)


def _json_of(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return json_option(f"slurmkit.workflow.{name}/1", text="Print it as JSON.")


@click.group("workflow")
def workflow_group() -> None:
    """Plan, submit, follow and resume several jobs that wait for each other.

    FILE is TOML: a table [jobs.NAME] for each job, with the keys of a job file and `after`, and
    [defaults] for all jobs. WORKFLOW is the name or the token of a workflow that was submitted.

    \b
    Examples:
      slurmkit workflow plan pipeline.toml
      slurmkit workflow submit pipeline.toml
      slurmkit workflow show pipeline
      slurmkit workflow wait pipeline && ./publish.sh
      slurmkit workflow resume pipeline
    """


@workflow_group.command("plan")
@_FILE_ARGUMENT
@click.option("--script", "script_of", metavar="JOB", help="Print just the script of one job.")
@_json_of("plan")
def plan_command(file: Path, *, script_of: str | None, as_json: JsonOutput | None) -> int:
    """Check a workflow and each of its jobs, and draw it.

    Nothing is submitted. The exit code is 2 when there are errors.

    \b
    Examples:
      slurmkit workflow plan pipeline.toml
      slurmkit workflow plan pipeline.toml --script train
      slurmkit workflow plan pipeline.toml --json | jq '.rows[] | [.name, .estimate]'
    """
    flow = load_workflow(file)
    planned = plan_workflow(flow, Cluster())
    if script_of is not None:
        for submission in planned.plans[flow.known(script_of)].submissions:
            click.echo(submission.script, nl=False)
    elif as_json:
        print_workflow_plan_json(planned, as_json)
    else:
        print_workflow_plan(planned)
    print_workflow_findings(planned)
    return BadInput.exit_code if planned.errors else 0


@workflow_group.command("submit")
@_FILE_ARGUMENT
@click.option("--parsable", is_flag=True, help="Print only the token.")
@_FORCE
@_json_of("submit")
def submit_command(file: Path, *, parsable: bool, force: bool, as_json: JsonOutput | None) -> None:
    """Submit all jobs of a workflow.

    No job starts before all are submitted: they are submitted held, and released at the end. On a
    failure or Ctrl-C the jobs submitted so far are cancelled. If this process is killed, they stay
    held: `resume` goes on with them, `cancel` cancels them.

    \b
    Examples:
      slurmkit workflow submit pipeline.toml
      token=$(slurmkit workflow submit --parsable pipeline.toml)
    """
    if parsable and as_json:
        raise BadInput("give either --parsable or --json, not both")
    cluster = Cluster()
    planned = plan_workflow(load_workflow(file), cluster)
    print_workflow_findings(planned)
    _refuse_errors(planned, force=force)
    sent = cluster.submit_workflow(planned, file=file, force=force)
    if as_json:
        _print_sent_json(sent, as_json)
        return
    if parsable:
        click.echo(sent.token)
        return
    name, count = sent.record.name, len(planned.plans)
    click.echo(f"submitted workflow {name} {sent.token}: {count} job{'s' * (count != 1)}")
    click.echo(f"follow it: slurmkit workflow show {name}, slurmkit workflow wait {name}", err=True)


def _print_sent_json(
    sent: SentWorkflow, as_json: JsonOutput, verdicts: Mapping[str, str] | None = None
) -> None:
    """Print the jobs of a workflow as they were sent, without a look at their states.

    Args:
        sent: the workflow.
        as_json: what is asked for.
        verdicts: what `resume` found for each job before it went on.
    """
    rows: list[dict[str, Any]] = [
        {"name": name, "ids": job.ids, "after": job.after} for name, job in sent.record.jobs.items()
    ]
    if verdicts is not None:
        rows = [row | {"verdict": verdicts.get(row["name"])} for row in rows]
    as_json.print(rows, further={"name": sent.record.name, "token": sent.token})


def _refuse_errors(planned: WorkflowPlan, *, force: bool) -> None:
    """Raise BadInput if the plan has errors; with `force` only if it has unsafe ones."""
    stopping = planned.unsafe if force else planned.errors
    if stopping:
        count = f"{len(stopping)} error{'s' * (len(stopping) > 1)}"
        rest = "" if planned.unsafe else "; to submit it anyway: --force"
        raise BadInput(f"nothing submitted: {count}{rest}")


@workflow_group.command("show")
@_WORKFLOW_ARGUMENT
@_json_of("show")
def show_command(workflow: str, *, as_json: JsonOutput | None) -> None:
    """Draw a workflow with the state of each job.

    It also shows each job's run time, and why a job waits.

    \b
    Examples:
      slurmkit workflow show pipeline
      slurmkit workflow show 3f2a91c0 --json | jq -r '.rows[] | select(.state == "FAILED").name'
    """
    sent = Cluster().workflow(workflow)
    jobs = sent.look()
    if as_json:
        facts, rows = msgspec.to_builtins(sent.record), list(map(workflow_job_json, jobs.values()))
        further = {name: value for name, value in facts.items() if name != "jobs"}
        as_json.print(rows, further=further)
        return
    record = sent.record
    phase = {"sent": "", "sending": ", not completely submitted", "cancelled": ", cancelled"}
    print_key_values(
        [
            ("Workflow", f"{record.name}  {record.token}{phase[record.phase]}"),
            (
                "Sent",
                (
                    f"{format_time(record.created)} from"
                    f" {record.file or 'Python, or a file not known here'}"
                ),
            ),
        ]
    )
    print_workflow_jobs(jobs)


@workflow_group.command("list")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Show at most this many.",
)
@_json_of("list")
def list_command(*, lines: int, as_json: JsonOutput | None) -> None:
    """List your workflows on this cluster, the newest first.

    \b
    Examples:
      slurmkit workflow list
      slurmkit workflow list --json | jq -r '.rows[].token'
    """
    print_workflows(Cluster(), lines, as_json=as_json)


@workflow_group.command("cancel")
@_WORKFLOW_ARGUMENT
@_json_of("cancel")
def cancel_command(workflow: str, *, as_json: JsonOutput | None) -> None:
    """Cancel all unfinished jobs of a workflow.

    Jobs that wait for others are cancelled first.

    \b
    Example:
      slurmkit workflow cancel pipeline
    """
    sent = Cluster().workflow(workflow)
    failed = sent.cancel()
    if as_json and not failed:
        _print_sent_json(sent, as_json)
    elif not failed:
        click.echo(f"cancelled workflow {sent.record.name} {sent.token}")
    raise_failures(list(failed.values()))


@workflow_group.command("resume")
@_WORKFLOW_ARGUMENT
@click.option(
    "--changed",
    is_flag=True,
    help="Use the file as it is now, although it has changed since the submit.",
)
@click.option("--again", multiple=True, metavar="JOB", help="Run this job again, too.")
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be done.")
@_FORCE
@_json_of("resume")
def resume_command(
    workflow: str, *, dry_run: bool, force: bool, as_json: JsonOutput | None, **given: Any
) -> int:
    """Go on with a workflow after a failure.

    It submits only jobs that are missing, failed or were given up. Completed jobs do not run again,
    and no job waits for them any more. The same holds for completed tasks of an array, unless
    --again or --changed takes the whole array. Jobs that wait for a job that is submitted again are
    submitted again, too. Running jobs are left alone. If a `submit` was killed, this completes it.

    \b
    Examples:
      slurmkit workflow resume pipeline --dry-run
      slurmkit workflow resume pipeline
      slurmkit workflow resume pipeline --changed --again prepare
    """
    cluster = Cluster()
    sent = cluster.workflow(workflow)
    flow = _read_sent_file(sent)
    rest = sent.rest(flow, given["again"])
    _check_changes(sent, rest, changed=given["changed"])
    due = rest.names("due")
    planned = plan_workflow(flow, cluster, names=due, arrays=rest.missing)
    print_workflow_findings(planned)
    _print_rest(rest)
    _refuse_errors(planned, force=force)
    missing = bool(due) or sent.record.phase != "sent"
    if missing and not dry_run:
        sent.resume(planned, rest, force=force)
    if as_json:
        _print_sent_json(sent, as_json, rest.verdicts)
    elif not missing and not dry_run:
        print_notice(f"nothing to resume in workflow {sent.record.name}")
    elif not dry_run:
        click.echo(f"resumed workflow {sent.record.name} {sent.token}: {len(due)} jobs submitted")
    return 0


def _read_sent_file(sent: SentWorkflow) -> Workflow:
    """Read the file that a workflow was submitted from; raises BadInput if it is not known."""
    if not sent.record.file:
        raise BadInput(
            f"the file of workflow {sent.record.name} is not known here: the workflow was submitted"
            " from Python (resume it there, with SentWorkflow.resume), or its record is lost"
            " (submit the remaining jobs again)"
        )
    return load_workflow(Path(sent.record.file), Path(sent.record.folder))


def _check_changes(sent: SentWorkflow, rest: ResumePlan, *, changed: bool) -> None:
    """Print how the file differs from what was sent; raises BadInput unless `changed` allows it."""
    if not rest.differs:
        return
    kinds = {"changed": rest.changed, "new": rest.added, "gone": rest.left_out}
    changes = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)
    words = f"{sent.record.file} has changed since it was submitted ({changes})"
    if not changed:
        raise BadInput(f"{words}; add --changed to use it as it is now, or restore the old file")
    print_notice(f"{words}; completed and running jobs are left alone")


def _print_rest(rest: ResumePlan) -> None:
    """Print what becomes of each job at a resume."""
    words = {
        "done": "completed, not run again",
        "live": "in the queue, left alone",
        "skipped": "not needed, because the case they are for did not happen",
        "due": "to be submitted",
    }
    for verdict, meaning in words.items():
        names = [name for name, status in rest.verdicts.items() if status == verdict]
        if not names:
            continue
        shown = names if len(names) <= _SHOWN else [*names[:_SHOWN], "…"]
        if verdict == "due":  # these are all named
            arrays = rest.missing
            shown = [
                f"{name} (only {arrays[name]}: the other tasks have completed)"
                if arrays.get(name)
                else name
                for name in names
            ]
        print_notice(f"{meaning} ({len(names)}): {', '.join(shown)}")
    if rest.replaced:
        print_notice(
            "cancelled and submitted again, because they wait for these:"
            f" {', '.join(rest.replaced)}"
        )


@workflow_group.command("wait")
@_WORKFLOW_ARGUMENT
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait at most this long."
)
@_json_of("wait")
def wait_command(workflow: str, *, timeout: float | None, as_json: JsonOutput | None) -> int:
    """Wait until every job of a workflow has ended.

    It names the jobs that did not complete. The exit code is 0 if all jobs that had to run
    completed, else 1. Ctrl-C leaves the jobs alone.

    \b
    Example:
      slurmkit workflow wait pipeline && ./publish.sh
    """
    sent = Cluster().workflow(workflow)
    code = wait_for_workflow(sent, timeout)
    if as_json and code in (0, 1):
        rows = [workflow_job_json(job) for job in sent.look().values()]
        as_json.print(rows, further={"name": sent.record.name, "token": sent.token})
    return code
