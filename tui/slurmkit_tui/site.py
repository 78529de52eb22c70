"""What the screen needs to know of the cluster itself, from `scontrol show config`."""

from __future__ import annotations

import re
from typing import NamedTuple

from slurmkit.text import printable
from slurmkit.tres import GPU

_SETTING = re.compile(
    r"^(?P<key>ClusterName|AccountingStorageTRES) *= (?P<value>.*)$", re.MULTILINE
)


class Site(NamedTuple):
    """A cluster's name and habits; None is unknown.

    Attributes:
        name: ClusterName of slurm.conf.
        tracks_gpus: whether AccountingStorageTRES has GPUs; without, squeue cannot count them.
    """

    name: str | None = None
    tracks_gpus: bool | None = None


def parse_site(text: str) -> Site:
    """Read the output of `scontrol show config`."""
    found = {m["key"]: m["value"].strip() for m in _SETTING.finditer(text)}
    tres = found.get("AccountingStorageTRES")
    tracks = None if tres is None else any(t.startswith(GPU) for t in tres.split(","))
    return Site(printable(found.get("ClusterName", "")) or None, tracks)
