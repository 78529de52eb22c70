"""Where slurmkit leaves word for a person's own jobs: on the home that nodes share."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path


def state_folder(name: str) -> Path:
    """`$XDG_STATE_HOME/slurmkit/NAME`, or that in ~/.local/state; it need not exist."""
    return _folder(os.environ.get("XDG_STATE_HOME", ""), os.path.expanduser("~"), name)  # noqa: PTH111 - as config.py


@lru_cache(maxsize=64)  # asked for at every submit
def _folder(state: str, home: str, name: str) -> Path:
    """`state` counts only where it is absolute."""
    above = Path(state)
    return (above if above.is_absolute() else Path(home) / ".local" / "state") / "slurmkit" / name
