"""Keep the usage tables in step with the runs: both change in the same transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, select

from slurmkit_accounting.ledger.bulk_write import (
    add_numbers,
    find_rows,
    in_values,
    insert_missing,
    update_rows,
)
from slurmkit_accounting.ledger.database import once
from slurmkit_accounting.ledger.database_errors import USAGE_TOO_LARGE
from slurmkit_accounting.ledger.schema.people import eras as eras_table
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_accounting.ledger.schema.usage import (
    HOUR,
    USAGE_COLUMNS,
    closed_usage,
    usage_days,
    usage_hours,
    usage_keys,
    usage_months,
)
from slurmkit_accounting.usage.bins import (
    NO_GPU,
    Eras,
    UsageKey,
    UsageRun,
    ever_held_resources,
    make_usage_key,
    parse_alloc_tres,
)
from slurmkit_accounting.usage.redone import mark_redone

if TYPE_CHECKING:
    from slurmkit_accounting.usage.bins_numpy import Numbers, UsageRunColumns, UsageSums

RunProgress: TypeAlias = Callable[[int, int], None]  # runs done, and runs in all
USAGE_TABLES = (usage_hours, usage_days, usage_months)
USAGE_RUN_COLUMNS = tuple(runs.c[name] for name in UsageRun._fields[:-1])
IS_COUNTED = runs.c.end.is_not(None) & runs.c.retracted.is_(None)
_MANY = 20_000  # runs at a time
_MOST_KEYS = 50_000  # whose ids are remembered
_SOME_HOURS = 6 * HOUR
# What an ingest adds keeps each row of a usage table below this, so that reports can add up rows in
# 64 bits. Only large amounts are compared with it: 40 megawatts for a month are 2^59 millijoules,
# and no real amount comes near.
MOST_STORED = 2**61
_LARGE = 2**52
_KEY = [usage_keys.c[name] for name in UsageKey._fields]


def no_progress(_done: int, _total: int) -> None:
    """Show nothing."""


def load_eras(connection: Connection) -> Eras:
    """Load the times at which anything about people changed."""
    return once(connection, "eras", lambda: Eras(connection.scalars(select(eras_table.c.at))))


class KeyIds(dict[UsageKey, int]):
    """Row ids of usage keys that were looked up in earlier transactions."""

    def __init__(self) -> None:
        super().__init__()
        self._eras: tuple[int, ...] = ()

    def refresh(self, connection: Connection) -> None:
        """Forget the ids if there are many, or if `rekey_usage` may have renamed their keys."""
        known = tuple(connection.execute(select(func.count(), func.max(eras_table.c.at))).one())
        if known != self._eras or len(self) > _MOST_KEYS:
            self.clear()
        self._eras = known


class UsageChange:
    """Changes of the usage tables, collected until `write`."""

    def __init__(self) -> None:
        self._sums: UsageSums | None = None
        self._taken = False

    def take(self, runs: Sequence[UsageRun]) -> None:
        """Subtract runs as they were counted, with the era that they were counted under."""
        self._taken = self._taken or bool(runs)
        self._add(list(zip(*runs, strict=True)), -1)

    def put(self, runs: Sequence[UsageRun]) -> None:
        """Add runs as they are now; runs without an end are left out."""
        self._add(list(zip(*runs, strict=True)), 1)

    def add_columns(self, columns: UsageRunColumns) -> None:
        """Add runs given as columns, in the order of the fields of `UsageRun`."""
        self._add(columns, 1)

    def use(self, columns: UsageRunColumns, before: UsageRunColumns) -> None:
        """Update the measured CPU, memory and GPU use of runs that are already counted."""
        if columns and columns[0]:
            self._made().replace_measured_use(columns, before)

    def refuse_overflow(self) -> None:
        """Refuse what is collected if the usage tables cannot hold it.

        Raises:
            OverflowError: for sums that do not fit into 64 bits.
        """
        if self._sums is not None:
            self._sums.refuse_overflow()

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Drop what is collected in the `with` block if an exception leaves it."""
        before = self._sums
        mark = 0 if before is None else before.mark()
        try:
            yield
        except BaseException:
            if before is not None:
                before.undo(mark)
            self._sums = before
            raise

    def _add(self, columns: UsageRunColumns, sign: int) -> None:
        if columns and columns[0]:
            self._made().add(columns, sign)

    def _made(self) -> UsageSums:
        from slurmkit_accounting.usage.bins_numpy import UsageSums  # noqa: PLC0415  numpy takes 0.1 s

        self._sums = self._sums or UsageSums()
        return self._sums

    def write(
        self, connection: Connection, key_ids: KeyIds | None = None, most: int | None = None
    ) -> None:
        """Write the changes to the usage tables.

        Args:
            connection: inside the transaction that changes the runs.
            key_ids: row ids of usage keys already looked up; new ones are added to it. Drop it when
                a transaction fails. None to look up all of them.
            most: refuse large amounts that no row of a usage table may reach, see `MOST_STORED`.
                None leaves that to the database, so that what is counted already stays counted.

        Raises:
            OverflowError: for such amounts.
        """
        if self._sums is None:
            return
        key_ids = KeyIds() if key_ids is None else key_ids
        key_ids.refresh(connection)
        keys = self._sums.keys()
        if missing := [key for key in keys if key not in key_ids]:
            key_ids |= find_or_add_keys(connection, missing)
        for rows in self._sums.rows([key_ids[key] for key in keys]):
            for table, some in zip(USAGE_TABLES, rows, strict=True):
                if most is not None:
                    _refuse_too_large(connection, table, some, most)
                add_numbers(connection, table, ("bin", "key_id", *USAGE_COLUMNS), some)
                if self._taken:
                    _delete_empty(connection, table, some)


