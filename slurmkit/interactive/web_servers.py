"""Servers in jobs that people use in a browser: Jupyter and code-server.

Here are their folders, the command that starts one, and the wait for it. Each job has a folder on
the shared home with mode 0700, which holds the token, the node and the port. The job removes it
when it ends. The folder of a killed job is removed when the servers are next listed.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slurmkit.config.paths import CODE_SERVERS_FOLDER, NOTEBOOKS_FOLDER, state_folder
from slurmkit.errors import BadConfig, NoSuchJob, SlurmkitError
from slurmkit.formats.display import printable
from slurmkit.jobs.job import Job
from slurmkit.jobs.lookup import read_queued_ids
from slurmkit.jobs.waiting import wait_until_ready, why_by_reason
from slurmkit.planning.launchers import base
from slurmkit.state.queue import QueueFilter, read_queue
from slurmkit.state.queue_rows import QueueRow

if TYPE_CHECKING:
    from slurmkit.jobs.job import JobCluster

TOKEN_FILE = "token"  # noqa: S105 - the name of its file
SERVER_FILE = "server.json"
ANSWER_SECONDS = 180.0
"""Seconds that a server may take to answer once its job runs."""


class WebServer(msgspec.Struct, frozen=True):
    """The address of a server.

    Attributes:
        node: Slurm's name of the node.
        started: epoch seconds.
    """

    node: str
    port: int
    started: int

    @property
    def address(self) -> str:
        """The URL on the node, without the token."""
        return f"http://{self.node}:{self.port}/"


class ServerJob(msgspec.Struct, frozen=True):
    """A job and its server; the server is None before it has started or while no job runs."""

    row: QueueRow
    server: WebServer | None


class ServerKind(msgspec.Struct, frozen=True, kw_only=True):
    """A program that serves pages.

    Attributes:
        command: the subcommand of slurmkit; also its section of the configuration.
        folder: of its jobs, in the state folder.
        title: its name.
        noun: what people work in.
        server: what people call one of them.
        programs: the first of them on the node's PATH is started.
        config: text for `lines`, `$slurmkit_config` there.
        token_in_url: whether its address has the token; else its pages ask for it as a password.
        lines: bash that makes a configuration file in `$slurmkit_state`, and adds arguments to
            `slurmkit_server`.
    """

    command: str
    folder: str
    title: str
    noun: str
    server: str
    programs: tuple[str, ...]
    config: str = ""
    token_in_url: bool = False
    lines: str


def make_cluster_folder(kind: ServerKind, cluster: JobCluster) -> Path:
    """Return the folder of a kind on one cluster; create it if it is missing.

    Raises:
        SlurmkitError: when it cannot be created.
    """
    folder = state_folder(kind.folder) / cluster.capabilities().cluster_name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SlurmkitError(
            f"cannot make the folder {folder}: {error.strerror}; servers write their address there"
        ) from error
    return folder


def mark_server_job(folder: Path, job_id: str) -> None:
    """Mark a job as one with a server before it starts; else the server itself does so."""
    with suppress(OSError):
        (folder / job_id).mkdir(mode=0o700, exist_ok=True)


def load_server(folder: Path, job_id: str) -> WebServer | None:
    """Load the address of a job's server; None while it has not written one."""
    here = folder / job_id
    try:
        os.listdir(here)  # noqa: PTH208 - refreshes the NFS cache
        return msgspec.json.decode((here / SERVER_FILE).read_bytes(), type=WebServer)
    except (OSError, msgspec.DecodeError):
        return None


def load_token(folder: Path, job_id: str) -> str:
    """Load the token of a server that has started.

    Raises:
        SlurmkitError: when it cannot be read: the server has just ended.
    """
    path = folder / job_id / TOKEN_FILE
    try:
        return path.read_text("ascii").strip()
    except OSError as error:
        raise SlurmkitError(
            f"no token in {path} ({error.strerror}): the server of job {job_id} has just ended"
        ) from error


