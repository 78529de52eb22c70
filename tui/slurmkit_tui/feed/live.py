"""The feed of a live cluster. All calls block, so they run in threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurmkit.errors import BadInput
from slurmkit.slurm.machine import machine_of
from slurmkit_tui.feed import FeedAnswer, FeedQuestion

if TYPE_CHECKING:
    from slurmkit.cluster.cluster import Cluster
    from slurmkit.planning.planner import Plan


class LiveFeed:
    """A feed that asks Slurm, and runs the commands that the person confirmed; see `Feed`."""

    writable = True

    def __init__(self, cluster: Cluster, me: str | None = None, name: str = "") -> None:
        self._cluster = cluster
        self.me = me or login_name(cluster)
        self.name = name

    @property
    def calls(self) -> int:
        return self._cluster.slurm.calls

    def fetch(self, ask: FeedQuestion) -> FeedAnswer:
        from slurmkit_tui.feed.kinds import ClusterReader, read_answer  # noqa: PLC0415 - after the first paint

        return read_answer(ClusterReader(self._cluster, self.me), ask)

    def run(self, argv: Sequence[str]) -> str:
        return self._cluster.slurm.run(argv)

    def attach(self, argv: Sequence[str]) -> int:
        return self._cluster.attach(argv)

    def submit(self, plan: Plan) -> str:
        return self._cluster.submit(plan).id


def login_name(cluster: Cluster) -> str:
    """Return the login name on the cluster, or the uid of an account without a name."""
    try:
        return machine_of(cluster.slurm).user
    except BadInput:
        return str(os.getuid())
