"""The service's two doors, as WSGI applications: queries, and what watches over the service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

from slurmkit.errors import NotVouched, ServiceError
from slurmkit_accounting.service.log import Log
from slurmkit_accounting.service.wire import (
    MAX_QUERY,
    PATH,
    Answer,
    Query,
    open_query,
    seal_answer,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Page: TypeAlias = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""
TEXT = "text/plain; charset=utf-8"


def queries(answer: Callable[[int, Query], Answer], log: Log) -> WSGIApplication:
    """Make the door for queries.

    Args:
        answer: answers a query of a uid; whatever the service may not say, it leaves out.
        log: gets a line for each query and each refusal.
    """

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        try:
            uid, query = open_query(_body(environ))
            found = answer(uid, query)
            # Sealed before the status is sent: a munged that fails is an error, not a cut answer.
            pieces = list(seal_answer(found, query.nonce, asker=uid))
        except _Refusal as refusal:
            return _say(start, (refusal.status, TEXT, str(refusal).encode()))
        except NotVouched as error:
            log("refused", sender=environ.get("REMOTE_ADDR"), why=error)
            return _say(start, (HTTPStatus.FORBIDDEN, TEXT, str(error).encode()))
        except ServiceError as error:
            log("failed", why=error)
            return _say(start, (HTTPStatus.SERVICE_UNAVAILABLE, TEXT, str(error).encode()))
        log("answered", uid=uid, ask=query.ask, fault=found.fault and found.fault.message)
        start("200 OK", [("Content-Type", "application/x-munge")])
        return pieces

    return app


def pages(make: dict[str, Callable[[], Page]]) -> WSGIApplication:
    """Make a door with pages that are made when they are asked for, by path."""

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        page = make.get(environ.get("PATH_INFO", ""))
        if page is None:
            known = ", ".join(make)
            return _say(start, (HTTPStatus.NOT_FOUND, TEXT, f"there are {known}\n".encode()))
        return _say(start, page())

    return app


class _Refusal(Exception):
    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.status = status


def _body(environ: WSGIEnvironment) -> bytes:
    if environ.get("PATH_INFO") != PATH:
        raise _Refusal(HTTPStatus.NOT_FOUND, f"queries go to {PATH}")
    if environ.get("REQUEST_METHOD") != "POST":
        raise _Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "a query is sent with POST")
    length = str(environ.get("CONTENT_LENGTH") or "")
    if not length.isdecimal() or int(length) > MAX_QUERY:
        raise _Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a query has at most {MAX_QUERY} bytes"
        )
    return cast("IO[bytes]", environ["wsgi.input"]).read(int(length))


def _say(start: StartResponse, page: Page) -> Iterator[bytes]:
    status, kind, body = page
    headers: list[tuple[str, Any]] = [("Content-Type", kind), ("Content-Length", str(len(body)))]
    start(f"{status.value} {status.phrase}", headers)
    return iter((body,))
