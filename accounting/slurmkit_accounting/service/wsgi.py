"""The service's two WSGI applications, for queries and for monitoring pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from slurmkit.errors import NotVouched, ServiceError
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
from slurmkit_accounting.remote.served import changes_ledger
from slurmkit_accounting.service.log import Log, error_facts, numbered_request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Page: TypeAlias = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""
TEXT = "text/plain; charset=utf-8"
# Of errors in answers: those that say that others may see or do this.
_DENIALS = frozenset(("NotAllowed", "AccountExpired"))
PEER = "uid:"
"""What REMOTE_ADDR begins with where the kernel names the user at the other end of a socket."""


def query_application(
    answer: Callable[[int, ServiceQuery], ServiceAnswer],
    log: Log,
    turn: Callable[[int], AbstractContextManager[object]] = nullcontext,
    *,
    on_socket: bool = False,
    proxied: Voucher | None = None,
) -> WSGIApplication:
    """Make the WSGI application that answers queries.

    Args:
        answer: answers a query of a uid, limited to what the uid may see.
        log: gets a line for each query and each refusal.
        turn: held while a query of a uid is answered and its answer is sealed.
        on_socket: whether it is served on a Unix socket whose server names the uid of who asks
            (`slurmkit_accounting.service.listening.serving_on`).
        proxied: certifies who asks, where only the site's web server can ask for people.
    """

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        sender = _forwarded_for(environ) if proxied else environ.get("REMOTE_ADDR")
        asked: dict[str, object] = {}
        try:
            voucher = proxied or (_socket_peer(environ) if on_socket else MUNGE)
            uid, query = open_query(_read_body(environ), voucher)
            asked = {"uid": uid, "ask": query.ask}
            with turn(uid):
                reply = answer(uid, query)
                _log_reply(log, query, reply, sender=sender, **asked)
                # Seal all pieces before the status is sent: if munged fails, the client gets an
                # error.
                pieces = list(seal_answer(reply, query.nonce, asker=uid, voucher=voucher))
        except _Refusal as refusal:
            return _respond(start, (refusal.status, TEXT, str(refusal).encode()))
        except NotVouched as error:
            log("refused", sender=sender, why=error, **asked)
            return _respond(start, (HTTPStatus.FORBIDDEN, TEXT, str(error).encode()))
        except ServiceError as error:
            what = "refused" if isinstance(error, TooManyQueries) else "failed"
            log(what, sender=sender, why=error, **asked)
            return _respond(start, (HTTPStatus.SERVICE_UNAVAILABLE, TEXT, str(error).encode()))
        start("200 OK", [("Content-Type", voucher.content_type)])
        return pieces

    return with_request_id(app, log)


def _log_reply(log: Log, query: ServiceQuery, reply: ServiceAnswer, **asked: object) -> None:
    """Log who asked for what, and whether they got it."""
    if reply.fault and reply.fault.kind in _DENIALS:
        what = "refused"
    elif changes_ledger(query.ask) and not reply.fault:
        what = "changed"
    else:
        what = "answered"
    # Sorted, so that the asker does not choose what is cut off.
    arguments = msgspec.json.encode(query.arguments, order="sorted").decode()
    log(
        what, **asked, arguments=arguments, shown_to=reply.seen_as or None,
        fault=reply.fault and reply.fault.message,
    )  # fmt: skip


def with_request_id(app: WSGIApplication, log: Log) -> WSGIApplication:
    """Give each request an id, in its lines of the log and in the answer; log errors of `app`."""

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        with numbered_request() as number:

            def start_with_id(
                status: str, headers: list[tuple[str, str]], *more: Any
            ) -> Callable[[bytes], object]:
                return start(status, [*headers, ("X-Request-Id", number)], *more)

            try:
                return app(environ, start_with_id)
            except Exception as error:  # noqa: BLE001 - the server's own line would lack the id
                log("failed", **error_facts(error))
                words = f"the service failed; the reason is in its log: request={number}"
                page = (HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, words.encode())
                return _respond(start_with_id, page)

    return answer


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


class TooManyQueries(ServiceError):
    """A user has as many queries under way as one may have."""


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


def _forwarded_for(environ: WSGIEnvironment) -> str:
    """Return whom the web server asks for: it adds its own client at the end."""
    return str(environ.get("HTTP_X_FORWARDED_FOR") or "unknown").rpartition(",")[2].strip()


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
