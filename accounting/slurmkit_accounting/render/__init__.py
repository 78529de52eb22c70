"""Render reports as table, CSV, JSON, XLSX or HTML, with the same numbers in all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from slurmkit.config.plugins import load_plugin
from slurmkit_accounting.render.format import format_count

if TYPE_CHECKING:
    from slurmkit_accounting.plugins import Renderer
    from slurmkit_accounting.reports.model import Report

__all__ = ["format_count", "render_report"]


def render_report(report: Report, form: str) -> bytes:
    """Render a report as a file, with the renderer plugin named `form`: ours or a site's.

    Raises:
        BadInput: for an unknown format.
        BrokenPlugin: when the plugin cannot be used.
    """
    renderer: Renderer = cast("Callable[[], Renderer]", load_plugin("renderers", form))()
    content: bytes = renderer.render(report)
    return content
