"""The exporter's HTTP server: one page, for clients that may be slow, many or strangers."""

from __future__ import annotations

import asyncio
import hmac
import os
import signal
import socket
import stat
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from slurmkit.errors import BadInput, SlurmkitError
from slurmkit_plugins.gpu_exporter.readings import Log

Page = Callable[[str], tuple[str, bytes]]
"""Returns content type and body for an Accept header."""
PATH = "/metrics"
_REQUEST_SECONDS = 10.0  # in which a whole request must have arrived
_ANSWER_SECONDS = 30.0  # in which the page must be made and read
_PAGE_SECONDS = 20.0  # in which the driver must have answered
_CONNECTIONS = 32  # at a time
_MOST_HEADER = 16 * 1024  # bytes
_TEXT = "text/plain; charset=utf-8"
_FIRST_PORT_OF_USERS = 1024  # Linux' default of net.ipv4.ip_unprivileged_port_start


def serve(address: str, page: Page, token: str | None, log: Log) -> None:
    """Serve the page until SIGTERM or SIGINT.

    Args:
        address: HOST:PORT of this host.
        page: makes the page; it is called in a thread, one at a time.
        token: a client must send it as bearer token; None lets everybody in.
        log: gets a line when the server listens and when it stops.

    Raises:
        SlurmkitError: when the address is taken or is not of this host.
    """
    listening = listen(address)
    port = listening.getsockname()[1]  # port 0 is any
    if token and port >= _FIRST_PORT_OF_USERS:
        log(
            f"while the exporter is stopped, a job can listen on port {port} and be sent the"
            " token; use a port below 1024"
        )
    without = "" if token else ", without a token"
    log(f"serving http://{address.rpartition(':')[0]}:{port}{PATH}{without}")
    asyncio.run(_serve_until_signal(listening, page, token, log))
    log("stopped")


def listen(address: str) -> socket.socket:
    """Listen on HOST:PORT, an IPv6 address in brackets.

    Raises:
        BadInput: when the address is not of that form.
        SlurmkitError: when the address is taken or is not of this host.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise BadInput(f"--listen {address}: write HOST:PORT, for example 127.0.0.1:6832")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family)
    except PermissionError as error:
        raise SlurmkitError(
            f"cannot listen on {address}: {error}; a port below 1024 needs root or the capability"
            " CAP_NET_BIND_SERVICE, see the comments in slurmkit-gpu-exporter.service"
        ) from error
    except OSError as error:
        raise SlurmkitError(
            f"cannot listen on {address}: {error}; name an address of this host and a free port"
            " with --listen"
        ) from error


def load_token(path: Path) -> str:
    """Load the bearer token from a file that only its owner can read.

    Raises:
        BadInput: when others can read the file, or it holds no token.
    """
    try:
        mode = path.stat().st_mode
        token = path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise BadInput(f"the token file {path} cannot be read: {error}") from error
    # systemd shows its access list of a credential as the mode of the group.
    is_credential = path.parent == Path(os.environ.get("CREDENTIALS_DIRECTORY", "-"))
    if mode & (stat.S_IRWXO if is_credential else stat.S_IRWXG | stat.S_IRWXO):
        raise BadInput(f"other users can use the token file {path}; run: chmod 600 {path}")
    if not token or not token.isprintable() or " " in token:
        raise BadInput(f"the token file {path} must hold one word and nothing else")
    return token


async def _serve_until_signal(
    listening: socket.socket, page: Page, token: str | None, log: Log
) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await serve_until(stopped, listening, page, token, log)


async def serve_until(
    stopped: asyncio.Event,
    listening: socket.socket,
    page: Page,
    token: str | None,
    log: Log = lambda _: None,
) -> None:
    """Serve the page on a listening socket until an event; clients do not keep it waiting."""
    answer = _Responder(page, token, log).answer
    server = await asyncio.start_server(answer, sock=listening, limit=_MOST_HEADER)
    try:
        await stopped.wait()
    finally:
        server.close()


class _Responder:
    def __init__(self, page: Page, token: str | None, log: Log) -> None:
        self._page = page
        self._log = log
        self._stuck: asyncio.Future[tuple[str, bytes]] | None = None  # the driver hangs
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._open: dict[
            asyncio.WriteTransport, str
        ] = {}  # with the client's address, oldest first
        self._turn = asyncio.Lock()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        if len(self._open) >= _CONNECTIONS:
            self._drop_one()
        self._open[writer.transport] = _host_of(writer)
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(_ANSWER_SECONDS):
                writer.write(await self._respond(head, writer.transport))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._open.pop(writer.transport, None)

    def _drop_one(self) -> None:
        """Close the oldest connection of the address that has most.

        So a user's program can keep its own host's connections waiting, and no Prometheus.
        """
        ((crowd, _),) = Counter(self._open.values()).most_common(1)
        oldest = next(each for each, address in self._open.items() if address == crowd)
        del self._open[oldest]
        oldest.abort()

    async def _respond(self, head: bytes, client: asyncio.WriteTransport) -> bytes:
        request, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (x.partition(":") for x in lines)
        }
        method, _, target = request.partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return _message(HTTPStatus.METHOD_NOT_ALLOWED, "send GET")
        if path != PATH:
            return _message(HTTPStatus.NOT_FOUND, f"the page is {PATH}")
        if not self._is_allowed(headers.get("authorization", "")):
            return _message(HTTPStatus.UNAUTHORIZED, "send the exporter's bearer token")
        made = await self._make_page(headers.get("accept", ""), client)
        if made is None:
            return _message(HTTPStatus.SERVICE_UNAVAILABLE, "the driver does not answer")
        kind, body = made
        return _response(HTTPStatus.OK, kind, body, is_head=method == "HEAD")

    async def _make_page(
        self, accept: str, client: asyncio.WriteTransport
    ) -> tuple[str, bytes] | None:
        """Return content type and body; None while the driver hangs, or for a dropped client.

        A call of the driver cannot be ended. So no further thread waits for it.
        """
        async with self._turn:
            if self._stuck is not None or client.is_closing():
                return None
            making = asyncio.ensure_future(asyncio.to_thread(self._page, accept))
            done, _ = await asyncio.wait((making,), timeout=_PAGE_SECONDS)
            if done:
                return making.result()
            self._stuck = making
            making.add_done_callback(self._go_on)
            self._log(f"the driver has not answered for {_PAGE_SECONDS:g} s; waiting for it")
            return None

    def _go_on(self, making: asyncio.Future[tuple[str, bytes]]) -> None:
        self._stuck = None
        if not making.cancelled() and making.exception() is None:
            self._log("the driver answers again")

    def _is_allowed(self, sent: str) -> bool:
        if self._expected is None:
            return True
        return hmac.compare_digest(sent.encode("latin-1"), self._expected)


def _host_of(writer: asyncio.StreamWriter) -> str:
    """Return the client's address; any user of this host has all of 127.0.0.0/8."""
    address = str((writer.get_extra_info("peername") or ("",))[0])
    return "127.0.0.1" if address.startswith("127.") else address


def _message(status: HTTPStatus, text: str) -> bytes:
    return _response(status, _TEXT, f"{text}\n".encode(), is_head=False)


def _response(status: HTTPStatus, kind: str, body: bytes, *, is_head: bool) -> bytes:
    challenge = "WWW-Authenticate: Bearer\r\n" if status is HTTPStatus.UNAUTHORIZED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n{challenge}Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + (b"" if is_head else body)
