"""`slurmkit plan` and `slurmkit submit`: one set of options, one plan."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from slurmkit.backends.choice import DefaultBackend
from slurmkit.cli.joboptions import Asked, job_options, spec_from
from slurmkit.cli.planned import plan_json, say_estimate, say_findings
from slurmkit.cli.tab import PluginNames
from slurmkit.cluster import Cluster
from slurmkit.errors import BadInput, ImageError
from slurmkit.jobs.job import Job
from slurmkit.planner import Plan, plan
from slurmkit.runtimes import NOT_HERE, import_image
from slurmkit.spec import JobSpec
from slurmkit.text import printable

_HEAD = 64 * 1024  # bytes of a script in which its #SBATCH lines begin


@click.command("plan", context_settings={"allow_interspersed_args": False})
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--refresh", is_flag=True, help="Read the cluster's settings anew, not from cache.")
def plan_command(*, as_json: bool, refresh: bool, **options: Any) -> int:
    """Show exactly what `slurmkit submit` would send, and whether it can ever start.

    The script goes to standard output byte for byte; what was found and the estimate to standard
    error. Ends with 2 when there are errors.

    \b
    Examples:
      slurmkit plan --gpus-per-node a100:2 --nodes 2 --time 10 -- python train.py
      slurmkit plan --gpus-per-node 0.5 --time 1:00:00 -- ./run.sh > job.sh
      slurmkit plan --script job.sh
      slurmkit plan --job-file train.toml --json | jq .errors
      slurmkit plan --sweep lr=1e-3,1e-4 --sweep seed=0..9 -- ./train --lr {lr} > job.sh
    """
    cluster = Cluster()
    made, _ = _plan(cluster, options, refresh=refresh)
    if as_json:
        click.echo(msgspec.json.encode(plan_json(made)))
    else:
        for submission in made.submissions:
            click.echo(submission.script, nl=False)
        say_findings(made)
        say_estimate(made)
    return BadInput.exit_code if made.errors else 0


@click.command("submit", context_settings={"allow_interspersed_args": False})
@job_options
@click.option("--parsable", is_flag=True, help="Print only the job id.")
@click.option("--wait", "wait_for_it", is_flag=True, help="Wait, and end with its exit code.")
@click.option("--force", is_flag=True, help="Send it in spite of errors, but not of unsafe ones.")
@click.option("--refresh", is_flag=True, help="Read the cluster's settings anew, not from cache.")
@click.option("--no-import", is_flag=True, help="Let each of several nodes fetch the image.")
@click.option("--backend", type=PluginNames("backends"), help="What sends it, e.g. pyslurm.")
def submit_command(
    *,
    parsable: bool,
    wait_for_it: bool,
    force: bool,
    refresh: bool,
    no_import: bool,
    backend: str | None,
    **options: Any,
) -> int:
    """Submit a job, once `slurmkit plan` finds no error in it.

    COMMAND is started once per task with srun. Options are those of sbatch. An image of a registry
    is imported first, here, where the job has several nodes.

    \b
    Examples:
      slurmkit submit --gpus-per-node a100:2 --nodes 2 --time 10 -- python train.py
      slurmkit submit --launch torchrun --nodes 2 --gpus-per-node 4 --time 1:00:00 -- train.py
      slurmkit submit --gpus-per-node shard:1 --time 30 -- python notebook.py
      slurmkit submit --script job.sh --time 2:00:00
      slurmkit submit --wait --time 5 -- hostname
      slurmkit submit --on-timeout requeue --on-preempt requeue --on-node-fail requeue \\
        --checkpoint-signal USR1 --grace 120 --time 4:00:00 -- python train.py
      slurmkit submit --sweep lr=1e-3,1e-4 --sweep seed=0..9 --array-throttle 8 \\
        -- python train.py --lr {lr} --seed {seed}
      slurmkit log --follow $(slurmkit submit --parsable --time 5 -- hostname)
    """
    cluster = Cluster()
    made, asked = _plan(cluster, options, refresh=refresh)
    say_findings(made)
    _refuse(made, force=force)
    made = made if no_import else _with_image(cluster, made, asked.spec)
    if backend is not None and cluster.name:
        raise BadInput("a cluster over SSH is sent jobs by its own sbatch; leave out --backend")
    if backend is not None:
        cluster.backend = DefaultBackend(cluster.slurm, backend)
    job = cluster.submit(made, force=force)
    _say_what_sent_it()
    click.echo(job.id if parsable else f"submitted job {job.id}{_parts(job)}")
    if wait_for_it or asked.waits:
        from slurmkit.cli.waiting import wait_and_exit_code  # noqa: PLC0415 - only where asked

        return wait_and_exit_code(job)
    if not parsable:
        click.echo(_how_to_follow(job.id, made.spec), err=True)
    return 0


def _say_what_sent_it() -> None:
    """Where PySlurm was asked for and could not say it, why sbatch has sent it."""
    used = sys.modules.get("slurmkit.backends.pyslurm")
    for way in used.SENT if used else ():
        if way != "libslurm":
            click.echo(f"note: sent by {printable(way)}", err=True)


def _with_image(cluster: Cluster, made: Plan, spec: JobSpec) -> Plan:
    """Import the image that each node would fetch, and plan with its file; else leave all as is."""
    image = spec.container.image if spec.container else None
    if image is None or NOT_HERE not in (note.code for note in made.notes):
        return made
    try:
        import_image(image)
    except ImageError as error:
        click.echo(f"warning: {printable(str(error))}; each node fetches the image", err=True)
        return made
    again = plan(spec, cluster)
    return made if again.errors else again


def _parts(job: Job) -> str:
    """Numbers that Slurm's own commands know."""
    return f" (Slurm's {', '.join(part.id for part in job.parts)})" if len(job.parts) > 1 else ""


