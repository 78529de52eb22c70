"""The map of GPUs, as typed values. None is what this Slurm release cannot tell, or hides."""

from __future__ import annotations

from typing import Literal

import msgspec

from slurmkit.nodes.read import NodeRow

State = Literal["free", "held", "shared", "drained", "down", "unknown"]


class Share(msgspec.Struct, frozen=True, gc=False):
    """A job's part of one GPU.

    Attributes:
        job_id: as people name it: `12`, `12_3`.
        amount: shards, or MPS units.
        since: epoch seconds at which the job started.
    """

    job_id: str
    user: str
    account: str
    amount: int | None
    since: int | None


class Sharing(msgspec.Struct, frozen=True, gc=False):
    """The parts of one GPU.

    Attributes:
        used: shards or MPS units in use on it.
        total: how many it has.
        by: the jobs that hold them, as far as Slurm names them.
    """

    used: int | None
    total: int | None
    by: tuple[Share, ...] = ()


class Gpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One GPU, or one MIG slice, of a node.

    Attributes:
        index: as in CUDA_VISIBLE_DEVICES without cgroups, and in `scontrol show node --details`;
            None on a node whose GPUs have no device files.
        type: None on an untyped node, and for a free GPU of a node with several types: Slurm
            prints the type of an index only while it is in use.
        state: `held` by a job as a whole; `shared` out in shards or MPS; `drained` or `down`
            when no job holds it and none can start on its node; `unknown` when Slurm's answers
            contradict each other or do not say.
        job_id: of the only job on it, like `user`, `account` and `since`; None when there are
            several (see `shard` and `mps`), none, or Slurm hides who it is.
        shard: None where the node has no shards; so `mps`.
        mig: profile of a MIG slice, e.g. `3g.20gb`; None for a whole GPU.
        since: epoch seconds at which that job started.
    """

    node: str
    index: int | None
    type: str | None
    state: State
    job_id: str | None = None
    user: str | None = None
    account: str | None = None
    shard: Sharing | None = None
    mps: Sharing | None = None
    mig: str | None = None
    since: int | None = None

    @property
    def sharers(self) -> tuple[Share, ...]:
        """The jobs that have parts of it."""
        return tuple(share for parts in (self.shard, self.mps) if parts for share in parts.by)


class GpuMap(msgspec.Struct, frozen=True):
    """All GPUs at one time.

    Attributes:
        gpus: by node in Slurm's order, then by index.
        nodes: all nodes, those without GPUs included.
        warnings: where Slurm's answers did not agree, in words; not escaped yet.
        taken: epoch seconds at which Slurm was asked.
        seconds: how long that and parsing took.
    """

    gpus: tuple[Gpu, ...]
    nodes: tuple[NodeRow, ...]
    warnings: tuple[str, ...]
    taken: float
    seconds: float
