"""One cluster, and the sweeps, workflows and reservations that are sent to it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmkit.cluster.cluster import Cluster

__all__ = ["Cluster"]

_HOMES = {
    "Cluster": "slurmkit.cluster.cluster",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'slurmkit.cluster' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
