"""A user's notebook servers: their folders, the command that starts one, and the wait for it.

Each job has a folder on the shared home with mode 0700, which holds the token, the node and the
port. The job removes it when it ends. The folder of a killed job is removed when the servers are
next listed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slurmkit.config.paths import NOTEBOOKS_FOLDER, state_folder
from slurmkit.errors import BadConfig, NoSuchJob, NotOver, SlurmkitError
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.job import Job
from slurmkit.jobs.lookup import read_queued_ids
from slurmkit.jobs.pending_reasons import explain_reason
from slurmkit.planning.launchers import base
from slurmkit.state.queue import QueueFilter, read_queue
from slurmkit.state.queue_rows import QueueRow

if TYPE_CHECKING:
    from slurmkit.jobs.job import JobCluster

TOKEN_FILE = "token"  # noqa: S105 - the name of its file
SERVER_FILE = "server.json"
ANSWER_SECONDS = 180.0
"""Seconds that a server may take to answer once its job runs."""
_NO_REASON_YET = ("", "None", "Prolog")


class NotebookServer(msgspec.Struct, frozen=True):
    """The address of a notebook server.

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


class Notebook(msgspec.Struct, frozen=True):
    """A job and its server; the server is None before it has started or while no job runs."""

    row: QueueRow
    server: NotebookServer | None


def make_cluster_folder(cluster: JobCluster) -> Path:
    """Return the folder of one cluster; create it if it is missing.

    Raises:
        SlurmkitError: when it cannot be created.
    """
    folder = state_folder(NOTEBOOKS_FOLDER) / cluster.capabilities().cluster_name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SlurmkitError(
            f"cannot make the folder {folder}: {error.strerror}; notebook servers write their"
            " address there"
        ) from error
    return folder


def mark_notebook_job(folder: Path, job_id: str) -> None:
    """Mark a job as one with a server before it starts; else the server itself does so."""
    with suppress(OSError):
        (folder / job_id).mkdir(mode=0o700, exist_ok=True)


def load_server(folder: Path, job_id: str) -> NotebookServer | None:
    """Load the address of a job's server; None while it has not written one."""
    here = folder / job_id
    try:
        os.listdir(here)  # noqa: PTH208 - refreshes the NFS cache
        return msgspec.json.decode((here / SERVER_FILE).read_bytes(), type=NotebookServer)
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


def read_notebooks(cluster: JobCluster) -> list[Notebook]:
    """Return your own servers, pending ones included; remove the folders of ended jobs.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    folder = make_cluster_folder(cluster)
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
        Notebook(row, load_server(folder, row.raw_id) if row.state == "RUNNING" else None)
        for row in own
    ]


def read_notebook(cluster: JobCluster, job_id: str) -> Notebook:
    """Return the server of one job.

    Raises:
        NoSuchJob: when the job has no server, or is not in the queue.
        SlurmError: when slurmctld does not answer.
    """
    for each in read_notebooks(cluster):
        if each.row.raw_id == job_id:
            return each
    raise NoSuchJob(
        f"no notebook of yours runs or waits as job {job_id}; see: slurmkit jupyter list"
    )


class JupyterSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `[jupyter]`.

    Attributes:
        setup: shell lines to run on the node before the server, e.g. `module load jupyter`.
        command: program that starts the server; by default the first of `jupyter-lab`,
            `jupyter-server` and `jupyter-notebook` on the node's PATH.
    """

    setup: str = ""
    command: str = ""


# The server listens on the address of the node's name, since the login node uses that name. Older
# Jupyters read the token from another setting, so all places are set.
_SERVER_CONFIG = """
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
beside = Path(__file__).with_name
token = beside("token").read_text().strip()
apps = [c.ServerApp] + ([c.NotebookApp] if 0 < major("notebook") < 7 else [])
for app in apps:
    app.ip, app.port = address(), json.loads(beside("server.json").read_text())["port"]
    app.port_retries, app.open_browser = 0, False
    if app is not c.ServerApp or major("jupyter_server") < 2:
        app.token, app.password = token, ""
c.IdentityProvider.token = token
c.PasswordIdentityProvider.hashed_password = ""
""".lstrip()

_LINES_BEFORE_SETUP = """
[ "${SLURM_PROCID:-0}" = 0 ] || exit 0 # one server, however many tasks
slurmkit_state=$1/$SLURM_JOB_ID slurmkit_config=$2 slurmkit_server=("${@:3}")
rm -f "$slurmkit_state"/{server.json,token} # of a run that was killed
set --
""".strip()

