"""Free resources of the nodes, now and later: running jobs, backfill plans, reservations.

`sbatch --test-only` considers running jobs only. These estimates also respect reservations and the
plans of backfill. Backfill keeps a planned node whole, however little of it the planned job wants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from slurmkit.diagnose.snapshot import (
    PendingSnapshot,
    expand_node_list,
    holds_nodes,
    latest_end,
    time_limit_seconds,
    tres_per_node,
)
from slurmkit.formats import display
from slurmkit.formats.tres import Tres, format_tres, tres_name
from slurmkit.planning.request import satisfies
from slurmkit.state.nodes import NodeRow, PartCount
from slurmkit.state.queue_rows import QueueRow

_SOON = 60  # seconds left to a job that is completing or past its time limit
_FAR = 2**40


class ResourceNeed(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a job needs to start.

    Attributes:
        nodes: number of nodes.
        per_node: TRES on each node.
        seconds: length of the run; None for no limit.
        names: the nodes it may use.
        exclusive: whether it needs whole nodes.
    """

    nodes: int
    per_node: Tres
    seconds: int | None
    names: frozenset[str]
    exclusive: bool = False


class _NodeTimeline(msgspec.Struct):
    """The timeline of one node.

    Attributes:
        whole: TRES of the whole node.
        free: TRES that are free now.
        comes_free: when jobs end (epoch seconds), and the TRES that each frees.
        closed: intervals (epoch seconds) that a plan or a reservation takes.
    """

    whole: Tres
    free: Tres
    comes_free: list[tuple[int, Tres]]
    closed: list[tuple[int, int]]

    def wanted(self, need: ResourceNeed) -> Tres:
        """Return the TRES that must be free on this node."""
        return self.whole if need.exclusive else consumable_tres(need.per_node)

    def free_from(self, need: ResourceNeed, now: int) -> int | None:
        """Return from when enough is free, ignoring plans and reservations; None for never."""
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
        """Return whether no plan and no reservation overlaps the interval."""
        return not any(begin < end and start < over for begin, over in self.closed)


class NodeTimelines:
    """The timelines of all usable nodes, as one pending job would meet them.

    Args:
        snapshot: the snapshot of that job.
        planned: node lists that backfill has planned for pending jobs, by raw job id.
        gives_way: returns whether a running job would be preempted for this one.
        comes_first: returns whether a pending job keeps its plan.
    """

    def __init__(
        self,
        snapshot: PendingSnapshot,
        planned: dict[str, str],
        gives_way: Callable[[QueueRow], bool] = lambda _: False,
        comes_first: Callable[[QueueRow], bool] = lambda _: True,
    ) -> None:
        self.now = int(snapshot.taken)
        self._tracks = {
            node.name: _NodeTimeline(node_capacity(node), free_tres(node), [], [])
            for node in snapshot.nodes
            if node.usable
        }
        for row in snapshot.rows:
            if holds_nodes(row):
                self._add_end(row, gives_way=gives_way(row))
            elif row.raw_id in planned and row.raw_id != snapshot.job.raw_id and comes_first(row):
                start = max(self.now, row.started or self.now)
                end = start + (time_limit_seconds(row) or _FAR)
                self._close(expand_node_list(planned[row.raw_id]), start, end)
        for each in snapshot.reservations:
            if each.name != snapshot.job.reservation:
                self._close(each.nodes, each.start, each.end)

    def _add_end(self, row: QueueRow, *, gives_way: bool) -> None:
        end = latest_end(row) or _FAR
        if row.state == "COMPLETING" or end <= self.now:
            end = self.now + _SOON
        amounts = tres_per_node(row)
        for track in self._of(expand_node_list(row.node_list)):
            track.comes_free.append((self.now if gives_way else end, amounts))

    def _close(self, nodes: Iterable[str], start: int, end: int) -> None:
        for track in self._of(nodes):
            track.closed.append((start, end))

    def _of(self, names: Iterable[str]) -> list[_NodeTimeline]:
        return [self._tracks[name] for name in names if name in self._tracks]

    def _ready(self, need: ResourceNeed, before: int) -> list[tuple[int, _NodeTimeline]]:
        """Return the nodes where enough is free in time, each with the time from when."""
        found = ((track.free_from(need, self.now), track) for track in self._of(need.names))
        return [(at, track) for at, track in found if at is not None and at < before]

    def earliest_start(self, need: ResourceNeed, before: int) -> int | None:
        """Return the first start time before the epoch time `before`; None if there is none."""
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

    def longest(self, need: ResourceNeed) -> int:
        """Return for how many seconds from now the need can be met; 0 if it cannot."""
        ready = [track for _, track in self._ready(need, self.now + 1)]
        free = [track for track in ready if track.is_open(self.now, self.now + 1)]
        begins = [
            min((begin for begin, _ in track.closed if begin > self.now), default=_FAR)
            for track in free
        ]
        begins.sort(reverse=True)
        return begins[need.nodes - 1] - self.now if len(begins) >= need.nodes else 0

    def count(self, need: ResourceNeed) -> int:
        """Return the number of nodes that could take the job now."""
        end = self.now + (need.seconds or _FAR)
        return sum(track.is_open(self.now, end) for _, track in self._ready(need, self.now + 1))

    def free(self, need: ResourceNeed) -> list[Tres]:
        """Return what is free now on each open node that the job may use."""
        now = [t for t in self._of(need.names) if t.is_open(self.now, self.now + 1)]
        return [track.free for track in now]


