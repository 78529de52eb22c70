"""Usage of ended runs over a window, from the usage tables.

The tables hold what changes: where a run starts and where it ends. `EndedUsage` goes through the
window once and keeps what is held. From an instant to a later one in the same month, the seconds
are what was held first, times the time between, and what the changes between add to it. Whole
months are stored. For an edge within a day, the hours between it and the nearer midnight of UTC are
added or subtracted; for an edge within an hour, so are the runs that start or end around it.
"""

from __future__ import annotations

import sqlite3
from calendar import monthrange
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import BigInteger, Connection, Select, Table, bindparam, cast, func, select

from slurmkit_accounting.ledger.database import once
from slurmkit_accounting.ledger.schema.usage import (
    COUNTED,
    DAY,
    HELD,
    HOUR,
    RATES,
    SUMS,
    USAGE_COLUMNS,
    usage_days,
    usage_hours,
    usage_months,
)
from slurmkit_accounting.usage.bins import (
    UsageKey,
    ever_held_resources,
    held_per_second,
    usage_in_window,
)
from slurmkit_accounting.usage.bins_numpy import Numbers, refuse_overflow
from slurmkit_accounting.usage.keys import load_used_keys
from slurmkit_accounting.usage.partial import Edges, Sums, load_runs_changing

_RUNS = RATES.index("runs")
_AT_ONCE = 50_000
_GPU_COLUMNS = frozenset(("gpu_seconds", "gpus"))
_UNDIVIDED = 2  # edges of a window
_MOST_REMEMBERED = 20_000  # keys whose sums a page remembers: 5 MB
# Keys whose rows the database picks. SQLite before 3.32 takes 999 parameters.
_FEW_KEYS = 5_000 if sqlite3.sqlite_version_info >= (3, 32) else 900


class _Changes(NamedTuple):
    """Sums over rows of a usage table, a row for each group of keys."""

    held: Numbers
    counted: Numbers
    rates: Numbers


class _Passed(NamedTuple):
    """What passes from a midnight to an edge; negative if the edge is before the midnight.

    Attributes:
        runs: that began before the edge and end after it.
    """

    held: Numbers
    counted: Numbers
    runs: Numbers