def _how_to_follow(job_id: str, spec: JobSpec) -> str:
    """A log is that of one task."""
    if spec.sweep is not None:
        one = f"one point: slurmkit log --follow {job_id}_INDEX"
        return f"follow it: slurmkit sweep show {job_id}; {one}"
    if spec.array is not None:
        one = f"one task: slurmkit log --follow {job_id}_INDEX"
        return f"follow it: slurmkit wait {job_id}; {one}"
    return f"follow it: slurmkit log --follow {job_id}"


def _refuse(made: Plan, *, force: bool) -> None:
    stopping = made.unsafe if force else made.errors
    if not stopping:
        return
    count = f"{len(stopping)} error{'s' if len(stopping) > 1 else ''}"
    rest = "" if made.unsafe else "; --force sends it all the same"
    raise BadInput(f"not submitted: {count}{rest}")


def _plan(cluster: Cluster, options: dict[str, Any], *, refresh: bool) -> tuple[Plan, Asked]:
    asked = spec_from(options)
    if refresh:
        cluster.capabilities(refresh=True)
    _warn_of_one_word(asked.spec)
    _warn_of_script(asked.spec)
    made = plan(asked.spec, cluster)
    return msgspec.structs.replace(made, notes=(*asked.notes, *made.notes)), asked


def _warn_of_one_word(spec: JobSpec) -> None:
    if len(spec.command) == 1 and " " in spec.command[0]:
        click.echo(
            "note: one word with blanks is the name of a program; a shell line is written"
            " -- bash -c '...'",
            err=True,
        )


def _warn_of_script(spec: JobSpec) -> None:
    """Say when the program is a batch script, as sbatch would take it."""
    word = spec.command[0] if spec.command else ""
    path = Path(word)
    if not path.is_file() or ("/" not in word and shutil.which(word)):
        return
    if os.access(path, os.X_OK) and not _has_directives(path):
        return
    click.echo(
        f"note: {printable(word)} is started as a program here, by each task;"
        f" a batch script is given as --script {printable(word)}",
        err=True,
    )


def _has_directives(path: Path) -> bool:
    try:
        with path.open("rb") as script:
            return b"\n#SBATCH" in script.read(_HEAD)
    except OSError:
        return False
