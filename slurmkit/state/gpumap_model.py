"""The GPU map as typed values, and the free GPUs by type.

None means that this Slurm release does not say, or hides it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Literal

import msgspec

from slurmkit.state.nodes import NodeRow

GpuState = Literal["free", "held", "shared", "drained", "down", "unknown"]


class GpuShare(msgspec.Struct, frozen=True, gc=False):
    """A job's share of one GPU.

    Attributes:
        job_id: the id that people use: `12`, `12_3`.
        amount: shards or MPS units.
        since: epoch seconds at which the job started.
    """

    job_id: str
    user: str
    account: str
    amount: int | None
    since: int | None


class GpuSharing(msgspec.Struct, frozen=True, gc=False):
    """The use of one GPU's shards or MPS units.

    Attributes:
        used: units in use.
        total: units that the GPU has.
        by: the jobs that hold them, as far as Slurm names the jobs.
    """

    used: int | None
    total: int | None
    by: tuple[GpuShare, ...] = ()


class Gpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One GPU, or one MIG slice, of a node.

    Attributes:
        index: as in CUDA_VISIBLE_DEVICES without cgroups, and in `scontrol show node --details`;
            None on a node whose GPUs have no device files.
        type: None for an untyped GPU, and for a free GPU of a node with several types: Slurm
            prints the type of an index only while the GPU is in use.
        state: `held` as a whole by a job; `shared` as shards or MPS; `drained` or `down` if no
            job holds it and none can start on its node; `unknown` if Slurm's answers contradict
            each other or do not say.
        job_id: the only job on the GPU; `user`, `account` and `since` are that job's. None if
            there are several jobs (see `shard` and `mps`) or none, or if Slurm hides the job.
        shard: None if the node has no shards.
        mps: None if the node has no MPS.
        mig: profile of a MIG slice, e.g. `3g.20gb`; None for a whole GPU.
        since: epoch seconds at which the job started.
    """

    node: str
    index: int | None
    type: str | None
    state: GpuState
    job_id: str | None = None
    user: str | None = None
    account: str | None = None
    shard: GpuSharing | None = None
    mps: GpuSharing | None = None
    mig: str | None = None
    since: int | None = None

    @property
    def sharers(self) -> tuple[GpuShare, ...]:
        """The jobs that hold shards or MPS units of the GPU."""
        return tuple(share for parts in (self.shard, self.mps) if parts for share in parts.by)


class GpuMap(msgspec.Struct, frozen=True):
    """A snapshot of all GPUs of the cluster.

    Attributes:
        gpus: by node in Slurm's order, then by index.
        nodes: all nodes, also those without GPUs.
        warnings: contradictions in Slurm's answers, in words; not escaped.
        taken: epoch seconds at which Slurm was asked.
        seconds: how long the commands and parsing took.
    """

    gpus: tuple[Gpu, ...]
    nodes: tuple[NodeRow, ...]
    warnings: tuple[str, ...]
    taken: float
    seconds: float


class FreeGpus(msgspec.Struct, frozen=True):
    """The GPUs of one type in the whole cluster.

    Attributes:
        type: None for untyped GPUs.
        total: all of them, also on drained and down nodes.
        free: held by no job, on nodes where a job can start now.
        largest: the most free GPUs on one node.
        node: that node; None if no GPU is free.
        stranded: held by no job, but on nodes that are reserved or have no CPU or memory left.
    """

    type: str | None
    total: int
    free: int
    largest: int
    node: str | None
    stranded: int


class GpuCounts(msgspec.Struct, frozen=True):
    """The GPUs of one type in the whole cluster, each counted once.

    Attributes:
        type: None for untyped GPUs.
        held: by jobs, as a whole or in part.
        free: held by no job, on nodes where a job can start now.
        stranded: held by no job, but on nodes that are reserved or have no CPU or memory left.
        closed: held by no job, on drained and down nodes.
        largest: the most free GPUs on one node.
        node: that node; None if no GPU is free.
    """

    type: str | None
    held: int
    free: int
    stranded: int
    closed: int
    largest: int
    node: str | None

    @property
    def total(self) -> int:
        """All GPUs of the type."""
        return self.held + self.free + self.stranded + self.closed


def count_gpus(nodes: Iterable[NodeRow]) -> tuple[GpuCounts, ...]:
    """Count GPUs by type; a GPU with shards or MPS in use is held."""
    held: Counter[str | None] = Counter()
    stranded: Counter[str | None] = Counter()
    closed: Counter[str | None] = Counter()
    free: dict[str | None, list[tuple[int, str]]] = defaultdict(list)
    for node in nodes:
        for gpus in node.gpus:
            left = max(gpus.total - gpus.used - _shared(node, gpus.type), 0)
            held[gpus.type] += gpus.total - left
            if left and node.why_closed is None:
                free[gpus.type].append((left, node.name))
            elif left:
                (stranded if node.usable else closed)[gpus.type] += left
    counts = []
    for type_, count in held.items():
        largest, name = max(free[type_], key=lambda block: block[0], default=(0, None))
        all_free = sum(left for left, _ in free[type_])
        counts.append(
            GpuCounts(type_, count, all_free, stranded[type_], closed[type_], largest, name)
        )
    return tuple(counts)


def free_gpus(nodes: Iterable[NodeRow]) -> tuple[FreeGpus, ...]:
    """Count free GPUs by type; see `count_gpus`."""
    return tuple(
        FreeGpus(each.type, each.total, each.free, each.largest, each.node, each.stranded)
        for each in count_gpus(nodes)
    )


def _shared(node: NodeRow, type_: str | None) -> int:
    uses = (use for use in node.uses if use.shared and use.type == type_)
    return len({at for use in uses for at in use.indices or ()})


def describe_free_gpus(free: Iterable[FreeGpus]) -> str:
    """Describe the free GPUs of all types together, and the largest block on one node."""
    types = tuple(free)
    best = max(types, key=lambda gpus: gpus.largest, default=None)
    total = sum(gpus.free for gpus in types)
    if best is None or not best.largest:
        return f"{total} free" if types else "none"
    kind = f"{best.type} " if best.type else ""
    return f"{total} free, largest block on one node: {best.largest} ({kind}on {best.node})"
