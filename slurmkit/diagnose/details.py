"""Current facts about a pending reason: limits and their use, node states, blockers."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from slurmkit.diagnose import blockers as find
from slurmkit.diagnose import limits_reached
from slurmkit.diagnose.free_resources import describe_shortage, has_room
from slurmkit.diagnose.model import Blocker
from slurmkit.diagnose.render import format_exact_moment
from slurmkit.diagnose.respec import rebuild_request
from slurmkit.diagnose.snapshot import PendingSnapshot, holds_nodes
from slurmkit.formats import display
from slurmkit.formats.durations import format_minutes
from slurmkit.formats.job_ids import queryable_id
from slurmkit.formats.memory import format_mib
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.jobs import pending_reasons
from slurmkit.planning.checks import access
from slurmkit.state.model import Partition, Reservation
from slurmkit.state.nodes import NodeRow
from slurmkit.state.queue_rows import QueueRow


class ReasonFacts(msgspec.Struct, frozen=True):
    """Facts about a pending reason.

    Attributes:
        details: sentences.
        blockers: what blocks the job.
        text: what keeps the job waiting, where the facts say it better than Slurm's reason.
    """

    details: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    text: pending_reasons.ReasonText | None = None


def collect_reason_facts(snapshot: PendingSnapshot) -> ReasonFacts:
    """Collect facts about the reason that a job waits for."""
    name = pending_reasons.reason_name(snapshot.job.reason)
    if (limit := pending_reasons.parse_limit_reason(name)) is not None:
        return _limit(snapshot, limit)
    return _facts_function(name, snapshot.job.reason)(snapshot)


# --- limits of accounting ------------------------------------------------------------------------


def _limit(snapshot: PendingSnapshot, reason: pending_reasons.LimitReason) -> ReasonFacts:
    request = rebuild_request(snapshot)
    found_limits = limits_reached.find_reached_limits(request, reason)
    lines: list[str] = []
    holders: dict[str, QueueRow] = {}
    for each in found_limits:
        rows = limits_reached.jobs_using_limit(each, request, snapshot.rows)
        lines += [
            each.says,
            *([f"held by {limits_reached.describe_use_by_user(each, rows)}"] if rows else []),
        ]
        lines += _decay(snapshot, each.kind.used)
        holders |= {row.raw_id: row for row in rows}
    if not found_limits:
        lines = [
            "slurmctld shows no limit of this kind that is reached now",
            *snapshot.standing.hidden,
        ]
    never = next((each for each in found_limits if each.never_passes), None)
    return ReasonFacts(
        tuple(lines),
        tuple(find.sort_by_end(map(find.job_blocker, holders.values()))),
        _never(never, reason.owner) if never else None,
    )


def _never(
    limit: limits_reached.ReachedLimit, owner: pending_reasons.LimitOwner
) -> pending_reasons.ReasonText:
    other = "account" if owner == "association" else "QOS"
    less = "" if limit.kind.used == "jobs" else "ask for less, or "
    advice = f"{less}use another {other}; only an administrator can raise the limit"
    return pending_reasons.ReasonText(limit.why_never, pending_reasons.EITHER, advice)


def _decay(snapshot: PendingSnapshot, used: str) -> list[str]:
    if used not in ("tres_mins", "wall"):
        return []
    config = snapshot.capabilities.config
    half, reset = config.get("PriorityDecayHalfLife", ""), config.get("PriorityUsageResetPeriod")
    lines = [f"past use counts half after {half}"] if half not in ("", "00:00:00") else []
    if reset not in (None, "", "NONE"):
        lines.append(f"past use is set back to 0 {reset.lower()}")
    return lines


# --- resources and priority ----------------------------------------------------------------------


def _resources(snapshot: PendingSnapshot) -> ReasonFacts:
    return ReasonFacts(tuple(describe_shortage(snapshot)), tuple(find.jobs_on_its_nodes(snapshot)))


def _priority(snapshot: PendingSnapshot) -> ReasonFacts:
    ahead = find.jobs_ahead(snapshot)
    blockers = (*ahead, *find.jobs_on_its_nodes(snapshot))
    # slurmctld gives this reason also to a job that it has just taken, and has not looked at.
    lines = tuple(describe_shortage(snapshot))
    if snapshot.hides_jobs or snapshot.asked.planned_nodes or not has_room(snapshot):
        return ReasonFacts(lines, blockers)
    if not ahead:
        return ReasonFacts(lines, (), _IS_FREE)
    is_new = snapshot.asked.evaluated is None
    text = pending_reasons.explain_reason("None", snapshot.job.job_id) if is_new else None
    return ReasonFacts(lines, blockers, text)


_IS_FREE = pending_reasons.ReasonText(
    "what it asks for is free, and no job is ahead of it: the scheduler will come to it",
    pending_reasons.TIME,
    "ask again in a minute",
)


def _licenses(snapshot: PendingSnapshot) -> ReasonFacts:
    """Name the jobs that hold the licences. Slurm can also count licences used elsewhere."""
    asked = parse_license_counts(snapshot.asked.licenses)
    lines = [f"it asks for {snapshot.asked.licenses or '?'}"]
    holders: dict[str, QueueRow] = {}
    rows = {row.raw_id: row for row in snapshot.rows if holds_nodes(row)}
    for name in asked:
        held = {
            raw_id: count
            for raw_id, text in snapshot.license_holders.items()
            if raw_id in rows and (count := parse_license_counts(text).get(name))
        }
        total = snapshot.capabilities.licenses.get(name)
        in_all = "" if total is None else f" of {total}"
        lines.append(
            f"{name}: {sum(held.values())}{in_all} are held by the jobs below"
            if held
            else f"{name}: no job here holds one; see: scontrol show license {name}"
        )
        holders |= {raw_id: rows[raw_id] for raw_id in held}
    blockers = (
        find.job_blocker(row, f"licences {snapshot.license_holders[raw_id]}")
        for raw_id, row in holders.items()
    )
    return ReasonFacts(tuple(lines), tuple(find.sort_by_end(blockers)))


def parse_license_counts(text: str) -> dict[str, int]:
    """Parse licences such as `matlab:2,ansys`, as in `--licenses`; several with `|` are choices."""
    pairs = (item.partition(":") for item in re.split(r"[,;|]", text) if item)
    return {name: int(count) if count.isdigit() else 1 for name, _, count in pairs}


# --- other jobs, and times -----------------------------------------------------------------------


def _begin(snapshot: PendingSnapshot) -> ReasonFacts:
    at = snapshot.job.eligible
    lines = [f"its begin time: {format_exact_moment(at, snapshot.taken)}"]
    if at is not None and at <= snapshot.taken:
        lines = ["its begin time has come; it waits until the scheduler looks at it again"]
    if snapshot.asked.restarts:
        lines.append(
            "it was put back into the queue; Slurm starts such a job again after a short delay"
        )
    return ReasonFacts(tuple(lines))


def _array(snapshot: PendingSnapshot) -> ReasonFacts:
    match = re.search(r"%(\d+)", snapshot.job.job_id)
    lines = (f"at most {match[1]} of its tasks run at a time",) if match else ()
    return ReasonFacts(lines, tuple(find.running_array_tasks(snapshot)))


def _reservation(snapshot: PendingSnapshot) -> ReasonFacts:
    own = next((r for r in snapshot.reservations if r.name == snapshot.job.reservation), None)
    if own is None:
        others = find.other_reservations_on(snapshot, _own_nodes(snapshot))
        return ReasonFacts((), tuple(map(find.reservation_blocker, others)))
    when = (
        f"it begins {display.format_moment(own.start, snapshot.taken)}"
        if own.start > snapshot.taken
        else f"it ends {display.format_moment(own.end, snapshot.taken)}"
    )
    line = f"reservation {own.name}: {when}, with {len(own.nodes)} nodes"
    return ReasonFacts((line,), tuple(find.jobs_on_its_nodes(snapshot)))


# --- nodes ---------------------------------------------------------------------------------------


def _own_nodes(snapshot: PendingSnapshot) -> list[str]:
    named = expand_nodes(snapshot.job.requested_nodes or None)
    own = set(snapshot.partitions)
    return list(named) or [n.name for n in snapshot.nodes if own & set(n.partitions)]


def _nodes(snapshot: PendingSnapshot) -> ReasonFacts:
    match = re.search(r"UnavailableNodes:(\S+)", snapshot.job.reason)
    names = list(expand_nodes(match[1])) if match else _own_nodes(snapshot)
    closed = [n for name in names if (n := snapshot.node(name)) and n.why_closed in _CLOSED]
    reserved = map(find.reservation_blocker, find.other_reservations_on(snapshot, names))
    lines = tuple(map(_describe_node, closed[:6]))
    if text := _required_node_is_away(snapshot):
        return ReasonFacts(lines, tuple(reserved), text)
    if refused := _refused_by_partitions(snapshot):
        return refused
    if "reserved" not in snapshot.job.reason:
        return ReasonFacts(lines, tuple(reserved))
    # Slurm says that of nodes that other jobs hold, or that are planned for jobs ahead.
    in_the_way = (*find.jobs_on_its_nodes(snapshot), *find.jobs_ahead(snapshot))
    return ReasonFacts(lines, (*reserved, *in_the_way))


_CLOSED = ("down", "drained", "reserved")


def _required_node_is_away(snapshot: PendingSnapshot) -> pending_reasons.ReasonText | None:
    """Return the text for a job that names a node which is down or drained."""
    named = expand_nodes(snapshot.job.requested_nodes or None)
    away = [n for name in named if (n := snapshot.node(name)) and n.why_closed in _CLOSED[:2]]
    if not away:
        return None
    listed = display.join_names([f"{node.name} ({node.why_closed})" for node in away])
    return pending_reasons.ReasonText(
        f"it asks by name for nodes that take no job now: {listed}",
        pending_reasons.EITHER,
        "ask for other nodes, or ask your administrator when these are back",
    )


def _refused_by_partitions(snapshot: PendingSnapshot) -> ReasonFacts | None:
    """Return the facts for a job whose partitions all refuse its QOS or account.

    Where EnforcePartLimits lets such a job in, slurmctld says of it that nodes are down.
    """
    own = _partitions(snapshot)
    if len(own) < len(snapshot.partitions):
        return None
    request = rebuild_request(snapshot)
    requests = [msgspec.structs.replace(request, partition=each) for each in own]
    for name, refusals in (
        ("QOSNotAllowed", access.allowed_qos),
        ("AccountNotAllowed", access.allowed_accounts),
    ):
        if all(any(refusals(each)) for each in requests):
            text = pending_reasons.explain_reason(name, queryable_id(snapshot.job.job_id))
            return msgspec.structs.replace(_BY_REASON[name](snapshot), text=text)
    return None


def _describe_node(node: NodeRow) -> str:
    why = f": {node.reason}" if node.reason else ""
    by = f" (by {node.reason_by})" if node.reason and node.reason_by else ""
    return f"{node.name} is {node.state}{why}{by}"


def _maintenance(snapshot: PendingSnapshot) -> ReasonFacts:
    coming = find.other_reservations_on(snapshot, _own_nodes(snapshot))
    lines = tuple(_describe_maintenance(each, snapshot.taken) for each in coming)
    return ReasonFacts(lines, tuple(map(find.reservation_blocker, coming)))


def _describe_maintenance(each: Reservation, now: float) -> str:
    left = int(each.start - now) // 60 - 1
    if left <= 0:
        return f"{each.name} lasts until {display.format_moment(each.end, now)}"
    begins = f"{each.name} begins {display.format_moment(each.start, now)}"
    return f"{begins}; a job of at most {format_minutes(left)} would end before that"


# --- limits of the partition ---------------------------------------------------------------------


def _partitions(snapshot: PendingSnapshot) -> list[Partition]:
    found = (snapshot.capabilities.partition(name) for name in snapshot.partitions)
    return [each for each in found if each is not None]


def _time_limit(snapshot: PendingSnapshot) -> ReasonFacts:
    own = snapshot.job.time_limit
    return ReasonFacts(
        tuple(
            f"its time limit is {own};"
            f" MaxTime of partition {p.name} is {format_minutes(p.max_time)}"
            for p in _partitions(snapshot)
            if p.max_time is not None
        )
    )


def _node_limit(snapshot: PendingSnapshot) -> ReasonFacts:
    lines = []
    for each in _partitions(snapshot):
        most = "or more" if each.max_nodes is None else f"to {each.max_nodes}"
        lines.append(
            f"it asks for {snapshot.job.nodes} nodes; partition {each.name} allows"
            f" {each.min_nodes} {most} nodes for a job, and has {len(each.nodes)}"
        )
    return ReasonFacts(tuple(lines), _nodes(snapshot).blockers)


def _memory_limit(snapshot: PendingSnapshot) -> ReasonFacts:
    lines = [f"it asks for {format_mib(snapshot.per_node.get('mem', 0))} on a node"]
    for each in _partitions(snapshot):
        for name, value in (
            ("MaxMemPerCPU", each.max_mem_per_cpu),
            ("MaxMemPerNode", each.max_mem_per_node),
        ):
            lines += [f"{name} of partition {each.name} is {format_mib(value)}"] if value else []
    return ReasonFacts(tuple(lines))


def _partition_state(snapshot: PendingSnapshot) -> ReasonFacts:
    return ReasonFacts(tuple(f"partition {p.name} is {p.state}" for p in _partitions(snapshot)))


def _allowed(kind: str) -> Callable[[PendingSnapshot], ReasonFacts]:
    def allowed_by_partition(snapshot: PendingSnapshot) -> ReasonFacts:
        own = getattr(snapshot.job, kind)
        lines = [f"its {_NOUNS[kind]} is {own}"]
        for each in _partitions(snapshot):
            allowed = each.allow_accounts if kind == "account" else each.allow_qos
            denied = each.deny_accounts if kind == "account" else each.deny_qos
            lines += [f"partition {each.name} allows {', '.join(allowed)}"] if allowed else []
            lines += [f"partition {each.name} refuses {', '.join(denied)}"] if denied else []
        return ReasonFacts(tuple(lines))

    return allowed_by_partition


_NOUNS = {"account": "account", "qos": "QOS"}


def _account(snapshot: PendingSnapshot) -> ReasonFacts:
    own = [a.account for a in snapshot.standing.associations if a.user == snapshot.job.user]
    theirs = ", ".join(own) or "none that slurmctld shows"
    return ReasonFacts(
        (f"its account is {snapshot.job.account}; accounts of {snapshot.job.user}: {theirs}",)
    )


def _qos(snapshot: PendingSnapshot) -> ReasonFacts:
    own = snapshot.standing.association(snapshot.job.account)
    usable = ", ".join(own.qos) if own and own.qos else "unknown"
    return ReasonFacts((f"its QOS is {snapshot.job.qos}; QOS that it may use: {usable}",))


def _constraints(snapshot: PendingSnapshot) -> ReasonFacts:
    asked = [f"features {snapshot.job.features}"] if snapshot.job.features else []
    return ReasonFacts((*describe_shortage(snapshot), *(f"it asks for {each}" for each in asked)))


# --- by name -------------------------------------------------------------------------------------

_BY_REASON: dict[str, Callable[[PendingSnapshot], ReasonFacts]] = {
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
    "PartitionConfig": lambda snapshot: _refused_by_partitions(snapshot) or ReasonFacts(),
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


def _facts_function(name: str, reason: str) -> Callable[[PendingSnapshot], ReasonFacts]:
    if "Reserved for maintenance" in reason:
        return _maintenance
    if reason.startswith("Nodes required for job are DOWN"):
        return _nodes
    return _BY_REASON.get(name, lambda _: ReasonFacts())
