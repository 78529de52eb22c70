"""Reports as table, CSV, JSON, XLSX or HTML: the same numbers in all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from slurmkit_accounting.render.words import several

if TYPE_CHECKING:
    from slurmkit_accounting.plugins import Renderer
    from slurmkit_accounting.reports.model import Report

__all__ = ["rendered", "several"]


def rendered(report: Report, form: str) -> bytes:
    """Make the file of a format: that of the plugin of its name, ours (`files`) or a site's.

    Raises:
        BadInput: for a name of none.
        BrokenPlugin: when the plugin cannot be used.
    """
    from slurmkit.plugins import load  # noqa: PLC0415  a table needs no plugin

    renderer: Renderer = cast("Callable[[], Renderer]", load("renderers", form))()
    made: bytes = renderer.render(report)
    return made
