"""Usage of a window, counted once and summed by whatever is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import msgspec
from sqlalchemy import Connection, select

from slurmkit.errors import BadInput
from slurmkit_accounting.bins import NO_GPU, Key
from slurmkit_accounting.closing import Closing, closed_sums, known_closings
from slurmkit_accounting.held import Sums, while_suspended
from slurmkit_accounting.query import AT, Asked, Cells, usage
from slurmkit_accounting.reports.dimensions import ALL, Dimensions
from slurmkit_accounting.reports.frozen import freeze
from slurmkit_accounting.reports.periods import UNITS, Part, parts
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.reports.scope import EVERYTHING, Scope
from slurmkit_accounting.reports.tally import Tally
from slurmkit_accounting.schema import HOUR, clusters
from slurmkit_accounting.zones import Zone

Labels = tuple[str, ...]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a report of usage is about.

    Attributes:
        window: epoch seconds [from, to).
        zone: of its days and months.
        units: hour, day, week or month, where rows are told apart by them.
        filters: only usage with one of these values, by dimension.
        suspended: `charge` or `skip`.
        job: only this one.
        scope: whose usage the reader may see.
        now: epoch seconds up to which runs without an end are counted.
    """

    window: tuple[int, int]
    zone: Zone
    units: frozenset[str] = frozenset()
    filters: dict[str, tuple[str, ...]] = {}
    suspended: str = "charge"
    job: str | None = None
    scope: Scope = EVERYTHING
    now: int


