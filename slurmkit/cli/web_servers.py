"""`slurmkit jupyter` and `slurmkit code-server`: a server in a job, and how to reach it."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable
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
from slurmkit.cli.kernel import kernel_command
from slurmkit.cli.submit import print_finding, print_findings, refuse_errors, typed_secret_notes
from slurmkit.cli.tables import Fit, print_key_values, print_table
from slurmkit.cluster.cluster import Cluster
from slurmkit.config.files import load_section
from slurmkit.config.paths import recorded_job_ids
from slurmkit.diagnose.explain import explain
from slurmkit.errors import BadInput, SlurmError
from slurmkit.formats.job_ids import check_job_id
from slurmkit.interactive import web_servers
from slurmkit.interactive.tunnel import NodePort, ssh_command
from slurmkit.interactive.web_servers import CODE_SERVER, JUPYTER, ServerKind, wait_for_server
from slurmkit.jobs.describe import job_gpu_facts
from slurmkit.jobs.job import Job
from slurmkit.jobs.waiting import why_by_reason
from slurmkit.planning.planner import Plan, plan
from slurmkit.spec.jobfile import load_job_file
from slurmkit.spec.jobspec import JobSpec

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_TAKEN_OPTIONS = ("command", "script")
_STEP_OPTIONS = ("mpi", "cpu_bind", "label", "log_per_rank")
_HEADER = ("JOBID", "STATE", "NODE", "AGE", "LIMIT", "URL")
_FIT = Fit(("JOBID", "URL"), least=("LIMIT", "AGE", "NODE"))
_ADDRESS_KEYS = (*web_servers.WebServer.__struct_fields__, "tunnel", "url")
_LOCAL = click.option(
    "--local-port",
    type=click.IntRange(1, 65535),
    help="Port on your own machine.  [default: the server's]",
)


class _ServerGroup(click.Group):
    """A group whose default subcommand is `start`: it is used if only options are given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        wants_help = args[:1] in (["-h"], ["--help"]) or (ctx.resilient_parsing and not args)
        if not wants_help and (not args or args[0].startswith("-")):
            args = ["start", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        own = super().shell_complete(ctx, incomplete)
        start = self.commands["start"]
        options = start.shell_complete(ctx, incomplete) if incomplete[:1] == "-" else []
        there = {item.value for item in own}
        return [*own, *(item for item in options if item.value not in there)]


class _Words(msgspec.Struct, frozen=True, kw_only=True):
    """What the help of a kind says; the rest is the same for all."""

    group: str
    start: str
    stop: str


def _make_group(kind: ServerKind, words: _Words) -> click.Group:
    """Make the commands of a kind of server."""
    group = _ServerGroup(kind.command, help=inspect.cleandoc(words.group))
    for command in (
        _make_start(kind, words.start),
        _make_list(kind),
        _make_show(kind),
        _make_stop(kind, words.stop),
    ):
        group.add_command(command)
    return group


def _make_start(kind: ServerKind, words: str) -> click.Command:
    @click.command(
        "start",
        cls=JobCommand,
        context_settings={"allow_interspersed_args": False},
        help=inspect.cleandoc(words),
    )
    @job_options()
    @_LOCAL
    @click.option("--no-wait", is_flag=True, help="Only submit the job.")
    @json_option(_schema(kind, "start"), text="Print how to reach it as JSON.")
    def start_command(
        *, local_port: int | None, no_wait: bool, as_json: JsonOutput | None, **options: Any
    ) -> int:
        job = _start(kind, options)
        if not no_wait:
            return _print_address(kind, job, local_port, as_json)
        if as_json:
            as_json.print([{"job_id": job.id, **dict.fromkeys(_address_keys(kind))}])
        else:
            click.echo(job.id)
        return 0

    return start_command


def _make_list(kind: ServerKind) -> click.Command:
    secret = "token" if kind.token_in_url else "password"
    words = f"""List your {kind.server}s.

    `slurmkit {kind.command} show` prints the address of a server with its {secret}.

    \b
    Examples:
      slurmkit {kind.command} list
      slurmkit {kind.command} list --json | jq '.rows[].job_id'
    """

    @click.command("list", help=inspect.cleandoc(words))
    @json_option(_schema(kind, "list"), text="Print them as JSON.")
    def list_command(*, as_json: JsonOutput | None) -> None:
        servers = web_servers.read_servers(kind, Cluster())
        if as_json:
            facts = [_server_json(server) for server in servers]
            as_json.print(facts)
        elif servers:
            rows = [_server_row(server) for server in servers]
            print_table(_HEADER, rows, right=_HEADER[3:5], fit=_FIT)
        else:
            print_notice(
                f"no {kind.noun} of yours runs or waits; start one: slurmkit {kind.command} --help"
            )

    return list_command


def _make_show(kind: ServerKind) -> click.Command:
    words = f"""Print again how to reach a {kind.server}.

    It works from any terminal, and waits until the server answers.

    \b
    Examples:
      slurmkit {kind.command} show 12
      slurmkit {kind.command} show 12 --local-port 8888
    """

    @click.command("show", help=inspect.cleandoc(words))
    @click.argument("job_id", metavar="JOB_ID", shell_complete=_completion(kind))
    @_LOCAL
    @json_option(_schema(kind, "show"), text="Print the facts as JSON.")
    def show_command(job_id: str, *, local_port: int | None, as_json: JsonOutput | None) -> int:
        cluster = Cluster()
        server = web_servers.read_server(kind, cluster, check_job_id(job_id))
        return _print_address(kind, cluster.job(server.row.raw_id), local_port, as_json)

    return show_command


def _make_stop(kind: ServerKind, words: str) -> click.Command:
    words = f"""{words}

    \b
    Examples:
      slurmkit {kind.command} stop 12
    """

    @click.command("stop", help=inspect.cleandoc(words))
    @click.argument(
        "job_ids", nargs=-1, required=True, metavar="JOB_ID...", shell_complete=_completion(kind)
    )
    @json_option(_schema(kind, "stop"), text="Print the jobs as JSON.")
    def stop_command(job_ids: tuple[str, ...], *, as_json: JsonOutput | None) -> None:
        cluster = Cluster()
        stopped: list[dict[str, str]] = []

        def stop(job: Job) -> None:
            web_servers.read_server(kind, cluster, job.id)
            job.cancel()
            print_notice(f"stopped job {job.id}")
            stopped.append({"job_id": job.id, "done": "stopped"})

        failed = act_on_each([cluster.job(job_id) for job_id in job_ids], stop)
        if as_json and stopped:
            as_json.print(stopped)
        raise_failures(failed)

    return stop_command


def _schema(kind: ServerKind, command: str) -> str:
    return f"slurmkit.{kind.command.replace('-', '')}.{command}/1"


def _completion(kind: ServerKind) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return what Tab offers: the job ids of your servers."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
        ids = recorded_job_ids(kind.folder)
        return [job_id for job_id in ids if job_id.startswith(incomplete)]

    return complete


jupyter_group = _make_group(
    JUPYTER,
    _Words(
        group="""Run a notebook server in a job, and print how to reach it.

        Without a subcommand it starts one: the options are those of `slurmkit jupyter start`.

        \b
        Examples:
          slurmkit jupyter --gpus-per-node a100:2 --cpus-per-task 8 --time 4:00:00
          slurmkit jupyter list
          slurmkit jupyter show 12
          slurmkit jupyter stop 12
        """,
        start="""Start a notebook server in a job, and print how to reach it.

        The options and checks are the same as for `slurmkit submit`. COMMAND starts the server; by
        default it is the first of jupyter-lab, jupyter-server and jupyter-notebook on the node.
        slurmkit waits until the server answers. The server runs until `slurmkit jupyter stop` or
        the time limit. Ctrl-C leaves the job alone.

        \b
        Examples:
          slurmkit jupyter --gpus-per-node a100:2 --cpus-per-task 8 --time 4:00:00
          slurmkit jupyter --gpus-per-node 1 --time 60 -- ~/venv/bin/jupyter-lab
          slurmkit jupyter --gpus-per-node 1 --time 60 --container-image ./jupyter.sqsh
        """,
        stop="Stop notebook servers and their jobs; save your notebooks first.",
    ),
)
jupyter_group.add_command(kernel_command)
code_server_group = _make_group(
    CODE_SERVER,
    _Words(
        group="""Run code-server, VS Code for a browser, in a job, and print how to reach it.

        Without a subcommand it starts one: the options are those of `slurmkit code-server start`.
        For VS Code on your own machine see `slurmkit ssh-config`.

        \b
        Examples:
          slurmkit code-server --gpus-per-node a100:1 --cpus-per-task 8 --time 8:00:00
          slurmkit code-server list
          slurmkit code-server show 12
          slurmkit code-server stop 12
        """,
        start="""Start code-server in a job, and print how to reach it.

        It opens the folder in which you are. The options and checks are the same as for `slurmkit
        submit`. COMMAND starts the server; by default it is code-server on the node's PATH.
        slurmkit waits until the server answers. The server runs until `slurmkit code-server stop`
        or the time limit. Ctrl-C leaves the job alone.

        \b
        Examples:
          slurmkit code-server --gpus-per-node a100:1 --cpus-per-task 8 --time 8:00:00
          slurmkit code-server --cpus-per-task 4 --time 60 -- ~/code-server/bin/code-server
        """,
        stop="Stop code-server and its jobs; save your files first.",
    ),
)


def _address_keys(kind: ServerKind) -> tuple[str, ...]:
    return _ADDRESS_KEYS if kind.token_in_url else (*_ADDRESS_KEYS, "password")


def _start(kind: ServerKind, options: dict[str, Any]) -> Job:
    """Submit the job of a server."""
    cluster = Cluster()
    folder = web_servers.make_cluster_folder(kind, cluster)
    planned = _plan_server(kind, cluster, folder, options)
    print_findings(planned)
    refuse_errors(planned, f"no {kind.noun} was started")
    job = cluster.submit(planned)
    print_notice(f"submitted job {job.id}")
    web_servers.mark_server_job(folder, job.id)
    return job


def _plan_server(kind: ServerKind, cluster: Cluster, folder: Path, options: dict[str, Any]) -> Plan:
    """Plan the job of a server; refuse options that are not for one process with a user."""
    section = load_section(kind.command, web_servers.ServerSection)
    in_file = load_job_file(options["job_file"]) if options["job_file"] else {}
    refuse_batch_options(name for name in _TAKEN_OPTIONS if in_file.get(name))
    refuse_batch_options(name for name in ("script", "wrap") if options[name] is not None)
    for note in typed_secret_notes(options["env"]):
        print_finding(note)
    options["command"] = web_servers.server_command(kind, str(folder), options["command"], section)
    spec = parse_job_options(options).spec
    refuse_batch_options(name for name in ("array", "sweep") if getattr(spec, name) is not None)
    refuse_batch_options(name for name in _STEP_OPTIONS if getattr(spec.launch, name))
    if spec.launch.launcher:
        raise BadInput(f"--launch does not work here; start the launcher in the {kind.noun}")
    return plan(_with_server_place(kind, spec, folder), cluster)


def _with_server_place(kind: ServerKind, spec: JobSpec, folder: Path) -> JobSpec:
    """Run the server in the batch shell, or in a container that sees the state folder.

    The job is requeued only if the user asks for it: nobody may be there to use a requeued server.
    """
    requeue = False if spec.requeue is None else spec.requeue
    named = msgspec.structs.replace(spec, job_name=spec.job_name or kind.command, requeue=requeue)
    if spec.container is None:
        launch = msgspec.structs.replace(spec.launch, launcher="none")
        return msgspec.structs.replace(named, launch=launch)
    if max(spec.ntasks or 1, spec.ntasks_per_node or 1, spec.most_nodes or 1) > 1:
        raise BadInput(
            f"in a container a {kind.noun} is one task on one node; give --cpus-per-task and"
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


def _print_address(
    kind: ServerKind, job: Job, local_port: int | None, as_json: JsonOutput | None
) -> int:
    """Wait for the server, and print how to reach it; return the exit code."""
    folder = web_servers.make_cluster_folder(kind, job.cluster)
    try:
        address = wait_for_server(kind, job, folder, print_notice, why_pending=_waiting_line)
    except KeyboardInterrupt:
        print_notice(
            f"job {job.id} goes on; to wait for it again: slurmkit {kind.command} show {job.id};"
            f" to end it: slurmkit {kind.command} stop {job.id}"
        )
        return 128 + signal.SIGINT
    local = local_port or address.port
    url = f"http://127.0.0.1:{local}/"
    token = web_servers.load_token(folder, job.id)
    if kind.token_in_url:
        url += f"?token={token}"
    tunnel = ssh_command(NodePort(address.node, address.port), local)
    if as_json:
        facts = {"job_id": job.id, **msgspec.to_builtins(address), "tunnel": tunnel, "url": url}
        password = {} if kind.token_in_url else {"password": token}
        as_json.print([facts | password])
        return 0
    info = job.info()
    print_key_values(
        [
            ("Job", f"{job.id} on {info.node_list}"),
            *job_gpu_facts(info),
            ("Tunnel", f" {tunnel}"),
            ("", "run this on your own machine; start it again if the connection breaks"),
            ("Or", f" {_reconnecting_tunnel(job.id, address.port, local)}"),
            ("", "where slurmkit is on your own machine: it connects again by itself"),
            ("Then", f" {url}"),
            *_open_lines(kind, token),
            ("Again", f" slurmkit {kind.command} show {job.id}"),
            ("End", f" slurmkit {kind.command} stop {job.id}"),
        ]
    )
    return 0


def _open_lines(kind: ServerKind, token: str) -> list[tuple[str, str]]:
    if kind.token_in_url:
        return [("", "open this in your browser; keep it secret, like a password")]
    return [("", "open this in your browser; it asks for a password:"), ("Password", f" {token}")]


def _reconnecting_tunnel(job_id: str, port: int, local: int) -> str:
    """Return the command for a machine whose configuration has the cluster as NAME."""
    other = f" --local-port {local}" if local != port else ""
    return f"slurmkit --cluster NAME tunnel {job_id} {port} --open{other}"


def _server_json(server: web_servers.ServerJob) -> dict[str, Any]:
    row, running = server.row, server.server
    return {
        "job_id": row.raw_id,
        "state": row.state,
        "node": running and running.node,
        "started": running and running.started,
        "time_used": row.time_used,
        "time_limit": row.time_limit,
        "url": running and running.address,
    }


def _server_row(server: web_servers.ServerJob) -> tuple[str, ...]:
    row, running = server.row, server.server
    where = running.node if running else row.node_list
    url = running.address if running else ""
    return (row.raw_id, row.state, where, row.time_used, row.time_limit, url)
