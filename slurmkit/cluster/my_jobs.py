"""All jobs of one user: those in the queue with the GPUs they hold, and those that just ended."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.sweeps import load_first_ids
from slurmkit.cluster.workflow_record import load_workflow_names
from slurmkit.errors import SlurmError
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.jobs.accounting_records import read_user_runs
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.run_history import read_restarts
from slurmkit.jobs.steps import DAYS
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.gpumap import read_claim_records
from slurmkit.state.gres import read_held_gres
from slurmkit.state.queue import QueueFilter, read_queue
from slurmkit.state.queue_rows import QueueRow


class MyJobs(msgspec.Struct, frozen=True):
    """One user's jobs at one time.

    Attributes:
        rows: jobs in the queue, in squeue's order.
        indices: GPU indices by raw id and node, for jobs that hold whole GPUs; a job that is
            missing here has none, or Slurm did not say.
        ended: ended jobs of the last days, latest first.
        wholes: for an array split into several Slurm arrays, the first id by each other id.
        flows: workflow and job, e.g. `digits/train`, by id, of workflows sent from here.
        restarts: e.g. `restart 2: timeout`, by id, of restarted jobs in the queue.
        without_history: why `ended` is unknown; empty when it is known.
        taken: epoch seconds at which Slurm was asked.
        seconds: how long the answers took.
    """

    rows: tuple[QueueRow, ...]
    indices: dict[str, dict[str, list[int]]]
    ended: tuple[JobInfo, ...]
    without_history: str
    taken: float
    seconds: float
    wholes: dict[str, str] = msgspec.field(default_factory=dict)
    flows: dict[str, str] = msgspec.field(default_factory=dict)
    restarts: dict[str, str] = msgspec.field(default_factory=dict)


def read_my_jobs(slurm: SlurmCommands, user: str, days: int = DAYS) -> MyJobs:
    """Read one user's jobs from squeue, scontrol and sacct.

    Raises:
        SlurmError: when slurmctld does not answer. slurmdbd may be down.
    """
    began = time.perf_counter()
    queue = read_my_queue(slurm, user, days)
    mine = with_ended(queue, read_my_ended(slurm, user, days))
    holding = [row for row in queue.rows if row.gpus and row.node_list and not row.waits]
    indices = _read_indices(slurm, holding)
    return msgspec.structs.replace(mine, indices=indices, seconds=time.perf_counter() - began)


def read_my_queue(slurm: SlurmCommands, user: str, days: int = DAYS) -> MyJobs:
    """Read one user's jobs in the queue from squeue alone: no GPU indices, no ended jobs.

    Args:
        slurm: the cluster's commands.
        user: login name.
        days: how far back our own records of what was sent are read.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    taken, began = time.time(), time.perf_counter()
    rows = read_queue(slurm, QueueFilter(users=(user,))).rows
    wholes, flows = _load_records(slurm, taken - days * 86400)
    restarts = read_restarts(slurm, {row.job_id: row.waits for row in rows})
    seconds = time.perf_counter() - began
    return MyJobs(rows, {}, (), "", taken, seconds, wholes, flows, restarts)


def read_my_ended(slurm: SlurmCommands, user: str, days: int = DAYS) -> MyJobs:
    """Read one user's ended jobs from sacct alone; `without_history` says if it does not answer."""
    taken, began = time.time(), time.perf_counter()
    ended: tuple[JobInfo, ...] = ()
    missing = ""
    try:
        runs = read_user_runs(slurm, user, int(taken) - days * 86400)
        ended = tuple(run for run in reversed(runs) if run.is_over)
    except SlurmError as error:
        missing = str(error)
    return MyJobs((), {}, ended, missing, taken, time.perf_counter() - began)


def with_ended(queue: MyJobs, ended: MyJobs) -> MyJobs:
    """Return the jobs in the queue with the ended ones; earlier runs of the former are left out."""
    known = {row.raw_id for row in queue.rows}
    return msgspec.structs.replace(
        queue,
        ended=tuple(run for run in ended.ended if run.raw_id not in known),
        without_history=ended.without_history,
    )


def _load_records(slurm: SlurmCommands, since: float) -> tuple[dict[str, str], dict[str, str]]:
    """Load `MyJobs.wholes` and `MyJobs.flows` from our own records of what was sent."""
    cluster = Cluster(slurm)
    try:
        return load_first_ids(cluster, since), load_workflow_names(cluster, since)
    except SlurmError:
        return {}, {}


def _read_indices(
    slurm: SlurmCommands, rows: Sequence[QueueRow]
) -> dict[str, dict[str, list[int]]]:
    """Read the GPU indices of jobs.

    A job with several records is left out: its name may have forged one.
    """
    records = read_claim_records(slurm, [row.raw_id for row in rows])
    indices: dict[str, dict[str, list[int]]] = {}
    for row in rows:
        own_records = records.get(row.raw_id, ())
        if len(own_records) != 1:
            continue
        held: dict[str, list[int]] = {}
        for node, use in read_held_gres(own_records[0], expand_nodes(row.node_list)) or ():
            if use.name == "gpu" and use.indices:
                held[node] = sorted({*held.get(node, ()), *use.indices})
        if held:
            indices[row.raw_id] = held
    return indices
