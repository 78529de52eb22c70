"""The service's two WSGI applications, for queries and for monitoring pages; its log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from slurmkit.errors import NotVouched, ServiceError
from slurmkit.formats.display import printable
from slurmkit_accounting.remote.protocol import (
    MAX_QUERY,
    MUNGE,
    PATH,
    ServiceAnswer,
    ServiceQuery,
    SocketPeer,
    Voucher,
    open_query,
    seal_answer,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Page: TypeAlias = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""
TEXT = "text/plain; charset=utf-8"
PEER = "uid:"
"""What REMOTE_ADDR begins with where the kernel names the user at the other end of a socket."""
_LONGEST = 300


def query_application(
    answer: Callable[[int, ServiceQuery], ServiceAnswer],
    log: Log,
    turn: Callable[[int], AbstractContextManager[object]] = nullcontext,
    *,
    on_socket: bool = False,
) -> WSGIApplication:
    """Make the WSGI application that answers queries.

    Args:
        answer: answers a query of a uid, limited to what the uid may see.
        log: gets a line for each query and each refusal.
        turn: held while a query of a uid is answered and its answer is sealed.
        on_socket: whether it is served on a Unix socket whose server names the uid of who asks
            (`slurmkit_accounting.service.server.serving_on`).
    """

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        try:
            voucher = _socket_peer(environ) if on_socket else MUNGE
            uid, query = open_query(_read_body(environ), voucher)
            with turn(uid):
                reply = answer(uid, query)
                # Seal all pieces before the status is sent: if munged fails, the client gets an
                # error.
                pieces = list(seal_answer(reply, query.nonce, asker=uid, voucher=voucher))
        except _Refusal as refusal:
            return _respond(start, (refusal.status, TEXT, str(refusal).encode()))
        except NotVouched as error:
            log("refused", sender=environ.get("REMOTE_ADDR"), why=error)
            return _respond(start, (HTTPStatus.FORBIDDEN, TEXT, str(error).encode()))
        except ServiceError as error:
            log("failed", why=error)
            return _respond(start, (HTTPStatus.SERVICE_UNAVAILABLE, TEXT, str(error).encode()))
        log("answered", uid=uid, ask=query.ask, fault=reply.fault and reply.fault.message)
        start("200 OK", [("Content-Type", voucher.content_type)])
        return pieces

    return app


def page_application(make: dict[str, Callable[[str], Page]]) -> WSGIApplication:
    """Make a WSGI application that serves pages by path.

    Args:
        make: by path, makes a page on request from the request's Accept header.
    """

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        page = make.get(environ.get("PATH_INFO", ""))
        if page is None:
            paths = ", ".join(make)
            return _respond(
                start, (HTTPStatus.NOT_FOUND, TEXT, f"the pages are {paths}\n".encode())
            )
        return _respond(start, page(str(environ.get("HTTP_ACCEPT") or "")))

    return app


class _Refusal(Exception):
    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.status = status


def _socket_peer(environ: WSGIEnvironment) -> Voucher:
    """Return the other end of the socket; raises NotVouched if its server does not name it."""
    sender = str(environ.get("REMOTE_ADDR") or "")
    uid = sender.removeprefix(PEER)
    if not sender.startswith(PEER) or not uid.isdecimal():
        raise NotVouched("the socket does not say who is at its other end")
    return SocketPeer(int(uid))


def _read_body(environ: WSGIEnvironment) -> bytes:
    """Read the body of a request; raises `_Refusal` for anything but a query of legal size."""
    if environ.get("PATH_INFO") != PATH:
        raise _Refusal(HTTPStatus.NOT_FOUND, f"send queries to {PATH}")
    if environ.get("REQUEST_METHOD") != "POST":
        raise _Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "send a query with POST")
    length = str(environ.get("CONTENT_LENGTH") or "")
    if not length.isdecimal() or int(length) > MAX_QUERY:
        raise _Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a query may have at most {MAX_QUERY} bytes"
        )
    return cast("IO[bytes]", environ["wsgi.input"]).read(int(length))


def _respond(start: StartResponse, page: Page) -> Iterator[bytes]:
    status, kind, body = page
    headers: list[tuple[str, Any]] = [("Content-Type", kind), ("Content-Length", str(len(body)))]
    start(f"{status.value} {status.phrase}", headers)
    return iter((body,))


class Log(Protocol):
    """A function that writes one line of the log; facts that are None are left out."""

    def __call__(self, what: str, **facts: object) -> None:
        """Write what happened and its facts; never a secret."""
        ...


def log(what: str, **facts: object) -> None:
    """Write one line; the systemd journal adds the time."""
    pairs = [f"{name}={_value(fact)}" for name, fact in facts.items() if fact is not None]
    print(printable(what), *pairs, file=sys.stderr, flush=True)


def _value(fact: object) -> str:
    text = printable(str(fact))[:_LONGEST]
    if text and not any(char in text for char in ' "='):
        return text
    # Escaped, so that a text cannot end its own quotes and pretend to be another fact.
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
