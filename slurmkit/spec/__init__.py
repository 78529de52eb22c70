"""What a user asks for: frozen descriptions without I/O."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmkit.spec.containers import Container
    from slurmkit.spec.gpus import Gpus
    from slurmkit.spec.jobspec import JobSpec, Launch
    from slurmkit.spec.survival import Survive
    from slurmkit.spec.sweep import Sweep

__all__ = ["Container", "Gpus", "JobSpec", "Launch", "Survive", "Sweep"]

_HOMES = {
    "Container": "slurmkit.spec.containers",
    "Gpus": "slurmkit.spec.gpus",
    "JobSpec": "slurmkit.spec.jobspec",
    "Launch": "slurmkit.spec.jobspec",
    "Survive": "slurmkit.spec.survival",
    "Sweep": "slurmkit.spec.sweep",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'slurmkit.spec' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
