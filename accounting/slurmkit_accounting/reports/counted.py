"""Usage of a window, counted once and summed by whatever is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import msgspec
from sqlalchemy import Connection, select

from slurmkit.errors import BadInput
from slurmkit_accounting.bins import NO_GPU, Key
from slurmkit_accounting.held import Sums, while_suspended
from slurmkit_accounting.query import AT, Asked, Cells, usage
from slurmkit_accounting.reports.dimensions import ALL, Dimensions
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
        units: day, week or month, where rows are told apart by them.
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
        edges: of those.
        cells: part, key and sums.
    """

    def __init__(self, connection: Connection, question: Question) -> None:
        self.question = question
        self.rates = Rates()
        self.dimensions = Dimensions(connection, self.rates)
        self.parts: list[Part] = parts(
            question.window,
            question.zone,
            question.units | (question.filters.keys() & set(UNITS)),
            self.rates.dates,
        )
        self.edges = (question.window[0], *(part.end for part in self.parts))
        asked = Asked(
            self.edges,
            question.now,
            question.suspended == "skip",
            question.job,
        )
        self.cells = list(self._wanted(usage(connection, asked)))
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

    def suspended_gpu_hours(self, connection: Connection) -> Fraction:
        """GPU-hours held by runs while they were suspended."""
        question, hours = self.question, Fraction(0)
        for part, key, sums in while_suspended(connection, self.edges, question.job):
            if self._keeps(key) and self._in_time(self.parts[part]):
                kind = self.rates.kind(key.gpu_type, key.partition)
                hours += (kind.weight or 0) * Fraction(sums[AT["gpu_seconds"]], HOUR)
        return hours

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
        return self.dimensions.shown(key, question.scope) and all(
            self.dimensions.of(name, key) in values
            for name, values in question.filters.items()
            if name not in UNITS
        )

    def _in_time(self, part: Part) -> bool:
        filters = self.question.filters
        return all(part.labels[unit] in filters[unit] for unit in UNITS if unit in filters)


def check_dimensions(names: Sequence[str]) -> None:
    """See that these are dimensions.

    Raises:
        BadInput: naming those there are.
    """
    for name in names:
        if name not in ALL:
            raise BadInput(f"a report is not by {name!r}; it is by any of {', '.join(ALL)}")


def _tracked(connection: Connection) -> dict[int, bool]:
    """Whether each cluster's accounting counts GPUs, as far as it has said."""
    query = select(clusters.c.id, clusters.c.tracks_gpus)
    return {row[0]: row[1] is not False for row in connection.execute(query)}
