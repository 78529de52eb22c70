"""`slurmkit workflow`: several jobs that wait for each other, as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from slurmkit.cli.each import fail_with, say
from slurmkit.cli.show import key_values
from slurmkit.cli.workflowshow import (
    list_workflows,
    plan_as_json,
    say_plan,
    show_plan,
    show_sent,
    standing_json,
)
from slurmkit.cluster import Cluster
from slurmkit.errors import BadInput
from slurmkit.facts import clock
from slurmkit.statehome import state_folder
from slurmkit.workflows.file import read_workflow
from slurmkit.workflows.model import Workflow
from slurmkit.workflows.plan import WorkflowPlan, plan_workflow
from slurmkit.workflows.record import FOLDER, Record, tokens_in
from slurmkit.workflows.sent import Rest, SentWorkflow


def _known(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Names and tokens of one's workflows, of any cluster, as they stand on the disk."""
    found: dict[str, None] = {}
    for folder in state_folder(FOLDER).glob("*"):
        for token in tokens_in(folder):
            found[token] = None
            try:
                kept = msgspec.json.decode((folder / f"{token}.json").read_bytes(), type=Record)
            except (OSError, msgspec.DecodeError):
                continue
            found[kept.name] = None
    return sorted(word for word in found if word.startswith(incomplete))


_FILE = click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
_WHICH = click.argument("workflow", metavar="WORKFLOW", shell_complete=_known)
_NO_FILE = "Python, or a file that is not known here"
_SHOWN = 4  # names of a list that few read to its end
_FORCE = click.option("--force", is_flag=True, help="Send jobs in spite of errors.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


@click.group("workflow")
def workflow_group() -> None:
    """Several jobs that wait for each other: planned, sent, followed and resumed as one.

    FILE is TOML: a table [jobs.NAME] for each job, with the keys of a job file and `after`, and
    [defaults] for all. WORKFLOW is the name or the token of one that was sent.

    \b
    Examples:
      slurmkit workflow plan pipeline.toml
      slurmkit workflow submit pipeline.toml
      slurmkit workflow show pipeline
      slurmkit workflow wait pipeline && ./publish.sh
      slurmkit workflow resume pipeline
    """


@workflow_group.command("plan")
@_FILE
@click.option("--script", "script_of", metavar="JOB", help="Print just the script of one job.")
@_JSON
def plan_command(file: Path, *, script_of: str | None, as_json: bool) -> int:
    """Check a workflow as a whole and each of its jobs, and draw it. Nothing is sent.

    Ends with 2 when there are errors.

    \b
    Examples:
      slurmkit workflow plan pipeline.toml
      slurmkit workflow plan pipeline.toml --script train
      slurmkit workflow plan pipeline.toml --json | jq '.jobs.train.estimate'
    """
    flow = read_workflow(file)
    made = plan_workflow(flow, Cluster())
    if script_of is not None:
        for submission in made.plans[flow.known(script_of)].submissions:
            click.echo(submission.script, nl=False)
    elif as_json:
        click.echo(msgspec.json.encode(plan_as_json(made)))
    else:
        show_plan(made)
    say_plan(made)
    return BadInput.exit_code if made.errors else 0


@workflow_group.command("submit")
@_FILE
@click.option("--parsable", is_flag=True, help="Print only the token.")
@_FORCE
def submit_command(file: Path, *, parsable: bool, force: bool) -> None:
    """Send all jobs of a workflow; none of them starts before all are sent.

    Jobs are sent held and released at the end. When that fails, or on Ctrl-C, what was sent is
    cancelled. If this process is killed, the jobs stay held: `resume` goes on, `cancel` ends it.

    \b
    Examples:
      slurmkit workflow submit pipeline.toml
      token=$(slurmkit workflow submit --parsable pipeline.toml)
    """
    cluster = Cluster()
    made = plan_workflow(read_workflow(file), cluster)
    say_plan(made)
    _refuse(made, force=force)
    sent = cluster.submit_workflow(made, file=file, force=force)
    _tell(sent, len(made.plans), parsable=parsable)


def _tell(sent: SentWorkflow, count: int, *, parsable: bool) -> None:
    name = sent.record.name
    jobs = f"{count} job{'s' * (count != 1)}"
    click.echo(sent.token if parsable else f"submitted workflow {name} {sent.token}: {jobs}")
    if not parsable:
        click.echo(
            f"follow it: slurmkit workflow show {name}, slurmkit workflow wait {name}", err=True
        )


def _refuse(made: WorkflowPlan, *, force: bool) -> None:
    stopping = made.unsafe if force else made.errors
    if stopping:
        count = f"{len(stopping)} error{'s' * (len(stopping) > 1)}"
        rest = "" if made.unsafe else "; --force sends it all the same"
        raise BadInput(f"nothing submitted: {count}{rest}")


@workflow_group.command("show")
@_WHICH
@_JSON
def show_command(workflow: str, *, as_json: bool) -> None:
    """Draw a workflow with the state of each job, its time, and why it waits.

    \b
    Examples:
      slurmkit workflow show pipeline
      slurmkit workflow show 3f2a91c0 --json | jq -r '.jobs[] | select(.state == "FAILED").name'
    """
    sent = Cluster().workflow(workflow)
    found = sent.look()
    if as_json:
        facts = msgspec.to_builtins(sent.record) | {
            "jobs": list(map(standing_json, found.values()))
        }
        click.echo(msgspec.json.encode(facts))
        return
    record = sent.record
    phase = {"sent": "", "sending": ", not all sent or released", "cancelled": ", cancelled"}
    key_values(
        [
            ("Workflow", f"{record.name}  {record.token}{phase[record.phase]}"),
            (
                "Sent",
                f"{clock(record.created)} from {record.file or 'Python, or a file not known here'}",
            ),
        ]
    )
    show_sent(found)


@workflow_group.command("list")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="At most so many.",
)
@_JSON
def list_command(*, lines: int, as_json: bool) -> None:
    """List the workflows you sent to this cluster, the last one first.

    \b
    Examples:
      slurmkit workflow list
      slurmkit workflow list --json | jq -r '.[].token'
    """
    list_workflows(Cluster(), lines, as_json=as_json)


