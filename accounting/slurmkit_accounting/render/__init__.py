"""Reports as table, CSV, JSON, XLSX or HTML: the same numbers in all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from slurmkit_accounting.render.words import several

if TYPE_CHECKING:
    from slurmkit_accounting.plugins import Renderer
    from slurmkit_accounting.reports.model import Report

FORMATS = ("table", "csv", "json", "xlsx", "html")

__all__ = ["FORMATS", "rendered", "several"]


def rendered(report: Report, form: str) -> bytes:
    """Make the file of a format: one of `FORMATS` but a table, or of a plugin of that name.

    Raises:
        BadInput: for a name of neither.
        BrokenPlugin: when the plugin cannot be used.
    """
    if form in {"csv", "json"}:
        from slurmkit_accounting.render import text  # noqa: PLC0415  each format pays for its own

        return (text.as_csv(report) if form == "csv" else text.as_json(report) + "\n").encode()
    if form == "xlsx":
        from slurmkit_accounting.render.xlsx import as_xlsx  # noqa: PLC0415  see above

        return as_xlsx(report)
    if form == "html":
        from slurmkit_accounting.render.html import as_html  # noqa: PLC0415  see above

        return as_html(report).encode()
    from slurmkit.plugins import load  # noqa: PLC0415  see above

    renderer: Renderer = cast("Callable[[], Renderer]", load("renderers", form))()
    made: bytes = renderer.render(report)
    return made
