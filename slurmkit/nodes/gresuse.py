"""How Slurm writes which generic resources are in use: of a node, or of a job on a node."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

# `gpu:a100:2(IDX:0-1)`, `gpu:2`, `gpu(CNT:2)`, `gpu:(null):1(IDX:3)`, `shard:h100:7(3/4,4/4,-/4)`.
_USE = re.compile(
    r"(?P<name>[^:,()]+)(?::(?P<type>\(null\)|[^:,()]*))??(?::(?P<count>\d+))?"
    r"(?:\((?P<where>[^)]*)\))?(?:,|$)"
)
_SHARED = ("shard", "mps")
_MOST = 4096  # GPUs of a node; more can only be nonsense that somebody wrote


class GresUse(msgspec.Struct, frozen=True, gc=False):
    """Resources of one name and type in use.

    Attributes:
        name: `gpu`, `shard`, `mps` or any other of GresTypes.
        type: None where Slurm names none.
        count: units in use. Slurm 22.05 counts for a node's shards and MPS the GPUs they are on.
        indices: GPUs that are used, in part or whole; None where Slurm does not say.
        parts: of a shared resource, units used and there by GPU; None where Slurm does not say.
    """

    name: str
    type: str | None
    count: int
    indices: tuple[int, ...] | None = None
    parts: tuple[tuple[int, int], ...] | None = None

    @property
    def shared(self) -> bool:
        """Whether several jobs may hold units of one GPU."""
        return self.name in _SHARED


def parse_uses(text: str) -> tuple[GresUse, ...]:
    """Read a node's `GresUsed=` or the `GRES=` of a job on a node.

    Raises:
        ValueError: for a number that is none, or beyond reason.
    """
    return tuple(_use(match) for match in _USE.finditer(text))


def _use(match: re.Match[str]) -> GresUse:
    kind, _, what = (match["where"] or "").rpartition(":")
    count = int(what if kind == "CNT" else match["count"] or 0)
    type_ = None if match["type"] in (None, "", "(null)") else match["type"]
    if kind == "IDX":
        indices = tuple(_ranges(what))
        return GresUse(match["name"], type_, count, indices if indices or not count else None)
    if "/" in what and not kind:
        parts = tuple(_part(item) for item in what.split(","))
        indices = tuple(at for at, (used, _) in enumerate(parts) if used)
        return GresUse(match["name"], type_, count, indices, parts)
    return GresUse(match["name"], type_, count)


def _part(text: str) -> tuple[int, int]:
    """Read `3/4`; from 26.05 on `-/4` says that the whole GPU is taken, so that no part is."""
    used, _, total = text.partition("/")
    return (0 if used == "-" else int(used), int(total))


def _ranges(text: str) -> Iterator[int]:
    for item in text.split(",") if text != "N/A" else ():
        first, dash, last = item.partition("-")
        last = last if dash else first
        if int(last) >= _MOST:
            raise ValueError(f"no node has a GPU {last}")
        yield from range(int(first), int(last) + 1)
