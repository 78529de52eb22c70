"""Tunnels to a port of a job's node: an ssh command for a laptop, or a forward on this machine."""

from __future__ import annotations

import queue
import shlex
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, cast

import msgspec

from slurmkit.config.files import load_section
from slurmkit.errors import (
    BadInput,
    ConnectionLost,
    HostKeyRefused,
    JobOver,
    SlurmkitError,
    SshError,
    Unreachable,
)
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.job import Job
from slurmkit.slurm.machine import LOCAL_MACHINE, Machine, PortConnection, machine_of

if TYPE_CHECKING:
    from slurmkit.slurm.commands import SlurmCommands
    from slurmkit.slurm.ssh.connection import Connection
    from slurmkit.slurm.ssh.login import SshSlurmCommands

SshPort = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_PIECE = 1 << 16  # bytes
_LOOK_SECONDS = 0.5  # between two looks whether the connection stands
_ASK_SECONDS = 20.0  # between two questions to the login node, and the time for an answer
_PATIENCE = 60.0  # seconds that a new connection waits while the login node is gone
_REFUSALS = 5  # so many refused logins are no hiccup of a busy sshd
RECONNECT_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 60.0)
"""Seconds between two tries to connect to the login node again; the last is repeated."""


class TunnelSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `[tunnel]`.

    Attributes:
        login: host that users log in to with ssh from their own machines; by default the name of
            this host.
        port: port of its sshd; 0 for the one that ssh takes by itself.
    """

    login: str = ""
    port: SshPort = 0


class NodePort(msgspec.Struct, frozen=True):
    """A port of a node."""

    node: str
    port: int


def ssh_command(place: NodePort, local: int, slurm: SlurmCommands | None = None) -> str:
    """Return the ssh command that forwards port `local` of a laptop to `place`.

    Args:
        place: node and port to reach.
        local: port of the laptop, on 127.0.0.1.
        slurm: runs the cluster's commands; for a cluster over SSH the laptop is this machine.
    """
    forward = f"{local}:{place.node}:{place.port}"
    if slurm is not None and not machine_of(slurm).is_here:
        section = cast("SshSlurmCommands", slurm).section
        pairs = (("-F", section.ssh_config), ("-l", section.user), ("-i", section.identity))
        options = [word for flag, value in pairs if value for word in (flag, value)]
        options += ["-p", str(section.port)] if section.port else []
        host = section.host or cast("SshSlurmCommands", slurm).name
        return shlex.join(["ssh", "-N", "-L", forward, *options, host])
    tunnel = load_section("tunnel", TunnelSection)
    options = ["-p", str(tunnel.port)] if tunnel.port else []
    host = f"{LOCAL_MACHINE.user}@{tunnel.login or socket.getfqdn()}"
    return shlex.join(["ssh", "-N", "-L", forward, *options, host])


def choose_node(job: Job, wanted: str | None) -> str:
    """Return a node of the user's own running job.

    Args:
        job: the job.
        wanted: a node name; None for the first node, where the batch script runs.

    Raises:
        BadInput: when it is another user's job, has no such node, or consists of several jobs.
        JobOver: when it has ended.
        SlurmkitError: when it does not run yet.
    """
    info = job.info()
    _check_is_own_running_job(job.id, info, machine_of(job.cluster.slurm).user)
    names = expand_nodes(info.node_list)
    if wanted is not None and wanted not in names:
        raise BadInput(f"job {job.id} does not run on {wanted}; it runs on {info.node_list}")
    return wanted or names[0]


def _check_is_own_running_job(job_id: str, info: JobInfo, user: str) -> None:
    if info.user != user:
        raise BadInput(
            f"job {job_id} belongs to {info.user}; a tunnel works only for your own jobs, see:"
            " slurmkit queue --me"
        )
    if info.tally:
        raise BadInput(f"{job_id} stands for several jobs; name one of them, e.g. {info.part}")
    if info.is_over:
        raise JobOver(f"job {job_id} has ended ({info.state}), and has no node any more")
    if info.state == "PENDING" or not info.node_list:
        raise SlurmkitError(f"job {job_id} waits and has no node yet; see: slurmkit why {job_id}")


def is_reachable(place: NodePort, machine: Machine = LOCAL_MACHINE) -> bool:
    """Tell whether something listens at `place` and `machine` can connect to it."""
    try:
        machine.dial(place.node, place.port).close()
    except OSError:
        return False
    return True


def forward_until_job_ends(
    place: NodePort,
    local: int,
    job: Job,
    opened: Callable[[], None],
    notice: Callable[[str], None] = lambda _: None,
) -> None:
    """Forward 127.0.0.1 and port `local` of this machine to `place` until the job has ended.

    For a cluster over SSH, a broken connection to the login node is made again, for as long as the
    job runs. What went through it then is cut. New connections to the port wait for up to a minute.

    Args:
        place: node and port to reach.
        local: a free port of this machine.
        job: the job on that node.
        opened: called once the port is open.
        notice: called with a line when the connection to the login node breaks, and when it is
            there again.

    Raises:
        BadInput: when the port `local` cannot be opened.
        SlurmkitError: when waiting for the job fails.
        SshError: when the login node refuses the login again and again; `HostKeyRefused` when its
            host key has changed.
    """
    slurm = job.cluster.slurm
    over: queue.Queue[Exception | None] = queue.Queue()
    try:
        server = socket.create_server(("127.0.0.1", local))
    except OSError as error:
        raise BadInput(
            f"cannot open port {local} on this machine ({error.strerror}); choose another:"
            " --local-port"
        ) from error
    with server:
        _start_thread(_accept, server, slurm, place)
        _start_thread(_watch, job, over)
        opened()
        connection = _connection_of(slurm)
        trouble = over.get() if connection is None else _keep_connected(connection, over, notice)
    if trouble is not None:
        raise trouble


def _connection_of(slurm: SlurmCommands) -> Connection | None:
    """Return the connection to the login node; None if this machine runs the commands."""
    return None if machine_of(slurm).is_here else cast("SshSlurmCommands", slurm).connection


def _keep_connected(
    connection: Connection, over: queue.Queue[Exception | None], notice: Callable[[str], None]
) -> Exception | None:
    """Make the connection again whenever it breaks; return what `over` gets when the job ends.

    It runs in the main thread: the login node may ask for a one-time code.
    """
    asked, made = time.monotonic(), connection.made
    pauses, pause, refusals, notified = iter(RECONNECT_PAUSES), _LOOK_SECONDS, 0, False
    while True:
        with suppress(queue.Empty):
            return over.get(timeout=pause)
        if time.monotonic() - asked > _ASK_SECONDS:
            connection.check(_ASK_SECONDS)
            asked = time.monotonic()
        if connection.is_up and connection.made == made:
            continue
        if not notified:
            notice("the connection to the login node broke; connecting again")
            pauses, refusals, notified = iter(RECONNECT_PAUSES), 0, True
        try:
            connection.transport()
        except HostKeyRefused:
            raise
        except SshError as error:
            refusals += not isinstance(error, (Unreachable, ConnectionLost))
            if refusals >= _REFUSALS:
                raise
            pause = next(pauses, RECONNECT_PAUSES[-1])
        else:
            notice("connected again")
            made, pause, notified = connection.made, _LOOK_SECONDS, False


def _start_thread(function: Callable[..., None], *args: object) -> None:
    threading.Thread(target=function, args=args, name="slurmkit-tunnel", daemon=True).start()


def _watch(job: Job, over: queue.Queue[Exception | None]) -> None:
    try:
        job.wait(progress=False)
    except Exception as error:  # noqa: BLE001 - `forward_until_job_ends` raises it
        over.put(error)
    else:
        over.put(None)


def _accept(server: socket.socket, slurm: SlurmCommands, place: NodePort) -> None:
    """Accept connections until the server is closed."""
    with suppress(OSError):
        while True:
            near, _ = server.accept()
            _start_thread(_connect, near, slurm, place)


def _connect(near: socket.socket, slurm: SlurmCommands, place: NodePort) -> None:
    far = _dial(slurm, place)
    if far is None:  # the client sees a closed connection
        near.close()
        return
    back = threading.Thread(target=_copy, args=(far, near), daemon=True)
    back.start()
    _copy(near, far)
    back.join()
    near.close()
    with suppress(OSError, EOFError):  # a broken connection cannot say that the channel is closed
        far.close()


def _dial(slurm: SlurmCommands, place: NodePort) -> PortConnection | None:
    """Connect to `place`; None if nothing listens there, or the login node is gone for long.

    While there is no connection to the login node, it waits: `_keep_connected` makes a new one.
    """
    connection, end = _connection_of(slurm), time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if connection is None or connection.is_up:
            try:
                return machine_of(slurm).dial(place.node, place.port)
            except OSError:
                return None
            except SshError:  # it has just broken
                pass
        time.sleep(_LOOK_SECONDS)
    return None


def _copy(source: PortConnection, sink: PortConnection) -> None:
    """Copy bytes until the source ends, then tell the sink."""
    with suppress(OSError, EOFError):
        while piece := source.recv(_PIECE):
            sink.sendall(piece)
    with suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)
