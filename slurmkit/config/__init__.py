"""The site's files: configuration, prices, plugins and the folders of state."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
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
        _refuse_other_slurmkit()
        raise AttributeError(f"module 'slurmkit.config' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def _refuse_other_slurmkit() -> None:
    """End in one line if PyPI's `slurmkit` has overwritten our files.

    It replaces `slurmkit/__init__.py` and the command. Both import its own `slurmkit.config` first,
    and Python finds this package in its place.

    Raises:
        SystemExit: in the command.
        ImportError: in other programs.
    """
    from slurmkit.config.extras import overwritten_by  # noqa: PLC0415 - only this error needs it

    if message := overwritten_by("slurmkit"):
        if Path(sys.argv[0]).name == "slurmkit":
            raise SystemExit(f"slurmkit: {message}")
        raise ImportError(message)
