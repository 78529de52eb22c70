"""What a check has to say about a request, for every place that checks one."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong, doubtful or worth knowing about a request.

    Attributes:
        severity: an `error` keeps the request from being sent; the others do not.
        code: short stable name for programs, e.g. `partition-max-time`.
        message: what is wrong, the limit and its value, and what is allowed.
        source: where the limit comes from, e.g. `partition gpu: MaxTime`.
        fix: options that would make the nearest request that fits, as (long option, value);
            an empty value takes the option away.
        unsafe: never sent, not even with `--force`.
    """

    severity: Severity
    code: str
    message: str
    source: str = ""
    fix: tuple[tuple[str, str], ...] = ()
    unsafe: bool = False

    @property
    def fix_words(self) -> str:
        """The fix as options on a command line, quoted for a shell: `--time=1-00:00:00`."""
        quoted = ((name, value and shlex.quote(value)) for name, value in self.fix)
        return " ".join(f"--{name}={value}" if value else f"no --{name}" for name, value in quoted)