_LINES_AFTER_SETUP = """
slurmkit_port=$MASTER_PORT
unset MASTER_ADDR MASTER_PORT # a notebook's own rendezvous is another
for slurmkit_name in jupyter-lab jupyter-server jupyter-notebook; do
  ((${#slurmkit_server[@]} == 0)) || break
  ! type -P "$slurmkit_name" >/dev/null || slurmkit_server=("$slurmkit_name")
done
if ((${#slurmkit_server[@]} == 0)); then
  echo "slurmkit: no jupyter-lab, jupyter-server or jupyter-notebook on the PATH of $HOSTNAME;" \\
    "name yours after --, or load it in [jupyter] setup" >&2
  exit 127
fi
slurmkit_umask=$(umask)
umask 077
mkdir -p "$slurmkit_state" && chmod 700 "$slurmkit_state" || exit 1
trap 'rm -rf "$slurmkit_state"' EXIT
trap : TERM INT HUP
od -An -N24 -tx1 /dev/urandom | tr -d ' \\n' >"$slurmkit_state/token" || exit 1
printf %s "$slurmkit_config" >"$slurmkit_state/config.py"
printf '{"node": "%s", "port": %d, "started": %d}\\n' "$SLURMD_NODENAME" "$slurmkit_port" \\
  "$(date +%s)" >"$slurmkit_state/new"
mv "$slurmkit_state/new" "$slurmkit_state/server.json"
umask "$slurmkit_umask"
export JUPYTER_RUNTIME_DIR=$slurmkit_state/runtime # Jupyter writes the token there, too
# In the background of a script bash would let it, and so its kernels, ignore interrupts.
(trap - INT QUIT; exec "${slurmkit_server[@]}" --config="$slurmkit_state/config.py") &
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


def server_command(folder: str, server: Sequence[str], section: JupyterSection) -> tuple[str, ...]:
    """Return the argv that starts a server, and removes its files when it ends.

    Args:
        folder: where servers write their address and token, on a file system all nodes share.
        server: the program and its arguments; empty for the configured one, or the first found.
        section: section `[jupyter]` of the site and the user.

    Raises:
        BadConfig: when the configured command has a quote that is not closed.
    """
    try:
        program = server or shlex.split(section.command)
    except ValueError as error:
        raise BadConfig(
            f"[jupyter] command: {section.command!r}: {error}; write it as in a shell, with closed"
            " quotes"
        ) from error
    lines = [
        _LINES_BEFORE_SETUP,
        *section.setup.strip().splitlines(),
        *base.RENDEZVOUS_LINES,
        _LINES_AFTER_SETUP,
    ]
    return ("bash", "-c", "\n".join(lines), "slurmkit-jupyter", folder, _SERVER_CONFIG, *program)


def why_by_reason(job: Job, meaning: str) -> str:
    """Return why a job waits, by its pending reason alone."""
    return f"job {job.id} waits: {meaning}"


def wait_for_server(
    job: Job,
    folder: Path,
    notice: Callable[[str], None],
    *,
    why_pending: Callable[[Job, str], str] = why_by_reason,
    patience: float = ANSWER_SECONDS,
) -> NotebookServer:
    """Wait until the server of `job` answers HTTP, and return its address.

    Args:
        job: the job with the server.
        folder: where servers write their address.
        notice: called with a line that says why the job waits, or that it runs.
        why_pending: makes words of why a job waits, from the meaning of its pending reason.
        patience: seconds to wait for an answer once the job runs.

    Raises:
        SlurmkitError: when the job ends first.
        NotOver: when nothing answers in that time; the job goes on.
    """
    last, since = "", None
    with job.cluster.poller.watch([job.id]) as watch:
        for known in watch.changes(every=1.0):
            one = known[job.id]
            if one.error is not None:
                raise one.error
            runs = one.info is not None and one.info.state == "RUNNING"
            server = load_server(folder, job.id) if runs else None  # else it is an earlier run's
            if server is not None and answers_http(server):
                return server
            line = _status_line(job, one.info, last, why_pending)
            if line != last:
                notice(line)
                last = line
            since = (since or time.monotonic()) if runs else None
            if since and time.monotonic() - since > patience:
                raise NotOver(_no_answer_message(job, server, patience))
    outcome = job.outcome()
    raise SlurmkitError(f"no notebook: job {job.id} {outcome.words}; see: slurmkit log {job.id}")


def answers_http(server: NotebookServer) -> bool:
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


def _status_line(
    job: Job, info: JobInfo | None, last: str, why_pending: Callable[[Job, str], str]
) -> str:
    """Return the current status line, or the last one if nothing changed."""
    if info is None or info.is_over or (info.state == "PENDING" and info.reason in _NO_REASON_YET):
        return last
    if info.state != "PENDING":
        return f"job {job.id} runs on {info.node_list}; waiting for Jupyter to answer"
    meaning = explain_reason(info.reason, job.id).meaning
    return last if meaning in last else why_pending(job, meaning)


def _no_answer_message(job: Job, server: NotebookServer | None, patience: float) -> str:
    """Return the error for a job that runs but whose server does not answer."""
    answer = f"answered at {server.address}" if server else "written its address"
    return (
        f"job {job.id} runs, but its server has not {answer} within {patience:g} s; see: slurmkit"
        f" log {job.id}, then slurmkit jupyter show {job.id}"
    )
