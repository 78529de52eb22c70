"""Our formats, registered as anybody's are: renderer plugins (slurmkit_accounting.plugins)."""

# ruff: noqa: PLC0415 - each format pays for its own imports
from __future__ import annotations

from slurmkit_accounting.reports.model import Report


class Csv:
    """Comma-separated, with a header."""

    def render(self, report: Report) -> bytes:
        """See `Renderer`."""
        from slurmkit_accounting.render.text import as_csv

        return as_csv(report).encode()


class Json:
    """An object of `meta` and `rows`."""

    def render(self, report: Report) -> bytes:
        """See `Renderer`."""
        from slurmkit_accounting.render.text import as_json

        return (as_json(report) + "\n").encode()


class Xlsx:
    """A spreadsheet."""

    def render(self, report: Report) -> bytes:
        """See `Renderer`."""
        from slurmkit_accounting.render.xlsx import as_xlsx

        return as_xlsx(report)


class Html:
    """One self-contained page."""

    def render(self, report: Report) -> bytes:
        """See `Renderer`."""
        from slurmkit_accounting.render.html import as_html

        return as_html(report).encode()
