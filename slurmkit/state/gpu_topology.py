"""How the GPUs of a machine are connected, from `nvidia-smi topo` and gres.conf."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from slurmkit.formats.scontrol import expand_nodes

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_GAP = re.compile(r" *\t[ \t]*| {2,}")
_DEVICE = re.compile(r"(GPU\d+|NIC\d+|mlx\w+)")
_LEGEND = re.compile(r"^ *(NIC\d+): *(\S+) *$", re.MULTILINE)
_SELF = "X"
_PLACES = ("/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf", "/usr/local/etc/slurm")
_PAIR = re.compile(r"(\w+)\s*=\s*(\S+)")


class GpuLinks(msgspec.Struct, frozen=True):
    """The connections of one GPU.

    Attributes:
        links: the link to each other device: `NV18` for 18 NVLinks, else, from near to far,
            `PIX`, `PXB`, `PHB`, `NODE`, `SYS`.
        cpus: near CPUs; None if nvidia-smi does not say.
        numa: NUMA node of these CPUs; None if nvidia-smi does not say.
    """

    links: Mapping[str, str]
    cpus: str | None = None
    numa: str | None = None


def parse_matrix(text: str) -> dict[str, GpuLinks]:
    """Parse `nvidia-smi topo -m`: GPUs by name; NICs have the names of its legend."""
    nics = dict(_LEGEND.findall(text))
    gpus: dict[str, GpuLinks] = {}
    names, rows = _matrix(text)
    for name, cells in rows.items():
        if not name.startswith("GPU"):
            continue
        each = zip(names, cells, strict=False)
        links = {nics.get(other, other): cell for other, cell in each if cell != _SELF}
        cpus, numa, *_ = (*(cell for cell in cells[len(names) :]), "", "")
        gpus[name] = GpuLinks(links, _number_list(cpus), _number_list(numa))
    return gpus


def parse_peers(text: str) -> dict[str, frozenset[str]]:
    """Parse `nvidia-smi topo -p2p r`: the GPUs whose memory each GPU can read, itself included."""
    names, rows = _matrix(text)
    return {
        name: frozenset(o for o, cell in zip(names, cells, strict=False) if cell in ("OK", _SELF))
        for name, cells in rows.items()
    }


def peer_sets(peers: Mapping[str, frozenset[str]]) -> list[tuple[str, ...]]:
    """Return all maximal sets of GPUs in which every two have peer access.

    Sets may overlap: in a ring of four GPUs, each two neighbours are one set.
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
    """Return maximal cliques (Bron-Kerbosch with a pivot).

    Each has all of `grown`, some of `more`, and none of `done`.
    """
    if not more and not done:
        return [grown] if grown else []
    found: list[set[str]] = []
    pivot = max(more | done, key=lambda name: len(near[name] & more))
    for name in sorted(more - near[pivot]):
        found += _cliques(near, grown | {name}, more & near[name], done & near[name])
        more, done = more - {name}, done | {name}
    return found


def _matrix(text: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the names of the device columns, and the cells of each device's row."""
    names: list[str] = []
    rows: dict[str, list[str]] = {}
    for line in _ESCAPE.sub("", text).split("\n"):
        cells = [cell.strip() for cell in _GAP.split(line.strip())]
        if not names:
            names = [cell for cell in cells if _DEVICE.fullmatch(cell)]
        elif _DEVICE.fullmatch(cells[0]) and len(cells) > len(names):
            rows[cells[0]] = cells[1:]
    return names, rows


def _number_list(cell: str) -> str | None:
    return cell if re.fullmatch(r"[\d,\-]*\d", cell) else None


class GresConfGpu(msgspec.Struct, frozen=True):
    """One GPU of gres.conf, in Slurm's order.

    Attributes:
        type: Slurm's name of the type; empty for none.
        cores: Slurm's indices of the near cores; None if not given.
        links: number of links to each GPU, -1 for itself; None if not given.
    """

    type: str = ""
    cores: str | None = None
    links: str | None = None


def find_gres_conf() -> Path | None:
    """Return the path of gres.conf next to slurm.conf; None if there is none to read."""
    slurm_conf = os.environ.get("SLURM_CONF")
    folders = [str(Path(slurm_conf).parent)] if slurm_conf else _PLACES
    paths = (Path(folder) / "gres.conf" for folder in folders)
    return next((path for path in paths if os.access(path, os.R_OK)), None)


def parse_gres_conf(text: str, node: str) -> tuple[GresConfGpu, ...]:
    """Parse the GPUs of a node; none if gres.conf does not name their device files.

    A line without NodeName is for all nodes.
    """
    return tuple(gpu for line in _lines(text) if _is_for(line, node) for gpu in _gpus(line))


def _lines(text: str) -> Iterator[dict[str, str]]:
    for line in re.sub(r"\\\n", " ", text).split("\n"):
        pairs = _PAIR.findall(line.partition("#")[0])
        if pairs:
            yield {name.lower(): value for name, value in pairs}


def _is_for(line: dict[str, str], node: str) -> bool:
    if line.get("name", "").lower() != "gpu":
        return False
    try:
        return "nodename" not in line or node in expand_nodes(line["nodename"])
    except ValueError:
        return False


def _gpus(line: dict[str, str]) -> tuple[GresConfGpu, ...]:
    """Return one GPU for each device file; only a line for one GPU has valid links."""
    try:
        count = len(expand_nodes(line.get("file") or line.get("multiplefiles")))
    except ValueError:
        return ()
    links = line.get("links") if count == 1 else None
    return (GresConfGpu(line.get("type", ""), line.get("cores"), links),) * count
