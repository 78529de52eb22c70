"""When there is room for a job, by our own reckoning: free nodes, ends of jobs, and plans.

Slurm's `sbatch --test-only` looks at running jobs alone. We also keep clear of reservations and of
what backfill has planned for pending jobs, whose nodes it keeps whole for them, whatever part of
them they want: only then a job that is changed starts as said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from slurmkit.capabilities.model import Tres
from slurmkit.capabilities.nodes import node_names
from slurmkit.queue import QueueRow
from slurmkit.why.room import capacity, counted, free_of
from slurmkit.why.scene import Scene, ends_by, holds_nodes, limit_seconds, share

_SOON = 60  # seconds; what ends at no known time, or should have ended, is given as long
_FAR = 2**40
_TIMES = 60  # later ends than these are not tried


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

    def fits(self, need: Need, start: int) -> bool:
        """Whether there is room from `start` on for as long as it is needed."""
        end = start + (need.seconds or _FAR)
        if any(begin < end and start < over for begin, over in self.closed):
            return False
        wanted = self.whole if need.exclusive else counted(need.per_node)
        return all(self.free_at(name, start) >= amount for name, amount in wanted.items())

    def free_at(self, name: str, at: int) -> int:
        """How much of one TRES is free at a time."""
        freed = sum(amounts.get(name, 0) for end, amounts in self.comes_free if end <= at)
        return min(self.whole.get(name, 0), self.free.get(name, 0) + freed)

    def room_until(self, need: Need, now: int) -> int:
        """Until when there is room from now on; `now` when there is none."""
        if not self.fits(msgspec.structs.replace(need, seconds=1), now):
            return now
        return min((begin for begin, _ in self.closed if begin > now), default=_FAR)


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
        at = self.now if gives_way else end
        for track in self._of(node_names(row.node_list)):
            track.comes_free.append((at, share(row)))

    def _add_plan(self, row: QueueRow, nodes: str) -> None:
        start = max(self.now, row.started or self.now)
        self._close(node_names(nodes), start, start + (limit_seconds(row) or _FAR))

    def _close(self, nodes: Iterable[str], start: int, end: int) -> None:
        for track in self._of(nodes):
            track.closed.append((start, end))

    def _of(self, names: Iterable[str]) -> list[_Track]:
        return [self._tracks[name] for name in names if name in self._tracks]

    def earliest(self, need: Need, before: int) -> int | None:
        """The first time, before that limit, at which there is room; None for none."""
        tracks = self._of(need.names)
        if len(tracks) < need.nodes:
            return None
        for at in self._times(tracks, before):
            if sum(track.fits(need, at) for track in tracks) >= need.nodes:
                return at
        return None

    def _times(self, tracks: list[_Track], before: int) -> list[int]:
        ends = {end for track in tracks for end, _ in track.comes_free}
        ends |= {end for track in tracks for _, end in track.closed}
        return [self.now, *sorted(end for end in ends if self.now < end < before)[:_TIMES]]

    def longest(self, need: Need) -> int:
        """Seconds for which there is room from now on; 0 for none."""
        tracks = self._of(need.names)
        ends = sorted((track.room_until(need, self.now) for track in tracks), reverse=True)
        return ends[need.nodes - 1] - self.now if len(ends) >= need.nodes else 0

    def count(self, need: Need) -> int:
        """How many nodes have room now."""
        return sum(track.fits(need, self.now) for track in self._of(need.names))

    def free(self, need: Need) -> dict[str, Tres]:
        """What is free now on each node that may serve."""
        now = self.now
        return {
            name: {n: track.free_at(n, now) for n in track.whole}
            for name in need.names
            if (track := self._tracks.get(name))
        }
