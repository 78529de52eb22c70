"""The usage of a window: counted once, then summed by any dimensions.

Closed months keep the numbers of their closing; corrections are listed apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from operator import add, sub
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, select

from slurmkit.errors import BadInput
from slurmkit_accounting.calendar import UNITS, WindowPart, Zone, split_window
from slurmkit_accounting.ledger.database import once
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.ledger.schema.usage import DAY, HOUR, SUMS
from slurmkit_accounting.reports.dimensions import ALL_DIMENSIONS, Dimensions
from slurmkit_accounting.reports.question import CLOCKS_AHEAD, EVERYTHING, Scope
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.reports.tally import Tally, run_outcome
from slurmkit_accounting.sacct.values import LATEST_TIME
from slurmkit_accounting.usage.bins import NO_GPU, UsageKey, UsageRun, held_per_second
from slurmkit_accounting.usage.closed_months import (
    ClosedMonth,
    load_closed_months,
    load_closed_usage,
)
from slurmkit_accounting.usage.keys import load_used_keys
from slurmkit_accounting.usage.partial import (
    Sums,
    gpu_use_moved_to_when_it_was,
    load_open_runs,
    usage_while_suspended,
)
from slurmkit_accounting.usage.query import SUM_INDEX, UsageCells, UsageQuery, query_single_runs

Labels = tuple[str, ...]
_NOTHING = (0,) * len(SUMS)
_NO_GROUPS = (-1, -1)
_LONGEST_MONTH = 31 * DAY
# What runs held.
_HELD_SUMS = slice(0, 5)
# What runs held and how many there were; measured use is known only once a run has ended.
_COMPARED_SUMS = [
    place
    for place, name in enumerate(SUMS[: SUMS.index("cpu_used_ms")])
    if name not in {"energy_millijoules", "metered_node_seconds", "nodeless_seconds"}
]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The question that a report answers.

    Attributes:
        window: [from, to), epoch seconds.
        is_until_now: whether nobody named an end, so that the window ends now; see `events_end`.
        zone: time zone of days and months.
        units: hour, day, week or month, if rows are split by them.
        filters: only usage with one of these values, by dimension.
        suspended: `charge` counts GPUs held while a run is suspended, `skip` does not.
        job: count only this job; None for all jobs.
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
    is_until_now: bool = False

    @property
    def events_end(self) -> int:
        """The end of the window for what happened at one moment, epoch seconds.

        A window until now also has the events of this very second, and those of a node whose clock
        is ahead.
        """
        _, end = self.window
        ahead = min(self.now + CLOCKS_AHEAD + 1, LATEST_TIME)
        return max(end, ahead) if self.is_until_now else end


class CountedUsage:
    """The usage that matches a question and that its reader may see.

    Attributes:
        parts: parts of the window, in order.
        edges: epoch seconds at which the parts begin and end.
        closings: closed months within the window.
        corrections: changes since the closing, of the months shown as they were closed.
        cells: (part, key, sums) for each part and usage key. Keys that the report need not tell
            apart are one of them.
        of_users: (part, key) for each part and user.

    Args:
        connection: to the ledger.
        question: what to count.
        by: the dimensions that `rows` will be asked for; None for any.
        only_gpus: whether only GPU-hours will be asked for, which is faster.
    """

    def __init__(
        self,
        connection: Connection,
        question: Question,
        by: Sequence[str] | None = None,
        *,
        only_gpus: bool = False,
    ) -> None:
        self.question = question
        self._by = None if by is None else tuple(by)
        self._only_gpus = only_gpus
        self.rates = Rates()
        self.dimensions = Dimensions(connection, self.rates)
        self.closings = _closings_within(connection, question)
        self.parts: list[WindowPart] = split_window(
            question.window,
            question.zone,
            question.units | (question.filters.keys() & set(UNITS)),
            self.rates.dates,
            [edge for closing in self.closings for edge in closing.span],
        )
        self.edges = (question.window[0], *(part.end for part in self.parts))
        asked = UsageQuery(
            self.edges,
            question.now,
            question.suspended == "skip",
            question.job,
        )
        self._in_window = [self.is_in_time(part) for part in self.parts]
        spans = {closing.span for closing in self.closings}
        self._as_closed = [(part.begin, part.end) in spans for part in self.parts]
        self._alike, self._users = _Groups(), _Groups()
        self.cells: list[tuple[int, UsageKey, Sums]] = []
        self.of_users: list[tuple[int, UsageKey]] = []
        closed = self._count(connection, asked)
        corrections = [
            each
            for closing in self.closings
            for each in restore_closed_month(
                closed, self.parts, closing, load_closed_usage(connection, closing)
            )
        ]
        wanted = {key: self._is_wanted(key) for _, key in closed}
        for (part, key), sums in closed.items():
            if wanted[key]:
                self._add_cell(part, key, sums)
        self.corrections = [
            each for each in corrections if self._is_wanted(each.key) and self._in_window[each.part]
        ]
        self._tracked = _clusters_with_gpus(connection)

    def spread_gpu_use(self, connection: Connection) -> None:
        """Count measured GPU use while it went on, not where a run ended."""
        moved = gpu_use_moved_to_when_it_was(connection, self.edges, self.question.job)
        self.cells += [
            (part, key, sums)
            for part, key, sums in moved
            if self._in_window[part] and self._is_wanted(key)
        ]

    def rows(self, by: Sequence[str]) -> dict[Labels, Tally]:
        """Return a tally for each combination of values of some dimensions.

        Tallies by other dimensions than those the usage was counted by have no users.
        """
        label, tallies = self._labeller(by), dict[Labels, Tally]()
        first = self._first_parts([name for name in by if name in UNITS])
        for part, key, sums in self.cells:
            labels = label(part, key)
            tally = tallies.get(labels)
            if tally is None:
                tally = tallies[labels] = Tally()
            self._put(tally, key, part, sums, first=first[part])
        if self._by in {None, tuple(by)}:
            for part, key in self.of_users:
                tallies[label(part, key)].users.add(key.user)
        return tallies

    def corrected(self, by: Sequence[str]) -> dict[Labels, Tally]:
        """Return tallies of the corrections, by some dimensions and then the closed month."""
        label, tallies = self._labeller(by), dict[Labels, Tally]()
        for closing, part, key, sums in self.corrections:
            tally = tallies.setdefault((*label(part, key), closing.month), Tally())
            self._put(tally, key, part, sums, first=True)
            tally.users.add(key.user)
        return tallies

    def total(self, wanted: Callable[[UsageKey], bool] = lambda _: True) -> Tally:
        """Return one tally of all usage whose key is wanted, without corrections."""
        tally, first = Tally(), self._first_parts([])
        for part, key, sums in self.cells:
            if wanted(key):
                self._put(tally, key, part, sums, first=first[part])
        tally.users = {key.user for _, key in self.of_users if wanted(key)}
        return tally

    def _put(self, tally: Tally, key: UsageKey, part: int, sums: Sums, *, first: bool) -> None:
        tally.add(key, part, sums, first=first)
        tally.tracked |= key.gpu_type != NO_GPU or self._tracked[key.cluster_id]

    def total_with_corrections(self) -> Tally:
        """Return one tally of all usage and all corrections."""
        tally = self.total()
        for _, part, key, sums in self.corrections:
            self._put(tally, key, part, sums, first=True)
            tally.users.add(key.user)
        return tally

    def suspended_gpu_hours(self, connection: Connection) -> Fraction:
        """Return the GPU-hours that runs held while they were suspended."""
        question, hours = self.question, Fraction(0)
        for part, key, sums in usage_while_suspended(connection, self.edges, question.job):
            if self._is_wanted(key) and self.is_in_time(self.parts[part]):
                hours += self.gpu_hours(key, sums)
        return hours

    def gpu_hours(self, key: UsageKey, sums: Sums) -> Fraction:
        """Return GPU-hours of the sums of one key, in whole GPUs."""
        kind = self.rates.kind(key.gpu_type, key.partition)
        return (kind.weight or 0) * Fraction(sums[SUM_INDEX["gpu_seconds"]], HOUR)

    def _labeller(self, by: Sequence[str]) -> Callable[[int, UsageKey], Labels]:
        """Return a function from part and key to dimension values; it caches a key's values."""
        labels_of: dict[UsageKey, Labels] = {}
        names = [name for name in by if name not in UNITS]

        def of_key(key: UsageKey) -> Labels:
            labels = labels_of.get(key)
            if labels is None:
                labels = labels_of[key] = tuple(self.dimensions.of(name, key) for name in names)
            return labels

        if len(names) == len(by):
            return lambda _, key: of_key(key)

        def of_part_and_key(part: int, key: UsageKey) -> Labels:
            values, times = iter(of_key(key)), self.parts[part].labels
            return tuple(times[name] if name in UNITS else next(values) for name in by)

        return of_part_and_key

    def _first_parts(self, units: list[str]) -> list[bool]:
        """Return for each part whether it is the first of its row in a sequence of parts.

        Only there a run that began earlier is counted as another job.
        """
        firsts = [True] * len(self.parts)
        for place, (before, after) in enumerate(pairwise(self.parts), 1):
            same = all(before.labels[unit] == after.labels[unit] for unit in units)
            firsts[place] = not (same and self.is_in_time(before))
        return firsts

    def _count(self, connection: Connection, asked: UsageQuery) -> UsageCells:
        """Fill `cells`; return instead the usage of parts that are shown as they were closed."""
        closed: UsageCells = {}
        if asked.job is None:
            self._count_ended_runs(connection, closed)
        self._count_single_runs(connection, asked, closed)
        return closed

    def _count_ended_runs(self, connection: Connection, closed: UsageCells) -> None:
        """Count ended runs by what the report tells apart, into `cells` or `closed`."""
        from slurmkit_accounting.usage import held  # noqa: PLC0415  numpy takes 0.1 s

        # A closed month is compared key by key, also with what is not wanted now.
        keys = None if any(self._as_closed) else self._wanted_keys(connection)
        ended = held.EndedUsage(connection, self.edges, keys, only_gpus=self._only_gpus)
        pairs = [
            self._group(key) if keys is not None or self._is_wanted(key) else _NO_GROUPS
            for key in ended.keys
        ]
        groupings: list[Sequence[int]] = [[pair[0] for pair in pairs], [pair[1] for pair in pairs]]
        if keys is None:
            groupings.append(range(len(ended.keys)))
        for part, (of_alike, of_users, *of_keys) in enumerate(ended.by_groups(groupings)):
            if self._as_closed[part]:
                for place, sums in held.rows_in_use(of_keys[0]):
                    closed[part, ended.keys[place]] = sums
            elif self._in_window[part]:
                for place, sums in held.rows_in_use(of_alike):
                    self.cells.append((part, self._alike.first[place], sums))
                self.of_users += [
                    (part, self._users.first[place]) for place in held.places_in_use(of_users)
                ]

    def _count_single_runs(
        self, connection: Connection, asked: UsageQuery, closed: UsageCells
    ) -> None:
        """Count the runs that the usage tables lack, as `_count_ended_runs` does."""
        single: dict[tuple[int, int], Sums] = {}
        of_users: dict[tuple[int, int], None] = {}
        is_open = asked.job is None and not any(self._as_closed)
        open_runs = self._wanted_open_runs(connection) if is_open else None
        for part, key, sums in query_single_runs(connection, asked, open_runs):
            if self._as_closed[part]:
                there = closed.get((part, key), _NOTHING)
                closed[part, key] = tuple(map(add, there, sums))
            elif self._in_window[part] and self._is_wanted(key):
                of_alike, of_user = self._group(key)
                there = single.get((part, of_alike), _NOTHING)
                single[part, of_alike] = tuple(map(add, there, sums))
                of_users[part, of_user] = None
        first = self._alike.first
        self.cells += [(part, first[place], sums) for (part, place), sums in single.items()]
        self.of_users += [(part, self._users.first[place]) for part, place in of_users]

    def _wanted_keys(self, connection: Connection) -> list[tuple[int, UsageKey]]:
        """Return the ids and keys that match the question; some have no usage in its window."""
        question, (begin, end) = self.question, self.question.window
        if question.scope.is_everything:
            keys = load_used_keys(connection, begin - _LONGEST_MONTH, end + DAY)
        else:
            keys = self.dimensions.shown_keys(connection, question.scope)
        return [pair for pair in keys if self.dimensions.matches(pair[1], question.filters)]

    def _wanted_open_runs(self, connection: Connection) -> list[UsageRun]:
        """Return the runs without an end that match the question."""
        question = self.question
        name = ("open runs", question.now, question.scope, tuple(question.filters.items()))
        return once(
            connection,
            name,
            lambda: [
                run
                for run in load_open_runs(connection, question.now)
                if any(self._is_wanted(key) for key, _ in held_per_second(run))
            ],
        )

    def _group(self, key: UsageKey) -> tuple[int, int]:
        """Return the groups of a key: of what the report does not tell apart, and of its users."""
        alike, users = self._alike, self._users
        if self._by is None:
            return alike.number(key, key), users.number(key, key)
        labels = tuple([self.dimensions.of(name, key) for name in self._by if name not in UNITS])
        kind = (key.cluster_id, key.gpu_type, key.partition, key.state, key.redone)
        unmapped = self.dimensions.is_unmapped(key)
        return alike.number((labels, kind, unmapped), key), users.number((labels, key.user), key)

    def _add_cell(self, part: int, key: UsageKey, sums: Sums) -> None:
        if self._in_window[part]:
            self.cells.append((part, key, sums))
            self.of_users.append((part, key))

    def _is_wanted(self, key: UsageKey) -> bool:
        question = self.question
        shown = self.dimensions.shown(key, question.scope)
        return shown and self.dimensions.matches(key, question.filters)

    def is_in_time(self, part: WindowPart) -> bool:
        """Return whether the filters of time take a part of the window."""
        filters = self.question.filters
        return all(part.labels[unit] in filters[unit] for unit in UNITS if unit in filters)

    def tracks_gpus(self, cluster: str) -> bool:
        """Return whether the accounting of a cluster tracks GPUs; False if unknown."""
        names = self.dimensions.clusters
        return any(
            tracked and names[number] == cluster for number, tracked in self._tracked.items()
        )


