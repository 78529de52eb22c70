"""A cluster for the planner that answers from recorded output."""

from __future__ import annotations

from recorded_lab import standing

from slurmkit.cluster.cluster import Cluster
from slurmkit.state.model import Standing


class Lab(Cluster):
    """The recorded cluster, where alice has no limits."""

    def standing(self, user: str | None = None) -> Standing:
        del user
        return standing()
