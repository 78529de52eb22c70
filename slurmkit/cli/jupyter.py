"""`slurmkit jupyter`: a notebook server in a job, and the way to it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from slurmkit.cli.each import each, fail_with, say
from slurmkit.cli.joboptions import job_options, refuse_unattended, spec_from
from slurmkit.cli.planned import say_findings
from slurmkit.cli.show import key_values, table
from slurmkit.cli.tab import complete_from_cache
from slurmkit.cli.table import completing
from slurmkit.cluster import Cluster
from slurmkit.config import load_section
from slurmkit.errors import BadInput
from slurmkit.facts import gpus
from slurmkit.jobfile import read_job_file
from slurmkit.jobs.ids import check_job_id
from slurmkit.jobs.job import Job
from slurmkit.notebook import server, state
from slurmkit.notebook.waiting import wait_for_server
from slurmkit.planner import Plan, plan
from slurmkit.spec import JobSpec
from slurmkit.tunnel import Place, ssh_command

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_OWN = ("command", "script")
_OF_STEPS = ("mpi", "label", "log_per_rank")
_HEADER = ("JOBID", "STATE", "NODE", "AGE", "LIMIT", "URL")


class _Group(click.Group):
    """Options alone start a notebook, so that `start` need not be typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asked = args[:1] in (["-h"], ["--help"]) or (ctx.resilient_parsing and not args)
        if not asked and (not args or args[0].startswith("-")):
            args = ["start", *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        return complete_from_cache(found) if found and completing() else found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        own = super().shell_complete(ctx, incomplete)
        options = start_command.shell_complete(ctx, incomplete) if incomplete[:1] == "-" else []
        there = {item.value for item in own}
        return [*own, *(item for item in options if item.value not in there)]


def _own_ids(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Ids of one's notebooks, of any cluster, as they stand on the disk."""
    found = (path.name for path in state.every_folder().glob("*/[0-9]*"))
    return sorted(name for name in found if name.startswith(incomplete))


_ID = {"metavar": "JOB_ID", "shell_complete": _own_ids}
_LOCAL = click.option(
    "--local-port",
    type=click.IntRange(1, 65535),
    help="Port on your own machine.  [default: the server's]",
)


@click.group("jupyter", cls=_Group)
def jupyter_group() -> None:
    """A notebook server in a job, with the GPUs asked for, and the way to it.

    Without a subcommand it starts one: options are those of `slurmkit jupyter start`.

    \b
    Examples:
      slurmkit jupyter --gpus-per-node a100:2 --cpus-per-task 8 --time 4:00:00
      slurmkit jupyter list
      slurmkit jupyter show 12
      slurmkit jupyter stop 12
    """


@jupyter_group.command("start", context_settings={"allow_interspersed_args": False})
@job_options
@_LOCAL
@click.option("--no-wait", is_flag=True, help="Only submit the job.")
def start_command(*, local_port: int | None, no_wait: bool, **options: Any) -> int:
    """Submit a job with a notebook server, wait until that answers, and say how to reach it.

    Options are those of `slurmkit submit`, and checked as there. COMMAND starts the server; by
    default it is the first of jupyter-lab, jupyter-server and jupyter-notebook on the node. The
    server is there until `slurmkit jupyter stop`, or the time limit. Ctrl-C leaves the job alone.

    \b
    Examples:
      slurmkit jupyter --gpus-per-node a100:2 --cpus-per-task 8 --time 4:00:00
      slurmkit jupyter --gpus-per-node 1 --time 60 -- ~/venv/bin/jupyter-lab
      slurmkit jupyter --gpus-per-node 1 --time 60 --container-image ./jupyter.sqsh
    """
    cluster = Cluster()
    folder = state.folder_of(cluster)
    made = _planned(cluster, folder, options)
    say_findings(made)
    if made.errors:
        count = f"{len(made.errors)} error{'s' * (len(made.errors) > 1)}"
        raise BadInput(f"no notebook: {count}")
    job = cluster.submit(made)
    say(f"submitted job {job.id}")
    state.expect(folder, job.id)
    if no_wait:
        click.echo(job.id)
        return 0
    return _present(job, local_port, as_json=False)


@jupyter_group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def list_command(*, as_json: bool) -> None:
    """List your notebook servers; `show` has the way to one, with its token.

    \b
    Examples:
      slurmkit jupyter list
      slurmkit jupyter list --json | jq '.[].job_id'
    """
    found = state.notebooks(Cluster())
    if as_json:
        click.echo(msgspec.json.encode([_row(each) for each in found]))
    elif found:
        table(_HEADER, [_cells(each) for each in found], right=_HEADER[3:5])
    else:
        say("no notebook of yours runs or waits; start one: slurmkit jupyter --help")


@jupyter_group.command("show")
@click.argument("job_id", **_ID)  # type: ignore[arg-type]
@_LOCAL
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def show_command(job_id: str, *, local_port: int | None, as_json: bool) -> int:
    """Say how to reach a notebook server again, from any terminal; waits until it answers.

    \b
    Examples:
      slurmkit jupyter show 12
      slurmkit jupyter show 12 --local-port 8888
    """
    cluster = Cluster()
    found = state.notebook(cluster, check_job_id(job_id))
    return _present(cluster.job(found.row.raw_id), local_port, as_json=as_json)


@jupyter_group.command("stop")
@click.argument("job_ids", nargs=-1, required=True, **(_ID | {"metavar": "JOB_ID..."}))  # type: ignore[arg-type]
def stop_command(job_ids: tuple[str, ...]) -> None:
    """End notebook servers and their jobs; save your notebooks first.

    \b
    Examples:
      slurmkit jupyter stop 12
    """
    cluster = Cluster()

    def stop(job: Job) -> None:
        state.notebook(cluster, job.id)
        job.cancel()
        say(f"stopped job {job.id}")

    fail_with(each([cluster.job(job_id) for job_id in job_ids], stop))


def _planned(cluster: Cluster, folder: Path, options: dict[str, Any]) -> Plan:
    section = load_section("jupyter", server.JupyterSection)
    in_file = read_job_file(options["job_file"]) if options["job_file"] else {}
    refuse_unattended(name for name in _OWN if in_file.get(name))
    refuse_unattended(["script"] if options["script"] is not None else [])
    options["command"] = server.command(str(folder), options["command"], section)
    spec = spec_from(options).spec
    refuse_unattended(name for name in ("array", "sweep") if getattr(spec, name) is not None)
    refuse_unattended(name for name in _OF_STEPS if getattr(spec.launch, name))
    if spec.launch.launcher:
        raise BadInput("--launch is for jobs that run by themselves; start it in the notebook")
    return plan(_with_state(spec, folder), cluster)


def _with_state(spec: JobSpec, folder: Path) -> JobSpec:
    """In the batch shell, or in a container that sees where servers leave word; named as it is.

    What comes back when nobody is there holds GPUs for nobody, so it does only when told to.
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
        return named  # what it shows of the node is its own affair
    mounts = (*spec.container.mounts, str(folder))
    inside = msgspec.structs.replace(spec.container, mounts=mounts)
    return msgspec.structs.replace(named, container=inside)


def _present(job: Job, local_port: int | None, *, as_json: bool) -> int:
    """Wait for the server, and print the way to it."""
    folder = state.folder_of(job.cluster)
    try:
        found = wait_for_server(job, folder, say)
    except KeyboardInterrupt:
        say(
            f"job {job.id} is left as it is; wait for it again: slurmkit jupyter show {job.id};"
            f" end it: slurmkit jupyter stop {job.id}"
        )
        return 128 + signal.SIGINT
    local = local_port or found.port
    url = f"http://127.0.0.1:{local}/?token={state.read_token(folder, job.id)}"
    tunnel = ssh_command(Place(found.node, found.port), local)
    if as_json:
        facts = {"job_id": job.id, **msgspec.to_builtins(found), "tunnel": tunnel, "url": url}
        click.echo(msgspec.json.encode(facts))
        return 0
    info = job.info()
    key_values(
        [
            ("Job", f"{job.id} on {info.node_list}"),
            *gpus(info),
            ("Tunnel", f" {tunnel}"),
            ("", "on your own machine; leave it running, and start it anew when it breaks"),
            ("Then", f" {url}"),
            ("", "in its browser; the address is as good as a password"),
            ("Again", f" slurmkit jupyter show {job.id}"),
            ("End", f" slurmkit jupyter stop {job.id}"),
        ]
    )
    return 0


def _row(found: state.Notebook) -> dict[str, Any]:
    row, there = found.row, found.server
    return {
        "job_id": row.raw_id,
        "state": row.state,
        "node": there and there.node,
        "started": there and there.started,
        "time_used": row.time_used,
        "time_limit": row.time_limit,
        "url": there and there.address,
    }


def _cells(found: state.Notebook) -> tuple[str, ...]:
    row, there = found.row, found.server
    where = there.node if there else row.node_list
    url = there.address if there else ""
    return (row.raw_id, row.state, where, row.time_used, row.time_limit, url)
