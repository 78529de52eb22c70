"""The log for bug reports: what went wrong inside, in a file of the person's own."""

from __future__ import annotations

import contextlib
import traceback
from datetime import UTC, datetime
from pathlib import Path

from slurmkit_tui.actionlog import folder

_LARGEST = 1 << 20  # bytes; then it starts anew


def path() -> Path:
    """Where it is."""
    return folder() / "tui.log"


def note(error: BaseException) -> None:
    """Write down an error that nobody expected."""
    with contextlib.suppress(OSError, RuntimeError):
        folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        full = path().exists() and path().stat().st_size > _LARGEST
        path().touch(mode=0o600)
        with path().open("w" if full else "a", encoding="utf-8", errors="replace") as file:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(f"{at}\n{''.join(traceback.format_exception(error))}\n")
