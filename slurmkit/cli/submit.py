"""`slurmkit plan` and `slurmkit submit`, which make the same plan from the same options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec

from slurmkit.cli.batch_script import is_unused_script, take_batch_script
from slurmkit.cli.job_options import (
    COMMAND_IS_MARKED,
    CommandLineJob,
    JobCommand,
    job_options,
    parse_job_options,
)
from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import in_colour, print_wrapped
from slurmkit.cluster.cluster import Cluster
from slurmkit.config.files import one_configuration
from slurmkit.errors import BadInput, ImageError
from slurmkit.formats.display import format_time, printable
from slurmkit.jobs.backends.choice import DefaultBackend, check_backend
from slurmkit.jobs.job import Job
from slurmkit.planning.arrays import array_throttle
from slurmkit.planning.containers import IMAGE_NOT_IMPORTED, import_image
from slurmkit.planning.planner import Plan, plan, with_past_waits
from slurmkit.planning.secrets import mask_secrets
from slurmkit.spec.findings import Finding
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.submission import Submission
from slurmkit.spec.sweep import fill_in_values
from slurmkit.state.arrays import format_indices

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


@click.command("plan", cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options()
@json_option("slurmkit.plan/1", text="Print the plan as JSON.")
@click.option("--refresh", is_flag=True, help="Read the settings from Slurm, not from the cache.")
def plan_command(*, as_json: JsonOutput | None, refresh: bool, **options: Any) -> int:
    """Show exactly what `slurmkit submit` would send, and whether the job can ever start.

    The script goes to standard output, byte for byte. Findings and the estimate go to standard
    error. The exit code is 2 when there are errors.

    \b
    Examples:
      slurmkit plan --gpus-per-node a100:2 --nodes 2 --time 10 -- python train.py
      slurmkit plan --gpus-per-node 0.5 --time 1:00:00 -- ./run.sh > job.sh
      slurmkit plan job.sh
      slurmkit plan --job-file train.toml --json | jq '.rows[].errors'
      slurmkit plan --sweep lr=1e-3,1e-4 --sweep seed=0..9 -- ./train --lr {lr} > job.sh
    """
    cluster = Cluster()
    planned, _ = _plan_job(cluster, options, refresh=refresh)
    planned = with_past_waits(planned, cluster)
    if as_json:
        facts = plan_json(planned)
        as_json.print([plan_row(facts)], taken=planned.capabilities_taken)
    else:
        for submission in planned.submissions:
            click.echo(submission.script, nl=False)
        print_findings(planned)
        print_estimate(planned)
    return BadInput.exit_code if planned.errors else 0


@click.command("submit", cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options()
@click.option("--parsable", is_flag=True, help="Print only the job id.")
@click.option(
    "--wait", "wait_for_it", is_flag=True, help="Wait for the job, and exit with its exit code."
)
@click.option("--force", is_flag=True, help="Submit in spite of errors, except unsafe ones.")
@click.option("--refresh", is_flag=True, help="Read the settings from Slurm, not from the cache.")
@click.option(
    "--no-import", is_flag=True, help="Do not import the image first; each node fetches it."
)
@click.option("--backend", help="How to submit the job, e.g. pyslurm.")
@json_option("slurmkit.submit/1", text="Print the job's id and the findings as JSON.")
def submit_command(
    *,
    parsable: bool,
    wait_for_it: bool,
    force: bool,
    refresh: bool,
    no_import: bool,
    backend: str | None,
    as_json: JsonOutput | None,
    **options: Any,
) -> int:
    """Submit a job, unless `slurmkit plan` finds an error in it.

    srun starts the COMMAND after -- once per task. Without --, a batch script is submitted as with
    sbatch, with its #SBATCH lines and its arguments. Without COMMAND, the script is read from
    standard input. The options have the same names as in sbatch. If a job on several nodes uses an
    image from a registry, slurmkit imports the image here first.

    \b
    Examples:
      slurmkit submit --gpus-per-node a100:2 --nodes 2 --time 10 -- python train.py
      slurmkit submit --launch torchrun --nodes 2 --gpus-per-node 4 --time 1:00:00 -- train.py
      slurmkit submit --gpus-per-node shard:1 --time 30 -- python notebook.py
      slurmkit submit --time 2:00:00 job.sh
      slurmkit submit --wait --time 5 -- hostname
      slurmkit submit --on-timeout requeue --on-preempt requeue --on-node-fail requeue \\
        --checkpoint-signal USR1 --grace 120 --time 4:00:00 -- python train.py
      slurmkit submit --sweep lr=1e-3,1e-4 --sweep seed=0..9 --array-throttle 8 \\
        -- python train.py --lr {lr} --seed {seed}
      slurmkit log --follow $(slurmkit submit --parsable --time 5 -- hostname)
      slurmkit submit --json --time 5 job.sh | jq -r '.rows[].job_id'
    """
    if parsable and as_json:
        raise BadInput("give either --parsable or --json, not both")
    cluster = Cluster()
    if backend is not None and cluster.name:
        raise BadInput(
            "over SSH slurmkit submits with the cluster's own sbatch; leave out --backend"
        )
    if backend is not None:
        cluster.backend = DefaultBackend(cluster.slurm, backend)
    with one_configuration():
        planned, asked = _plan_job(cluster, options, refresh=refresh)
        print_findings(planned)
        _refuse_errors(planned, force=force)
        planned = planned if no_import else _import_image(cluster, planned, asked.spec)
        job = cluster.submit(planned, force=force)
    _print_sender()
    if as_json:
        as_json.print([_submitted_json(job, planned)])
    elif parsable:
        click.echo(job.id)
    else:
        ids = ", ".join(part.id for part in job.parts)
        parts = f" (Slurm's {ids})" if len(job.parts) > 1 else ""
        click.echo(f"submitted job {job.id}{parts}")
    if wait_for_it or asked.waits:
        from slurmkit.cli.jobs import wait_and_exit_code

        return wait_and_exit_code(job)
    if not parsable and not as_json:
        click.echo(_how_to_follow(job.id, planned.spec), err=True)
    return 0


def _submitted_json(job: Job, planned: Plan) -> dict[str, Any]:
    """Return a submitted job for programs."""
    facts = plan_json(planned)
    findings = {name: facts[name] for name in ("errors", "warnings", "notes")}
    return {"job_id": job.id, "slurm_ids": [part.id for part in job.parts], **findings}


def _print_sender() -> None:
    """Print why sbatch sent the job, if PySlurm was chosen and could not express it."""
    used = sys.modules.get("slurmkit.jobs.backends.pyslurm")
    for way in used.SENT if used else ():
        if way != "libslurm":
            click.echo(f"note: sent by {printable(way)}", err=True)


def _import_image(cluster: Cluster, planned: Plan, spec: JobSpec) -> Plan:
    """Import the image that each node would fetch, and plan again; return the same plan if not."""
    image = spec.container.image if spec.container else None
    if image is None or IMAGE_NOT_IMPORTED not in (note.code for note in planned.notes):
        return planned
    try:
        import_image(image)
    except ImageError as error:
        click.echo(
            f"warning: {printable(str(error))}; each node fetches the image itself", err=True
        )
        return planned
    with_file = plan(spec, cluster)
    return planned if with_file.errors else with_file


def _how_to_follow(job_id: str, spec: JobSpec) -> str:
    """Return the command that follows a job; a log belongs to one task."""
    if spec.sweep is not None:
        one = f"one point: slurmkit log --follow {job_id}_INDEX"
        return f"follow it: slurmkit sweep show {job_id}; {one}"
    if spec.array is not None:
        one = f"one task: slurmkit log --follow {job_id}_INDEX"
        return f"follow it: slurmkit wait {job_id}; {one}"
    return f"follow it: slurmkit log --follow {job_id}"


def _refuse_errors(planned: Plan, *, force: bool) -> None:
    """Raise BadInput if the plan has errors; with `force` only if it has unsafe ones."""
    stopping = planned.unsafe if force else planned.errors
    if not stopping:
        return
    count = f"{len(stopping)} error{'s' if len(stopping) > 1 else ''}"
    rest = "" if planned.unsafe else "; to submit it anyway: --force"
    raise BadInput(f"not submitted: {count}{rest}")


@one_configuration()
def _plan_job(
    cluster: Cluster, options: dict[str, Any], *, refresh: bool
) -> tuple[Plan, CommandLineJob]:
    """Plan the job of a command line; print hints about a COMMAND that looks wrong."""
    is_marked = click.get_current_context().meta[COMMAND_IS_MARKED]
    notes = (*take_batch_script(options, is_marked=is_marked), *typed_secret_notes(options["env"]))
    asked = parse_job_options(options)
    check_backend(cluster.backend)
    if refresh:
        cluster.capabilities(refresh=True)
    _warn_of_odd_command(asked.spec)
    planned = plan(asked.spec, cluster)
    return msgspec.structs.replace(planned, notes=(*notes, *asked.notes, *planned.notes)), asked


def typed_secret_notes(words: Sequence[str]) -> tuple[Finding, ...]:
    """Return a note if a value of `--env NAME=VALUE` looks like a secret.

    Args:
        words: the values of `--env`.
    """
    given = dict(word.split("=", 1) for word in words if "=" in word)
    names = [name for name, shown in mask_secrets(given).items() if shown != given[name]]
    if not names:
        return ()
    bare = " ".join(f"--env {name}" for name in names)
    message = (
        f"the value of {', '.join(names)} is now in your shell's history and was in the list of"
        f" processes; next time export it, and give {bare}"
    )
    return (Finding(severity="note", code="typed-secret", message=message, source="--env"),)


def _warn_of_odd_command(spec: JobSpec) -> None:
    """Print a note if COMMAND is a shell line in quotes, or a batch script."""
    if len(spec.command) == 1 and " " in spec.command[0]:
        click.echo(
            "note: COMMAND is one word with blanks, so it is taken as the name of a program;"
            " write a shell line as -- bash -c '...'",
            err=True,
        )
    if spec.command and is_unused_script(spec.command[0]):
        word = printable(spec.command[0])
        click.echo(
            f"note: each task starts {word} as a program; to submit it as a batch script:"
            f" --script {word}",
            err=True,
        )


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the plan for programs, with its secrets masked."""
    facts: dict[str, Any] = msgspec.to_builtins(plan)
    facts["spec"]["environment"] = mask_secrets(plan.spec.environment)
    facts["submissions"] = [
        {"script": s.script, "options": dict(s.options), "after": list(s.after)} | _part_json(s)
        for s in plan.submissions
    ]
    for name in ("errors", "warnings", "notes"):
        facts[name] = [
            {
                "code": finding.code,
                "message": finding.message,
                "source": finding.source,
                "fix": dict(finding.fix),
                "unsafe": finding.unsafe,
            }
            for finding in getattr(plan, name)
        ]
    return facts