def read_servers(kind: ServerKind, cluster: JobCluster) -> list[ServerJob]:
    """Return your own servers of a kind, pending ones included; remove the folders of ended jobs.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    folder = make_cluster_folder(kind, cluster)
    # Read before the queue, so that a job submitted meanwhile keeps its folder.
    ids = [path.name for path in folder.iterdir() if path.name.isdecimal()]
    if not ids:
        return []
    rows = {row.raw_id: row for row in read_queue(cluster.slurm, QueueFilter(me=True)).rows}
    missing = set(ids) - rows.keys()
    for job_id in missing - read_queued_ids(cluster.backend, missing):
        shutil.rmtree(folder / job_id, ignore_errors=True)
    own = [rows[job_id] for job_id in sorted(set(ids) & rows.keys(), key=int)]
    # A requeued job that waits may still have the file of its killed run.
    return [
        ServerJob(row, load_server(folder, row.raw_id) if row.state == "RUNNING" else None)
        for row in own
    ]


def read_server(kind: ServerKind, cluster: JobCluster, job_id: str) -> ServerJob:
    """Return the server of one job.

    Raises:
        NoSuchJob: when the job has no server, or is not in the queue.
        SlurmError: when slurmctld does not answer.
    """
    for each in read_servers(kind, cluster):
        if each.row.raw_id == job_id:
            return each
    raise NoSuchJob(
        f"no {kind.noun} of yours runs or waits as job {job_id}; see: slurmkit {kind.command} list"
    )


class ServerSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `[jupyter]` or `[code-server]`.

    Attributes:
        setup: shell lines to run on the node before the server, e.g. `module load jupyter`.
        command: program that starts the server; by default the first of its kind's programs on the
            node's PATH.
    """

    setup: str = ""
    command: str = ""


# The server listens on the address of the node's name, since the login node uses that name. Older
# Jupyters read the token from another setting, so all places are set.
_JUPYTER_CONFIG = """
import json, os, socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

def major(package):
    try:
        return int(version(package).partition(".")[0])
    except PackageNotFoundError:
        return 0

def address():
    try:
        found = socket.gethostbyname(os.environ["SLURMD_NODENAME"])
    except OSError:
        return ""
    return "" if found.startswith("127.") else found

c = get_config()
sibling = Path(__file__).with_name
token = sibling("token").read_text().strip()
apps = [c.ServerApp] + ([c.NotebookApp] if 0 < major("notebook") < 7 else [])
for app in apps:
    app.ip, app.port = address(), json.loads(sibling("server.json").read_text())["port"]
    app.port_retries, app.open_browser = 0, False
    if app is not c.ServerApp or major("jupyter_server") < 2:
        app.token, app.password = token, ""
c.IdentityProvider.token = token
c.PasswordIdentityProvider.hashed_password = ""
""".lstrip()

JUPYTER = ServerKind(
    command="jupyter",
    folder=NOTEBOOKS_FOLDER,
    title="Jupyter",
    noun="notebook",
    server="notebook server",
    programs=("jupyter-lab", "jupyter-notebook", "jupyter-server"),
    config=_JUPYTER_CONFIG,
    token_in_url=True,
    lines="""
printf %s "$slurmkit_config" >"$slurmkit_state/config.py"
export JUPYTER_RUNTIME_DIR=$slurmkit_state/runtime # Jupyter writes the token there, too
slurmkit_server+=(--config="$slurmkit_state/config.py")
""".strip(),
)
# A file keeps its password out of the command line; the variables would come before the file.
CODE_SERVER = ServerKind(
    command="code-server",
    folder=CODE_SERVERS_FOLDER,
    title="code-server",
    noun="code-server",
    server="code-server",
    programs=("code-server",),
    lines=r"""
read -r slurmkit_address _ < <(getent ahostsv4 "$SLURMD_NODENAME")
case $slurmkit_address in "" | 127.*) slurmkit_address=0.0.0.0 ;; esac
printf 'bind-addr: %s:%d\nauth: password\npassword: "%s"\ncert: false\n' "$slurmkit_address" \
  "$slurmkit_port" "$(<"$slurmkit_state/token")" >"$slurmkit_state/config.yaml"
unset PASSWORD HASHED_PASSWORD
slurmkit_server+=(--config "$slurmkit_state/config.yaml" --disable-telemetry)
slurmkit_server+=(--disable-update-check "$PWD")
""".strip(),
)

_LINES_BEFORE_SETUP = """
[ "${SLURM_PROCID:-0}" = 0 ] || exit 0 # one server, however many tasks
slurmkit_state=$1/$SLURM_JOB_ID slurmkit_config=$2 slurmkit_server=("${@:3}")
rm -f "$slurmkit_state"/{server.json,token} # of a run that was killed
set --
""".strip()

_LINES_AFTER_SETUP = """
slurmkit_port=$MASTER_PORT
unset MASTER_ADDR MASTER_PORT # a notebook's own rendezvous is another
for slurmkit_name in {programs}; do
  ((${{#slurmkit_server[@]}} == 0)) || break
  ! type -P "$slurmkit_name" >/dev/null || slurmkit_server=("$slurmkit_name")
done
if ((${{#slurmkit_server[@]}} == 0)); then
  echo "slurmkit: no {names} on the PATH of $HOSTNAME;" \\
    "name yours after --, or load it in [{command}] setup" >&2
  exit 127
fi
""".strip()

