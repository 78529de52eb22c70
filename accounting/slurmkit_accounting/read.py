"""The read API of the ledger: what screens and notebooks may use. It never imports pandas.

>>> from slurmkit_accounting import read
>>> with read.ledger() as books:
...     report = read.usage(books, "2026-10-01", "2026-11-01", by=["pi", "gpu-type"])
>>> report.rows[0]["gpu_hours"]
>>> report.frame()
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from slurmkit.errors import BadInput
from slurmkit.jobs.ids import check_job_id
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.readers import LATEST
from slurmkit_accounting.reports.budget import budget_report
from slurmkit_accounting.reports.counted import Question, check_dimensions
from slurmkit_accounting.reports.dimensions import ALL, OF_KEYS
from slurmkit_accounting.reports.efficiency import efficiency_report
from slurmkit_accounting.reports.explain import Evidence, explain_report
from slurmkit_accounting.reports.explain import evidence as evidence_of
from slurmkit_accounting.reports.model import Column, Meta, Panel, Report
from slurmkit_accounting.reports.scope import EVERYTHING, Scope
from slurmkit_accounting.reports.usage import usage_report
from slurmkit_accounting.reports.wait import wait_report
from slurmkit_accounting.reports.window import window_of
from slurmkit_accounting.served import open_books as ledger
from slurmkit_accounting.served import served
from slurmkit_accounting.zones import zone

__all__ = [
    "Column", "Evidence", "Ledger", "Meta", "More", "Panel", "Report", "Scope", "budget",
    "efficiency", "evidence", "explain", "ledger", "usage", "wait",
]  # fmt: skip

SUSPENDED = ("charge", "skip")


class More(TypedDict, total=False):
    """What else may be said of the usage that a report is about.

    Attributes:
        timezone: IANA name; the host's zone when left out.
        filters: only usage with one of these values, by dimension.
        suspended: `charge` (as sreport does) counts GPUs that a suspended run holds, `skip` not.
        job: only this job, `12` (with all its parts), `12_3` or `12+1`; or several by comma.
        now: epoch seconds up to which runs without an end are counted; the clock's when left out.
    """

    timezone: str | None
    filters: Mapping[str, Sequence[str]]
    suspended: str
    job: str | None
    now: int | None


@served
def usage(
    books: Ledger,
    begin: str | None = None,
    end: str | None = None,
    *,
    by: str | Sequence[str] = ("pi",),
    panels: bool = False,
    scope: Scope = EVERYTHING,
    **more: Unpack[More],
) -> Report:
    """Report GPU-hours, and everything beside them, of the window [begin, end).

    Args:
        books: an open ledger.
        begin: date or date-time; the begin of this month when left out.
        end: likewise; not included; now when left out.
        by: names of dimensions, as a list or by comma: pi, group, department, user, account,
            cluster, partition, qos, gpu-type, state, hour (of 31 days at most), day, week, month.
        panels: whether to add what charts show.
        scope: whose usage the reader may see.
        **more: see `More`.

    Raises:
        BadInput: for a date, zone, dimension or job id that is none.
        LedgerError: when the ledger cannot be read.
    """
    return usage_report(books, _question(begin, end, scope, more), _names(by), panels=panels)


@served
def budget(books: Ledger, *, scope: Scope = EVERYTHING, **more: Unpack[More]) -> Report:
    """Report what PIs have used of their budgets in force, and when these run out.

    Args:
        books: an open ledger.
        scope: whose usage the reader may see; a PI sees the budget of their own groups.
        **more: see `More`; filters and a job say nothing here.

    Raises:
        BadConfig: for budgets that cannot be read.
        LedgerError: when the ledger cannot be read.
    """
    return budget_report(books, _question(None, None, scope, more))


@served
def wait(
    books: Ledger,
    begin: str | None = None,
    end: str | None = None,
    *,
    by: str | Sequence[str] = ("partition", "gpu-type"),
    scope: Scope = EVERYTHING,
    **more: Unpack[More],
) -> Report:
    """Report how long the runs waited that started in the window.

    Args:
        books: an open ledger.
        begin: as for `usage`; so are `end`, `scope` and `more`.
        end: see there.
        by: names of dimensions but hour, day, week and month.
        scope: see there.
        **more: see `More`.

    Raises:
        BadInput: as `usage`.
        LedgerError: when the ledger cannot be read.
    """
    return wait_report(books, _question(begin, end, scope, more), _names(by, OF_KEYS))


@served
def efficiency(
    books: Ledger,
    begin: str | None = None,
    end: str | None = None,
    *,
    by: str | Sequence[str] = ("user", "partition"),
    scope: Scope = EVERYTHING,
    **more: Unpack[More],
) -> Report:
    """Report what the runs that ended in the window held and did not use.

    Args:
        books: an open ledger.
        begin: as for `usage`; so are `end`, `scope` and `more`.
        end: see there.
        by: names of dimensions but hour, day, week and month.
        scope: see there.
        **more: see `More`.

    Raises:
        BadInput: as `usage`.
        LedgerError: when the ledger cannot be read.
    """
    return efficiency_report(books, _question(begin, end, scope, more), _names(by, OF_KEYS))


@served
def explain(
    books: Ledger,
    begin: str | None = None,
    end: str | None = None,
    *,
    scope: Scope = EVERYTHING,
    **more: Unpack[More],
) -> Report:
    """List the runs that a cell of `usage` is made of; its filters choose the cell.

    Args:
        books: an open ledger.
        begin: as for `usage`; so are `end`, `scope` and `more`.
        end: see there.
        scope: see there.
        **more: see `More`.

    Raises:
        BadInput: as `usage`.
        LedgerError: when the ledger cannot be read.
    """
    return explain_report(books, _question(begin, end, scope, more))


@served
def evidence(books: Ledger, row: int, *, scope: Scope = EVERYTHING) -> Evidence:
    """Everything the books have of one run: the row, its revisions, the line of sacct.

    Args:
        books: an open ledger.
        row: number of the row, as `explain` gives it.
        scope: whose runs the reader may see.

    Raises:
        BadInput: when there is no such row that the reader may see.
        LedgerError: when the ledger cannot be read.
    """
    return evidence_of(books, row, scope)


def _names(by: str | Sequence[str], known: Sequence[str] = ALL) -> tuple[str, ...]:
    names = dict.fromkeys(filter(None, by.split(",")) if isinstance(by, str) else by)
    check_dimensions(tuple(names), known)
    return tuple(names)


def _question(begin: str | None, end: str | None, scope: Scope, more: More) -> Question:
    only = {name: tuple(values) for name, values in more.get("filters", {}).items()}
    check_dimensions(tuple(only))
    where, job, now = zone(more.get("timezone")), more.get("job"), more.get("now")
    moment = int(time.time()) if now is None else now
    if not 0 <= moment <= LATEST:
        raise BadInput(f"now is a time in epoch seconds, up to {LATEST}; not {moment}")
    suspended = more.get("suspended", "charge")
    if suspended not in SUSPENDED:
        raise BadInput(f"suspended time is charged or not: {' or '.join(SUSPENDED)}")
    return Question(
        window=window_of(begin, end, where, only, moment),
        zone=where,
        filters=only,
        suspended=suspended,
        job=None if job is None else ",".join(map(check_job_id, job.split(","))),
        scope=scope,
        now=moment,
    )
