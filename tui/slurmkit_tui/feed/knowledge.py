"""Cached cluster data for the form: capabilities and associations, for the whole session."""

from __future__ import annotations

import threading

import msgspec

from slurmkit.state.model import Capabilities, Standing
from slurmkit_tui.feed import Feed, FeedQuestion

_LONG = 600.0  # seconds until the data is read again
_DOUBTED = 60.0  # the same, when the plan has errors


class ClusterData(msgspec.Struct, frozen=True):
    """Capabilities of a cluster, and the person's associations and limits."""

    capabilities: Capabilities
    standing: Standing

    @property
    def taken(self) -> float:
        """Epoch seconds at which limits and their use were read."""
        return self.standing.taken


class ClusterDataCache:
    """A cache of cluster data. Its methods block while Slurm is asked."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._lock = threading.Lock()
        self._known: ClusterData | None = None

    def known(self, now: float) -> ClusterData:
        """Return data that is at most ten minutes old.

        Raises:
            SlurmkitError: when Slurm does not answer.
        """
        with self._lock:
            if self._known is None or now - self._known.taken > _LONG:
                self._known = self._feed.fetch(FeedQuestion("known")).value
            return self._known

    def read_again(self, known: ClusterData, now: float) -> ClusterData:
        """Return data that is at most one minute old, for a job that does not fit.

        Raises:
            SlurmkitError: when Slurm does not answer.
        """
        with self._lock:
            if self._known is known and now - known.taken > _DOUBTED:
                self._known = self._feed.fetch(FeedQuestion("known", ("now",))).value
            return self._known or known
