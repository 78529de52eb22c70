"""A way to a port of a job's node: over ssh from a laptop, or held open on this machine."""

from __future__ import annotations

import queue
import shlex
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import msgspec

from slurmkit.capabilities.nodes import node_names
from slurmkit.config import load_section
from slurmkit.errors import BadInput, JobOver, SlurmkitError
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.job import Job
from slurmkit.machine import HERE, Line, Machine, machine_of

if TYPE_CHECKING:
    from slurmkit.slurm import Slurm
    from slurmkit.ssh.border import SshSlurm

_PIECE = 1 << 16  # bytes


class TunnelSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `[tunnel]`.

    Attributes:
        login: the host that people's own machines log in to with ssh; this one's name by default.
    """

    login: str = ""


class Place(msgspec.Struct, frozen=True):
    """A port of a node."""

    node: str
    port: int


def ssh_command(place: Place, local: int, slurm: Slurm | None = None) -> str:
    """What a person types on the laptop to have `place` there, as 127.0.0.1 and port `local`.

    Args:
        place: where to.
        local: port of the laptop.
        slurm: the border; of one over SSH the laptop is this machine.
    """
    forward = f"{local}:{place.node}:{place.port}"
    if slurm is not None and not machine_of(slurm).is_here:
        section = cast("SshSlurm", slurm).section
        pairs = (("-F", section.ssh_config), ("-l", section.user), ("-i", section.identity))
        given = [word for flag, value in pairs if value for word in (flag, value)]
        given += ["-p", str(section.port)] if section.port else []
        host = section.host or cast("SshSlurm", slurm).name
        return shlex.join(["ssh", "-N", "-L", forward, *given, host])
    login = load_section("tunnel", TunnelSection).login or socket.getfqdn()
    return shlex.join(["ssh", "-N", "-L", forward, f"{HERE.user}@{login}"])


def node_of(job: Job, wanted: str | None) -> str:
    """The node of one's own running job that is wanted; the first, where its script runs, for None.

    Raises:
        BadInput: when it is not one's own, or has no such node, or consists of several jobs.
        JobOver: when it has ended.
        SlurmkitError: when it does not run yet.
    """
    info = job.info()
    _check(job.id, info, machine_of(job.cluster.slurm).user)
    names = node_names(info.node_list)
    if wanted is not None and wanted not in names:
        raise BadInput(f"job {job.id} does not run on {wanted}; it runs on {info.node_list}")
    return wanted or names[0]


def _check(job_id: str, info: JobInfo, user: str) -> None:
    if info.user != user:
        raise BadInput(
            f"job {job_id} is {info.user}'s; a tunnel is for jobs of your own: slurmkit queue --me"
        )
    if info.tally:
        raise BadInput(f"{job_id} are several jobs; name one of them, e.g. {info.part}")
    if info.is_over:
        raise JobOver(f"job {job_id} has ended ({info.state}), and has no node any more")
    if info.state == "PENDING" or not info.node_list:
        raise SlurmkitError(f"job {job_id} waits and has no node yet; see: slurmkit why {job_id}")


def reachable(place: Place, machine: Machine = HERE) -> bool:
    """Whether anything listens there that a machine can reach."""
    try:
        machine.dial(place.node, place.port).close()
    except OSError:
        return False
    return True


def hold_open(place: Place, local: int, job: Job, opened: Callable[[], None]) -> None:
    """Forward 127.0.0.1 and port `local` of this machine to `place` until the job has ended.

    Args:
        place: where to.
        local: a free port of this machine.
        job: what runs there.
        opened: called once the port is there.

    Raises:
        BadInput: when `local` cannot be had.
        SlurmkitError: when the job cannot be waited for any more.
    """
    machine = machine_of(job.cluster.slurm)
    over: queue.Queue[Exception | None] = queue.Queue()
    try:
        server = socket.create_server(("127.0.0.1", local))
    except OSError as error:
        raise BadInput(
            f"port {local} of this machine cannot be had ({error.strerror}); choose another:"
            " --local-port"
        ) from error
    with server:
        _start(_accept, server, machine, place)
        _start(_watch, job, over)
        opened()
        trouble = over.get()
    if trouble is not None:
        raise trouble


def _start(act: Callable[..., None], *given: object) -> None:
    threading.Thread(target=act, args=given, name="slurmkit-tunnel", daemon=True).start()


def _watch(job: Job, over: queue.Queue[Exception | None]) -> None:
    try:
        job.wait()
    except Exception as error:  # noqa: BLE001 - who holds it open raises it
        over.put(error)
    else:
        over.put(None)


def _accept(server: socket.socket, machine: Machine, place: Place) -> None:
    """Until the server is closed."""
    with suppress(OSError):
        while True:
            near, _ = server.accept()
            _start(_connect, near, machine, place)


def _connect(near: socket.socket, machine: Machine, place: Place) -> None:
    try:
        far = machine.dial(place.node, place.port)
    except (OSError, SlurmkitError):  # nothing listens (yet); who asks is told so
        near.close()
        return
    back = threading.Thread(target=_copy, args=(far, near), daemon=True)
    back.start()
    _copy(near, far)
    back.join()
    far.close()
    near.close()


def _copy(source: Line, sink: Line) -> None:
    """Hand bytes on until one side is through, and tell the other."""
    with suppress(OSError, EOFError):
        while piece := source.recv(_PIECE):
            sink.sendall(piece)
    with suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)
