"""The log of the ledger's service: one line for each event, as text or as JSON.

Under systemd each line begins with its priority, see sd-daemon(3); the journal takes it off. JSON
has the field names of the Elastic Common Schema, version 8.11. Facts that it has no field for are
in `labels`.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from typing import Any, Protocol

from slurmkit.formats.display import printable
from slurmkit_accounting.config import LogFormat

_LONGEST = 300  # characters of a fact
_ECS_VERSION = "8.11.0"


class Priority(IntEnum):
    """Priorities of syslog(3)."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


_PRIORITIES = {
    "failed": Priority.ERROR,
    "view not written": Priority.ERROR,
    "refused": Priority.WARNING,
    "login refused": Priority.WARNING,
    "changed": Priority.NOTICE,
    "deputy named": Priority.NOTICE,
    "deputy ended": Priority.NOTICE,
    "login": Priority.NOTICE,
    "see as": Priority.NOTICE,
}
"""Priorities of events that are not INFO."""

_CATEGORIES = {
    "login": "authentication",
    "login refused": "authentication",
    "refused": "authentication",
    "see as": "iam",
    "deputy named": "iam",
    "deputy ended": "iam",
    "changed": "database",
    "answered": "database",
    "page": "web",
}
"""`event.category` of the events that an audit looks for."""

_ECS_NAMES = {
    "uid": "user.id",
    "user": "user.name",
    "seen_as": "user.effective.name",
    "deputy": "user.target.name",
    "sender": "client.address",
    "request": "http.request.id",
    "did": "http.request.method",
    "path": "url.original",
    "status": "http.response.status_code",
    "why": "error.message",
    "fault": "error.message",
}
"""Fields of the Elastic Common Schema, by the name of the fact in a line of text."""

_request: ContextVar[str | None] = ContextVar("request", default=None)


class Log(Protocol):
    """A function that writes one line of the log; facts that are None are left out."""

    def __call__(self, what: str, **facts: object) -> None:
        """Write what happened and its facts; never a secret."""
        ...


@contextmanager
def numbered_request() -> Iterator[str]:
    """Give a request an id, which each line of the log in the `with` block carries."""
    token = _request.set(secrets.token_hex(8))
    try:
        yield request_id()
    finally:
        _request.reset(token)


def request_id() -> str:
    """Return the id of this thread's request; empty outside one."""
    return _request.get() or ""


def make_log(form: LogFormat) -> Log:
    """Return the function that writes to standard error, one line for each call."""
    line = _json_line if form == "json" else _text_line
    prefixed = _is_read_by_systemd()

    def write(what: str, **facts: object) -> None:
        known = {name: fact for name, fact in facts.items() if fact is not None}
        if request_id():
            known["request"] = request_id()
        prefix = f"<{_priority(what)}>" if prefixed else ""
        print(prefix + line(what, known), file=sys.stderr, flush=True)

    return write


class LibraryMessages(logging.Handler):
    """Warnings and errors of libraries, such as waitress, as lines of the log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        why = record.getMessage() + (f": {type(error).__name__}: {error}" if error else "")
        self._log("failed", library=record.name, why=why)


def _is_read_by_systemd() -> bool:
    """Return whether the journal reads standard error, see systemd.exec(5), JOURNAL_STREAM."""
    try:
        stream = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{stream.st_dev}:{stream.st_ino}"


def _priority(what: str) -> Priority:
    return _PRIORITIES.get(what, Priority.INFO)


def _text_line(what: str, facts: dict[str, object]) -> str:
    return " ".join((printable(what), *(f"{name}={_value(fact)}" for name, fact in facts.items())))


def _value(fact: object) -> str:
    text = _cut(fact)
    if text and not any(char in text for char in ' "='):
        return text
    # Escaped, so that a text cannot end its own quotes and pretend to be another fact.
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _cut(fact: object) -> str:
    return printable(str(fact))[:_LONGEST]


def _json_line(what: str, facts: dict[str, object]) -> str:
    failed = _priority(what) <= Priority.WARNING or "fault" in facts
    fields: dict[str, Any] = {
        "@timestamp": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        "log.level": _priority(what).name.lower(),
        "message": _text_line(what, facts),
        "ecs.version": _ECS_VERSION,
        "service.name": "slurmkit-ledger",
        "event.action": printable(what).replace(" ", "-"),
        "event.outcome": "failure" if failed else "success",
    }
    if what in _CATEGORIES:
        fields["event.category"] = [_CATEGORIES[what]]
    labels: dict[str, str] = {}
    for name, fact in facts.items():
        if name == "seconds":
            fields["event.duration"] = round(float(str(fact)) * 1e9)  # nanoseconds
        elif name in _ECS_NAMES:
            fields[_ECS_NAMES[name]] = fact if name == "status" else _cut(fact)
        else:
            labels[name] = _cut(fact)
    return json.dumps(fields | ({"labels": labels} if labels else {}))
