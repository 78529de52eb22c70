"""When there is room for a job, by our own reckoning: free nodes, ends of jobs, and plans.

Slurm's `sbatch --test-only` looks at running jobs alone. We also keep clear of reservations and of
what backfill has planned for pending jobs, whose nodes it keeps whole for them, whatever part of
them they want: only then a job that is changed starts as said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from slurmkit.capabilities.model import Tres
from slurmkit.queue.rows import QueueRow
from slurmkit.why.room import capacity, counted, free_of
from slurmkit.why.scene import Scene, ends_by, holds_nodes, limit_seconds, nodes_of, share

_SOON = 60  # seconds; what ends at no known time, or should have ended, is given as long
_FAR = 2**40


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What has to fit.

    Attributes:
        nodes: how many.
        per_node: TRES on each.
        seconds: for how long; None for ever.
        names: the nodes that may serve.
        exclusive: whether nothing else may run there.
    """

    nodes: int
    per_node: Tres
    seconds: int | None
    names: frozenset[str]
    exclusive: bool = False


class _Track(msgspec.Struct):
    """One node: what is free now, what comes free when, and from when to when it is closed."""

    whole: Tres
    free: Tres
    comes_free: list[tuple[int, Tres]]
    closed: list[tuple[int, int]]

    def wanted(self, need: Need) -> Tres:
        """What has to be free of it."""
        return self.whole if need.exclusive else counted(need.per_node)

    def free_from(self, need: Need, now: int) -> int | None:
        """Since when enough is free, plans and reservations aside; None for never."""
        missing = {
            name: amount - self.free.get(name, 0)
            for name, amount in self.wanted(need).items()
            if amount > self.free.get(name, 0)
        }
        at = now
        for end, amounts in sorted(self.comes_free, key=lambda pair: pair[0]):
            if not missing:
                break
            at = max(now, end)
            missing = {n: left for n, v in missing.items() if (left := v - amounts.get(n, 0)) > 0}
        return None if missing or at >= _FAR else at

    def is_open(self, start: int, end: int) -> bool:
        """Whether nothing is planned or reserved there then."""
        return not any(begin < end and start < over for begin, over in self.closed)


class Windows:
    """The nodes over time.

    Args:
        scene: of the pending job that would be changed.
        planned: node lists that backfill has planned for pending jobs, by Slurm's job number.
        gives_way: whether a running job would be preempted for it.
        comes_first: whether a pending job keeps its plan.
    """

    def __init__(
        self,
        scene: Scene,
        planned: dict[str, str],
        gives_way: Callable[[QueueRow], bool] = lambda _: False,
        comes_first: Callable[[QueueRow], bool] = lambda _: True,
    ) -> None:
        self.now = int(scene.taken)
        self._tracks = {
            node.name: _Track(capacity(node), free_of(node), [], [])
            for node in scene.nodes
            if node.usable
        }
        for row in scene.rows:
            if holds_nodes(row):
                self._add_end(row, gives_way=gives_way(row))
            elif row.raw_id in planned and row.raw_id != scene.job.raw_id and comes_first(row):
                self._add_plan(row, planned[row.raw_id])
        for each in scene.reservations:
            if each.name != scene.job.reservation:
                self._close(each.nodes, each.start, each.end)

    def _add_end(self, row: QueueRow, *, gives_way: bool) -> None:
        end = ends_by(row) or _FAR
        if row.state == "COMPLETING" or end <= self.now:
            end = self.now + _SOON
        amounts = share(row)
        for track in self._of(nodes_of(row.node_list)):
            track.comes_free.append((self.now if gives_way else end, amounts))

    def _add_plan(self, row: QueueRow, nodes: str) -> None:
        start = max(self.now, row.started or self.now)
        self._close(nodes_of(nodes), start, start + (limit_seconds(row) or _FAR))

    def _close(self, nodes: Iterable[str], start: int, end: int) -> None:
        for track in self._of(nodes):
            track.closed.append((start, end))

    def _of(self, names: Iterable[str]) -> list[_Track]:
        return [self._tracks[name] for name in names if name in self._tracks]

    def _ready(self, need: Need, before: int) -> list[tuple[int, _Track]]:
        """The nodes where enough comes free in time, and since when."""
        found = ((track.free_from(need, self.now), track) for track in self._of(need.names))
        return [(at, track) for at, track in found if at is not None and at < before]

    def earliest(self, need: Need, before: int) -> int | None:
        """The first time, before that limit, at which there is room; None for none."""
        ready = self._ready(need, before)
        if len(ready) < need.nodes:
            return None
        times = {at for at, _ in ready} | {over for _, track in ready for _, over in track.closed}
        length = need.seconds or _FAR
        for at in sorted(time for time in times if self.now <= time < before):
            open_ = sum(since <= at and track.is_open(at, at + length) for since, track in ready)
            if open_ >= need.nodes:
                return at
        return None

    def longest(self, need: Need) -> int:
        """Seconds for which there is room from now on; 0 for none."""
        ready = [track for _, track in self._ready(need, self.now + 1)]
        free = [track for track in ready if track.is_open(self.now, self.now + 1)]
        begins = [
            min((begin for begin, _ in track.closed if begin > self.now), default=_FAR)
            for track in free
        ]
        begins.sort(reverse=True)
        return begins[need.nodes - 1] - self.now if len(begins) >= need.nodes else 0

    def count(self, need: Need) -> int:
        """How many nodes have room now."""
        end = self.now + (need.seconds or _FAR)
        return sum(track.is_open(self.now, end) for _, track in self._ready(need, self.now + 1))

    def free(self, need: Need) -> list[Tres]:
        """What is free now on each node that may serve."""
        now = [t for t in self._of(need.names) if t.is_open(self.now, self.now + 1)]
        return [track.free for track in now]
