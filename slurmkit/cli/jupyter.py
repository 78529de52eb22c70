"""`slurmkit jupyter`: a notebook server in a job, and how to reach it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from slurmkit.cli.job_options import (
    JobCommand,
    job_options,
    parse_job_options,
    refuse_batch_options,
)
from slurmkit.cli.jobs import act_on_each, print_notice, raise_failures
from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.submit import print_finding, print_findings, typed_secret_notes
from slurmkit.cli.tables import Fit, print_key_values, print_table
from slurmkit.cluster.cluster import Cluster
from slurmkit.config.files import load_section
from slurmkit.config.paths import NOTEBOOKS_FOLDER, recorded_job_ids
from slurmkit.diagnose.explain import explain
from slurmkit.errors import BadInput, SlurmError
from slurmkit.formats.job_ids import check_job_id
from slurmkit.interactive import jupyter
from slurmkit.interactive.jupyter import wait_for_server, why_by_reason
from slurmkit.interactive.tunnel import NodePort, ssh_command
from slurmkit.jobs.describe import job_gpu_facts
from slurmkit.jobs.job import Job
from slurmkit.planning.planner import Plan, plan
from slurmkit.spec.jobfile import load_job_file
from slurmkit.spec.jobspec import JobSpec

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_TAKEN_OPTIONS = ("command", "script")
_STEP_OPTIONS = ("mpi", "cpu_bind", "label", "log_per_rank")
_HEADER = ("JOBID", "STATE", "NODE", "AGE", "LIMIT", "URL")
_FIT = Fit(("JOBID", "URL"), least=("LIMIT", "AGE", "NODE"))
_ADDRESS_KEYS = (*jupyter.NotebookServer.__struct_fields__, "tunnel", "url")


class _JupyterGroup(click.Group):
    """A group whose default subcommand is `start`: it is used if only options are given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        wants_help = args[:1] in (["-h"], ["--help"]) or (ctx.resilient_parsing and not args)
        if not wants_help and (not args or args[0].startswith("-")):
            args = ["start", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        own = super().shell_complete(ctx, incomplete)
        options = start_command.shell_complete(ctx, incomplete) if incomplete[:1] == "-" else []
        there = {item.value for item in own}
        return [*own, *(item for item in options if item.value not in there)]


def _complete_notebook(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the job ids of your notebooks, for Tab."""
    ids = recorded_job_ids(NOTEBOOKS_FOLDER)
    return [job_id for job_id in ids if job_id.startswith(incomplete)]


_ID = {"metavar": "JOB_ID", "shell_complete": _complete_notebook}
_LOCAL = click.option(
    "--local-port",
    type=click.IntRange(1, 65535),
    help="Port on your own machine.  [default: the server's]",
)


@click.group("jupyter", cls=_JupyterGroup)
def jupyter_group() -> None:
    """Run a notebook server in a job, and print how to reach it.

    Without a subcommand it starts one: the options are those of `slurmkit jupyter start`.

    \b
    Examples:
      slurmkit jupyter --gpus-per-node a100:2 --cpus-per-task 8 --time 4:00:00
      slurmkit jupyter list
      slurmkit jupyter show 12
      slurmkit jupyter stop 12
    """


@jupyter_group.command("start", cls=JobCommand, context_settings={"allow_interspersed_args": False})
@job_options
@_LOCAL
@click.option("--no-wait", is_flag=True, help="Only submit the job.")
@json_option("slurmkit.jupyter.start/1", text="Print how to reach it as JSON.", has_old=False)
def start_command(
    *, local_port: int | None, no_wait: bool, as_json: JsonOutput | None, **options: Any
) -> int:
    """Start a notebook server in a job, and print how to reach it.

    The options and checks are the same as for `slurmkit submit`. COMMAND starts the server; by
    default it is the first of jupyter-lab, jupyter-server and jupyter-notebook on the node.
    slurmkit waits until the server answers. The server runs until `slurmkit jupyter stop` or the
    time limit. Ctrl-C leaves the job alone.

    \b
    Examples:
      slurmkit jupyter --gpus-per-node a100:2 --cpus-per-task 8 --time 4:00:00
      slurmkit jupyter --gpus-per-node 1 --time 60 -- ~/venv/bin/jupyter-lab
      slurmkit jupyter --gpus-per-node 1 --time 60 --container-image ./jupyter.sqsh
    """
    cluster = Cluster()
    folder = jupyter.make_cluster_folder(cluster)
    planned = _plan_notebook(cluster, folder, options)
    print_findings(planned)
    if planned.errors:
        count = f"{len(planned.errors)} error{'s' * (len(planned.errors) > 1)}"
        raise BadInput(f"no notebook was started: {count}, see above")
    job = cluster.submit(planned)
    print_notice(f"submitted job {job.id}")
    jupyter.mark_notebook_job(folder, job.id)
    if no_wait:
        if as_json:
            unknown = dict.fromkeys(_ADDRESS_KEYS)
            as_json.print([{"job_id": job.id, **unknown}])
        else:
            click.echo(job.id)
        return 0
    return _print_address(job, local_port, as_json)


@jupyter_group.command("list")
@json_option("slurmkit.jupyter.list/1", text="Print them as JSON.")
def list_command(*, as_json: JsonOutput | None) -> None:
    """List your notebook servers.

    `slurmkit jupyter show` prints the address of a server with its token.

    \b
    Examples:
      slurmkit jupyter list
      slurmkit jupyter list --json | jq '.rows[].job_id'
    """
    notebooks = jupyter.read_notebooks(Cluster())
    if as_json:
        rows = [_notebook_json(notebook) for notebook in notebooks]
        as_json.print(rows, old=rows)
    elif notebooks:
        print_table(
            _HEADER,
            [_notebook_row(notebook) for notebook in notebooks],
            right=_HEADER[3:5],
            fit=_FIT,
        )
    else:
        print_notice("no notebook of yours runs or waits; start one: slurmkit jupyter --help")


@jupyter_group.command("show")
@click.argument("job_id", **_ID)  # type: ignore[arg-type]
@_LOCAL
@json_option("slurmkit.jupyter.show/1", text="Print the facts as JSON.")
def show_command(job_id: str, *, local_port: int | None, as_json: JsonOutput | None) -> int:
    """Print again how to reach a notebook server.

    It works from any terminal, and waits until the server answers.

    \b
    Examples:
      slurmkit jupyter show 12
      slurmkit jupyter show 12 --local-port 8888
    """
    cluster = Cluster()
    notebook = jupyter.read_notebook(cluster, check_job_id(job_id))
    return _print_address(cluster.job(notebook.row.raw_id), local_port, as_json)


@jupyter_group.command("stop")
@click.argument("job_ids", nargs=-1, required=True, **(_ID | {"metavar": "JOB_ID..."}))  # type: ignore[arg-type]
@json_option("slurmkit.jupyter.stop/1", text="Print the jobs as JSON.", has_old=False)
def stop_command(job_ids: tuple[str, ...], *, as_json: JsonOutput | None) -> None:
    """Stop notebook servers and their jobs; save your notebooks first.

    \b
    Examples:
      slurmkit jupyter stop 12
    """
    cluster = Cluster()
    stopped: list[dict[str, str]] = []

    def stop(job: Job) -> None:
        jupyter.read_notebook(cluster, job.id)
        job.cancel()
        print_notice(f"stopped job {job.id}")
        stopped.append({"job_id": job.id, "done": "stopped"})

    failed = act_on_each([cluster.job(job_id) for job_id in job_ids], stop)
    if as_json and stopped:
        as_json.print(stopped)
    raise_failures(failed)


def _plan_notebook(cluster: Cluster, folder: Path, options: dict[str, Any]) -> Plan:
    """Plan the job of a server; refuse options that are not for one process with a user."""
    section = load_section("jupyter", jupyter.JupyterSection)
    in_file = load_job_file(options["job_file"]) if options["job_file"] else {}
    refuse_batch_options(name for name in _TAKEN_OPTIONS if in_file.get(name))
    refuse_batch_options(name for name in ("script", "wrap") if options[name] is not None)
    for note in typed_secret_notes(options["env"]):
        print_finding(note)
    options["command"] = jupyter.server_command(str(folder), options["command"], section)
    spec = parse_job_options(options).spec
    refuse_batch_options(name for name in ("array", "sweep") if getattr(spec, name) is not None)
    refuse_batch_options(name for name in _STEP_OPTIONS if getattr(spec.launch, name))
    if spec.launch.launcher:
        raise BadInput("--launch does not work here; start the launcher in the notebook")
    return plan(_with_server_place(spec, folder), cluster)


def _with_server_place(spec: JobSpec, folder: Path) -> JobSpec:
    """Run the server in the batch shell, or in a container that sees the state folder.

    The job is requeued only if the user asks for it: nobody may be there to use a requeued server.
    """
    requeue = False if spec.requeue is None else spec.requeue
    named = msgspec.structs.replace(spec, job_name=spec.job_name or "jupyter", requeue=requeue)
    if spec.container is None:
        launch = msgspec.structs.replace(spec.launch, launcher="none")
        return msgspec.structs.replace(named, launch=launch)
    if max(spec.ntasks or 1, spec.ntasks_per_node or 1, spec.most_nodes or 1) > 1:
        raise BadInput(
            "in a container a notebook is one task on one node; give --cpus-per-task and"
            " --gpus-per-node instead of more tasks or nodes"
        )
    if spec.container.source and spec.container.source.kind == "bundle":
        return named  # a bundle has its own mounts
    mounts = (*spec.container.mounts, str(folder))
    inside = msgspec.structs.replace(spec.container, mounts=mounts)
    return msgspec.structs.replace(named, container=inside)


def _waiting_line(job: Job, meaning: str) -> str:
    """Return why the job waits, when it may start and its place in the queue, if known."""
    try:
        explanation = explain(job.cluster, job.id, alternatives=False)
    except SlurmError:
        return why_by_reason(job, meaning)
    ranks = explanation.waiting.ranks if explanation.waiting else ()
    places = [f"; place {r.place} of {r.waiting} in partition {r.partition}" for r in ranks]
    return explanation.answer + "".join(places)


def _print_address(job: Job, local_port: int | None, as_json: JsonOutput | None) -> int:
    """Wait for the server, and print how to reach it; return the exit code."""
    folder = jupyter.make_cluster_folder(job.cluster)
    try:
        address = wait_for_server(job, folder, print_notice, why_pending=_waiting_line)
    except KeyboardInterrupt:
        print_notice(
            f"job {job.id} goes on; to wait for it again: slurmkit jupyter show {job.id};"
            f" to end it: slurmkit jupyter stop {job.id}"
        )
        return 128 + signal.SIGINT
    local = local_port or address.port
    url = f"http://127.0.0.1:{local}/?token={jupyter.load_token(folder, job.id)}"
    tunnel = ssh_command(NodePort(address.node, address.port), local)
    if as_json:
        facts = {"job_id": job.id, **msgspec.to_builtins(address), "tunnel": tunnel, "url": url}
        as_json.print([facts], old=facts)
        return 0
    info = job.info()
    print_key_values(
        [
            ("Job", f"{job.id} on {info.node_list}"),
            *job_gpu_facts(info),
            ("Tunnel", f" {tunnel}"),
            ("", "run this on your own machine; start it again if the connection breaks"),
            ("Then", f" {url}"),
            ("", "open this in your browser; keep it secret, like a password"),
            ("Again", f" slurmkit jupyter show {job.id}"),
            ("End", f" slurmkit jupyter stop {job.id}"),
        ]
    )
    return 0


def _notebook_json(notebook: jupyter.Notebook) -> dict[str, Any]:
    row, running = notebook.row, notebook.server
    return {
        "job_id": row.raw_id,
        "state": row.state,
        "node": running and running.node,
        "started": running and running.started,
        "time_used": row.time_used,
        "time_limit": row.time_limit,
        "url": running and running.address,
    }


def _notebook_row(notebook: jupyter.Notebook) -> tuple[str, ...]:
    row, running = notebook.row, notebook.server
    where = running.node if running else row.node_list
    url = running.address if running else ""
    return (row.raw_id, row.state, where, row.time_used, row.time_limit, url)