@workflow_group.command("cancel")
@_WHICH
def cancel_command(workflow: str) -> None:
    """Cancel all jobs of a workflow that have not ended, those first that wait for others.

    \b
    Example:
      slurmkit workflow cancel pipeline
    """
    sent = Cluster().workflow(workflow)
    failed = sent.cancel()
    if not failed:
        click.echo(f"cancelled workflow {sent.record.name} {sent.token}")
    fail_with(list(failed.values()))


@workflow_group.command("resume")
@_WHICH
@click.option("--changed", is_flag=True, help="Take the file as it is now, though it has changed.")
@click.option("--again", multiple=True, metavar="JOB", help="Run this one again, too.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
@_FORCE
def resume_command(workflow: str, *, dry_run: bool, force: bool, **given: Any) -> int:
    """Go on after a failure: send what is missing, failed or was given up, and nothing else.

    Jobs that completed do not run again, and nothing waits for them any more; nor do those tasks of
    an array that completed, unless --again or --changed takes it whole. Jobs that wait for
    one that is sent again are sent again, too; what runs is left alone. It also ends what a killed
    `submit` began.

    \b
    Examples:
      slurmkit workflow resume pipeline --dry-run
      slurmkit workflow resume pipeline
      slurmkit workflow resume pipeline --changed --again prepare
    """
    cluster = Cluster()
    sent = cluster.workflow(workflow)
    flow = _file_of(sent)
    rest = sent.rest(flow, given["again"])
    _say_changes(sent, rest, changed=given["changed"])
    due = rest.names("due")
    made = plan_workflow(flow, cluster, names=due, arrays=rest.missing)
    say_plan(made)
    _say_rest(rest)
    _refuse(made, force=force)
    if dry_run:
        return 0
    if not due and sent.record.phase == "sent":
        say(f"nothing to resume in workflow {sent.record.name}")
        return 0
    sent.resume(made, rest, force=force)
    click.echo(f"resumed workflow {sent.record.name} {sent.token}: {len(due)} jobs sent")
    return 0


def _file_of(sent: SentWorkflow) -> Workflow:
    if not sent.record.file:
        raise BadInput(
            f"no file of workflow {sent.record.name} is known here: it was sent from Python, where"
            " it is resumed (SentWorkflow.resume), or its record is lost; submit what is left anew"
        )
    return read_workflow(Path(sent.record.file), Path(sent.record.folder))


def _say_changes(sent: SentWorkflow, rest: Rest, *, changed: bool) -> None:
    if not rest.differs:
        return
    kinds = {"changed": rest.changed, "new": rest.added, "gone": rest.left_out}
    said = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)
    words = f"{sent.record.file} is not as it was sent ({said})"
    if not changed:
        raise BadInput(f"{words}; add --changed to go on with it as it is now, or put it back")
    say(f"{words}; what completed or runs is left as it is")


def _say_rest(rest: Rest) -> None:
    words = {
        "done": "completed, not run again",
        "live": "in the queue, left alone",
        "skipped": "not needed: for the case that did not come",
        "due": "to be sent",
    }
    for verdict, meaning in words.items():
        names = [name for name, made in rest.verdicts.items() if made == verdict]
        if names:
            some = [_due(name, rest) for name in names] if verdict == "due" else _some(names)
            say(f"{meaning} ({len(names)}): {', '.join(some)}")
    if rest.replaced:
        say(f"cancelled and sent again, as they wait for these: {', '.join(rest.replaced)}")


def _due(name: str, rest: Rest) -> str:
    array = rest.missing.get(name)
    return f"{name} (only {array}: the other tasks have completed)" if array else name


def _some(names: list[str]) -> list[str]:
    return names if len(names) <= _SHOWN else [*names[:_SHOWN], "…"]


@workflow_group.command("wait")
@_WHICH
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer.")
def wait_command(workflow: str, *, timeout: float | None) -> int:
    """Wait until every job of a workflow has ended, and tell which did not complete.

    Ends with 0 when all completed that were to run, else with 1. Ctrl-C leaves the jobs alone.

    \b
    Example:
      slurmkit workflow wait pipeline && ./publish.sh
    """
    from slurmkit.cli.workflowwait import wait_for  # noqa: PLC0415 - only here

    return wait_for(Cluster().workflow(workflow), timeout)
