"""One job as Slurm knows it now, whichever of its daemons said so."""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from ClusterShell.NodeSet import NodeSet
from ClusterShell.RangeSet import RangeSet

from slurmkit.patterns import OutputFacts, expand
from slurmkit.queue import ENDED, QueueRow

# `     Nodes=c[1-2] CPU_IDs=0 Mem=1024 GRES=gpu:a100:2(IDX:0-1)` in `scontrol show job -d`.
_NODE_LINE = re.compile(r"^ {5}Nodes=(?P<nodes>\S+) CPU_IDs=.* GRES=(?P<gres>\S*)", re.MULTILINE)
_GPU_INDEX = re.compile(r"gpu:(?:[^:(,]+:)?\d+\(IDX:(?P<indices>[\d,\-]+)\)")


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one job.

    Attributes:
        state: Slurm's base state, e.g. RUNNING.
        reason: why it waits, in Slurm's word; empty once it has left the queue.
        tres: allocated TRES.
        elapsed: run time as Slurm prints it.
        submitted: epoch seconds, like `started` and `ended`; None when unknown.
        exit_code: `code:signal` once ended.
        output: path of the log with Slurm's patterns filled in, or None when unknown.
        gpu_indices: GPU indices by node while the job holds them; empty when Slurm does not say.
        source: the command the facts were read from.
    """

    job_id: str
    raw_id: str
    name: str
    user: str
    account: str
    partition: str
    state: str
    reason: str = ""
    node_list: str
    tres: str
    elapsed: str
    submitted: int | None
    started: int | None
    ended: int | None = None
    exit_code: str | None = None
    output: str | None = None
    gpu_indices: dict[str, list[int]] = msgspec.field(default_factory=dict)
    source: Literal["squeue", "sacct"]

    @property
    def is_over(self) -> bool:
        """Whether the job has reached a state it does not leave."""
        return self.state in ENDED


def from_queue(row: QueueRow, gpu_indices: dict[str, list[int]]) -> JobInfo:
    """Take what squeue says of a job."""
    return JobInfo(
        job_id=row.job_id,
        raw_id=row.raw_id,
        name=row.name,
        user=row.user,
        account=row.account,
        partition=row.partition,
        state=row.state,
        reason=row.reason,
        node_list=row.node_list,
        tres=row.tres,
        elapsed=row.time_used,
        submitted=row.submitted,
        started=row.started,
        output=output_path(row),
        gpu_indices=gpu_indices,
        source="squeue",
    )


def output_path(row: QueueRow) -> str | None:
    """Where a job's output goes, or None when Slurm does not say (yet)."""
    return fill_in(row.output, row) if row.output else None


def fill_in(pattern: str, job: QueueRow | JobInfo) -> str | None:
    """Fill in the patterns of an output path with a job's facts."""
    first = next(iter(NodeSet(job.node_list)), None)
    return expand(pattern, OutputFacts(job.job_id, job.raw_id, job.name, job.user, first))


def parse_gpu_indices(text: str, node_list: str) -> dict[str, list[int]]:
    """GPU indices by node from `scontrol show job -d`, for the nodes in `node_list` only."""
    own = NodeSet(node_list)
    held: dict[str, list[int]] = {}
    for line in _NODE_LINE.finditer(text):
        ranges = RangeSet(",".join(m["indices"] for m in _GPU_INDEX.finditer(line["gres"])) or None)
        for node in NodeSet(line["nodes"]) & own if ranges else ():
            held[node] = list(ranges.intiter())
    return held