_LINES_OF_FOLDER = """
slurmkit_umask=$(umask)
umask 077
mkdir -p "$slurmkit_state" && chmod 700 "$slurmkit_state" || exit 1
trap 'rm -rf "$slurmkit_state"' EXIT
trap : TERM INT HUP
od -An -N24 -tx1 /dev/urandom | tr -d ' \\n' >"$slurmkit_state/token" || exit 1
printf '{"node": "%s", "port": %d, "started": %d}\\n' "$SLURMD_NODENAME" "$slurmkit_port" \\
  "$(date +%s)" >"$slurmkit_state/new"
mv "$slurmkit_state/new" "$slurmkit_state/server.json"
""".strip()

_LINES_OF_SERVER = """
umask "$slurmkit_umask"
# In the background of a script bash would let it, and so its kernels, ignore interrupts.
(trap - INT QUIT; exec "${slurmkit_server[@]}") &
slurmkit_pid=$!
trap 'kill "$slurmkit_pid" 2>/dev/null' TERM INT HUP # some container runtimes tell bash alone
wait "$slurmkit_pid"
slurmkit_code=$?
while kill -0 "$slurmkit_pid" 2>/dev/null; do
  wait "$slurmkit_pid"
  slurmkit_code=$?
done
exit "$slurmkit_code"
""".strip()


def server_command(
    kind: ServerKind, folder: str, server: Sequence[str], section: ServerSection
) -> tuple[str, ...]:
    """Return the argv that starts a server, and removes its files when it ends.

    Args:
        kind: what it is.
        folder: where servers write their address and token, on a file system all nodes share.
        server: the program and its arguments; empty for the configured one, or the first found.
        section: the kind's section of the site and the user.

    Raises:
        BadConfig: when the configured command has a quote that is not closed.
    """
    try:
        program = server or shlex.split(section.command)
    except ValueError as error:
        raise BadConfig(
            f"[{kind.command}] command: {section.command!r}: {error}; write it as in a shell, with"
            " closed quotes"
        ) from error
    lines = [
        _LINES_BEFORE_SETUP,
        *section.setup.strip().splitlines(),
        *base.RENDEZVOUS_LINES,
        _LINES_AFTER_SETUP.format(
            programs=" ".join(kind.programs), names=_one_of(kind.programs), command=kind.command
        ),
        _LINES_OF_FOLDER,
        kind.lines,
        _LINES_OF_SERVER,
    ]
    name = f"slurmkit-{kind.command}"
    return ("bash", "-c", "\n".join(lines), name, folder, kind.config, *program)


def _one_of(names: Sequence[str]) -> str:
    """Write names with `or` before the last: `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def wait_for_server(
    kind: ServerKind,
    job: Job,
    folder: Path,
    notice: Callable[[str], None],
    *,
    why_pending: Callable[[Job, str], str] = why_by_reason,
    patience: float = ANSWER_SECONDS,
) -> WebServer:
    """Wait until the server of `job` answers HTTP, and return its address.

    Args:
        kind: what it is.
        job: the job with the server.
        folder: where servers write their address.
        notice: called with a line that says why the job waits, or that it runs.
        why_pending: makes words of why a job waits, from the meaning of its pending reason.
        patience: seconds to wait for an answer once the job runs.

    Raises:
        SlurmkitError: when the job ends first.
        NotOver: when nothing answers in that time; the job goes on.
    """

    def find() -> WebServer | None:
        server = load_server(folder, job.id)
        return server if server is not None and answers_http(server) else None

    def no_answer() -> str:
        server = load_server(folder, job.id)
        answer = f"answered at {server.address}" if server else "written its address"
        return (
            f"job {job.id} runs, but its server has not {answer} within {patience:g} s; see:"
            f" slurmkit log {job.id}, then slurmkit {kind.command} show {job.id}"
        )

    server = wait_until_ready(
        job,
        find,
        notice,
        no_answer=no_answer,
        patience=patience,
        why_pending=why_pending,
        waiting_for=f"{kind.title} to answer",
    )
    if server is None:
        words = job.outcome().words
        raise SlurmkitError(
            f"no {kind.noun}: job {job.id} {words}{_last_line(job)}; see: slurmkit log {job.id}"
        )
    return server


def _last_line(job: Job) -> str:
    """Return the last line of a job's log, which often says why it ended."""
    with suppress(SlurmkitError):
        if said := job.log(lines=1).text().strip():
            return f": {printable(said)}"
    return ""


def answers_http(server: WebServer) -> bool:
    """Return whether something answers HTTP at that address; the token is not sent."""
    connection = HTTPConnection(server.node, server.port, timeout=5)
    try:
        connection.request("GET", "/api")
        connection.getresponse()
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
    return True
