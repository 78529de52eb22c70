"""The read API of the ledger: what screens and notebooks may use. It never imports pandas.

>>> from slurmkit_accounting import read
>>> with read.ledger() as books:
...     report = read.usage(books, "2026-10-01", "2026-11-01", by="pi")
>>> report.rows[0].gpu_hours
"""

from __future__ import annotations

from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.ledger import open_for_reading as ledger
from slurmkit_accounting.report import By, Meta, Report, Row, usage_report
from slurmkit_accounting.zones import zone

__all__ = ["By", "Ledger", "Meta", "Report", "Row", "ledger", "usage"]


def usage(
    books: Ledger,
    begin: str,
    end: str,
    *,
    by: By = "pi",
    timezone: str | None = None,
    job: str | None = None,
) -> Report:
    """Report GPU-hours and CPU-hours of the window [begin, end).

    Args:
        books: an open ledger.
        begin: date or date-time.
        end: likewise; not included.
        by: pi, account or user.
        timezone: IANA name; the host's zone when left out.
        job: only this job, `12` (with all its parts), `12_3` or `12+1`.

    Raises:
        BadInput: for a date, zone or job id that is none.
        LedgerError: when the ledger cannot be read.
    """
    return usage_report(books, (begin, end), by=by, zone=zone(timezone), job=job)
