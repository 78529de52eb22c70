"""A cluster's name and habits, from `scontrol show config`."""

from __future__ import annotations

from typing import NamedTuple

from slurmkit.capabilities.text import settings
from slurmkit.slurm import Slurm
from slurmkit.tres import GPU


class Site(NamedTuple):
    """What slurm.conf says of the cluster as a whole; None is unknown.

    Attributes:
        cluster_name: ClusterName; escape it before showing it.
        tracks_gpus: whether AccountingStorageTRES has GPUs; without, neither squeue nor sacct
            can count them.
    """

    cluster_name: str | None = None
    tracks_gpus: bool | None = None


def read_site(slurm: Slurm) -> Site:
    """Ask slurmctld for its configuration.

    Raises:
        SlurmError: when it does not answer.
    """
    return parse_site(slurm.run(["scontrol", "show", "config"]))


def parse_site(text: str) -> Site:
    """Read the output of `scontrol show config`."""
    found = settings(text)
    tracked = found.get("AccountingStorageTRES")
    return Site(found.get("ClusterName") or None, None if tracked is None else _has_gpus(tracked))


def _has_gpus(tracked: str) -> bool:
    """`gres/gpumem` and `gres/gpuutil` are measurements, not GPUs."""
    return any(tres == GPU or tres.startswith(f"{GPU}:") for tres in tracked.split(","))
