"""Which cores and links Slurm is told that each GPU has: gres.conf(5), where a user can read it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slurmkit.capabilities.nodes import node_names

_PLACES = ("/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf", "/usr/local/etc/slurm")
_PAIR = re.compile(r"(\w+)\s*=\s*(\S+)")


class Gpu(msgspec.Struct, frozen=True):
    """One GPU, in the order in which Slurm counts them.

    Attributes:
        type: as Slurm names it; empty for none.
        cores: indices of cores that are near, as Slurm counts cores; None when it is not told.
        links: connections to each GPU, -1 for itself; None when it is not told.
    """

    type: str = ""
    cores: str | None = None
    links: str | None = None


def gres_conf() -> Path | None:
    """The file beside slurm.conf as this machine has it; None where there is none to read."""
    named = os.environ.get("SLURM_CONF")
    folders = [str(Path(named).parent)] if named else _PLACES
    found = (Path(folder) / "gres.conf" for folder in folders)
    return next((path for path in found if os.access(path, os.R_OK)), None)


def gpus_of(text: str, node: str) -> tuple[Gpu, ...]:
    """GPUs of a node; none where the file does not say which files they are.

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
        return "nodename" not in line or node in node_names(line["nodename"])
    except ValueError:
        return False


def _gpus(line: dict[str, str]) -> tuple[Gpu, ...]:
    """One for each file; the links are those of a line of one GPU."""
    try:
        count = len(node_names(line.get("file") or line.get("multiplefiles")))
    except ValueError:
        return ()
    links = line.get("links") if count == 1 else None
    return (Gpu(line.get("type", ""), line.get("cores"), links),) * count
