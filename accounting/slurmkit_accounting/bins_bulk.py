"""`slurmkit_accounting.bins` for many runs at once, with numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from slurmkit_accounting.bins import (
    ABSURD,
    LONGEST,
    NO_GPU,
    UNKNOWN_UID,
    Held,
    Key,
    Tres,
    read_tres,
)

Numbers: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]"
Columns: TypeAlias = Sequence[Sequence[Any]]  # one for each of `Held`, equally long
_AT = {name: place for place, name in enumerate(Held._fields)}
_WHOSE = ("cluster_id", "user", "uid", "account", "partition", "qos", "state", "redone", "era")
FACTS = ("cpu_used_ms", "mem_peak_mib", "gpu_used_permille")
_USES = 6  # the last of SUMS
_PIECE = 11 + _USES
_KINDS = 2**20  # types of GPUs that there may be
_MEM, _MORE, _GPUS = 2, 3, 4  # columns of `_Allocations.table`
_MILLI = np.array(1000)


class Sums:
    """What runs add to usage, summed up when it is asked for.

    Runs become pieces, one for each type of GPU they held: numbers of key, sign, start, end, GPUs;
    and 0s or 1, CPUs, nodes, memory, wait, energy, uses.
    """

    def __init__(self) -> None:
        self._pieces: list[Numbers] = []
        self._whose = _Codes()
        self._tres = _Allocations()

    def add(self, columns: Columns, sign: int) -> None:
        """Add runs that have ended, or with a sign of -1 take them away."""
        if columns and columns[0]:
            self._pieces += self._read(columns, sign)

    def add_uses(self, columns: Columns, before: Columns) -> None:
        """Change what ended runs used, which were added before.

        Args:
            columns: the runs as they are.
            before: what was used as it was, a column for each of `FACTS`.
        """
        codes = _coded(self._tres, columns[_AT["alloc_tres"]])
        table, counts = self._table(columns, codes, 1)
        was = list(columns)
        for name, column in zip(FACTS, before, strict=True):
            was[_AT[name]] = column
        table[-_USES:] -= self._uses(was, codes)
        table[4:-_USES] = 0
        table[2] = table[3] = np.maximum(table[3] - 1, table[2])  # all in the bin of the end
        self._pieces.append(table[:, counts])

    def keys(self) -> list[Key]:
        """The keys of all runs that were added."""
        codes = self._codes()
        there = np.flatnonzero(np.bincount(codes))
        return [self._key(*divmod(code, len(self._tres.kinds))) for code in there.tolist()]

    def by_bin(self, numbers: Sequence[int], width: int) -> Numbers:
        """Rows of bin, number of the key and the `SUMS`, in that order; none of all zeros.

        Args:
            numbers: of each of `keys`.
            width: seconds of a bin.
        """
        codes = self._codes()
        table = np.zeros(codes.max(initial=-1) + 1, np.int64)
        table[np.flatnonzero(np.bincount(codes))] = numbers
        return _by_bin(self._columns(), table[codes], width)

    def _codes(self) -> Numbers:
        """The key of each piece, as the number of whose it is and of the type of its GPUs."""
        whose, kind = np.divmod(self._columns()[0], _KINDS)
        codes: Numbers = whose * len(self._tres.kinds) + kind
        return codes

    def _columns(self) -> Numbers:
        if len(self._pieces) != 1:
            empty = np.zeros((_PIECE, 0), np.int64)
            self._pieces = [np.concatenate([empty, *self._pieces], axis=1)]
        return self._pieces[0]

    def _key(self, whose: int, kind: int) -> Key:
        cluster, user, uid, account, partition, qos, state, redone, era = self._whose.told[whose]
        uid = UNKNOWN_UID if uid is None else uid
        gpu_type = self._tres.kinds.told[kind]
        return Key(cluster, user, uid, account, partition, qos, state, bool(redone), gpu_type, era)

    def _read(self, columns: Columns, sign: int) -> list[Numbers]:
        codes = _coded(self._tres, columns[_AT["alloc_tres"]])
        table, counts = self._table(columns, codes, sign)
        several = counts & (table[3] > table[2]) & (self._tres.table()[_MORE, codes] > 0)
        return [table[:, counts], *self._others(table, several, codes)]

    def _table(self, columns: Columns, codes: Numbers, sign: int) -> tuple[Numbers, Flags]:
        """A piece for each run, and which of them count."""
        start, end, submit, cpus, nodes, gpus, joules = (
            _whole(columns[_AT[name]])
            for name in ("start", "end", "submit", "cpus", "nodes", "gpus", "energy_joules")
        )
        kind, count, mem, *_ = self._tres.table()[:, codes]
        length = end - start
        energy = np.where(
            (length > 0) & (length < LONGEST) & (joules < ABSURD), np.maximum(joules, 0), 0
        )
        whose = _coded(self._whose, zip(*(columns[_AT[name]] for name in _WHOSE), strict=True))
        table = np.zeros((_PIECE, len(codes)), np.int64)
        wait = np.maximum(start - submit, 0)
        first = (whose * _KINDS + kind, sign, start, end, count, 1, cpus, nodes, mem, wait, energy)
        for row, values in zip(table, first, strict=False):
            row[:] = values
        table[-_USES:] = self._uses(columns, codes)
        return table, (start >= 0) & (length >= 0) & ((cpus > 0) | (gpus > 0) | (nodes > 0))

    def _others(self, table: Numbers, where: Any, codes: Numbers) -> list[Numbers]:
        """Pieces of runs that held several types of GPUs."""
        found: list[Numbers] = []
        for place in np.flatnonzero(where).tolist():
            for kind, count in self._tres.others[int(codes[place])]:
                piece = np.zeros((_PIECE, 1), np.int64)
                piece[:5, 0] = table[:5, place]
                piece[0] += kind - piece[0] % _KINDS
                piece[4] = count
                found.append(piece)
        return found

    def _uses(self, columns: Columns, codes: Numbers) -> Numbers | int:
        """`bins.measured` of each run; 0 where nothing was measured of any, as of new ones."""
        facts = [columns[_AT[name]] for name in FACTS]
        if all(column.count(None) == len(column) for column in facts):
            return 0
        cpu, mem, gpu = map(_whole, facts)
        start, end, cpus, own = (
            _whole(columns[_AT[name]]) for name in ("start", "end", "cpus", "gpus")
        )
        length = np.where(start >= 0, np.maximum(end - start, 0), 0)
        held = self._tres.table()[:, codes]
        gpus = np.where(own > 0, held[_GPUS], 0)
        pairs = (
            _believed(cpu, cpu, _product(cpus, length, _MILLI)),
            _believed(mem, _product(np.maximum(mem, 0), length), _product(held[_MEM], length)),
            _believed(
                gpu, _product(np.maximum(gpu, 0), gpus, length), _product(gpus, length, _MILLI)
            ),
        )
        return np.array([column for pair in pairs for column in pair])


def _product(*factors: Numbers) -> Numbers:
    """Products of what is not negative; `ABSURD` where that is less."""
    about = np.ones(1)
    for factor in factors:
        about = about * factor  # floats, which do not overflow
    sane = about < 2 * ABSURD
    exact = np.ones(1, np.int64)
    for factor in factors:
        exact = exact * np.where(sane, factor, 0)
    return np.where(sane, np.minimum(exact, ABSURD), ABSURD)


def _believed(known: Numbers, used: Numbers, held: Numbers) -> tuple[Numbers, Numbers]:
    """Used and held, zeros where `known` is negative or one is absurd."""
    believed = (known >= 0) & (held > 0) & (held < ABSURD) & (used < ABSURD)
    return np.where(believed, used, 0), np.where(believed, held, 0)


class _Codes(dict[Any, int]):
    """A number for each thing, counted up.

    Attributes:
        told: the things in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def __missing__(self, thing: Any) -> int:
        self.told.append(thing)
        self[thing] = len(self)
        return len(self) - 1


