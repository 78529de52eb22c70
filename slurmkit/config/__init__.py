"""The site's files: configuration, prices, plugins and the folders of state."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmkit.config.files import has_section, load_section

__all__ = ["has_section", "load_section"]

_HOMES = {
    "has_section": "slurmkit.config.files",
    "load_section": "slurmkit.config.files",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'slurmkit.config' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