def plan_row(facts: dict[str, Any]) -> dict[str, Any]:
    """Return a plan for programs without the time, which is a key next to the rows."""
    return {name: value for name, value in facts.items() if name != "capabilities_taken"}


def _part_json(submission: Submission) -> dict[str, Any]:
    """Return which tasks of a split array this submission holds; empty for any other job."""
    part = submission.part
    if part is None:
        return {}
    return {"order": submission.order, "offset": part.offset, "tasks": format_indices(part.tasks)}


def sweep_facts(plan: Plan) -> list[tuple[str, str]]:
    """Return the size of a sweep: its points, the first and last of them, and its arrays."""
    sweep, parts = plan.spec.sweep, [each.part for each in plan.submissions if each.part]
    if sweep is None or not parts:
        return []
    count, limit = sum(len(part.tasks) for part in parts), array_throttle(plan.spec.array or "")
    counted = f"{count:,}" + (f" of {len(sweep):,}" if count < len(sweep) else "")
    at_once = f"at most {limit:,} at once" if limit else "no limit to how many run at once"
    several = f"{len(parts)} arrays of Slurm; " if len(parts) > 1 else ""
    ends = {"First": parts[0].tasks[0], "Last": parts[-1].tasks[-1]}
    points = [(name, f"{at}: {_point_words(plan.spec, at)}") for name, at in ends.items()]
    return [("Points", f"{counted}; {several}{at_once}"), *points]


