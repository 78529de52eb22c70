"""The map as characters: one cell for each GPU, a letter for each holder."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import product
from typing import Literal

from slurmkit.gpumap.model import Gpu, Share
from slurmkit.nodes.read import NodeRow

By = Literal["user", "account", "job"]

FREE = "."
CLOSED = "x"
UNKNOWN = "?"
HIDDEN = "#"
SEVERAL = "+"
_MARKS = {"free": FREE, "drained": CLOSED, "down": CLOSED, "unknown": UNKNOWN}
_MEANINGS = {
    FREE: "free",
    SEVERAL: "shared by several",
    CLOSED: "held by nobody, node drained or down",
    HIDDEN: "held, Slurm does not say by whom",
    UNKNOWN: "unknown",
}
_LETTERS = tuple(c for c in string.ascii_letters if c != CLOSED)
_KEYS: dict[By, Callable[[Share], str]] = {
    "user": lambda share: share.user,
    "account": lambda share: share.account,
    "job": lambda share: f"{share.job_id} {share.user}",
}


def holders(gpu: Gpu, by: By) -> frozenset[str]:
    """Who is on a GPU; empty when nobody is, or nobody knows who."""
    if gpu.state == "held" and gpu.job_id is not None:
        only = Share(gpu.job_id, gpu.user or "", gpu.account or "", None, None)
        return frozenset([_KEYS[by](only)])
    sharers = gpu.sharers if gpu.state == "shared" else ()
    return frozenset(_KEYS[by](share) for share in sharers)


def count(gpus: Iterable[Gpu], by: By) -> Counter[str]:
    """GPUs that each holder is on, those with the most first."""
    counted = Counter(who for gpu in gpus for who in holders(gpu, by))
    return Counter(dict(sorted(counted.items(), key=lambda item: (-item[1], item[0]))))


def letters(names: Collection[str]) -> dict[str, str]:
    """A letter for each name, one of its own where it is not taken yet; pairs if there are many."""
    width = 1
    while len(_LETTERS) ** width < len(names):
        width += 1
    left = dict.fromkeys(map("".join, product(_LETTERS, repeat=width)))
    chosen = {}
    for name in names:
        chosen[name] = next(
            (wish for wish in _wishes(name, width) if wish in left), next(iter(left))
        )
        del left[chosen[name]]
    return chosen


def _wishes(name: str, width: int) -> Iterator[str]:
    own = [c for c in name if c in string.ascii_letters]
    yield from ("".join(own[at : at + width]) for at in range(len(own) - width + 1))
    yield from ("".join(own[at : at + width]).upper() for at in range(len(own) - width + 1))


def cell(gpu: Gpu, by: By, letter: dict[str, str]) -> str:
    """The mark of one GPU, of the letters' width or shorter."""
    on_it = sorted(holders(gpu, by))
    if len(on_it) == 1:
        return letter[on_it[0]]
    return SEVERAL if on_it else _MARKS.get(gpu.state, HIDDEN)


def meanings(cells: Collection[str]) -> list[tuple[str, str]]:
    """What the marks other than letters mean, of those that were drawn."""
    return [(mark, meaning) for mark, meaning in _MEANINGS.items() if mark in cells]


def types_of(row: NodeRow) -> str:
    """The types of a node's GPUs, with their numbers where there are several."""
    one = len(row.gpus) == 1
    return " ".join((of.type or "untyped") + ("" if one else f":{of.total}") for of in row.gpus)


def note_on(row: NodeRow, cells: Collection[str]) -> str:
    """Why what looks free on a node is not, or the node is going away; not escaped yet."""
    closed = row.why_closed
    if closed is None or (row.usable and FREE not in cells):
        return ""
    return f"{closed}: {row.reason}" if row.reason and not row.usable else closed
