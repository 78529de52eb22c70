"""Rows of the usage tables, made from many runs at once with numpy.

They hold what `slurmkit_accounting.usage.bins` says that each of the runs adds to usage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from slurmkit_accounting.ledger.database_errors import USAGE_TOO_LARGE
from slurmkit_accounting.ledger.schema.usage import COUNTED, DAY, HELD, HOUR, RATES, USAGE_COLUMNS
from slurmkit_accounting.usage.bins import (
    IMPLAUSIBLE_AMOUNT,
    MOST_JOULES,
    MOST_MILLIWATTS,
    NO_GPU,
    NODE_CPUS,
    NODE_MIB,
    NODE_MILLIWATTS,
    UNKNOWN_UID,
    AllocatedTres,
    UsageKey,
    UsageRun,
    parse_alloc_tres,
)

Numbers: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]"
UsageRunColumns: TypeAlias = Sequence[
    Sequence[Any]
]  # one for each field of `UsageRun`, all of the same length
_FIELD_INDEX = {name: index for index, name in enumerate(UsageRun._fields)}
_OWNER_FIELDS = (
    "cluster_id",
    "user",
    "uid",
    "account",
    "partition",
    "qos",
    "state",
    "redone",
    "era",
)
MEASURED_FIELDS = ("cpu_used_ms", "mem_peak_mib", "gpu_used_permille", "gpu_energy_joules")
_USES = 7  # the last columns of SUMS: measured use
_PIECE = 11 + _USES
_KINDS = 2**20  # upper limit of the number of GPU types
_MEM, _MORE, _GPUS = 2, 3, 4  # columns of `_Allocations.table`
_AT_ONCE = 8_000  # runs whose rows are made together; they take some 2 KB each
_MILLI = np.array(1000)
MOST_SUM = 2**62  # of a stored row; half of what fits, so that rows can be added up
_LONGEST_MONTH = 31 * DAY
# Parts of a row of a usage table, after its bin and key.
_HELD = slice(2, 2 + len(HELD))
_COUNTED = slice(_HELD.stop, _HELD.stop + len(COUNTED))
_RATES = slice(_COUNTED.stop, _COUNTED.stop + len(RATES))


class UsageRows(NamedTuple):
    """Rows of the usage tables: bin, key id and `USAGE_COLUMNS`, sorted by bin and key."""

    hours: Numbers
    days: Numbers
    months: Numbers


class UsageSums:
    """Sums of usage over many runs, computed on request.

    Each run becomes one column for each type of GPU that it held. Its rows: key code, sign, start,
    end, GPUs; then 1, CPUs, nodes, memory, wait, energy and measured use, which are 0 in the
    columns after the first of a run.
    """

    def __init__(self) -> None:
        self._pieces: list[Numbers] = []
        self._whose = _Codes()
        self._tres = _Allocations()

    def add(self, columns: UsageRunColumns, sign: int) -> None:
        """Add ended runs, or subtract them with a sign of -1."""
        if columns and columns[0]:
            self._pieces += self._read(columns, sign)

    def replace_measured_use(self, columns: UsageRunColumns, before: UsageRunColumns) -> None:
        """Replace the measured use of ended runs that were counted before.

        Args:
            columns: the runs as they are now.
            before: their measured use as it was counted, a column for each of `MEASURED_FIELDS`.
        """
        codes = _encode(self._tres, columns[_FIELD_INDEX["alloc_tres"]])
        table, counts = self._table(columns, codes, 1)
        old = list(columns)
        for name, column in zip(MEASURED_FIELDS, before, strict=True):
            old[_FIELD_INDEX[name]] = column
        table[-_USES:] -= self._uses(old, codes)
        table[4:-_USES] = 0
        table[2] = table[3] = np.maximum(
            table[3] - 1, table[2]
        )  # measured use is counted in the bin of the end
        self._pieces.append(table[:, counts])

    def refuse_overflow(self) -> None:
        """Refuse runs whose usage together does not fit into the usage tables.

        Raises:
            OverflowError: for such runs.
        """
        most = 0.0
        for piece in self._pieces:
            held, counted = piece[4:10].astype(np.float64), piece[11:].astype(np.float64)
            power = piece[10] * 1000.0 / np.maximum(piece[3] - piece[2], 1)
            most += max(held.sum(axis=1).max(), power.sum()) * _LONGEST_MONTH
            most += np.abs(counted).sum(axis=1).max(initial=0)
        if most >= MOST_SUM:  # rarely: what is held at different times does not add up
            apart = copy(self)
            apart._pieces = list(self._pieces)  # noqa: SLF001
            for _ in apart.rows(range(len(apart.keys()))):
                pass

    def mark(self) -> int:
        """Return a mark for `undo`."""
        return len(self._pieces)

    def undo(self, mark: int) -> None:
        """Drop everything that was added after a mark."""
        del self._pieces[mark:]

    def keys(self) -> list[UsageKey]:
        """Return the usage keys of all runs that were added."""
        codes = self._codes()
        used = np.flatnonzero(np.bincount(codes))
        return [self._key(*divmod(code, len(self._tres.kinds))) for code in used.tolist()]

    def rows(self, numbers: Sequence[int]) -> Iterator[UsageRows]:
        """Yield the rows of the usage tables, for some of the keys at a time.

        Rows of zeros are left out.

        Args:
            numbers: the id of each of `keys`, in that order.
        """
        codes = self._codes()
        table = np.zeros(codes.max(initial=-1) + 1, np.int64)
        table[np.flatnonzero(np.bincount(codes))] = numbers
        ids, pieces = table[codes], self._columns()
        order = np.argsort(codes, kind="stable")
        codes, begin = codes[order], 0
        while begin < len(codes):
            last = codes[min(begin + _AT_ONCE, len(codes)) - 1]
            # All of a key together, so that no row comes twice.
            end = int(np.searchsorted(codes, last, side="right"))
            some = order[begin:end]
            yield _make_rows(pieces[:, some], ids[some])
            begin = end

    def _codes(self) -> Numbers:
        """Return the key code of each column, made of the codes of owner and GPU type."""
        whose, kind = np.divmod(self._columns()[0], _KINDS)
        codes: Numbers = whose * len(self._tres.kinds) + kind
        return codes

    def _columns(self) -> Numbers:
        """Join the pieces into one table."""
        if len(self._pieces) != 1:
            empty = np.zeros((_PIECE, 0), np.int64)
            self._pieces = [np.concatenate([empty, *self._pieces], axis=1)]
        return self._pieces[0]

    def _key(self, whose: int, kind: int) -> UsageKey:
        cluster, user, uid, account, partition, qos, state, redone, era = (
            self._whose.values_in_order[whose]
        )
        uid = UNKNOWN_UID if uid is None else uid
        gpu_type = self._tres.kinds.values_in_order[kind]
        return UsageKey(
            cluster, user, uid, account, partition, qos, state, bool(redone), gpu_type, era
        )

    def _read(self, columns: UsageRunColumns, sign: int) -> list[Numbers]:
        codes = _encode(self._tres, columns[_FIELD_INDEX["alloc_tres"]])
        table, counts = self._table(columns, codes, sign)
        several = counts & (table[3] > table[2]) & (self._tres.table()[_MORE, codes] > 0)
        return [table[:, counts], *self._others(table, several, codes)]

    def _table(self, columns: UsageRunColumns, codes: Numbers, sign: int) -> tuple[Numbers, Flags]:
        """Return a column for each run with its first GPU type, and which of the runs count."""
        start, end, submit, cpus, nodes, gpus, joules = (
            _to_integers(columns[_FIELD_INDEX[name]])
            for name in ("start", "end", "submit", "cpus", "nodes", "gpus", "energy_joules")
        )
        kind, count, mem, *_ = self._tres.table()[:, codes]
        length = end - start
        energy = np.where((length > 0) & (joules < MOST_JOULES), np.maximum(joules, 0), 0)
        most = np.minimum(np.maximum(nodes, 1) * NODE_MILLIWATTS, MOST_MILLIWATTS)
        energy[energy * 1000 // np.maximum(length, 1) >= most] = 0
        whose = _encode(
            self._whose, zip(*(columns[_FIELD_INDEX[name]] for name in _OWNER_FIELDS), strict=True)
        )
        table = np.zeros((_PIECE, len(codes)), np.int64)
        wait = np.maximum(start - submit, 0)
        first = (whose * _KINDS + kind, sign, start, end, count, 1, cpus, nodes, mem, wait, energy)
        for row, values in zip(table, first, strict=False):
            row[:] = values
        table[-_USES:] = self._uses(columns, codes)
        return table, (start >= 0) & (length >= 0) & ((cpus > 0) | (gpus > 0) | (nodes > 0))

    def _others(self, table: Numbers, where: Any, codes: Numbers) -> list[Numbers]:
        """Return columns of the further GPU types of runs that held several."""
        pieces: list[Numbers] = []
        for index in np.flatnonzero(where).tolist():
            for kind, count in self._tres.others[int(codes[index])]:
                piece = np.zeros((_PIECE, 1), np.int64)
                piece[:5, 0] = table[:5, index]
                piece[0] += kind - piece[0] % _KINDS
                piece[4] = count
                pieces.append(piece)
        return pieces

    def _uses(self, columns: UsageRunColumns, codes: Numbers) -> Numbers | int:
        """Return `bins.measured_use` of each run; just 0 if nothing is measured, as in new runs."""
        facts = [columns[_FIELD_INDEX[name]] for name in MEASURED_FIELDS]
        if all(column.count(None) == len(column) for column in facts):
            return 0
        cpu, mem, gpu, joules = map(_to_integers, facts)
        start, end, nodes, cpus, own, of_slurm = (
            _to_integers(columns[_FIELD_INDEX[name]])
            for name in ("start", "end", "nodes", "cpus", "gpus", "energy_joules")
        )
        length = np.where(start >= 0, np.maximum(end - start, 0), 0)
        nodes = np.maximum(nodes, 1)
        cpu = np.where(cpu > _product(nodes, length, _MILLI * NODE_CPUS), -1, cpu)
        mem = np.where(mem > nodes * NODE_MIB, -1, mem)
        held = self._tres.table()[:, codes]
        gpus = np.where(own > 0, held[_GPUS], 0)
        pairs = (
            _plausible_uses(cpu, cpu, _product(cpus, length, _MILLI)),
            _plausible_uses(
                mem, _product(np.maximum(mem, 0), length), _product(held[_MEM], length)
            ),
            _plausible_uses(
                gpu, _product(np.maximum(gpu, 0), gpus, length), _product(gpus, length, _MILLI)
            ),
        )
        counts = (of_slurm <= 0) & (joules >= 0) & (joules < MOST_JOULES)
        uses = [column for pair in pairs for column in pair]
        return np.array([*uses, np.where(counts, joules, 0)])


def _product(*factors: Numbers) -> Numbers:
    """Multiply non-negative numbers; limit each result to `IMPLAUSIBLE_AMOUNT`."""
    about = np.ones(1)
    for factor in factors:
        about = about * factor  # floats, which do not overflow
    sane = about < 2 * IMPLAUSIBLE_AMOUNT
    exact = np.ones(1, np.int64)
    for factor in factors:
        exact = exact * np.where(sane, factor, 0)
    return np.where(sane, np.minimum(exact, IMPLAUSIBLE_AMOUNT), IMPLAUSIBLE_AMOUNT)


def _plausible_uses(known: Numbers, used: Numbers, held: Numbers) -> tuple[Numbers, Numbers]:
    """Return used and held; zeros where `known` is negative or a number is absurd."""
    believed = (known >= 0) & (held > 0) & (held < IMPLAUSIBLE_AMOUNT) & (used < IMPLAUSIBLE_AMOUNT)
    return np.where(believed, used, 0), np.where(believed, held, 0)


class _Codes(dict[Any, int]):
    """Consecutive codes for values, given out when a value is first looked up.

    Attributes:
        values_in_order: the values in the order of their codes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values_in_order: list[Any] = []

    def __missing__(self, thing: Any) -> int:
        self.values_in_order.append(thing)
        self[thing] = len(self)
        return len(self) - 1


