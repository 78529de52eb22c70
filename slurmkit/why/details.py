"""A pending reason with the numbers of the moment: limits, states of nodes, who is in the way."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from slurmkit.capabilities.model import Partition, Reservation
from slurmkit.capabilities.nodes import node_names
from slurmkit.nodes.read import NodeRow
from slurmkit.queue.rows import QueueRow
from slurmkit.why import blockers as find
from slurmkit.why import limits, reached, reasons, words
from slurmkit.why.model import Blocker
from slurmkit.why.respec import request_of
from slurmkit.why.room import what_is_short
from slurmkit.why.scene import Scene


class Facts(msgspec.Struct, frozen=True):
    """What is known of a reason: sentences, and what is in the way."""

    details: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = ()


def facts(scene: Scene) -> Facts:
    """Look into the reason a job waits for."""
    name = reasons.name_of(scene.job.reason)
    if (limit := limits.parse(name)) is not None:
        return _limit(scene, limit)
    return _finder(name, scene.job.reason)(scene)


# --- limits of accounting ------------------------------------------------------------------------


def _limit(scene: Scene, reason: limits.LimitReason) -> Facts:
    request = request_of(scene)
    met = reached.reached(request, reason)
    said: list[str] = []
    users: dict[str, QueueRow] = {}
    for each in met:
        rows = reached.users_of(each, request, scene.rows)
        said += [each.says, *([f"held by {reached.by_user(each, rows)}"] if rows else [])]
        said += _decay(scene, each.kind.used)
        users |= {row.raw_id: row for row in rows}
    if not met:
        said = ["no limit of that kind that slurmctld shows is reached now", *scene.standing.hidden]
    return Facts(tuple(said), tuple(find.soonest(map(find.of_job, users.values()))))


def _decay(scene: Scene, used: str) -> list[str]:
    if used not in ("tres_mins", "wall"):
        return []
    config = scene.capabilities.config
    half, reset = config.get("PriorityDecayHalfLife", ""), config.get("PriorityUsageResetPeriod")
    said = [f"what was used counts half after {half}"] if half not in ("", "00:00:00") else []
    return said + ([f"it is reset {reset.lower()}"] if reset not in (None, "", "NONE") else [])


# --- resources and priority ----------------------------------------------------------------------


def _resources(scene: Scene) -> Facts:
    return Facts(tuple(what_is_short(scene)), tuple(find.on_its_nodes(scene)))


def _priority(scene: Scene) -> Facts:
    ahead = find.before_it(scene)
    return Facts(tuple(what_is_short(scene)), (*ahead, *find.on_its_nodes(scene)))


def _licenses(scene: Scene) -> Facts:
    total = scene.capabilities.licenses
    asked = scene.asked.licenses or "?"
    known = [f"{name}: {count} in all" for name, count in total.items() if name in asked]
    return Facts((f"it asks for {asked}", *known))


# --- other jobs, and times -----------------------------------------------------------------------


def _begin(scene: Scene) -> Facts:
    said = [f"it may start from {words.moment(scene.job.eligible, scene.taken)} on"]
    if scene.asked.restarts:
        said.append(
            "it was put back into the queue, and Slurm waits a little before it starts again"
        )
    return Facts(tuple(said))


def _array(scene: Scene) -> Facts:
    match = re.search(r"%(\d+)", scene.job.job_id)
    said = (f"it runs at most {match[1]} of its tasks at a time",) if match else ()
    return Facts(said, tuple(find.of_array(scene)))


def _reservation(scene: Scene) -> Facts:
    own = next((r for r in scene.reservations if r.name == scene.job.reservation), None)
    if own is None:
        near = find.reservations_on(scene, _own_nodes(scene))
        return Facts((), tuple(find.of_reservation(each) for each in near))
    when = (
        f"it begins {words.moment(own.start, scene.taken)}"
        if own.start > scene.taken
        else f"it ends {words.moment(own.end, scene.taken)}"
    )
    inside = find.on_its_nodes(scene)
    return Facts((f"reservation {own.name}: {when}, with {len(own.nodes)} nodes",), tuple(inside))


# --- nodes ---------------------------------------------------------------------------------------


def _own_nodes(scene: Scene) -> list[str]:
    named = node_names(scene.job.requested_nodes or None)
    own = set(scene.partitions)
    return list(named) or [n.name for n in scene.nodes if own & set(n.partitions)]


def _nodes(scene: Scene) -> Facts:
    match = re.search(r"UnavailableNodes:(\S+)", scene.job.reason)
    names = list(node_names(match[1])) if match else _own_nodes(scene)
    closed = [n for name in names if (n := scene.node(name)) and n.why_closed in _CLOSED]
    said = tuple(_state(node) for node in closed[:6])
    held = tuple(find.of_reservation(each) for each in find.reservations_on(scene, names))
    return Facts(said, held)


_CLOSED = ("down", "drained", "reserved")


def _state(node: NodeRow) -> str:
    why = f": {node.reason}" if node.reason else ""
    by = f" (by {node.reason_by})" if node.reason and node.reason_by else ""
    return f"{node.name} is {node.state}{why}{by}"


def _maintenance(scene: Scene) -> Facts:
    coming = find.reservations_on(scene, _own_nodes(scene))
    said = tuple(_when(each, scene.taken) for each in coming)
    return Facts(said, tuple(find.of_reservation(each) for each in coming))


def _when(each: Reservation, now: float) -> str:
    left = int(each.start - now) // 60 - 1
    if left <= 0:
        return f"{each.name} lasts until {words.moment(each.end, now)}"
    begins = f"{each.name} begins {words.moment(each.start, now)}"
    return f"{begins}; a job of at most {words.minutes(left)} would end before"


# --- limits of the partition ---------------------------------------------------------------------


def _partitions(scene: Scene) -> list[Partition]:
    found = (scene.capabilities.partition(name) for name in scene.partitions)
    return [each for each in found if each is not None]


def _time_limit(scene: Scene) -> Facts:
    own = scene.job.time_limit
    return Facts(
        tuple(
            f"its time limit is {own}; MaxTime of partition {p.name} is {words.minutes(p.max_time)}"
            for p in _partitions(scene)
            if p.max_time is not None
        )
    )


def _node_limit(scene: Scene) -> Facts:
    said = []
    for each in _partitions(scene):
        most = "no limit" if each.max_nodes is None else str(each.max_nodes)
        said.append(
            f"it asks for {scene.job.nodes} nodes; partition {each.name} gives {each.min_nodes} to"
            f" {most} and has {len(each.nodes)}"
        )
    return Facts(tuple(said), _nodes(scene).blockers)


def _memory_limit(scene: Scene) -> Facts:
    said = [f"it asks for {words.memory(scene.per_node.get('mem', 0))} on a node"]
    for each in _partitions(scene):
        for name, value in (
            ("MaxMemPerCPU", each.max_mem_per_cpu),
            ("MaxMemPerNode", each.max_mem_per_node),
        ):
            said += [f"{name} of partition {each.name} is {words.memory(value)}"] if value else []
    return Facts(tuple(said))


def _partition_state(scene: Scene) -> Facts:
    return Facts(tuple(f"partition {p.name} is {p.state}" for p in _partitions(scene)))


def _allowed(kind: str) -> Callable[[Scene], Facts]:
    def say(scene: Scene) -> Facts:
        own = getattr(scene.job, kind)
        said = [f"its {_NOUNS[kind]} is {own}"]
        for each in _partitions(scene):
            allowed = each.allow_accounts if kind == "account" else each.allow_qos
            denied = each.deny_accounts if kind == "account" else each.deny_qos
            said += [f"partition {each.name} allows {', '.join(allowed)}"] if allowed else []
            said += [f"partition {each.name} refuses {', '.join(denied)}"] if denied else []
        return Facts(tuple(said))

    return say


_NOUNS = {"account": "account", "qos": "QOS"}


def _account(scene: Scene) -> Facts:
    own = [a.account for a in scene.standing.associations if a.user == scene.job.user]
    theirs = ", ".join(own) or "none that slurmctld shows"
    return Facts((f"its account is {scene.job.account}; {scene.job.user} is in {theirs}",))


def _qos(scene: Scene) -> Facts:
    own = scene.standing.association(scene.job.account)
    usable = ", ".join(own.qos) if own and own.qos else "unknown"
    return Facts((f"its QOS is {scene.job.qos}; usable are {usable}",))


def _constraints(scene: Scene) -> Facts:
    asked = [f"features {scene.job.features}"] if scene.job.features else []
    return Facts((*what_is_short(scene), *(f"it asks for {each}" for each in asked)))


# --- by name -------------------------------------------------------------------------------------

_BY_REASON: dict[str, Callable[[Scene], Facts]] = {
    "Resources": _resources,
    "Priority": _priority,
    "None": _resources,
    "Licenses": _licenses,
    "BeginTime": _begin,
    "JobArrayTaskLimit": _array,
    "Reservation": _reservation,
    "ReqNodeNotAvail": _nodes,
    "NodeDown": _nodes,
    "PartitionNodeLimit": _node_limit,
    "PartitionTimeLimit": _time_limit,
    "PartitionDown": _partition_state,
    "PartitionInactive": _partition_state,
    "MaxMemPerLimit": _memory_limit,
    "AccountNotAllowed": _allowed("account"),
    "QOSNotAllowed": _allowed("qos"),
    "InvalidAccount": _account,
    "InvalidQOS": _qos,
    "BadConstraints": _constraints,
}


def _finder(name: str, reason: str) -> Callable[[Scene], Facts]:
    if "Reserved for maintenance" in reason:
        return _maintenance
    if reason.startswith("Nodes required for job are DOWN"):
        return _nodes
    return _BY_REASON.get(name, lambda _: Facts())
