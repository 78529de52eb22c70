"""The scope and the window of a report: whose runs the reader may see, from when until when."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from slurmkit_accounting.calendar import Zone, month_of, month_span


class Scope(msgspec.Struct, frozen=True):
    """The runs that a reader may see; everything if all fields are None.

    Attributes:
        people: ids in table `people`.
        pis: ids of PIs in table `people`.
        uids: uids of users whom the directory does not know. Runs of a known person who once had
            the uid are not included.
        with_totals: whether the reader also sees sums over all runs, which name nobody.
    """

    people: frozenset[int] | None = None
    pis: frozenset[int] | None = None
    uids: frozenset[int] | None = None
    with_totals: bool = False

    @property
    def is_everything(self) -> bool:
        """Whether the reader may see all runs."""
        return self.people is None and self.pis is None and self.uids is None

    @property
    def of_totals(self) -> Scope:
        """The scope of sums that name nobody."""
        return EVERYTHING if self.with_totals else self

    def shows(self, person: int | None, pi: int | None, uid: int | None = None) -> bool:
        """Return whether a run of a person (or of an unknown uid), charged to a PI, may be seen."""
        if self.is_everything or person in (self.people or ()) or pi in (self.pis or ()):
            return True
        return person is None and uid in (self.uids or ())

    def shows_group(self, pi: int | None) -> bool:
        """Return whether everything charged to a PI may be seen."""
        return self.is_everything or (pi is not None and pi in (self.pis or ()))


EVERYTHING = Scope()
CLOCKS_AHEAD = 86400
"""Seconds that the clock of a node may be ahead of the ledger's."""


def report_window(
    begin: str | None,
    end: str | None,
    zone: Zone,
    filters: Mapping[str, tuple[str, ...]],
    now: int,
) -> tuple[int, int]:
    """Return begin and end of the window of a report.

    A missing date is taken from the months in `filters`. Without months, the window is this month
    up to now.

    Raises:
        BadInput: for a text that is not a date or month.
    """
    spans = [month_span(text, zone) for text in filters.get("month", ())]
    this_month, _ = month_span(month_of(now, zone), zone)
    first = min((first for first, _ in spans), default=this_month)
    last = max((last for _, last in spans), default=now)
    return (
        first if begin is None else zone.epoch(begin),
        last if end is None else zone.epoch(end),
    )
