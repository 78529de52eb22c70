"""Our formats, registered as anybody's are: renderer plugins (slurmkit_accounting.plugins)."""

from __future__ import annotations

from slurmkit_accounting.render import rendered
from slurmkit_accounting.reports.model import Report


class Csv:
    """Comma-separated, with a header."""

    def render(self, report: Report) -> bytes:
        """See `Renderer`."""
        return rendered(report, "csv")


class Json:
    """An object of `meta` and `rows`."""

    def render(self, report: Report) -> bytes:
        """See `Renderer`."""
        return rendered(report, "json")


class Xlsx:
    """A spreadsheet."""

    def render(self, report: Report) -> bytes:
        """See `Renderer`."""
        return rendered(report, "xlsx")


class Html:
    """One self-contained page."""

    def render(self, report: Report) -> bytes:
        """See `Renderer`."""
        return rendered(report, "html")
