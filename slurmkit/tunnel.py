"""A way to a port of a job's node: over ssh from a laptop, or held open on this machine."""

from __future__ import annotations

import asyncio
import shlex
import socket
import threading
from collections.abc import Callable
from functools import partial

import msgspec

from slurmkit.capabilities.nodes import node_names
from slurmkit.capabilities.standing import me
from slurmkit.config import load_section
from slurmkit.errors import BadInput, JobOver, SlurmkitError
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.job import Job

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


def ssh_command(place: Place, local: int) -> str:
    """What a person types on the laptop to have `place` there, as 127.0.0.1 and port `local`."""
    login = load_section("tunnel", TunnelSection).login or socket.getfqdn()
    forward = f"{local}:{place.node}:{place.port}"
    return shlex.join(["ssh", "-N", "-L", forward, f"{me()}@{login}"])


def node_of(job: Job, wanted: str | None) -> str:
    """The node of one's own running job that is wanted; the first, where its script runs, for None.

    Raises:
        BadInput: when it is not one's own, or has no such node, or consists of several jobs.
        JobOver: when it has ended.
        SlurmkitError: when it does not run yet.
    """
    info = job.info()
    _check(job.id, info)
    names = node_names(info.node_list)
    if wanted is not None and wanted not in names:
        raise BadInput(f"job {job.id} does not run on {wanted}; it runs on {info.node_list}")
    return wanted or names[0]


def _check(job_id: str, info: JobInfo) -> None:
    if info.user != me():
        raise BadInput(
            f"job {job_id} is {info.user}'s; a tunnel is for jobs of your own: slurmkit queue --me"
        )
    if info.tally:
        raise BadInput(f"{job_id} are several jobs; name one of them, e.g. {info.part}")
    if info.is_over:
        raise JobOver(f"job {job_id} has ended ({info.state}), and has no node any more")
    if info.state == "PENDING" or not info.node_list:
        raise SlurmkitError(f"job {job_id} waits and has no node yet; see: slurmkit why {job_id}")


def reachable(place: Place) -> bool:
    """Whether anything listens there that this machine can reach."""
    try:
        socket.create_connection((place.node, place.port), timeout=3).close()
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
    asyncio.run(_forward(place, local, job, opened))


async def _forward(place: Place, local: int, job: Job, opened: Callable[[], None]) -> None:
    try:
        server = await asyncio.start_server(partial(_connect, place), "127.0.0.1", local)
    except OSError as error:
        raise BadInput(
            f"port {local} of this machine cannot be had ({error.strerror}); choose another:"
            " --local-port"
        ) from error
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def watch() -> None:
        try:
            job.wait()
        except Exception as error:  # noqa: BLE001 - the loop raises it
            loop.call_soon_threadsafe(over.set_exception, error)
        else:
            loop.call_soon_threadsafe(over.set_result, None)

    threading.Thread(target=watch, name="slurmkit-tunnel", daemon=True).start()
    opened()
    try:
        await over
    finally:
        server.close()


async def _connect(
    place: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        there, back = await asyncio.open_connection(place.node, place.port)
    except OSError:  # nothing listens (yet); who asks is told so
        writer.close()
        return
    try:
        await asyncio.gather(_copy(reader, back), _copy(there, writer))
    finally:
        back.close()
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hand bytes on until one side is through, and tell the other."""
    try:
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:  # a side that hung up
        writer.close()