class _Groups:
    """Groups of usage keys, by number.

    Attributes:
        first: the first key of each group.
    """

    def __init__(self) -> None:
        self.first: list[UsageKey] = []
        self._numbers: dict[object, int] = {}

    def number(self, group: object, key: UsageKey) -> int:
        """Return the number of a group, which begins with `key` if it is a new one."""
        number = self._numbers.setdefault(group, len(self.first))
        if number == len(self.first):
            self.first.append(key)
        return number


def _closings_within(connection: Connection, question: Question) -> list[ClosedMonth]:
    """Return the closed months within the window.

    None for `skip` or a single job: the stored sums include suspended time and all jobs.
    """
    if question.suspended != "charge" or question.job is not None:
        return []
    begin, end = question.window
    return [
        one for one in load_closed_months(connection) if begin <= one.span[0] and one.span[1] <= end
    ]


def check_dimensions(names: Sequence[str], known: Sequence[str] = ALL_DIMENSIONS) -> None:
    """Check that names are dimensions.

    Raises:
        BadInput: for any other name.
    """
    for name in names:
        if name not in known:
            raise BadInput(f"this report has no dimension {name!r}; choose from {', '.join(known)}")


def _clusters_with_gpus(connection: Connection) -> dict[int, bool]:
    """Return for each cluster whether its accounting tracks GPUs; False if unknown."""
    query = select(clusters.c.id, clusters.c.tracks_gpus)
    return {row[0]: row[1] is True for row in connection.execute(query)}


