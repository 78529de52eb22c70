"""Which limit of which account or QOS a job meets, its value, and who has used it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from slurmkit.capabilities.model import Standing
from slurmkit.checks.inforce import Limit, chain, in_force
from slurmkit.queue.rows import QueueRow
from slurmkit.request import Request
from slurmkit.why import words
from slurmkit.why.limits import KINDS, Kind, LimitReason
from slurmkit.why.scene import holds, holds_nodes

_NAMED = ("cpu", "mem", "node", "energy", "billing", "gres/", "license/", "bb/")


class Reached(msgspec.Struct, frozen=True):
    """A limit that a job meets.

    Attributes:
        used: None where the job alone is compared.
        asked: what this job adds; minutes for limits on minutes.
    """

    kind: Kind
    limit: Limit
    used: int | None
    asked: int

    @property
    def says(self) -> str:
        """The limit with its numbers, one sentence."""
        allowed, asked = self.amount(self.limit.value), self.amount(self.asked)
        where = f"{self.kind.slurm} of {self.limit.holder}"
        if self.used is None:
            least = "at least " if self.kind.limit == "min_tres_per_job" else ""
            return f"{where} is {least}{allowed}; this job asks for {asked}"
        more = "" if self.kind.used == "submitted" else f", {asked} asked for"
        return f"{where} is {allowed}: {self.amount(self.used)} used{more}"

    def amount(self, value: int) -> str:
        """Say a value in the unit of the limit."""
        if self.kind.limit in ("max_wall", "grp_wall"):
            return words.minutes(value)
        if not self.kind.per_tres:
            return f"{value} job{'' if value == 1 else 's'}"
        if "mins" in self.kind.limit:
            return f"{value} {words.resource(self.limit.tres)}-minutes"
        return words.amount(self.limit.tres, value)


def reached(request: Request, reason: LimitReason) -> list[Reached]:
    """The limits meant by a reason that keep `request` from running now.

    What PrivateData hides is not found: see `Standing.hidden`.
    """
    kind = reason.kind
    found = (_compare(request, kind, limit) for limit in in_force(request, kind.limit))
    return [each for each in found if each and _is_meant(each.limit, reason)]


def would_wait(request: Request) -> bool:
    """Whether `request` meets any limit now that others use up, and so would wait for them."""
    return any(
        _compare(request, kind, limit)
        for kind in KINDS
        if kind.used not in ("", "submitted")
        for limit in in_force(request, kind.limit)
    )


def _is_meant(limit: Limit, reason: LimitReason) -> bool:
    if (limit.kind == "qos") != (reason.owner == "qos"):
        return False
    if not reason.kind.per_tres:
        return True
    return limit.tres.startswith(reason.tres) if reason.tres else not limit.tres.startswith(_NAMED)


def _compare(request: Request, kind: Kind, limit: Limit) -> Reached | None:
    asked = _asked(request, kind, limit.tres)
    used = None
    if kind.used:
        value = getattr(limit.usage, kind.used)
        used = int(value.get(limit.tres, 0) if kind.per_tres else value)
    return Reached(kind, limit, used, asked) if _is_over(kind, limit, used or 0, asked) else None


def _is_over(kind: Kind, limit: Limit, used: int, asked: int) -> bool:
    if kind.limit == "min_tres_per_job":
        return asked < limit.value
    if kind.used == "submitted":  # the job itself is counted already
        return used > limit.value
    return (asked > 0 or kind.used in ("tres_mins", "wall")) and used + asked > limit.value


def _asked(request: Request, kind: Kind, name: str) -> int:
    length = -(-(request.seconds or 0) // 60)
    if kind.limit in ("max_wall", "grp_wall"):
        return length
    if not kind.per_tres:
        return 1
    total = request.total.get(name, 0)
    if kind.whose == "node":
        return -(-total // max(1, request.nodes))
    return total * length if "mins" in kind.limit else total


def users_of(found: Reached, request: Request, rows: Iterable[QueueRow]) -> list[QueueRow]:
    """The running jobs that hold what a limit is reached with."""
    if found.kind.used in ("", "tres_mins", "wall", "submitted"):
        return []
    name = found.limit.tres
    held = (row for row in rows if holds_nodes(row) and (not name or holds(row).get(name)))
    return [row for row in held if _shares(row, found, request)]


def _shares(row: QueueRow, found: Reached, request: Request) -> bool:
    """Whether a job counts for the same limit."""
    if found.kind.whose == "user" and row.user != request.standing.user:
        return False
    if found.kind.whose == "account" and row.account != request.account:
        return False
    if found.limit.kind == "qos":
        if " of partition " in found.limit.holder:
            return row.partition == request.partition.name
        return request.qos is not None and row.qos == request.qos.name
    own = next((a for a in chain(request) if a.name == found.limit.holder), None)
    if own is None or own.user:
        return own is not None and (row.user, row.account) == (own.user, own.account)
    return row.account in accounts_below(own.account, request.standing)


def accounts_below(account: str, standing: Standing) -> set[str]:
    """An account and all those below it."""
    found, new = {account}, {account}
    while new:
        new = {a.account for a in standing.associations if not a.user and a.parent in new} - found
        found |= new
    return found


def by_user(found: Reached, rows: Iterable[QueueRow]) -> str:
    """Who holds how much of it: `dave 8 GPUs, frank 4 GPUs`."""
    held: Counter[str] = Counter()
    for row in rows:
        held[row.user] += holds(row).get(found.limit.tres, 0) if found.limit.tres else 1
    return words.several([f"{user} {found.amount(n)}" for user, n in held.most_common()])