def _refuse_too_large(connection: Connection, table: Table, rows: Numbers, most: int) -> None:
    """Refuse large amounts with which a row of a usage table would not stay below `most`.

    Raises:
        OverflowError: for such amounts.
    """
    large = (rows[:, 2:] >= _LARGE) | (rows[:, 2:] <= -_LARGE)
    if not large.any():
        return
    added = {(row[0], row[1]): row[2:] for row in rows[large.any(axis=1)].tolist()}
    names = ("bin", "key_id")
    found = find_rows(connection, table, (*names, *USAGE_COLUMNS), names, list(added))
    stored = {(row[0], row[1]): row[2:] for row in found}
    for where, amounts in added.items():
        before = stored.get(where, (0,) * len(amounts))
        if any(abs(a + b) >= most for a, b in zip(amounts, before, strict=True)):
            raise OverflowError(USAGE_TOO_LARGE)


def _delete_empty(connection: Connection, table: Table, rows: Numbers) -> None:
    """Delete the rows of zeros that a subtraction left in the bins of some rows."""
    empty = and_(*(table.c[name] == 0 for name in USAGE_COLUMNS))
    bins = in_values(connection, table.c.bin, sorted(set(rows[:, 0].tolist())))
    connection.execute(delete(table).where(bins, empty))


def change_usage(
    connection: Connection,
    old: Sequence[UsageRun],
    new: Sequence[UsageRun],
    key_ids: KeyIds | None = None,
) -> None:
    """Subtract runs as they were from usage, and add them as they are now; see `UsageChange`."""
    usage = UsageChange()
    usage.take(old)
    usage.put(new)
    usage.write(connection, key_ids)


def rebuild_usage(connection: Connection, progress: RunProgress = no_progress) -> None:
    """Recompute the usage tables, and which runs were redone, from the runs alone."""
    for table in USAGE_TABLES:
        connection.execute(delete(table))
    mark_redone(connection)
    add_all_runs(connection, connection, progress)


def add_all_runs(
    connection: Connection, target: Connection, progress: RunProgress = no_progress
) -> None:
    """Add every run that counts to the usage tables of a ledger.

    Args:
        connection: to the ledger with the runs.
        target: to the ledger with the usage tables; may be the same.
        progress: called with the number of runs done, and of all.
    """
    known, done, key_ids = load_eras(connection), 0, KeyIds()
    total = connection.scalar(select(func.count()).select_from(runs).where(IS_COUNTED)) or 0
    for batch in _load_counted_runs(connection):
        ours = [run._replace(era=known.of(run.submit)) for run in batch]
        change_usage(target, (), ours, key_ids)
        done += len(batch)
        progress(done, total)


def _load_counted_runs(connection: Connection) -> Iterator[list[UsageRun]]:
    """Load the runs that usage counts, some at a time, without their eras."""
    last = 0
    while True:
        query = select(runs.c.id, *USAGE_RUN_COLUMNS).where(IS_COUNTED, runs.c.id > last)
        found = connection.execute(query.order_by(runs.c.id).limit(_MANY)).all()
        if not found:
            return
        last = found[-1][0]
        yield [UsageRun(*row[1:]) for row in found]


def rekey_usage(connection: Connection, since: int, progress: RunProgress = no_progress) -> None:
    """Move the usage of runs to their new eras, after eras from `since` on were added.

    Args:
        connection: inside the transaction that added them.
        since: epoch seconds; runs submitted before keep their era.
        progress: called with the number of runs done, and of all.
    """
    before = Eras(connection.scalars(select(usage_keys.c.era).distinct()))
    after = load_eras(connection)
    ours = (IS_COUNTED, runs.c.submit >= since)
    total = 2 * (connection.scalar(select(func.count()).select_from(runs).where(*ours)) or 0)
    moves, done = _Moves(), 0
    for batch in _submitted(connection, since):
        for run in batch:
            moves.add(run, before.of(run.submit), after.of(run.submit))
        done += len(batch)
        progress(done, total)
    renamed = _rename_keys(connection, moves)
    if len(renamed) == len(moves.totals):
        return
    for batch in _submitted(connection, since):
        old = [run._replace(era=before.of(run.submit)) for run in batch]
        moved = [run for run in old if not renamed.intersection(_keys_of(run))]
        new = [run._replace(era=after.of(run.submit)) for run in moved]
        pairs = [(a, b) for a, b in zip(moved, new, strict=True) if a.era != b.era]
        change_usage(connection, [a for a, _ in pairs], [b for _, b in pairs])
        done += len(batch)
        progress(done, total)


