"""Make and remove reservations of nodes: planned and shown first, for Slurm's operators."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from slurmkit.capabilities.model import Capabilities, Reservation
from slurmkit.capabilities.nodes import node_names
from slurmkit.capabilities.standing import me
from slurmkit.checks.times import moment
from slurmkit.config import nearest
from slurmkit.durations import parse_elapsed, parse_time_limit
from slurmkit.errors import BadInput, DatabaseDown, Refused
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import QueueFilter

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

_NAME = re.compile(r"[A-Za-z0-9][\w.\-]{0,63}", re.ASCII)
_WHO = re.compile(r"-?[\w.\-]+(,-?[\w.\-]+)*", re.ASCII)
_WORDS = re.compile(r"[\w+\-/:]+(,[\w+\-/:]+)*", re.ASCII)
_OPERATORS = ("Operator", "Administrator")
_EVERY = "ALL"


class Booking(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation to be made (scontrol(1), "RESERVATIONS").

    Attributes:
        name: of it.
        start: `now`, `now+2hours` or `2026-12-24T18:00`.
        duration: a time as of `--time`.
        nodes: by name, `c[1-4]`, or ALL; or else `count` of them, which Slurm chooses.
        partition: whose nodes they are; needed for `count` where there is no default one.
        users: who may use it, by comma; so `accounts` and `groups`. One of these is needed.
        flags: by comma, e.g. `MAINT,IGNORE_JOBS`.
    """

    name: str
    start: str
    duration: str
    nodes: str | None = None
    count: int | None = None
    partition: str | None = None
    users: str | None = None
    accounts: str | None = None
    groups: str | None = None
    flags: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadInput(f"{self.name!r} is no name of a reservation: letters, digits, _ . -")
        if moment(self.start, 0) is None:
            raise BadInput(f"start {self.start!r} is not now, now+2hours or 2026-12-24T18:00")
        parse_time_limit(self.duration)
        if (self.nodes is None) == (self.count is None):
            raise BadInput("give the nodes by name (c[1-4]), or how many of them, one of the two")
        if not (self.users or self.accounts or self.groups):
            raise BadInput("say who may use it: users, accounts or groups")
        for name in ("users", "accounts", "groups"):
            value = getattr(self, name)
            if value is not None and not _WHO.fullmatch(value):
                raise BadInput(f"{name} {value!r}: names with commas between them")
        for name in ("partition", "flags"):
            value = getattr(self, name)
            if value is not None and not _WORDS.fullmatch(value):
                raise BadInput(f"{name} {value!r} is none")

    def argv(self, now: float) -> list[str]:
        """The command that makes it; the start is written out, as it was shown."""
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(self.begin(now)))
        words = {
            "ReservationName": self.name,
            "StartTime": "now" if self.begin(now) <= now else start,
            "Duration": str(-(-self.seconds // 60)),
            "Nodes": self.nodes,
            "NodeCnt": None if self.count is None else str(self.count),
            "PartitionName": self.partition,
            "Users": self.users,
            "Accounts": self.accounts,
            "Groups": self.groups,
            "Flags": self.flags,
        }
        given = [f"{name}={value}" for name, value in words.items() if value is not None]
        return ["scontrol", "create", "reservation", *given]

    def begin(self, now: float) -> float:
        """Epoch seconds."""
        return moment(self.start, now) or now

    @property
    def seconds(self) -> int:
        """How long it is."""
        return parse_time_limit(self.duration)

    def node_names(self, known: Capabilities) -> tuple[str, ...] | None:
        """The nodes named; None where Slurm chooses.

        Raises:
            BadInput: for a node that the cluster does not have.
        """
        if self.nodes is None:
            return None
        there = [node.name for node in known.nodes]
        if self.nodes.upper() == _EVERY:
            return tuple(there)
        try:
            names = node_names(self.nodes)
        except ValueError as error:
            raise BadInput(str(error)) from error
        for name in names:
            if there and name not in there:
                raise BadInput(f"no node {name!r}; {nearest(name, there)}")
        return names


class InTheWay(msgspec.Struct, frozen=True):
    """What a booking meets.

    Attributes:
        jobs: that run on its nodes and may do so still when it begins.
        reservations: that share a node and a time with it.
    """

    jobs: tuple[QueueRow, ...]
    reservations: tuple[Reservation, ...]

    def refusals(self, flags: str | None) -> Iterable[str]:
        """Why slurmctld would refuse it, and which flag makes it take it."""
        given = {flag.strip().upper() for flag in (flags or "").split(",")}
        if self.jobs and not given & {"IGNORE_JOBS"}:
            yield "jobs may still run there when it begins; --flags IGNORE_JOBS lets them end"
        if self.reservations and not given & {"MAINT", "OVERLAP"}:
            names = ", ".join(each.name for each in self.reservations)
            yield f"it overlaps with {names}; --flags OVERLAP or MAINT allow that"


def in_the_way(cluster: Cluster, booking: Booking, now: float) -> InTheWay:
    """Look for running jobs and other reservations on its nodes, where they are named.

    Raises:
        BadInput: for a node that the cluster does not have.
        SlurmError: when slurmctld does not answer.
    """
    names = booking.node_names(cluster.capabilities())
    if names is None:
        return InTheWay((), ())
    wanted, begin = set(names), booking.begin(now)
    rows = cluster.queue(QueueFilter(states=("RUNNING", "SUSPENDED", "COMPLETING"))).rows
    others = cluster.standing().reservations
    return InTheWay(
        tuple(row for row in rows if wanted & set(node_names(row.node_list)) and _end(row) > begin),
        tuple(
            each
            for each in others
            if wanted & set(each.nodes)
            and each.start < begin + booking.seconds
            and each.end > begin
        ),
    )


def _end(row: QueueRow) -> float:
    """When a job has to end; infinite where it has no limit."""
    seconds = parse_elapsed(row.time_limit)
    return float("inf") if seconds is None or row.started is None else row.started + seconds


def refuse_others(cluster: Cluster, doing: str) -> None:
    """Make sure that who runs this may make reservations.

    While slurmdbd does not say, slurmctld is left to judge.

    Raises:
        Refused: saying who may.
    """
    own = me(cluster.slurm)
    if own in ("root", cluster.capabilities().config.get("SlurmUser", "").split("(")[0]):
        return
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "user", own, "format=AdminLevel"]
    try:
        level = cluster.slurm.run(argv).strip()
    except DatabaseDown:
        return
    if level not in _OPERATORS:
        raise Refused(
            f"only operators of Slurm {doing}; {own} is none (sacctmgr: AdminLevel"
            f" {level or 'None'}): ask one"
        )
