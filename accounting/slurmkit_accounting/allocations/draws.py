"""Which allocation of a holder pays for what was used.

Use is taken from the allocation in force that ends first. What no allocation in force has left is
charged to the one that ends last, which is then overdrawn: a later top-up or refund pays it back.
The order in which entries were stored does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

_NEVER = 2**62


class Pot(NamedTuple):
    """An allocation, as far as draws look at it; times are epoch seconds, `finish` None is open."""

    id: int
    begin: int
    finish: int | None
    amount_ms: int

    @property
    def end(self) -> int:
        """When it ends; far away if it is open."""
        return _NEVER if self.finish is None else self.finish


class Draws(NamedTuple):
    """What was drawn.

    Attributes:
        used_ms: by id of the allocation.
        outside_ms: used while none was in force; it is charged to none.
        by_part: the same as `used_ms`, of each part of the time.
    """

    used_ms: dict[int, int]
    outside_ms: int
    by_part: tuple[dict[int, int], ...]


def edges_of(pots: Iterable[Pot], now: int) -> tuple[int, ...]:
    """Return the times up to `now` at which allocations begin or end, and `now`, in order.

    At least two; between two of them the same allocations are in force.
    """
    pots = tuple(pots)
    times = {now, *(time for pot in pots for time in (pot.begin, pot.end) if time < now)}
    return tuple(sorted(times)) if len(times) > 1 else (now - 1, now)


def draw_use(pots: Sequence[Pot], edges: Sequence[int], used_ms: Sequence[int]) -> Draws:
    """Charge what was used in each part of the time to the allocations in force.

    Args:
        pots: all allocations of one holder in one unit.
        edges: begin and end of the parts, at least those of `edges_of`.
        used_ms: what was used in each part.
    """
    left = {pot.id: pot.amount_ms for pot in pots}
    outside = 0
    by_part: list[dict[int, int]] = []
    for (begin, end), use in zip(pairwise(edges), used_ms, strict=True):
        in_force = sorted(
            (pot for pot in pots if pot.begin <= begin and end <= pot.end),
            key=lambda pot: (pot.end, pot.begin, pot.id),
        )
        paid: dict[int, int] = {}
        by_part.append(paid)
        if not in_force:
            outside += use
            continue
        unpaid = use
        for pot in in_force:
            paid[pot.id] = min(unpaid, max(left[pot.id], 0))
            unpaid -= paid[pot.id]
        paid[in_force[-1].id] += unpaid
        for number, amount in paid.items():
            left[number] -= amount
    used = {pot.id: pot.amount_ms - left[pot.id] for pot in pots}
    return Draws(used, outside, tuple(by_part))


def share_out(whole: int, amounts: Sequence[int]) -> list[int]:
    """Split a whole number in proportion to some amounts, so that the parts add up to it."""
    total = sum(amounts)
    if not total:
        return [0] * len(amounts)
    ends = [whole * so_far // total for so_far in (0, *accumulate(amounts))]
    return [end - begin for begin, end in pairwise(ends)]