class _Moves:
    """The runs that move to another era, summed by the usage key that they leave.

    Attributes:
        totals: runs and GPU-seconds that leave a key.
        eras: the eras that they move to.
        mixed: keys of runs with several types of GPUs, and so with several keys.
    """

    def __init__(self) -> None:
        self.totals: dict[UsageKey, tuple[int, int]] = {}
        self.eras: dict[UsageKey, set[int]] = {}
        self.mixed: set[UsageKey] = set()

    def add(self, run: UsageRun, before: int, after: int) -> None:
        """Add a run, if it moves."""
        if before == after or not ever_held_resources(run):
            return
        seconds = (run.end or 0) - (run.start or 0)
        if seconds < 0:
            return
        kinds = parse_alloc_tres(run.alloc_tres).gpus or ((NO_GPU, 0),)
        for place, (kind, count) in enumerate(kinds):
            key = make_usage_key(run._replace(era=before), kind)
            started, held = self.totals.get(key, (0, 0))
            self.totals[key] = (started + (place == 0), held + count * seconds)
            self.eras.setdefault(key, set()).add(after)
            if len(kinds) > 1:
                self.mixed.add(key)


def _keys_of(run: UsageRun) -> Iterator[UsageKey]:
    for kind, _ in parse_alloc_tres(run.alloc_tres).gpus or ((NO_GPU, 0),):
        yield make_usage_key(run, kind)


def _rename_keys(connection: Connection, moves: _Moves) -> set[UsageKey]:
    """Give a key that all its runs leave for the same era that era; return those keys.

    Then no row of usage moves. Keys of closed months stay, since these are shown as they were.
    """
    if not moves.totals:
        return set()
    sums = (func.sum(usage_months.c.started), func.sum(usage_months.c.gpu_seconds))
    eras = sorted({key.era for key in moves.totals})
    query = (
        select(usage_keys.c.id, *sums, *_KEY)
        .join_from(usage_keys, usage_months)
        .where(usage_keys.c.era.in_(eras), usage_keys.c.id.not_in(select(closed_usage.c.key_id)))
    )
    whole: dict[UsageKey, int] = {}
    for number, started, held, *of in connection.execute(query.group_by(usage_keys.c.id)):
        key = UsageKey(*of)
        alone = key not in moves.mixed and len(moves.eras.get(key, ())) == 1
        if alone and moves.totals[key] == (int(started), int(held)):
            whole[key] = number
    targets = {key._replace(era=min(moves.eras[key])): key for key in whole}
    names = UsageKey._fields
    for row in find_rows(connection, usage_keys, names, names, list(targets)):
        del whole[targets[UsageKey(*row)]]  # the other key may have usage too
    rows = [(number, min(moves.eras[key])) for key, number in whole.items()]
    update_rows(connection, usage_keys, ("id", "era"), rows)
    return set(whole)


def _submitted(connection: Connection, since: int) -> Iterator[list[UsageRun]]:
    """Load the counted runs submitted since a time, some at a time."""
    # By end, since no index has submit: a run ends after it was submitted.
    following, ends = since, select(func.min(runs.c.end))
    some: list[UsageRun] = []
    while (end := connection.scalar(ends.where(runs.c.end >= following))) is not None:
        following = end + _SOME_HOURS
        within = (runs.c.end >= end, runs.c.end < following, runs.c.submit >= since)
        found = connection.execute(select(*USAGE_RUN_COLUMNS).where(IS_COUNTED, *within))
        some += (UsageRun(*row) for row in found)
        if len(some) >= _MANY:
            yield some
            some = []
    if some:
        yield some


def find_or_add_keys(connection: Connection, keys: Sequence[UsageKey]) -> dict[UsageKey, int]:
    """Return the row id of each usage key; insert the new ones."""
    last = connection.scalar(select(func.max(usage_keys.c.id))) or 0
    insert_missing(connection, usage_keys, UsageKey._fields, keys)
    found = _numbers(connection, usage_keys.c.id > last)
    others = [key for key in keys if key not in found]
    names = ("id", *UsageKey._fields)
    for number, *of in find_rows(connection, usage_keys, names, UsageKey._fields, others):
        found[UsageKey(*of)] = number
    return found


def _numbers(connection: Connection, *where: ColumnElement[bool]) -> dict[UsageKey, int]:
    query = select(usage_keys.c.id, *_KEY).where(*where).execution_options(yield_per=_MANY)
    found = connection.execute(query)
    return {UsageKey(*row[1:]): row[0] for row in found}