class UsableNode(msgspec.Struct, frozen=True):
    """A node that the job could use, with its free resources.

    Attributes:
        free: free TRES: `cpu`, `mem` (MiB), `gres/gpu`, `gres/gpu:TYPE`, `gres/shard`, `gres/mps`.
        closed: why no job can start there now, or None.
    """

    node: NodeRow
    free: Tres
    closed: str | None

    def lacks(self, per_node: Tres) -> list[str]:
        """Return the names of the TRES of which the node has too little free."""
        return [
            name
            for name, amount in consumable_tres(per_node).items()
            if self.free.get(name, 0) < amount
        ]


def consumable_tres(per_node: Tres) -> Tres:
    """Keep the TRES that a node has: CPUs, memory and GRES; a typed GPU replaces the total."""
    consumable = {n: v for n, v in per_node.items() if n in ("cpu", "mem") or n.startswith("gres/")}
    typed = any(name.startswith("gres/gpu:") for name in consumable)
    return {name: value for name, value in consumable.items() if not (typed and name == "gres/gpu")}


def node_capacity(node: NodeRow) -> Tres:
    """Return all TRES of a node."""
    found = {"cpu": node.cpus, "mem": node.memory, "gres/gpu": sum(g.total for g in node.gpus)}
    found |= {f"gres/gpu:{g.type}": g.total for g in node.gpus if g.type}
    parts = {"gres/shard": node.shards, "gres/mps": node.mps}
    return found | {name: part.total for name, part in parts.items() if part}


def free_tres(node: NodeRow) -> Tres:
    """Return the TRES of a node that no job holds.

    For shared GPUs this is what Slurm prints; where it prints nothing, none counts as free.
    """
    used = {"cpu": node.cpus_allocated, "mem": node.memory_allocated}
    shared = _shared_gpus(node)
    used |= {"gres/gpu": sum(g.used for g in node.gpus) + sum(shared.values())}
    used |= {f"gres/gpu:{g.type}": g.used + shared[g.type] for g in node.gpus if g.type}
    free = {name: max(0, total - used.get(name, 0)) for name, total in node_capacity(node).items()}
    whole = {"gres/shard": node.shards, "gres/mps": node.mps}
    return free | {
        name: _free_on_one_gpu(node, name, parts) for name, parts in whole.items() if parts
    }


def _shared_gpus(node: NodeRow) -> Counter[str | None]:
    """Count, by type, the GPUs of which jobs hold shards or MPS: none of them is free whole."""
    found: Counter[str | None] = Counter()
    for use in node.uses:
        if use.shared:
            found[use.type] += len(use.indices or ())
    return found