class Counted:
    """The usage of a window that a reader may see and asked for.

    Attributes:
        parts: of the window, in order.
        closings: closed months within the window.
        corrections: what was corrected since in those that are shown as they were closed.
        edges: of those.
        cells: part, key and sums.
    """

    def __init__(self, connection: Connection, question: Question) -> None:
        self.question = question
        self.rates = Rates()
        self.dimensions = Dimensions(connection, self.rates)
        self.closings = _closings(connection, question)
        self.parts: list[Part] = parts(
            question.window,
            question.zone,
            question.units | (question.filters.keys() & set(UNITS)),
            self.rates.dates,
            [edge for closing in self.closings for edge in closing.span],
        )
        self.edges = (question.window[0], *(part.end for part in self.parts))
        asked = Asked(
            self.edges,
            question.now,
            question.suspended == "skip",
            question.job,
        )
        cells = usage(connection, asked)
        corrections = [
            each
            for closing in self.closings
            for each in freeze(cells, self.parts, closing, closed_sums(connection, closing))
        ]
        self.cells = list(self._wanted(cells))
        self.corrections = [
            each
            for each in corrections
            if self._keeps(each.key) and self._in_time(self.parts[each.part])
        ]
        self._tracked = _tracked(connection)

    def rows(self, by: Sequence[str]) -> dict[Labels, Tally]:
        """Tallies by the values of some dimensions."""
        label, found = self._labeller(by), dict[Labels, Tally]()
        first = self._firsts([name for name in by if name in UNITS])
        for part, key, sums in self.cells:
            labels = label(part, key)
            tally = found.get(labels)
            if tally is None:
                tally = found[labels] = Tally()
            self._put(tally, key, part, sums, first=first[part])
        return found

    def corrected(self, by: Sequence[str]) -> dict[Labels, Tally]:
        """Tallies of corrections, by the values of some dimensions and, after them, the month."""
        label, found = self._labeller(by), dict[Labels, Tally]()
        for closing, part, key, sums in self.corrections:
            tally = found.setdefault((*label(part, key), closing.month), Tally())
            self._put(tally, key, part, sums, first=True)
        return found

    def total(self, wanted: Callable[[Key], bool] = lambda _: True) -> Tally:
        """Everything together, or all that is wanted."""
        tally, first = Tally(), self._firsts([])
        for part, key, sums in self.cells:
            if wanted(key):
                self._put(tally, key, part, sums, first=first[part])
        return tally

    def _put(self, tally: Tally, key: Key, part: int, sums: Sums, *, first: bool) -> None:
        tally.add(key, part, sums, first=first)
        tally.tracked |= key.gpu_type != NO_GPU or self._tracked[key.cluster_id]

    def everything(self) -> Tally:
        """All rows together, corrections too."""
        tally = self.total()
        for _, part, key, sums in self.corrections:
            self._put(tally, key, part, sums, first=True)
        return tally

    def suspended_gpu_hours(self, connection: Connection) -> Fraction:
        """GPU-hours held by runs while they were suspended."""
        question, hours = self.question, Fraction(0)
        for part, key, sums in while_suspended(connection, self.edges, question.job):
            if self._keeps(key) and self._in_time(self.parts[part]):
                hours += self.gpu_hours(key, sums)
        return hours

    def gpu_hours(self, key: Key, sums: Sums) -> Fraction:
        """Whole GPUs times hours of some usage of one key."""
        kind = self.rates.kind(key.gpu_type, key.partition)
        return (kind.weight or 0) * Fraction(sums[AT["gpu_seconds"]], HOUR)

    def _labeller(self, by: Sequence[str]) -> Callable[[int, Key], Labels]:
        """Makes the values of a cell; those of a key are worked out once."""
        of_keys: dict[Key, Labels] = {}
        names = [name for name in by if name not in UNITS]

        def of(key: Key) -> Labels:
            labels = of_keys.get(key)
            if labels is None:
                labels = of_keys[key] = tuple(self.dimensions.of(name, key) for name in names)
            return labels

        if len(names) == len(by):
            return lambda _, key: of(key)

        def mixed(part: int, key: Key) -> Labels:
            values, times = iter(of(key)), self.parts[part].labels
            return tuple(times[name] if name in UNITS else next(values) for name in by)

        return mixed

    def _firsts(self, units: list[str]) -> list[bool]:
        """Of each part, whether the one before it is none of the same row."""
        found = [True] * len(self.parts)
        for place, (before, after) in enumerate(pairwise(self.parts), 1):
            same = all(before.labels[unit] == after.labels[unit] for unit in units)
            found[place] = not (same and self._in_time(before))
        return found

    def _wanted(self, cells: Cells) -> Iterator[tuple[int, Key, Sums]]:
        known: dict[Key, bool] = {}
        wanted_parts = [self._in_time(part) for part in self.parts]
        for (part, key), sums in cells.items():
            if key not in known:
                known[key] = self._keeps(key)
            if known[key] and wanted_parts[part]:
                yield part, key, sums

    def _keeps(self, key: Key) -> bool:
        question = self.question
        shown = self.dimensions.shown(key, question.scope)
        return shown and self.dimensions.matches(key, question.filters)

    def _in_time(self, part: Part) -> bool:
        filters = self.question.filters
        return all(part.labels[unit] in filters[unit] for unit in UNITS if unit in filters)


def _closings(connection: Connection, question: Question) -> list[Closing]:
    """Those within the window; what was kept of them has suspended time, and tells no jobs."""
    if question.suspended != "charge" or question.job is not None:
        return []
    begin, end = question.window
    return [
        one for one in known_closings(connection) if begin <= one.span[0] and one.span[1] <= end
    ]


def check_dimensions(names: Sequence[str], known: Sequence[str] = ALL) -> None:
    """See that these are dimensions.

    Raises:
        BadInput: naming those there are.
    """
    for name in names:
        if name not in known:
            raise BadInput(f"a report is not by {name!r}; it is by any of {', '.join(known)}")


def _tracked(connection: Connection) -> dict[int, bool]:
    """Whether each cluster's accounting counts GPUs; what nobody has said yet is not known."""
    query = select(clusters.c.id, clusters.c.tracks_gpus)
    return {row[0]: row[1] is True for row in connection.execute(query)}
