"""`slurmkit_accounting.bins` for many runs at once, with numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from slurmkit_accounting.bins import (
    NO_GPU,
    UNKNOWN_UID,
    Held,
    Key,
    measured,
    read_tres,
    sane_energy,
)
from slurmkit_accounting.schema import SUMS

Numbers: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"
_NOTHING = (0,) * 6
_ENERGY, _RUNS = SUMS.index("energy_joules"), SUMS.index("runs")
_MEASURED = SUMS.index("cpu_used_ms")


def summed_in_bulk(
    runs: Sequence[Held], signs: Sequence[int], widths: Sequence[int]
) -> tuple[list[Key], list[Numbers]]:
    """See `slurmkit_accounting.bins.summed`."""
    keys: dict[tuple[object, ...], int] = {}
    pieces = _pieces(runs, signs, keys)
    found = [Key(*key) for key in keys]  # type: ignore[arg-type]
    if not pieces:
        return found, [np.zeros((0, 2 + len(SUMS)), np.int64) for _ in widths]
    columns = np.array(pieces, np.int64).T
    return found, [_by_bin(columns, width) for width in widths]


def _pieces(
    runs: Sequence[Held], signs: Sequence[int], keys: dict[tuple[object, ...], int]
) -> list[tuple[int, ...]]:
    """Rows of key, sign, start, end, GPUs; and 0s or CPUs, nodes, memory, wait, energy, uses.

    One for each run, and one for each further type of GPU that it held.
    """
    pieces = []
    for run, sign in zip(runs, signs, strict=True):
        (cluster, user, uid, account, partition, qos, state, submit, start, end, nodes, cpus,
         gpus, text, joules, redone, *facts, era) = run  # fmt: skip
        if start is None or end is None or end < start or not (cpus or gpus or nodes):
            continue
        tres = read_tres(text)
        kinds = tres.gpus or ((NO_GPU, 0),)
        number = UNKNOWN_UID if uid is None else uid
        first = (cluster, user, number, account, partition, qos, state, bool(redone))
        code = keys.setdefault((*first, kinds[0][0], era), len(keys))
        uses = _NOTHING if facts == _UNMEASURED else measured(run, tres)
        pieces.append(
            (code, sign, start, end, kinds[0][1], 1, cpus, nodes, tres.mem_mib,
             start - submit if start > submit else 0, sane_energy(run) if joules else 0, *uses)
        )  # fmt: skip
        for kind, count in kinds[1:]:
            if end > start:
                code = keys.setdefault((*first, kind, era), len(keys))
                pieces.append((code, sign, start, end, count, *((0,) * 12)))
    return pieces


_UNMEASURED = [None] * 3


def _by_bin(pieces: Numbers, width: int) -> Numbers:
    _, _, start, end, *_ = pieces
    first = start // width
    bins = np.maximum(end - 1, start) // width - first + 1
    which = np.repeat(np.arange(len(start)), bins)
    before = np.repeat(np.cumsum(bins) - bins, bins)
    begin = (first[which] + np.arange(len(which)) - before) * width
    sums = _sums(pieces, which, begin, width)
    return _grouped(pieces[0][which], begin, sums)


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
    order = np.lexsort((codes, begin))
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
