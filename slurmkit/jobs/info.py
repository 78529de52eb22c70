"""Facts of one job, from slurmctld or slurmdbd, and the paths of its output."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

import msgspec

from slurmkit.formats.filename_patterns import PatternValues, expand_pattern
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.state.gres import parse_gres_line, read_held_gres
from slurmkit.state.queue_rows import FINAL_STATES, QueueRow

UNKNOWN = "UNKNOWN"
"""State of a job that was once in the queue and that Slurm has forgotten."""


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one job.

    Attributes:
        state: Slurm's base state, e.g. RUNNING; UNKNOWN if Slurm has forgotten the job. For an
            array or het job: the state of the parts that have not ended, or else the worst state.
        reason: Slurm's reason, why the job waits or how it ended; empty once out of the queue.
        tres: allocated TRES; for an array or het job the sum over its parts, without memory.
        elapsed: run time as squeue prints it.
        submitted: epoch seconds, like `started` and `ended`; None when unknown.
        exit_code: `code:signal` once ended, where known; `72 or 200` where sacct, before 25.11,
            may have taken 128 off (see `slurmkit.jobs.exit_codes`).
        cancelled_by: name (or else uid) of the user who cancelled it; None when unknown.
        time_limit: as Slurm prints it; empty when unknown.
        tally: number of parts by state, for an array or het job; empty for any other.
        part: id of the part with `raw_id`, for an array or het job; the worst, once all have
            ended. Empty for any other job.
        output: path of the log with Slurm's patterns filled in; None when unknown.
        gpu_indices: GPU indices by node while the job holds them; empty when unknown.
        source: the command that gave the facts.
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
        """Whether the job has reached a final state."""
        return self.state in FINAL_STATES or self.state == UNKNOWN


def info_from_row(row: QueueRow) -> JobInfo:
    """Return the facts of a job from its squeue row."""
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
        # For a held job squeue's start time is only the earliest one allowed.
        started=None if row.waits and row.priority == 0 else row.started,
        time_limit=row.time_limit,
        output=output_path(row),
        source="squeue",
    )


def output_path(row: QueueRow) -> str | None:
    """Return the path of a job's output; None when it is unknown, or not known yet.

    Slurm also prints a path for the later components of a het job. Nobody writes there: the batch
    script runs in component 0. The result is None for them.
    """
    if "+" in row.job_id and not row.job_id.endswith("+0"):
        return None
    pattern = row.output
    if "_" in row.job_id and PurePosixPath(pattern).name == f"slurm-{row.raw_id}.out":
        # Slurm 22.05 prints a wrong default file for array tasks.
        pattern = str(PurePosixPath(pattern).with_name("slurm-%A_%a.out"))
    return fill_output_path(pattern, row, row.workdir)


def fill_output_path(
    pattern: str, job: QueueRow | JobInfo, workdir: str, rank: int | None = None
) -> str | None:
    """Fill in the filename pattern of an output path; None if it is empty or cannot be filled yet.

    Args:
        pattern: as Slurm prints it, absolute or relative to `workdir`.
        job: the job that writes the file.
        workdir: the job's working directory.
        rank: the rank of a step that writes the file; None for the batch script.
    """
    if pattern in {"", "(null)"}:
        return None
    node = None
    if "N" in pattern:  # %N is rare, and ClusterShell takes time
        nodes = expand_nodes(job.node_list)
        # The batch script runs on the first node; a rank's node is known if there is only one.
        node = next(iter(nodes), None) if rank is None or len(nodes) == 1 else None
    filled = expand_pattern(
        pattern, PatternValues(job.job_id, job.raw_id, job.name, job.user, node, rank)
    )
    return filled and str(PurePosixPath(workdir, filled))


def parse_gpu_indices(text: str, node_list: str) -> dict[str, list[int]]:
    """Parse GPU indices by node from `scontrol show job -d`, for the nodes in `node_list`."""
    own = expand_nodes(node_list)
    held: dict[str, set[int]] = {}
    for line in filter(None, map(parse_gres_line, text.split("\n"))):
        for node, use in read_held_gres([line], own) or ():
            if use.name == "gpu" and use.indices:
                held.setdefault(node, set()).update(use.indices)
    return {node: sorted(indices) for node, indices in held.items()}
