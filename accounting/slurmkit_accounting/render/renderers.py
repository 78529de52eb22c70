"""The built-in renderer plugins (see slurmkit_accounting.plugins): CSV, JSON, XLSX, HTML."""

# ruff: noqa: PLC0415 - each format pays for its own imports
from __future__ import annotations

from slurmkit_accounting.render.text import as_csv, as_json
from slurmkit_accounting.reports.model import Report


class Csv:
    """Renderer of CSV with a header."""

    def render(self, report: Report) -> bytes:
        return as_csv(report).encode()


class Json:
    """Renderer of a JSON object with `meta` and `rows`."""

    def render(self, report: Report) -> bytes:
        return (as_json(report) + "\n").encode()


class Xlsx:
    """Renderer of an XLSX spreadsheet."""

    def render(self, report: Report) -> bytes:
        from slurmkit_accounting.render.xlsx import as_xlsx

        return as_xlsx(report)


class Html:
    """Renderer of one self-contained HTML page."""

    def render(self, report: Report) -> bytes:
        from slurmkit_accounting.render.html import as_html

        return as_html(report).encode()
