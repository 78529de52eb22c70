"""A last look at a job, directly before something is done about it.

A round judges all jobs first and then acts on one after another, and an act may wait for slurmctld
for minutes. Meanwhile the user may have asked to leave the job alone, or its GPUs may work again.
The samples of the last hour are looked at one by one here, not as the points of a curve.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from slurmkit_accounting.gpu_use.exporters import EXPORTER
from slurmkit_accounting.gpu_use.recent import RETENTION_SECONDS, load_samples
from slurmkit_accounting.gpu_use.store import load_open_ids
from slurmkit_accounting.reclaim.acts import load_keeps
from slurmkit_accounting.reclaim.idleness import needed_gpus
from slurmkit_accounting.reclaim.policy import ReclaimJob, ReclaimPolicy

_LEFT_ALONE = "its user asked to leave it alone"
_WORKS = "its GPUs worked again"


def keep_until(
    keeps: Mapping[tuple[int, int], tuple[int, str]], job: ReclaimJob, policy: ReclaimPolicy
) -> float:
    """Return when a user's "leave it" ends, epoch seconds; 0 without one."""
    keep = keeps.get((job.job_id_raw, -1 if job.uid is None else job.uid))
    return 0.0 if keep is None else keep[0] + 3600.0 * policy.keep_hours


def why_not_now(
    connection: Connection, job: ReclaimJob, policy: ReclaimPolicy, since: float, at: float
) -> str:
    """Return why nothing may be done about a job after all; empty if nothing speaks against it.

    Args:
        connection: to the ledger.
        job: the run.
        policy: the policy that decides about it.
        since: its GPUs must not have worked from then on; at most the last hour is known.
        at: epoch seconds.
    """
    keeps = load_keeps(connection, job.cluster_id, [job.job_id_raw])
    if at < keep_until(keeps, job, policy):
        return _LEFT_ALONE
    begin = max(since, at - RETENTION_SECONDS)
    return _WORKS if _has_worked(connection, job, policy, begin) else ""


def _has_worked(
    connection: Connection, job: ReclaimJob, policy: ReclaimPolicy, since: float
) -> bool:
    """Return whether too many of a run's GPUs have a sample of work from a time on."""
    known = load_open_ids(connection, job.cluster_id, EXPORTER, [job.job_id_raw])
    nodes = {use_id: node for (_, start, node, _), use_id in known.items() if start == job.start}
    if not nodes:
        return False
    samples = load_samples(connection, since, cluster=job.cluster_id, nodes=set(nodes.values()))
    worked = {
        sample.use_id
        for sample in samples
        if sample.use_id in nodes
        and sample.reading.utilization is not None
        and sample.reading.utilization >= policy.below
    }
    return job.gpus - len(worked) < needed_gpus(job, policy)