def _free_on_one_gpu(node: NodeRow, name: str, parts: PartCount) -> int:
    """Return the most shards or MPS units free on one GPU: a job gets all of its from one."""
    gpus = max(1, sum(g.total for g in node.gpus))
    uses = [use.parts for use in node.uses if f"gres/{use.name}" == name and use.parts]
    whole = {at for use in node.uses if use.name == "gpu" for at in use.indices or ()}
    if uses:
        left = (t - u for use in uses for at, (u, t) in enumerate(use) if at not in whole)
        return max(left, default=0)
    if parts.used is None:
        return 0
    each = parts.total // gpus
    return max(0, min(each, parts.total - parts.used - each * sum(g.used for g in node.gpus)))


def usable_nodes(snapshot: PendingSnapshot) -> list[UsableNode]:
    """Return the nodes that match the job's request and are large enough, free or not."""
    partitions, excluded = set(snapshot.partitions), set(expand_node_list(snapshot.asked.exclude))
    named = set(expand_node_list(snapshot.job.requested_nodes))
    only = named if len(named) >= snapshot.job.nodes else set()
    return [
        UsableNode(node, free_tres(node), node.why_closed)
        for node in snapshot.nodes
        if not partitions.isdisjoint(node.partitions)
        and node.name not in excluded
        and (not only or node.name in only)
        and satisfies(snapshot.job.features or None, node.features)
        and _is_large_enough(node, snapshot.per_node)
    ]


def _is_large_enough(node: NodeRow, per_node: Tres) -> bool:
    has = node_capacity(node)
    return all(has.get(name, 0) >= amount for name, amount in consumable_tres(per_node).items())


def has_room(snapshot: PendingSnapshot) -> bool:
    """Return whether what a job requests is free on as many nodes as it needs."""
    fit = [
        room
        for room in usable_nodes(snapshot)
        if room.closed is None
        and not room.lacks(snapshot.per_node)
        and not (snapshot.asked.exclusive and room.node.cpus_allocated)
    ]
    return len(fit) >= max(snapshot.job.nodes, 1)


def describe_shortage(snapshot: PendingSnapshot) -> list[str]:
    """Describe what the job requests, and what of that is free in its partitions."""
    per_node = snapshot.per_node
    candidates = usable_nodes(snapshot)
    where = f"partition {', '.join(snapshot.partitions)}"
    asked = f"{display.describe_holding(per_node)} on each of {snapshot.job.nodes} nodes"
    if snapshot.job.nodes == 1:
        asked = f"{display.describe_holding(per_node)} on one node"
    if snapshot.asked.exclusive:
        asked += ", which no other job may use (--exclusive)"
    if not candidates:
        return [f"it asks for {asked}, and no node that it may use in {where} has that many"]
    fit = "1 node" if len(candidates) == 1 else f"{len(candidates)} nodes"
    lines = [f"it asks for {asked}; {fit} of {where} could run it"]
    lines += _describe_key_resource(candidates, per_node)
    return lines + _describe_closed_nodes(candidates)


def _describe_key_resource(candidates: list[UsableNode], per_node: Tres) -> list[str]:
    """Describe where the GPUs (or CPUs) are free, the largest block, and what else is short."""
    names = consumable_tres(per_node)
    key = next((name for name in names if name.startswith("gres/")), "cpu")
    open_nodes = [room for room in candidates if room.closed is None and room.free.get(key, 0)]
    open_nodes.sort(key=lambda room: -room.free[key])
    if not open_nodes:
        return [f"no {tres_name(key)} is free there now"]
    most = open_nodes[0].free[key]
    total = sum(room.free[key] for room in open_nodes)
    listed = display.join_names([f"{room.node.name} {room.free[key]}" for room in open_nodes])
    lines = [f"free now: {format_tres(key, total)} ({listed}); the most on one node is {most}"]
    enough = [room for room in open_nodes if room.free[key] >= names[key]]
    others = sorted({name for room in enough for name in room.lacks(per_node)} - {key})
    if enough and others:
        missing = " and ".join(tres_name(n) if n != "mem" else "memory" for n in others)
        nodes = display.join_names([room.node.name for room in enough])
        lines.append(f"{nodes}: not enough {missing} is left")
    return lines


def _describe_closed_nodes(candidates: list[UsableNode]) -> list[str]:
    closed = [room for room in candidates if room.closed in ("down", "drained", "reserved")]
    return [
        f"{room.node.name} is {room.closed}" + (f": {room.node.reason}" if room.node.reason else "")
        for room in closed[:4]
    ]