class EndedUsage:
    """The usage of ended runs in the parts of a window.

    Attributes:
        keys: the usage keys, in the order of the rows.

    Args:
        connection: to the ledger.
        edges: epoch seconds at which the window begins, is divided, and ends.
        keys: ids and keys; None for all that may have usage in the window.
        only_gpus: whether only `gpu_seconds` are asked for; the other sums are 0 then.
    """

    def __init__(
        self,
        connection: Connection,
        edges: Edges,
        keys: Sequence[tuple[int, UsageKey]] | None = None,
        *,
        only_gpus: bool = False,
    ) -> None:
        self._connection = connection
        self._edges = edges
        self._columns = _GPU_COLUMNS if only_gpus else frozenset(USAGE_COLUMNS)
        self._midnights = [_nearer_midnight(edge) for edge in edges]
        wanted = self._used_keys() if keys is None else keys
        self.keys = [key for _, key in wanted]
        self._ids = np.array([number for number, _ in wanted], np.int64)
        is_few = len(wanted) <= _FEW_KEYS
        self._few: tuple[int, ...] | None = tuple(self._ids.tolist()) if is_few else None
        self._places: dict[UsageKey, int] = {}
        self._groups_of_id: list[Numbers] = []
        self._groups = 0

    def by_key(self) -> Iterator[Numbers]:
        """Yield the sums of each part, with a row for each of `keys`; see `by_groups`."""
        yield from (sums for (sums,) in self.by_groups([range(len(self.keys))]))

    def by_groups(self, groupings: Sequence[Sequence[int]]) -> Iterator[list[Numbers]]:
        """Yield the sums of each part: a row for each group of keys, a column for each of `SUMS`.

        In place of `runs` are those that began before the part and continue in it.

        Args:
            groupings: each with the group of each of `keys`; -1 leaves the key out.

        Yields:
            For each of the groupings a table.
        """
        arrays = [np.array(groups, np.int64) for groups in groupings]
        sizes = [int(groups.max(initial=-1)) + 1 for groups in arrays]
        ends = np.cumsum([0, *sizes])
        self._groups = int(ends[-1])
        self._groups_of_id = []
        for groups, begin in zip(arrays, ends, strict=False):
            # The last is for the ids above, of keys without usage in the window.
            of_id = np.full(self._ids.max(initial=0) + 2, -1)
            of_id[self._ids] = np.where(groups >= 0, groups + begin, -1)
            self._groups_of_id.append(of_id)
        for sums in self._parts():
            yield np.split(sums, ends[1:-1])

    def _parts(self) -> Iterator[Numbers]:
        rates = self._held_at(self._midnights[0])
        before = self._since_midnight(self._edges[0], self._midnights[0], rates)
        for edge, (begin, end) in zip(self._edges[1:], pairwise(self._midnights), strict=True):
            held, counted, rates = self._between(begin, end, rates)
            after = self._since_midnight(edge, end, rates)
            held = _plus(held, after.held - before.held)
            counted += after.counted - before.counted
            sums = np.concatenate([held, before.runs[:, None], counted], axis=1)
            if self._columns is _GPU_COLUMNS:
                sums[:, 1:] = 0
            yield sums
            before = after

    def _used_keys(self) -> list[tuple[int, UsageKey]]:
        first = month_begin(min(self._edges[0], self._midnights[0]))
        last = max(self._edges[-1], self._midnights[-1])
        return load_used_keys(self._connection, first, last)

    def _held_at(self, midnight: int) -> Numbers:
        """Return what is held at a midnight, counted from the nearer begin of a month."""
        begin, end = month_begin(midnight), month_end(midnight)
        if midnight - begin <= end - midnight:
            since = self._sum(usage_days, RATES, begin, midnight)
            return self._at_begin_of_month(begin) + since
        return self._at_begin_of_month(end) - self._sum(usage_days, RATES, midnight, end)

    def _at_begin_of_month(self, begin: int) -> Numbers:
        return self._sum(usage_months, RATES, begin, begin + 1)

    def _between(self, begin: int, end: int, rates: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return what was held and counted between two midnights, and what is held at the end."""
        held, counted = self._zeros(HELD), self._zeros(COUNTED)
        while begin < end:
            month, months_end = month_end(begin), month_begin(end)
            if begin == month_begin(begin) and month <= end:
                whole = self._sum(usage_months, (*HELD, *COUNTED), begin, months_end)
                held = _plus(held, whole[:, : len(HELD)])
                counted += whole[:, len(HELD) :]
                begin, rates = months_end, self._at_begin_of_month(months_end)
            else:
                stop = min(end, month)
                changes = self._changes(usage_days, begin, stop)
                held = _plus(held, _held(rates, changes, stop - begin, month - stop))
                counted += changes.counted
                begin, rates = stop, rates + changes.rates
        return held, counted, rates

    def _since_midnight(self, edge: int, midnight: int, rates: Numbers) -> _Passed:
        """Return what passes between the nearer midnight, with what is held then, and an edge."""
        hour = edge - edge % HOUR
        month = month_end(min(hour, midnight))
        changes = self._changes(usage_hours, min(hour, midnight), max(hour, midnight))
        if hour >= midnight:
            held, counted = _held(rates, changes, hour - midnight, month - hour), changes.counted
            rates = rates + changes.rates
        else:
            rates = rates - changes.rates
            held = -_held(rates, changes, midnight - hour, month - midnight)
            counted = -changes.counted
        if edge == hour:
            return _Passed(held, counted, rates[:, _RUNS])
        return self._since_hour(_Passed(held, counted, rates[:, _RUNS].copy()), edge, rates)

    def _since_hour(self, passed: _Passed, edge: int, rates: Numbers) -> _Passed:
        """Add what passes from the begin of the hour, with what is held then, to an edge."""
        hour = edge - edge % HOUR
        passed.held[:] += rates * (edge - hour)
        places = self._places_of_keys()
        for run in load_runs_changing(self._connection, hour, edge):
            start, end = run.start or 0, run.end or 0
            was, stays = start < hour < end, start < edge < end
            for key, sums in usage_in_window(run, hour, edge):
                for group in self._groups_at(places.get(key)):
                    passed.held[group] += sums[: len(HELD)]
                    passed.counted[group] += sums[-len(COUNTED) :]
            for key, each in held_per_second(run) if ever_held_resources(run) else ():
                for group in self._groups_at(places.get(key)):
                    passed.held[group] -= np.array(each) * ((edge - hour) * was)
                    passed.runs[group] += each[_RUNS] * (int(stays) - int(was))
        return passed

    def _places_of_keys(self) -> dict[UsageKey, int]:
        if not self._places:
            self._places = {key: place for place, key in enumerate(self.keys)}
        return self._places

    def _groups_at(self, place: int | None) -> list[int]:
        """Return the groups of one of `keys`."""
        if place is None:
            return []
        groups = (int(of_id[self._ids[place]]) for of_id in self._groups_of_id)
        return [group for group in groups if group >= 0]

    def _changes(self, table: Table, begin: int, end: int) -> _Changes:
        sums = self._sum(table, USAGE_COLUMNS, begin, end)
        parts = np.split(sums, (len(HELD), len(HELD) + len(COUNTED)), axis=1)
        return _Changes(*parts)

    def _sum(self, table: Table, names: Sequence[str], begin: int, end: int) -> Numbers:
        """Sum columns over the bins that begin in [begin, end), by group."""
        total = self._zeros(names)
        places = [place for place, name in enumerate(names) if name in self._columns]
        if begin >= end or not self._groups or not places:
            return total
        asked = (table, tuple(names[place] for place in places), begin, end)
        sums: Iterable[Numbers] = self._load_sums(*asked)
        # Reports of a page that do not divide its window by time ask for the same sums.
        if len(self._edges) == _UNDIVIDED and len(self.keys) <= _MOST_REMEMBERED:
            name = ("usage sums", *asked, self._few)
            sums = once(self._connection, name, partial(list, sums))
        for rows in sums:
            self._add(total, places, rows)
        return total

    def _load_sums(
        self, table: Table, names: tuple[str, ...], begin: int, end: int
    ) -> Iterator[Numbers]:
        """Yield rows of key id and sums over the bins that begin in [begin, end)."""
        span: dict[str, Any] = {"begin": begin, "end": end}
        if self._few is not None:
            span["few"] = self._few
        query = _sums_by_key(table, names, is_of_few=self._few is not None)
        with self._connection.execute(query, span) as found:
            for some in found.partitions(_AT_ONCE):
                numbers = len(some) * (len(names) + 1)
                flat = np.fromiter(chain.from_iterable(some), np.int64, numbers)
                yield flat.reshape(len(some), -1)

    def _add(self, total: Numbers, places: Sequence[int], rows: Numbers) -> None:
        """Add rows of key id and numbers to the rows of their groups, in some of the columns."""
        for of_id in self._groups_of_id:
            groups = of_id[np.minimum(rows[:, 0], len(of_id) - 1)]
            order = np.argsort(groups, kind="stable")
            order = order[np.searchsorted(groups[order], 0) :]
            if len(order):
                groups = groups[order]
                first = np.flatnonzero(np.diff(groups, prepend=-1))
                for column in rows[order, 1:].T:
                    refuse_overflow(column, first)
                added = np.add.reduceat(rows[order, 1:], first, axis=0)
                cells = np.ix_(groups[first], np.array(places, np.int64))
                total[cells] = _plus(total[cells], added)

    def _zeros(self, names: Sequence[str]) -> Numbers:
        return np.zeros((self._groups, len(names)), np.int64)


@cache  # a balance asks this many times, and to build it takes as long as to run it
def _sums_by_key(table: Table, names: tuple[str, ...], *, is_of_few: bool) -> Select[Any]:
    """Return the query for the sums of columns over the bins that begin in [:begin, :end).

    Args:
        table: of usage.
        names: the columns.
        is_of_few: whether only the keys :few are asked for.
    """
    # PostgreSQL sums into `numeric`, which Python would get as slow Decimals.
    sums = [cast(func.sum(table.c[name]), BigInteger) for name in names]
    where = (table.c.bin >= bindparam("begin"), table.c.bin < bindparam("end"))
    query = select(table.c.key_id, *sums).where(*where).group_by(table.c.key_id)
    if is_of_few:
        return query.where(table.c.key_id.in_(bindparam("few", expanding=True)))
    return query.execution_options(yield_per=_AT_ONCE)


def _plus(one: Numbers, other: Numbers) -> Numbers:
    """Add numbers; numpy would not notice that a sum does not fit into 64 bits.

    Raises:
        OverflowError: for such a sum.
    """
    total: Numbers = one + other
    if (((one ^ total) & (other ^ total)) < 0).any():
        raise OverflowError("the usage of the window does not fit into 64 bits")
    return total


def rows_in_use(table: Numbers) -> Iterator[tuple[int, Sums]]:
    """Yield the place and the sums of the rows of a table that are not all zeros."""
    places = places_in_use(table)
    yield from zip(places, map(tuple, table[places].tolist()), strict=True)


def places_in_use(table: Numbers) -> list[int]:
    """Return the places of the rows of a table that are not all zeros."""
    places: list[int] = np.flatnonzero(table.any(axis=1)).tolist()
    return places


def month_begin(time: int) -> int:
    """Return the begin of the UTC month of a time, in epoch seconds."""
    day = datetime.fromtimestamp(time, UTC)
    return int(datetime(day.year, day.month, 1, tzinfo=UTC).timestamp())


def month_end(time: int) -> int:
    """Return the end of the UTC month of a time, in epoch seconds."""
    first = month_begin(time)
    day = datetime.fromtimestamp(first, UTC)
    # The end of December 9999 is no date.
    return first + monthrange(day.year, day.month)[1] * DAY


def _nearer_midnight(edge: int) -> int:
    day = edge - edge % DAY
    return day + DAY if edge - day > DAY // 2 else day


def _held(rates: Numbers, changes: _Changes, seconds: int, left: int) -> Numbers:
    """Return what is held in a span of time.

    Args:
        rates: what is held as the span begins.
        changes: in the span.
        seconds: its length.
        left: seconds from its end to the end of the month, up to which the changes count.
    """
    held: Numbers = rates * seconds + changes.held - changes.rates * left
    return held


assert len(SUMS) == len(HELD) + 1 + len(COUNTED)  # noqa: S101  `_parts` relies on the order
