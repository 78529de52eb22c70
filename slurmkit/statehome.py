"""Where slurmkit leaves word for a person's own jobs: on the home that nodes share."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder(name: str) -> Path:
    """`$XDG_STATE_HOME/slurmkit/NAME`, or that in ~/.local/state; it need not exist."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path(os.path.expanduser("~")) / ".local" / "state"  # noqa: PTH111 - as config.py
    return state / "slurmkit" / name