class _Allocations(_Codes):
    """Texts of AllocTRES, and what they say.

    Attributes:
        kinds: types of GPUs.
        others: of texts, types and counts of GPUs beside their first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kinds = _Codes()
        self.others: dict[int, list[tuple[int, int]]] = {}
        self._rows: list[tuple[int, int, int, int, int]] = []

    def __missing__(self, text: str) -> int:
        code = super().__missing__(text)
        tres: Tres = read_tres(text)
        (kind, count), *rest = tres.gpus or ((NO_GPU, 0),)
        gpus = count + sum(more for _, more in rest)
        self._rows.append((self.kinds[kind], count, tres.mem_mib, len(rest), gpus))
        self.others[code] = [(self.kinds[kind], count) for kind, count in rest]
        return code

    def table(self) -> Numbers:
        """Columns of the first type, its count, memory, how many other types, and all GPUs."""
        return np.array(self._rows, np.int64).T


def _coded(codes: _Codes, things: Any) -> Numbers:
    return np.array(list(map(codes.__getitem__, things)), np.int64)


def _whole(column: Sequence[int | None]) -> Numbers:
    """Numbers; -1 where there is none."""
    if None in column:
        column = [-1 if value is None else value for value in column]
    return np.array(column, np.int64)


def _by_bin(pieces: Numbers, keys: Numbers, width: int) -> Numbers:
    _, _, start, end, *_ = pieces
    first = start // width
    bins = np.maximum(end - 1, start) // width - first + 1
    which = np.repeat(np.arange(len(start)), bins)
    before = np.repeat(np.cumsum(bins) - bins, bins)
    begin = (first[which] + np.arange(len(which)) - before) * width
    sums = _sums(pieces, which, begin, width)
    return _grouped(keys[which], begin, sums)


def _sums(pieces: Numbers, which: Numbers, begin: Numbers, width: int) -> list[Numbers | None]:
    """A column for each of SUMS; None for one of zeros."""
    _, _, _, _, gpus, runs, cpus, nodes, mem, waited, energy, *uses = (
        None if not column.any() else column for column in pieces
    )
    one, start, end = (pieces[place][which] for place in (1, 2, 3))
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
        None if energy is None else _energy(energy[which], (start, end), (begin, stop)) * one,
        count,
        None if runs is None else began * runs[which],
        times(waited, began),
        *(times(column, done) for column in uses),
    ]


def _energy(
    joules: Numbers, run: tuple[Numbers, Numbers], window: tuple[Numbers, Numbers]
) -> Numbers:
    start, length = run[0], np.maximum(run[1] - run[0], 1)
    whole, rest = np.divmod(joules, length)  # apart, so that no product overflows

    def until(edge: Numbers) -> Numbers:
        passed = np.clip(edge - start, 0, length)
        shares: Numbers = whole * passed + rest * passed // length
        return shares

    return until(window[1]) - until(window[0])


def _grouped(codes: Numbers, begin: Numbers, sums: list[Numbers | None]) -> Numbers:
    most = codes.max(initial=0) + 1
    order = np.argsort((begin - begin.min(initial=0)) * most + codes)
    codes, begin = codes[order], begin[order]
    new = np.ones(len(codes), bool)
    new[1:] = (codes[1:] != codes[:-1]) | (begin[1:] != begin[:-1])
    places = np.flatnonzero(new)
    table = np.zeros((len(places), 2 + len(sums)), np.int64)
    table[:, 0], table[:, 1] = begin[places], codes[places]
    for number, column in enumerate(sums, 2):
        if column is not None:
            table[:, number] = np.add.reduceat(column[order], places)
    return table[table[:, 2:].any(axis=1)]
