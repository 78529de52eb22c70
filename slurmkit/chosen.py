"""Which cluster is meant where none is named: by `slurmkit --cluster`, else SLURMKIT_CLUSTER."""

from __future__ import annotations

import os

_CHOSEN: list[str] = []


def choose(name: str | None) -> None:
    """Make `Cluster()` one of the configuration, as `slurmkit --cluster` does; None takes it back.

    What is chosen goes before SLURMKIT_CLUSTER; an empty name is the cluster of this machine.
    """
    _CHOSEN[:] = [] if name is None else [name]


def chosen() -> str:
    """The name of the cluster that `Cluster()` is, empty for that of this machine."""
    return _CHOSEN[0] if _CHOSEN else os.environ.get("SLURMKIT_CLUSTER", "")
