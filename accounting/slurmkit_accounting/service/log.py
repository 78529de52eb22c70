"""The log of the ledger's service: one line for each event, as text or as JSON.

Under systemd each line begins with its priority, see sd-daemon(3); the journal takes it off. JSON
has the field names of the Elastic Common Schema (ECS) 8.11. Facts that it has no field for are in
`labels`.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import secrets
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from slurmkit.formats.display import printable
from slurmkit_accounting.config import LogFormat

_LONGEST = 300  # characters of a fact
_LONGEST_ASKED = 2000  # of what was asked for: its end must not hide behind its begin
_ASKED = frozenset(("arguments", "path"))
_ECS_VERSION = "8.11.0"
_FRAMES = 5
# Refused requests of one user, or of one host, that are written in a minute: anybody can send many.
_REFUSALS, _REFUSAL_SECONDS = 20, 60.0
_MOST_ASKERS = 10_000


class SyslogPriority(IntEnum):
    """Priorities of syslog(3)."""

    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


class _Kind(NamedTuple):
    """The priority of an event, and its category and type in ECS."""

    priority: SyslogPriority
    category: str = ""
    type: str = ""


_KINDS = {
    "answered": _Kind(SyslogPriority.INFO, "database", "access"),
    "changed": _Kind(SyslogPriority.NOTICE, "database", "change"),
    "page": _Kind(SyslogPriority.INFO, "web", "access"),
    "login": _Kind(SyslogPriority.NOTICE, "authentication", "start"),
    "logout": _Kind(SyslogPriority.NOTICE, "authentication", "end"),
    "see as": _Kind(SyslogPriority.NOTICE, "session", "start"),
    "see as ended": _Kind(SyslogPriority.NOTICE, "session", "end"),
    "deputy named": _Kind(SyslogPriority.NOTICE, "iam", "change"),
    "deputy ended": _Kind(SyslogPriority.NOTICE, "iam", "change"),
    "refused": _Kind(SyslogPriority.WARNING, "network", "denied"),
    "login refused": _Kind(SyslogPriority.WARNING, "authentication", "start"),
    "warned": _Kind(SyslogPriority.WARNING),
    "failed": _Kind(SyslogPriority.ERROR),
    "view not written": _Kind(SyslogPriority.ERROR),
}
"""The events; all others are INFO, such as the start of the service."""
_REFUSED = frozenset(("refused", "login refused"))

_ECS_NAMES = {
    "uid": "user.id",
    "user": "user.name",
    "seen_as": "user.effective.name",
    "deputy": "user.target.name",
    "sender": "client.address",
    "request": "http.request.id",
    "method": "http.request.method",
    "path": "url.original",
    "status": "http.response.status_code",
    "why": "error.message",
    "fault": "error.message",
    "at": "error.stack_trace",
}
"""Fields of ECS, by the name of the fact in a line of text."""

_request: ContextVar[str] = ContextVar("request", default="")


class Log(Protocol):
    """A function that writes one line of the log; facts that are None are left out."""

    def __call__(self, what: str, **facts: object) -> None:
        """Write what happened and its facts; never a secret."""
        ...


@contextmanager
def numbered_request() -> Iterator[str]:
    """Give a request an id, which each line that this thread logs in the `with` block carries."""
    token = _request.set(secrets.token_hex(8))
    try:
        yield _request.get()
    finally:
        _request.reset(token)


def request_id() -> str:
    """Return the id of the request that this thread answers; empty outside one."""
    return _request.get()


def error_facts(error: BaseException) -> dict[str, str]:
    """Return what an unexpected error is, and where it was raised, as facts of an event.

    `at` has `FILE:LINE` of the last calls, the innermost last.
    """
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    at = " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return {"why": f"{type(error).__name__}: {error}", "at": at}


def make_log(form: LogFormat) -> Log:
    """Return the function that writes to standard error, one line for each event.

    Of the refused requests of one user, or of one host whose user is not known, it writes 20 in a
    minute, and later how many there were more.
    """
    line = _json_line if form == "json" else _text_line
    prefixed = _is_read_by_systemd()
    lock = threading.Lock()  # threads share the stream, and a line must not end within another
    refusals = _RefusalCounts()

    def write(what: str, **facts: object) -> None:
        known = {name: _text(name, fact) for name, fact in facts.items() if fact is not None}
        if request_id():
            known["request"] = request_id()
        with lock:
            if what in _REFUSED and not refusals.admits(_asker(known), known):
                return
            prefix = f"<{_kind(what).priority}>" if prefixed else ""
            text = f"{prefix}{line(what, known)}\n"
            sys.stderr.buffer.write(text.encode("utf-8", "replace"))
            sys.stderr.flush()

    return write


def _asker(facts: dict[str, str]) -> str:
    """Return whose refusals are counted together: nobody uses up what is written of another."""
    if "uid" in facts:
        return f"uid {facts['uid']}"
    return f"{facts.get('sender')} {facts.get('user')}"


class _RefusalCounts:
    """How many requests of each asker were refused in the present minute."""

    def __init__(self) -> None:
        self._since = 0.0
        self._counts: Counter[str] = Counter()
        self._unwritten: Counter[str] = Counter()

    def admits(self, asker: str, facts: dict[str, str]) -> bool:
        """Count a refusal; return whether to write it, with the number of those left out before."""
        now = time.monotonic()
        if now - self._since > _REFUSAL_SECONDS:
            self._since = now
            self._counts.clear()
        if asker not in self._counts and len(self._counts) >= _MOST_ASKERS:
            asker = "all others"
        self._counts[asker] += 1
        if self._counts[asker] > _REFUSALS:
            if asker not in self._unwritten and len(self._unwritten) >= _MOST_ASKERS:
                asker = "all others"
            self._unwritten[asker] += 1
            return False
        if unwritten := self._unwritten.pop(asker, 0):
            facts["unwritten"] = str(unwritten)
        return True


class LibraryMessages(logging.Handler):
    """Warnings and errors of libraries, such as waitress, as lines of the log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            facts = {"why": record.getMessage()}
            if record.exc_info and (error := record.exc_info[1]):
                raised = error_facts(error)
                facts = raised | {"why": f"{facts['why']}: {raised['why']}"}
            what = "failed" if record.levelno >= logging.ERROR else "warned"
            self._log(what, library=record.name, **facts)
        except Exception:  # noqa: BLE001 - the library that warns must not fail
            self.handleError(record)


