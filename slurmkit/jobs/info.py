"""One job as Slurm knows it now, whichever of its daemons said so."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

import msgspec
from ClusterShell.NodeSet import NodeSet

from slurmkit.jobs.nodes import held_on
from slurmkit.patterns import OutputFacts, expand
from slurmkit.queue.rows import ENDED, QueueRow

UNKNOWN = "UNKNOWN"
"""State of a job that was in the queue and that neither slurmctld nor slurmdbd knows any more."""


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one job.

    Attributes:
        state: Slurm's base state, e.g. RUNNING; of an array or het job the worst of its ended
            parts once all have ended, before that the state of what has not; UNKNOWN for a job that
            Slurm has forgotten.
        reason: why it waits or how it ended, in Slurm's word; empty once it has left the queue.
        tres: allocated TRES; of an array or het job what its parts hold together, without memory.
        elapsed: run time as squeue prints it.
        submitted: epoch seconds, like `started` and `ended`; None when unknown.
        exit_code: `code:signal` once ended, where known.
        cancelled_by: user who cancelled it, by name or else number; None when Slurm does not say.
        time_limit: as Slurm prints it; empty when unknown.
        tally: number of parts by state, of an array or het job; empty for any other.
        part: id of one of its parts, of an array or het job; empty for any other.
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
    cancelled_by: str | None = None
    time_limit: str = ""
    tally: dict[str, int] = msgspec.field(default_factory=dict)
    part: str = ""
    output: str | None = None
    gpu_indices: dict[str, list[int]] = msgspec.field(default_factory=dict)
    source: Literal["squeue", "sacct"]

    @property
    def is_over(self) -> bool:
        """Whether the job has reached a state it does not leave."""
        return self.state in ENDED or self.state == UNKNOWN


def from_queue(row: QueueRow) -> JobInfo:
    """Take what squeue says of a job."""
    return JobInfo(
        job_id=row.job_id,
        raw_id=row.raw_id,
        name=row.name,
        user=row.user,
        account=row.account,
        partition=row.partition,
        state="PENDING" if row.waits else row.state,
        reason=row.reason,
        node_list=row.node_list,
        tres=row.tres,
        elapsed=row.time_used,
        submitted=row.submitted,
        # Of a held job it is only the time before which it may not start.
        started=None if row.waits and row.priority == 0 else row.started,
        time_limit=row.time_limit,
        output=output_path(row),
        source="squeue",
    )


def output_path(row: QueueRow) -> str | None:
    """Where a job's output goes, or None when Slurm does not say (yet).

    It says so too of a het job's further components, in which no script runs: nobody writes there.
    """
    if "+" in row.job_id and not row.job_id.endswith("+0"):
        return None
    pattern = row.output
    if "_" in row.job_id and PurePosixPath(pattern).name == f"slurm-{row.raw_id}.out":
        # Slurm 22.05 names the default file of an array's tasks wrongly.
        pattern = str(PurePosixPath(pattern).with_name("slurm-%A_%a.out"))
    return path_of(pattern, row, row.workdir)


def path_of(
    pattern: str, job: QueueRow | JobInfo, workdir: str, rank: int | None = None
) -> str | None:
    """Fill in the pattern of a path as Slurm prints it; None for none, and while it is unknown.

    Args:
        pattern: absolute, or relative to `workdir`.
        job: whose.
        workdir: where it started.
        rank: of the process of a step whose file it is; None for the batch script's.
    """
    if pattern in {"", "(null)"}:
        return None
    node = _its_node(job.node_list, rank) if "N" in pattern else None  # %N is rare, and takes time
    filled = expand(pattern, OutputFacts(job.job_id, job.raw_id, job.name, job.user, node, rank))
    return filled and str(PurePosixPath(workdir, filled))


def _its_node(node_list: str, rank: int | None) -> str | None:
    """Where the batch script runs, or a rank where there is only one node."""
    nodes = NodeSet(node_list)
    return next(iter(nodes), None) if rank is None or len(nodes) == 1 else None


def parse_gpu_indices(text: str, node_list: str) -> dict[str, list[int]]:
    """GPU indices by node from `scontrol show job -d`, for the nodes in `node_list` only."""
    own = set(NodeSet(node_list))
    held: dict[str, set[int]] = {}
    for line in text.split("\n"):
        for node, use in held_on(line):
            if node in own and use.name == "gpu" and use.indices:
                held.setdefault(node, set()).update(use.indices)
    return {node: sorted(indices) for node, indices in held.items()}
