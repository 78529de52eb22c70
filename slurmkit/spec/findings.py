"""Findings: the results of every check of a request."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]
Pairs = tuple[tuple[str, str], ...]
AT_MOST = "-at-most"
"""End of the code of a warning: the job may get more than a limit allows, and then never starts."""
OVERCOMMITTED = "overcommit-cpus"
"""Code of findings about tasks that shall share CPUs with `--overcommit`."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong, doubtful or worth knowing about a request.

    Attributes:
        severity: an `error` stops the request from being sent; the others do not.
        code: short stable name for programs, e.g. `partition-max-time`.
        message: what is wrong, the limit and its value, and what is allowed.
        source: where the limit comes from, e.g. `partition gpu: MaxTime`.
        fix: options of the nearest request that fits, as (long option, value); an empty value
            removes the option.
        unsafe: never sent, not even with `--force`.
    """

    severity: Severity
    code: str
    message: str
    source: str = ""
    fix: tuple[tuple[str, str], ...] = ()
    unsafe: bool = False

    @property
    def keeps_from_starting(self) -> bool:
        """Whether the job cannot start, or may never; a change that has this is not proposed."""
        is_doubt = self.code == OVERCOMMITTED or self.code.endswith(AT_MOST)
        return self.severity == "error" or (self.severity == "warning" and is_doubt)

    @property
    def key(self) -> tuple[str, str]:
        """Code and source, which tell findings of one code apart: a QOS may limit CPUs and GPUs."""
        return self.code, self.source

    @property
    def fix_words(self) -> str:
        """The fix as options on a command line, quoted for a shell: `--time=1-00:00:00`."""
        quoted = ((name, value and shlex.quote(value)) for name, value in self.fix)
        return " ".join(f"--{name}={value}" if value else f"no --{name}" for name, value in quoted)


def error(code: str, message: str, source: str, fix: Pairs = ()) -> Finding:
    """Return a finding that keeps the request from being sent."""
    return Finding(severity="error", code=code, message=message, source=source, fix=fix)


def warning(code: str, message: str, source: str, fix: Pairs = ()) -> Finding:
    """Return a finding about a likely mistake, or about something that could not be checked."""
    return Finding(severity="warning", code=code, message=message, source=source, fix=fix)


def note(code: str, message: str, source: str, fix: Pairs = ()) -> Finding:
    """Return a finding that is worth knowing."""
    return Finding(severity="note", code=code, message=message, source=source, fix=fix)