def _is_read_by_systemd() -> bool:
    """Return whether the journal reads standard error, see systemd.exec(5), JOURNAL_STREAM."""
    try:
        stream = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{stream.st_dev}:{stream.st_ino}"


def _kind(what: str) -> _Kind:
    return _KINDS.get(what, _Kind(SyslogPriority.INFO))


def _text_line(what: str, facts: dict[str, str]) -> str:
    return " ".join((what, *(f"{name}={_quoted(text)}" for name, text in facts.items())))


def _text(name: str, fact: object) -> str:
    """Return a fact on one line, and cut if it is long."""
    longest = _LONGEST_ASKED if name in _ASKED else _LONGEST
    text = str(fact)
    shown = printable(text[: longest + 1])
    if len(shown) > longest:
        return f"{shown[:longest]}…"
    return shown


def _quoted(text: str) -> str:
    plain = text.isascii() and not any(char in text for char in ' "=\\')
    if text and plain:
        return text
    # Escaped, so that a text cannot end its own quotes and pretend to be another fact.
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json_line(what: str, facts: dict[str, str]) -> str:
    kind = _kind(what)
    fields: dict[str, Any] = {
        "@timestamp": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        "log.level": kind.priority.name.lower(),
        "message": _text_line(what, facts),
        "ecs.version": _ECS_VERSION,
        "service.name": "slurmkit-ledger",
        "event.kind": "event",
        "event.action": what.replace(" ", "-"),
    }
    if kind.category:
        fields["event.category"] = [kind.category]
        fields["event.type"] = [kind.type]
    if kind.category or kind.priority <= SyslogPriority.WARNING:
        fields["event.outcome"] = "failure" if _has_failed(kind, facts) else "success"
    labels: dict[str, str] = {}
    for name, text in facts.items():
        if name == "seconds":
            fields["event.duration"] = round(float(text) * 1e9)  # nanoseconds
        elif name in _ECS_NAMES:
            fields[_ECS_NAMES[name]] = int(text) if name == "status" else text
        else:
            labels[name] = text
    if _is_address(facts.get("sender", "")):
        fields["client.ip"] = fields["client.address"]
    # The journal splits lines of more than 48 KiB, and an escape in ASCII has up to 12 bytes.
    return json.dumps(fields | ({"labels": labels} if labels else {}), ensure_ascii=False)


def _has_failed(kind: _Kind, facts: dict[str, str]) -> bool:
    is_error = int(facts.get("status", 0)) >= 400
    return kind.priority <= SyslogPriority.WARNING or "fault" in facts or is_error


def _is_address(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
