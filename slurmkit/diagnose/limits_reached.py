"""The account or QOS limits that a job has reached: their values, and who uses them up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

from slurmkit.diagnose.snapshot import holds_nodes, job_tres
from slurmkit.formats import display
from slurmkit.formats.durations import format_minutes
from slurmkit.formats.tres import format_tres, format_tres_minutes
from slurmkit.jobs.pending_reasons import LIMIT_KINDS, LimitKind, LimitReason
from slurmkit.planning.amounts import takes_whole_nodes
from slurmkit.planning.checks.limits import EffectiveLimit, association_chain, effective_limits
from slurmkit.planning.request import Request
from slurmkit.state.model import Standing
from slurmkit.state.queue_rows import QueueRow

_NAMED = ("cpu", "mem", "node", "energy", "billing", "gres/", "license/", "bb/")


class ReachedLimit(msgspec.Struct, frozen=True):
    """A limit that a job has reached.

    Attributes:
        used: current use; None if the job alone is compared with the limit.
        asked: what this job would add; TRES-minutes for limits on minutes.
    """

    kind: LimitKind
    limit: EffectiveLimit
    used: int | None
    asked: int

    @property
    def says(self) -> str:
        """The limit, its use and the request, in one sentence."""
        allowed, asked = self.amount(self.limit.value), self.amount(self.asked)
        where = f"{self.kind.slurm} of {self.limit.holder}"
        if self.used is None:
            least = "at least " if self.kind.limit == "min_tres_per_job" else ""
            return f"{where} is {least}{allowed}; this job asks for {asked}"
        more = "" if self.kind.used == "submitted" else f", {asked} asked for"
        return f"{where} is {allowed}: {self.amount(self.used)} used{more}"

    @property
    def never_passes(self) -> bool:
        """Whether the job alone is over the limit, however little others use."""
        alone = self.used is not None and self.kind.used != "submitted"
        return alone and self.asked > self.limit.value

    @property
    def why_never(self) -> str:
        """The limit that keeps the job from ever starting, in one sentence without a full stop."""
        where = f"{self.kind.slurm} of {self.limit.holder} is {self.amount(self.limit.value)}"
        if not self.kind.per_tres and self.kind.used == "jobs":
            return f"{where}, so it does not start"
        return f"it asks for {self.amount(self.asked)}, but {where}, so it does not start"

    def amount(self, value: int) -> str:
        """Format a value in the unit of the limit."""
        if self.kind.limit in ("max_wall", "grp_wall"):
            return format_minutes(value)
        if not self.kind.per_tres:
            return f"{value} job{'' if value == 1 else 's'}"
        if "mins" in self.kind.limit:
            return format_tres_minutes(self.limit.tres, value, hours_from=math.inf)
        return format_tres(self.limit.tres, value)


def find_reached_limits(request: Request, reason: LimitReason) -> list[ReachedLimit]:
    """Return the limits named by a reason that keep `request` from running now.

    Limits that PrivateData hides are missing; the user's standing lists what is hidden.
    """
    kind = reason.kind
    compared = (_compare(request, kind, limit) for limit in effective_limits(request, kind.limit))
    return [each for each in compared if each and _is_meant(each.limit, reason)]


def would_wait_for_limit(request: Request) -> bool:
    """Return whether `request` would wait for a limit that running jobs or past usage fill.

    With whole nodes, or a range of nodes, the most that it may get counts: which and how many are
    taken is not known.
    """
    if request.most_nodes or takes_whole_nodes(request.spec, request.partition):
        total = {**request.total, **request.most}
        request = msgspec.structs.replace(request, total=total)
    return any(
        _compare(request, kind, limit)
        for kind in LIMIT_KINDS
        if kind.used not in ("", "submitted")
        for limit in effective_limits(request, kind.limit)
    )


def _is_meant(limit: EffectiveLimit, reason: LimitReason) -> bool:
    if (limit.kind == "qos") != (reason.owner == "qos"):
        return False
    if not reason.kind.per_tres:
        return True
    return limit.tres.startswith(reason.tres) if reason.tres else not limit.tres.startswith(_NAMED)


def _compare(request: Request, kind: LimitKind, limit: EffectiveLimit) -> ReachedLimit | None:
    asked = _asked(request, kind, limit.tres)
    used = None
    if kind.used:
        value = getattr(limit.usage, kind.used)
        used = int(value.get(limit.tres, 0) if kind.per_tres else value)
    return (
        ReachedLimit(kind, limit, used, asked) if _is_over(kind, limit, used or 0, asked) else None
    )


def _is_over(kind: LimitKind, limit: EffectiveLimit, used: int, asked: int) -> bool:
    if kind.limit == "min_tres_per_job":
        return asked < limit.value
    if kind.used == "submitted":  # the job itself is counted already
        return used > limit.value
    return (asked > 0 or kind.used in ("tres_mins", "wall")) and used + asked > limit.value


def _asked(request: Request, kind: LimitKind, name: str) -> int:
    length = -(-(request.seconds or 0) // 60)
    if kind.limit in ("max_wall", "grp_wall"):
        return length
    if not kind.per_tres:
        return 1
    total = request.total.get(name, 0)
    if kind.whose == "node":
        return -(-total // max(1, request.nodes))
    return total * length if "mins" in kind.limit else total


def jobs_using_limit(
    found: ReachedLimit, request: Request, rows: Iterable[QueueRow]
) -> list[QueueRow]:
    """Return the running jobs whose resources count towards a reached limit."""
    if found.kind.used in ("", "tres_mins", "wall", "submitted"):
        return []
    name = found.limit.tres
    held = (row for row in rows if holds_nodes(row) and (not name or job_tres(row).get(name)))
    return [row for row in held if _shares(row, found, request)]


def _shares(row: QueueRow, found: ReachedLimit, request: Request) -> bool:
    """Return whether a job counts towards the same limit."""
    if found.kind.whose == "user" and row.user != request.standing.user:
        return False
    if found.kind.whose == "account" and row.account != request.account:
        return False
    if found.limit.kind == "qos":
        if " of partition " in found.limit.holder:
            return row.partition == request.partition.name
        return request.qos is not None and row.qos == request.qos.name
    own = next((a for a in association_chain(request) if a.name == found.limit.holder), None)
    if own is None or own.user:
        return own is not None and (row.user, row.account) == (own.user, own.account)
    return row.account in accounts_below(own.account, request.standing)


def accounts_below(account: str, standing: Standing) -> set[str]:
    """Return an account and all accounts below it."""
    below, new = {account}, {account}
    while new:
        new = {a.account for a in standing.associations if not a.user and a.parent in new} - below
        below |= new
    return below


def describe_use_by_user(found: ReachedLimit, rows: Iterable[QueueRow]) -> str:
    """Describe who holds how much of a limit: `dave 8 GPUs, frank 4 GPUs`."""
    held: Counter[str] = Counter()
    for row in rows:
        held[row.user] += job_tres(row).get(found.limit.tres, 0) if found.limit.tres else 1
    return display.join_names([f"{user} {found.amount(n)}" for user, n in held.most_common()])
