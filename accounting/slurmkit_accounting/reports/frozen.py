"""Closed months in a report: what was said when they were closed, and corrections apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from operator import sub
from typing import NamedTuple

from slurmkit_accounting.bins import Key
from slurmkit_accounting.closing import Closing
from slurmkit_accounting.held import Sums
from slurmkit_accounting.query import Cells
from slurmkit_accounting.reports.periods import Part
from slurmkit_accounting.reports.tally import outcome_of
from slurmkit_accounting.schema import SUMS

_NOTHING = (0,) * len(SUMS)
# What a run holds and how often it counts; how it was measured is known only once it has ended.
_AMOUNTS = slice(0, 5)
_SAID = slice(0, SUMS.index("cpu_used_ms"))


class Correction(NamedTuple):
    """What was added or taken away after a month was closed."""

    closing: Closing
    part: int
    key: Key
    sums: Sums


def freeze(
    cells: Cells, parts: list[Part], closing: Closing, closed: dict[Key, Sums]
) -> list[Correction]:
    """Put what was said at closing in the place of what the books say now.

    Only where the month is one part of the report; a month that is parted is shown as it is now.

    Returns:
        The difference, by key.
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
    for key in _only_ended(now, closed):
        closed.pop(key, None)
        if key in now:
            closed[key] = now[key]
    found = []
    for key in dict.fromkeys((*closed, *now)):
        said = closed.get(key, _NOTHING)
        changed = tuple(map(sub, now.get(key, _NOTHING), said))
        cells[place, key] = said
        if any(changed[_SAID]):
            found.append(Correction(closing, place, key, changed))
    return found


def _only_ended(now: dict[Key, Sums], closed: dict[Key, Sums]) -> Iterable[Key]:
    """Keys of runs that ended after the closing and held what was said: no correction."""
    whose: dict[Key, set[Key]] = defaultdict(set)
    for key in (*now, *closed):
        whose[key._replace(state="", redone=False)].add(key)
    for keys in whose.values():
        open_then = any(outcome_of(key.state) == "running" and key in closed for key in keys)
        if open_then and _held(now, keys) == _held(closed, keys):
            yield from keys


def _held(sums: dict[Key, Sums], keys: Iterable[Key]) -> list[int]:
    return [
        sum(each) for each in zip(*(sums.get(key, _NOTHING)[_AMOUNTS] for key in keys), strict=True)
    ]