class _Allocations(_Codes):
    """Codes for AllocTRES texts, and the parsed texts.

    Attributes:
        kinds: codes of GPU types.
        others: by code of a text, GPU types after the first, each with its count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kinds = _Codes()
        self.others: dict[int, list[tuple[int, int]]] = {}
        self._rows: list[tuple[int, int, int, int, int]] = []

    def __missing__(self, text: str) -> int:
        tres: AllocatedTres = parse_alloc_tres(text)
        (kind, count), *rest = tres.gpus or ((NO_GPU, 0),)
        gpus = count + sum(more for _, more in rest)
        row = (self.kinds[kind], count, tres.mem_mib, len(rest), gpus)
        np.array(row, np.int64)  # an invalid text raises here, before anything is stored
        self._rows.append(row)
        code = super().__missing__(text)
        self.others[code] = [(self.kinds[kind], count) for kind, count in rest]
        return code

    def table(self) -> Numbers:
        """Return by text: first GPU type, its count, memory, number of other types, all GPUs."""
        return np.array(self._rows, np.int64).T


def _encode(codes: _Codes, things: Any) -> Numbers:
    return np.array(list(map(codes.__getitem__, things)), np.int64)


def _to_integers(column: Sequence[int | None]) -> Numbers:
    """Convert a column to integers; None becomes -1."""
    if None in column:
        column = [-1 if value is None else value for value in column]
    return np.array(column, np.int64)


def month_begins(times: Numbers) -> Numbers:
    """Return the begin of the UTC month of each time, in epoch seconds."""
    months = times.astype("datetime64[s]").astype("datetime64[M]")
    return months.astype("datetime64[s]").astype(np.int64)


def month_ends(times: Numbers) -> Numbers:
    """Return the end of the UTC month of each time, in epoch seconds."""
    months = times.astype("datetime64[s]").astype("datetime64[M]") + 1
    return months.astype("datetime64[s]").astype(np.int64)


def _make_rows(pieces: Numbers, keys: Numbers) -> UsageRows:
    """Return the rows of all tables; those of days and months are sums of those of hours."""
    hours = _hour_rows(pieces, keys)
    days = _roll_up(hours, hours[:, 0] - hours[:, 0] % DAY)
    whole = _roll_up(days, month_begins(days[:, 0]))
    whole[:, _RATES] = 0
    months = np.concatenate([whole, _carried_over(pieces, keys)])
    return UsageRows(hours, days, _roll_up(months, months[:, 0]))


def _hour_rows(pieces: Numbers, keys: Numbers) -> Numbers:
    """Return a row for the start of each run and one for its end, summed by hour and key.

    Start and end within the same hour are one row.
    """
    _, one, start, end, *_ = pieces
    last = np.maximum(end - 1, start)
    first_hour, last_hour = start - start % HOUR, last - last % HOUR
    longer = np.flatnonzero(first_hour != last_hour)
    stop = np.where(first_hour == last_hour, end, month_ends(first_hour))
    # Seconds to the end of the month, or to the end of the run.
    seconds = np.concatenate([stop - start, (end - month_ends(last_hour))[longer]])
    signs = np.concatenate([one, one[longer]])
    starts = np.concatenate([np.ones(len(start), np.int64), np.zeros(len(longer), np.int64)])
    ends = np.concatenate([(first_hour == last_hour).astype(np.int64), 1 - starts[len(start) :]])
    whose = np.concatenate([np.arange(len(start)), longer])
    columns = _hour_columns(pieces, whose, seconds * signs, starts * signs, ends * signs)
    return _sum_groups(
        np.concatenate([keys, keys[longer]]),
        np.concatenate([first_hour, last_hour[longer]]),
        columns,
    )


def _hour_columns(
    pieces: Numbers, whose: Numbers, seconds: Numbers, starts: Numbers, ends: Numbers
) -> list[Numbers | None]:
    """Return a column for each of USAGE_COLUMNS, by start and end; None for a column of zeros.

    Args:
        pieces: the runs.
        whose: index of the run of each row.
        seconds: from a start to the end of its month, or the same for an end, less than 0.
        starts: 1 where the run starts; -1 to subtract it.
        ends: 1 where it ends, which may be the same row; -1 to subtract it.
    """
    _, _, start, end, _, runs, _, _, _, waited, joules, *uses = pieces
    rates = _rates(pieces)
    rest = joules * 1000 - rates[-1] * (end - start)

    def times(column: Numbers, by: Numbers) -> Numbers | None:
        return column[whose] * by if column.any() else None

    held = [times(rate, seconds) for rate in rates]
    if (rests := times(rest, ends)) is not None:
        held[-1] = rests if held[-1] is None else held[-1] + rests
    counted = [times(runs, starts), times(waited, starts), *(times(use, ends) for use in uses)]
    changes = starts - ends
    return [*held, *counted, *(times(rate, changes) for rate in rates)]


def _rates(pieces: Numbers) -> tuple[Numbers, ...]:
    """Return what each run holds, a column for each of `RATES`."""
    _, _, start, end, gpus, runs, cpus, nodes, mem, _, joules, *_ = pieces
    milliwatts = joules * 1000 // np.maximum(end - start, 1)
    nodeless, metered = runs * (nodes <= 0), nodes * (joules > 0)
    return gpus, cpus, nodes, runs, mem, nodeless, metered, milliwatts


def _carried_over(pieces: Numbers, keys: Numbers) -> Numbers:
    """Return a row for each run and month that began while it ran: all of that month.

    What the run does not hold until the end of its last month is in the row of its end.
    """
    _, one, start, end, *_ = pieces
    over = np.flatnonzero(month_ends(start) < end)
    months = np.array([start[over], end[over] - 1]).astype("datetime64[s]").astype("datetime64[M]")
    first, last = months.astype(np.int64)
    which = np.repeat(np.arange(len(over)), last - first)
    before = np.repeat(np.cumsum(last - first) - (last - first), last - first)
    begun = (first[which] + 1 + np.arange(len(which)) - before).astype("datetime64[M]")
    begins = begun.astype("datetime64[s]").astype(np.int64)
    whose = over[which]
    rows = np.zeros((len(whose), 2 + len(USAGE_COLUMNS)), np.int64)
    rows[:, 0], rows[:, 1] = begins, keys[whose]
    rates = np.array(_rates(pieces))[:, whose] * one[whose]
    rows[:, _RATES] = rates.T
    rows[:, _HELD] = (rates * (month_ends(begins) - begins)).T
    return rows


def _roll_up(rows: Numbers, bins: Numbers) -> Numbers:
    """Sum rows of a table by key and by longer bins."""
    columns = [rows[:, place] for place in range(2, rows.shape[1])]
    return _sum_groups(rows[:, 1], bins, [each if each.any() else None for each in columns])


def _sum_groups(codes: Numbers, begin: Numbers, sums: Sequence[Numbers | None]) -> Numbers:
    """Sum rows of the same bin and key; leave out rows of zeros."""
    most = codes.max(initial=0) + 1
    order = np.argsort((begin - begin.min(initial=0)) * most + codes)
    codes, begin = codes[order], begin[order]
    new = np.ones(len(codes), bool)
    new[1:] = (codes[1:] != codes[:-1]) | (begin[1:] != begin[:-1])
    indices = np.flatnonzero(new)
    table = np.zeros((len(indices), 2 + len(sums)), np.int64)
    table[:, 0], table[:, 1] = begin[indices], codes[indices]
    for number, column in enumerate(sums, 2):
        if column is not None:
            column = column[order]  # noqa: PLW2901
            refuse_overflow(column, indices)
            table[:, number] = np.add.reduceat(column, indices)
    return table[table[:, 2:].any(axis=1)]


def refuse_overflow(column: Numbers, indices: Numbers) -> None:
    """Refuse sums of groups of numbers that do not fit into 64 bits, which numpy would not notice.

    Args:
        column: the numbers, group by group.
        indices: where each group begins.

    Raises:
        OverflowError: for such a sum.
    """
    largest = max(abs(int(column.max(initial=0))), abs(int(column.min(initial=0))))
    if largest * len(column) < MOST_SUM:
        return
    about = np.add.reduceat(column.astype(np.float64), indices)
    if np.abs(about).max() >= MOST_SUM:
        raise OverflowError(USAGE_TOO_LARGE)
