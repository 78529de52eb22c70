"""What is known of a cluster while a form is filled in: asked for seldom, kept for the session."""

from __future__ import annotations

import threading

import msgspec

from slurmkit.capabilities.model import Capabilities, Standing
from slurmkit_tui.feed import Ask, Feed

_LONG = 600.0  # seconds that it is good for
_DOUBTED = 60.0  # seconds that it is good for when something does not fit


class Known(msgspec.Struct, frozen=True):
    """A cluster, and where the person stands in it."""

    capabilities: Capabilities
    standing: Standing

    @property
    def taken(self) -> float:
        """Epoch seconds at which limits and their use were asked for."""
        return self.standing.taken


class Knowledge:
    """Keeps what a cluster said; blocks while it is asked."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._lock = threading.Lock()
        self._known: Known | None = None

    def known(self, now: float) -> Known:
        """What is known, not older than ten minutes.

        Raises:
            SlurmkitError: when the cluster does not say.
        """
        with self._lock:
            if self._known is None or now - self._known.taken > _LONG:
                self._known = self._feed.fetch(Ask("known")).value
            return self._known

    def doubted(self, known: Known, now: float) -> Known:
        """The same again where it is new enough, else as the cluster is now.

        Raises:
            SlurmkitError: when the cluster does not say.
        """
        with self._lock:
            if self._known is known and now - known.taken > _DOUBTED:
                self._known = self._feed.fetch(Ask("known", ("now",))).value
            return self._known or known
