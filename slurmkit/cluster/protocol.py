"""What sweeps, workflows, secrets and reservations use of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from slurmkit.jobs.job import Job, JobCluster

if TYPE_CHECKING:
    from slurmkit.jobs.backends.commands import SubmitOverrides
    from slurmkit.planning.planner import Plan
    from slurmkit.state.model import Standing
    from slurmkit.state.queue import Queue, QueueFilter


class Submitter(JobCluster, Protocol):
    """A cluster that jobs are sent to; `Cluster` is one."""

    def submit(
        self,
        plan: Plan,
        *,
        force: bool = False,
        overrides: SubmitOverrides = ...,
        again: str | None = None,
    ) -> Job:
        """Send a plan; see `Cluster.submit`."""
        ...

    def queue(self, only: QueueFilter | None = None, *, user: str | None = None) -> Queue:
        """Take a snapshot of the queue; see `Cluster.queue`."""
        ...

    def standing(self, user: str | None = None) -> Standing:
        """Return a user's limits and their use; see `Cluster.standing`."""
        ...
