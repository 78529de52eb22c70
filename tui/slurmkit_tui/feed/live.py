"""A live cluster behind the screen. Everything here blocks; it is called in threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurmkit.errors import BadInput
from slurmkit.machine import machine_of
from slurmkit_tui.feed import Answer, Ask

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster
    from slurmkit.planner import Plan


class LiveFeed:
    """Asks Slurm for what the screen shows, and runs what the person confirmed; see `Feed`."""

    writable = True

    def __init__(self, cluster: Cluster, me: str | None = None, name: str = "") -> None:
        self._cluster = cluster
        self.me = me or login_name(cluster)
        self.name = name

    @property
    def calls(self) -> int:
        """See `Feed.calls`."""
        return self._cluster.slurm.calls

    def fetch(self, ask: Ask) -> Answer:
        """See `Feed.fetch`."""
        from slurmkit_tui.feed.kinds import Asker, answer  # noqa: PLC0415 - after the first paint

        return answer(Asker(self._cluster, self.me), ask)

    def run(self, argv: Sequence[str]) -> str:
        """See `Feed.run`."""
        return self._cluster.slurm.run(argv)

    def attach(self, argv: Sequence[str]) -> int:
        """See `Feed.attach`."""
        return self._cluster.attach(argv)

    def submit(self, plan: Plan) -> str:
        """See `Feed.submit`."""
        return self._cluster.submit(plan).id


def login_name(cluster: Cluster) -> str:
    """Name of who asks there, or the number of one that has none."""
    try:
        return machine_of(cluster.slurm).user
    except BadInput:
        return str(os.getuid())
