"""A person's jobs: those in the queue with the GPUs they hold, and those that ended lately."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from slurmkit.errors import NoSuchJob, Refused, SlurmError
from slurmkit.gpumap.claims import read_records
from slurmkit.gpumap.read import JOBS_ASKED
from slurmkit.jobs.info import JobInfo, parse_gpu_indices
from slurmkit.jobs.sacct import read_recent
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import QueueFilter, read_queue
from slurmkit.slurm import Slurm
from slurmkit.survive.history import restarts_of

_SINGLY = 8  # of so few jobs GPU indices are asked for one by one
DAYS = 2


class Mine(msgspec.Struct, frozen=True):
    """A person's jobs at one time.

    Attributes:
        rows: in the queue, in squeue's order.
        indices: GPU indices by node of those that hold whole GPUs, by raw id; a job that is
            missing there has none, or Slurm did not say.
        ended: of the last days, the last one first.
        wholes: the id that stands for an array in several of Slurm's, by those of its others.
        flows: what jobs are in the workflows that were sent from here: `digits/train`, by id.
        restarts: `restart 2: timeout` of those in the queue that came back, by id.
        without_history: why `ended` is not known; empty when it is.
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


def read_mine(slurm: Slurm, user: str, days: int = DAYS) -> Mine:
    """Ask squeue, scontrol and sacct for one person's jobs.

    Raises:
        SlurmError: when slurmctld does not answer; slurmdbd may be away.
    """
    taken, began = time.time(), time.perf_counter()
    rows = read_queue(slurm, QueueFilter(users=(user,))).rows
    holding = [row for row in rows if row.gpus and row.node_list and not row.waits]
    missing = ""
    ended: tuple[JobInfo, ...] = ()
    try:
        known = {row.raw_id for row in rows}
        runs = read_recent(slurm, user, int(taken) - days * 86400)
        ended = tuple(run for run in reversed(runs) if run.is_over and run.raw_id not in known)
    except SlurmError as error:
        missing = str(error)
    indices = _indices(slurm, holding)
    own = _remembered(slurm, taken - days * 86400)
    again = restarts_of(slurm, {row.job_id: row.waits for row in rows})
    return Mine(rows, indices, ended, missing, taken, time.perf_counter() - began, *own, again)


def _remembered(slurm: Slurm, since: float) -> tuple[dict[str, str], dict[str, str]]:
    """What was sent from here: `wholes` and `flows`."""
    from slurmkit.cluster import Cluster  # noqa: PLC0415 - it imports what this is part of
    from slurmkit.sweeps.records import firsts  # noqa: PLC0415
    from slurmkit.workflows.record import names  # noqa: PLC0415

    try:
        return firsts(Cluster(slurm), since), names(Cluster(slurm), since)
    except SlurmError:
        return {}, {}


def _indices(slurm: Slurm, rows: list[QueueRow]) -> dict[str, dict[str, list[int]]]:
    if len(rows) > _SINGLY:
        return _together(slurm, rows)
    found = {row.raw_id: _one(slurm, row) for row in rows}
    return {raw_id: indices for raw_id, indices in found.items() if indices}


def _one(slurm: Slurm, row: QueueRow) -> dict[str, list[int]]:
    try:
        said = slurm.run(["scontrol", "show", "job", "--details", row.raw_id])
    except (NoSuchJob, Refused):  # it has just ended
        return {}
    return parse_gpu_indices(said, row.node_list)


def _together(slurm: Slurm, rows: Iterable[QueueRow]) -> dict[str, dict[str, list[int]]]:
    """From every job's details at once; of one whose name forges details nothing is taken."""
    records = read_records(slurm.stream(JOBS_ASKED))
    found: dict[str, dict[str, list[int]]] = {}
    for row in rows:
        several = records.get(row.raw_id, ())
        if len(several) != 1:
            continue
        held: dict[str, list[int]] = {}
        for node, use in several[0]:
            if use.name == "gpu" and use.indices:
                held[node] = sorted({*held.get(node, ()), *use.indices})
        if held:
            found[row.raw_id] = held
    return found
