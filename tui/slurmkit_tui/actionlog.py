"""Every command that changed something, in a file of the person's own."""

from __future__ import annotations

import contextlib
import os
import shlex
from datetime import UTC, datetime
from pathlib import Path

from slurmkit.text import printable


def folder() -> Path:
    """Where the TUI keeps its logs: `$XDG_STATE_HOME/slurmkit`, or ~/.local/state/slurmkit."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "slurmkit"


def note(cluster: str | None, argv: list[str], error: Exception | None) -> None:
    """Add a line; a full disk stops nobody from working."""
    with contextlib.suppress(OSError, RuntimeError):
        folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        said = "done" if error is None else f"failed: {error}"
        at = datetime.now(UTC).isoformat(timespec="seconds")
        words = printable(f"{at} {cluster or 'cluster unknown'} {shlex.join(argv)} {said}")
        path = folder() / "tui-actions.log"
        path.touch(mode=0o600)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{words}\n")
