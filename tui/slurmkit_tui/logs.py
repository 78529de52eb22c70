"""What the TUI writes down, in files of the person's own: commands it ran, and its own mistakes."""

from __future__ import annotations

import contextlib
import os
import shlex
import traceback
from datetime import UTC, datetime
from pathlib import Path

from slurmkit.text import printable

_LARGEST = 1 << 20  # bytes of the log of mistakes; then it starts anew


def folder() -> Path:
    """Where the logs are: `$XDG_STATE_HOME/slurmkit`, or ~/.local/state/slurmkit."""
    state = os.environ.get("XDG_STATE_HOME")
    own = os.path.expanduser("~")  # noqa: PTH111 - home() raises without one
    return (Path(state) if state else Path(own, ".local", "state")) / "slurmkit"


def mistakes() -> Path:
    """The log for bug reports."""
    return folder() / "tui.log"


def actions() -> Path:
    """The log of the commands that were run."""
    return folder() / "tui-actions.log"


def note_command(
    cluster: str | None, argv: list[str], error: Exception | None, done: str = "done"
) -> None:
    """Write down a command that was run, and what became of it."""
    said = done if error is None else f"failed: {error}"
    words = f"{cluster or 'cluster unknown'} {shlex.join(argv)} {said}"
    _append(actions(), " ", printable(words))


def note_mistake(error: BaseException) -> None:
    """Write down an error that nobody expected."""
    with contextlib.suppress(OSError):
        if mistakes().stat().st_size > _LARGEST:
            mistakes().unlink()
    _append(mistakes(), "\n", "".join(traceback.format_exception(error)))


def _append(path: Path, gap: str, text: str) -> None:
    """Add a text with its time; a full disk stops nobody from working."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        with path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{at}{gap}{text}\n")
