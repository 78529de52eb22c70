"""The same sums as `slurmkit_accounting.usage.bins`, for many runs at once with numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from slurmkit_accounting.usage.bins import (
    IMPLAUSIBLE_AMOUNT,
    MAX_ENERGY_RUN_SECONDS,
    NO_GPU,
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
MEASURED_FIELDS = ("cpu_used_ms", "mem_peak_mib", "gpu_used_permille")
_USES = 6  # the last columns of SUMS: measured use
_PIECE = 11 + _USES
_KINDS = 2**20  # upper limit of the number of GPU types
_MEM, _MORE, _GPUS = 2, 3, 4  # columns of `_Allocations.table`
_MILLI = np.array(1000)


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

    def by_bin(self, numbers: Sequence[int], width: int) -> Numbers:
        """Return rows of bin, key id and the `SUMS`, in that order; rows of zeros are left out.

        Args:
            numbers: the id of each of `keys`, in that order.
            width: seconds of a bin.
        """
        codes = self._codes()
        table = np.zeros(codes.max(initial=-1) + 1, np.int64)
        table[np.flatnonzero(np.bincount(codes))] = numbers
        return _split_into_bins(self._columns(), table[codes], width)

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
        energy = np.where(
            (length > 0) & (length < MAX_ENERGY_RUN_SECONDS) & (joules < IMPLAUSIBLE_AMOUNT),
            np.maximum(joules, 0),
            0,
        )
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
        cpu, mem, gpu = map(_to_integers, facts)
        start, end, cpus, own = (
            _to_integers(columns[_FIELD_INDEX[name]]) for name in ("start", "end", "cpus", "gpus")
        )
        length = np.where(start >= 0, np.maximum(end - start, 0), 0)
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
        return np.array([column for pair in pairs for column in pair])


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


def _split_into_bins(pieces: Numbers, keys: Numbers, width: int) -> Numbers:
    """Split runs into bins of `width` seconds and sum them by bin and key."""
    _, _, start, end, *_ = pieces
    first = start // width
    bins = np.maximum(end - 1, start) // width - first + 1
    which = np.repeat(np.arange(len(start)), bins)
    before = np.repeat(np.cumsum(bins) - bins, bins)
    begin = (first[which] + np.arange(len(which)) - before) * width
    sums = _sum_columns(pieces, which, begin, width)
    return _sum_groups(keys[which], begin, sums)


def _sum_columns(
    pieces: Numbers, which: Numbers, begin: Numbers, width: int
) -> list[Numbers | None]:
    """Return a column for each of SUMS, by run and bin; None for a column of zeros."""
    _, _, _, _, gpus, runs, cpus, nodes, mem, waited, energy, *uses = (
        None if not column.any() else column for column in pieces
    )
    one, start, end = (pieces[index][which] for index in (1, 2, 3))
    stop = begin + width
    seconds = (np.minimum(end, stop) - np.maximum(start, begin)) * one
    began = ((start >= begin) & (start < stop)) * one
    done = ((end > begin) & (end <= stop) | (start == end)) * one

    def times(column: Numbers | None, by: Numbers) -> Numbers | None:
        return None if column is None else column[which] * by

    count = times(runs, one)
    wall = None if runs is None else seconds * runs[which]
    return [
        times(gpus, seconds),
        times(cpus, seconds),
        times(nodes, seconds),
        wall,
        times(mem, seconds),
        None if energy is None else _energy(energy[which], start, end, begin, stop) * one,
        count,
        None if runs is None else began * runs[which],
        times(waited, began),
        *(times(column, done) for column in uses),
    ]


def _energy(
    joules: Numbers, start: Numbers, end: Numbers, window_begin: Numbers, window_end: Numbers
) -> Numbers:
    """Return the joules of each run [start, end) in its window; see `bins.usage_in_window`."""
    length = np.maximum(end - start, 1)
    whole, rest = np.divmod(joules, length)  # multiplied separately, so that nothing overflows

    def until(edge: Numbers) -> Numbers:
        passed = np.clip(edge - start, 0, length)
        shares: Numbers = whole * passed + rest * passed // length
        return shares

    return until(window_end) - until(window_begin)


def _sum_groups(codes: Numbers, begin: Numbers, sums: list[Numbers | None]) -> Numbers:
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
            table[:, number] = np.add.reduceat(column[order], indices)
    return table[table[:, 2:].any(axis=1)]