class Correction(NamedTuple):
    """A change of the usage of a closed month, made after its closing."""

    closing: ClosedMonth
    part: int
    key: UsageKey
    sums: Sums


def restore_closed_month(
    cells: UsageCells, parts: list[WindowPart], closing: ClosedMonth, closed: dict[UsageKey, Sums]
) -> list[Correction]:
    """Replace the present usage of a closed month in `cells` by the usage at its closing.

    This is done only if the month is exactly one part of the report. A month that is split into
    parts is shown as it is now.

    Returns:
        The corrections, by key.
    """
    place = next(
        (n for n, part in enumerate(parts) if (part.begin, part.end) == closing.span), None
    )
    if place is None:
        return []
    now = {
        key: sums
        for (part, key), sums in cells.items()
        if part == place and key.cluster_id == closing.cluster_id
    }
    for key in _keys_that_only_ended(now, closed):
        closed.pop(key, None)
        if key in now:
            closed[key] = now[key]
    corrections = []
    for key in dict.fromkeys((*closed, *now)):
        at_closing = closed.get(key, _NOTHING)
        changed = tuple(map(sub, now.get(key, _NOTHING), at_closing))
        cells[place, key] = at_closing
        if any(changed[place] for place in _COMPARED_SUMS):
            corrections.append(Correction(closing, place, key, changed))
    return corrections


def _keys_that_only_ended(
    now: dict[UsageKey, Sums], closed: dict[UsageKey, Sums]
) -> Iterable[UsageKey]:
    """Yield keys that differ only because a run has ended since the closing: no correction."""
    by_owner: dict[UsageKey, set[UsageKey]] = defaultdict(set)
    for key in (*now, *closed):
        by_owner[key._replace(state="", redone=False)].add(key)
    for keys in by_owner.values():
        open_then = any(run_outcome(key.state) == "running" and key in closed for key in keys)
        if open_then and _held_totals(now, keys) == _held_totals(closed, keys):
            yield from keys


def _held_totals(sums: dict[UsageKey, Sums], keys: Iterable[UsageKey]) -> list[int]:
    return [
        sum(each)
        for each in zip(*(sums.get(key, _NOTHING)[_HELD_SUMS] for key in keys), strict=True)
    ]
