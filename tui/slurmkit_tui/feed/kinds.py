"""Every question the TUI asks: who answers it, and of which type the answer is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from slurmkit.cluster import Cluster
from slurmkit.errors import SlurmError
from slurmkit.gpumap.model import GpuMap
from slurmkit.gpumap.read import read_gpus
from slurmkit.jobs.info import JobInfo
from slurmkit.nodes.read import NodesSnapshot, read_nodes
from slurmkit.queue.snapshot import Queue
from slurmkit.site import Site, read_site
from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.rights import Rights, read_rights


class Kind(NamedTuple):
    """A kind of question.

    Attributes:
        type: of the answer.
        source: who answers, in words.
        read: asks a cluster.
    """

    type: Any
    source: str
    read: Callable[..., Any]


def _site(cluster: Cluster) -> Site:
    try:
        return read_site(cluster.slurm)
    except SlurmError:  # what else is on the screen does not depend on it
        return Site()


def _job(cluster: Cluster, job_id: str) -> JobInfo:
    return cluster.job(job_id).info()


KINDS = {
    "rights": Kind(Rights, "sacctmgr", lambda cluster, me: read_rights(cluster.slurm, me)),
    "site": Kind(Site, "scontrol", _site),
    "queue": Kind(Queue, "squeue", lambda cluster: cluster.queue()),
    "gpus": Kind(GpuMap, "scontrol", lambda cluster: read_gpus(cluster.slurm)),
    "nodes": Kind(NodesSnapshot, "scontrol", lambda cluster: read_nodes(cluster.slurm)),
    "job": Kind(JobInfo, "squeue", _job),
}


def answer(cluster: Cluster, ask: Ask) -> Answer:
    """Ask a cluster.

    Raises:
        SlurmkitError: when it does not answer.
    """
    kind = KINDS[ask.what]
    taken, began = time.time(), time.perf_counter()
    value = kind.read(cluster, *ask.about)
    return Answer(
        value,
        getattr(value, "source", kind.source),
        getattr(value, "taken", taken),
        getattr(value, "seconds", time.perf_counter() - began),
    )
