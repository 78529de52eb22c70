"""How the GPUs of a machine are connected, as `nvidia-smi topo` draws it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_GAP = re.compile(r" *\t[ \t]*| {2,}")
_DEVICE = re.compile(r"(GPU\d+|NIC\d+|mlx\w+)")
_LEGEND = re.compile(r"^ *(NIC\d+): *(\S+) *$", re.MULTILINE)
_SELF = "X"


class Row(msgspec.Struct, frozen=True):
    """One GPU.

    Attributes:
        links: to each other device: `NV18` for NVLinks, else `PIX`, `PXB`, `PHB`, `NODE`, `SYS`,
            from near to far.
        cpus: CPUs that are near; None when it does not say.
        numa: their NUMA node; likewise.
    """

    links: Mapping[str, str]
    cpus: str | None = None
    numa: str | None = None


def parse_matrix(text: str) -> dict[str, Row]:
    """GPUs by name, from `nvidia-smi topo -m`; NICs are called as its legend has them."""
    nics = dict(_LEGEND.findall(text))
    found: dict[str, Row] = {}
    names, rows = _matrix(text)
    for name, cells in rows.items():
        if not name.startswith("GPU"):
            continue
        each = zip(names, cells, strict=False)
        links = {nics.get(other, other): cell for other, cell in each if cell != _SELF}
        cpus, numa, *_ = (*(cell for cell in cells[len(names) :]), "", "")
        found[name] = Row(links, _said(cpus), _said(numa))
    return found


def parse_peers(text: str) -> dict[str, frozenset[str]]:
    """Whose memory each GPU can read directly, itself among them: `nvidia-smi topo -p2p r`."""
    names, rows = _matrix(text)
    return {
        name: frozenset(o for o, cell in zip(names, cells, strict=False) if cell in ("OK", _SELF))
        for name, cells in rows.items()
    }


def peer_sets(peers: Mapping[str, frozenset[str]]) -> list[tuple[str, ...]]:
    """Every set of GPUs in which all have peer access to one another, as large as it can be.

    Sets share GPUs where some of one reach some of another: in a ring of four, each two beside.
    """
    names = list(peers)
    mutual = {
        name: {other for other in reach - {name} if name in peers.get(other, frozenset())}
        for name, reach in peers.items()
    }
    found = _cliques(mutual, set(), set(names), set())
    order = sorted(sorted(map(names.index, each)) for each in found)
    return [tuple(names[at] for at in each) for each in order]


def _cliques(
    near: Mapping[str, set[str]], grown: set[str], more: set[str], done: set[str]
) -> list[set[str]]:
    """Bron and Kerbosch, with a pivot: sets of `grown`, some of `more`, and none of `done`."""
    if not more and not done:
        return [grown] if grown else []
    found: list[set[str]] = []
    pivot = max(more | done, key=lambda name: len(near[name] & more))
    for name in sorted(more - near[pivot]):
        found += _cliques(near, grown | {name}, more & near[name], done & near[name])
        more, done = more - {name}, done | {name}
    return found


def _matrix(text: str) -> tuple[list[str], dict[str, list[str]]]:
    """Names of the columns that are devices, and the cells of each device's row."""
    names: list[str] = []
    rows: dict[str, list[str]] = {}
    for line in _ESCAPE.sub("", text).split("\n"):
        cells = [cell.strip() for cell in _GAP.split(line.strip())]
        if not names:
            names = [cell for cell in cells if _DEVICE.fullmatch(cell)]
        elif _DEVICE.fullmatch(cells[0]) and len(cells) > len(names):
            rows[cells[0]] = cells[1:]
    return names, rows


def _said(cell: str) -> str | None:
    return cell if re.fullmatch(r"[\d,\-]*\d", cell) else None