def _point_words(spec: JobSpec, at: int) -> str:
    """Return the command of a point; for a script, its parameters."""
    values = spec.sweep.values(at) if spec.sweep else {}
    if spec.command:
        return shlex.join(fill_in_values(spec.command, values))
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())


def print_findings(plan: Plan) -> None:
    """Print a plan's changes and findings to standard error, the worst last."""
    for change in plan.changes:
        before, after = change.before or "nothing", change.after or "nothing"
        _print_with_severity(
            "note", f"policy {change.policy} changed {change.field}: {before} -> {after}"
        )
    for finding in (*plan.notes, *plan.warnings, *plan.errors):
        print_finding(finding)


def refuse_errors(plan: Plan, outcome: str) -> None:
    """Refuse a plan with errors, whose findings were printed.

    Args:
        plan: the plan.
        outcome: the effect of the refusal, e.g. "no shell was started".

    Raises:
        BadInput: with the number of errors.
    """
    if plan.errors:
        count = f"{len(plan.errors)} error{'s' * (len(plan.errors) > 1)}"
        raise BadInput(f"{outcome}: {count}, see above")


def print_finding(finding: Finding, what: str = "") -> None:
    """Print one finding to standard error, after `what`, the thing it is about."""
    source = f" ({finding.source})" if finding.source else ""
    _print_with_severity(finding.severity, f"{what}{finding.message}{source}")
    if finding.fix:  # on one line, so that it can be copied
        click.echo(f"       fits: {printable(finding.fix_words)}", err=True)


def print_estimate(plan: Plan) -> None:
    """Print to standard error what the job would use and cost, and when it might start."""
    facts = [*sweep_facts(plan), *(plan.estimate.facts() if plan.estimate else [])]
    checked = f"against the cluster as read at {format_time(plan.capabilities_taken)}"
    print_estimate_facts((*facts, ("Checked", checked)))


def print_estimate_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print named facts of an estimate to standard error."""
    for name, value in facts:
        print_wrapped(f"{name.ljust(8)} ", value, indent=9, err=True)


def _print_with_severity(severity: str, words: str) -> None:
    """Print a line to standard error after its coloured severity."""
    head = in_colour(f"{severity}: ", _COLOURS[severity], bold=True)
    print_wrapped(head, words, indent=7, err=True)
