"""New reservations of nodes for Slurm's operators: checked and shown before they are made."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadInput, DatabaseDown, Refused
from slurmkit.formats.durations import parse_elapsed, parse_time_limit
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.planning.checks.times import parse_begin_time
from slurmkit.state.associations import current_user
from slurmkit.state.model import Capabilities, Reservation
from slurmkit.state.queue import QueueFilter
from slurmkit.state.queue_rows import QueueRow

if TYPE_CHECKING:
    from slurmkit.cluster.protocol import Submitter

_NAME = re.compile(r"[A-Za-z0-9][\w.\-]{0,63}", re.ASCII)
_WHO = re.compile(r"-?[\w.\-]+(,-?[\w.\-]+)*", re.ASCII)
_WORDS = re.compile(r"[\w+\-/:]+(,[\w+\-/:]+)*", re.ASCII)
_OPERATORS = ("Operator", "Administrator")
_ALL_NODES = "ALL"


class ReservationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation to be made (scontrol(1), "RESERVATIONS").

    Attributes:
        name: of the reservation.
        start: `now`, `now+2hours` or `2026-12-24T18:00`.
        duration: a time in the form of `--time`.
        nodes: a list, `c[1-4]`, or ALL; or else `count` nodes, which Slurm chooses.
        partition: of the nodes; needed for `count` if there is no default partition.
        users: who may use it, comma-separated; likewise `accounts` and `groups`. One of the three
            is needed.
        flags: comma-separated, e.g. `MAINT,IGNORE_JOBS`.
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
            raise BadInput(
                f"{self.name!r} is not a name of a reservation; use letters, digits, _ . -"
            )
        if parse_begin_time(self.start, 0) is None:
            raise BadInput(
                f"start {self.start!r} is not a time; give e.g. now, now+2hours or 2026-12-24T18:00"
            )
        parse_time_limit(self.duration)
        if (self.nodes is None) == (self.count is None):
            raise BadInput("give either the nodes by name, e.g. c[1-4], or their number")
        if not (self.users or self.accounts or self.groups):
            raise BadInput("name who may use the reservation: users, accounts or groups")
        for name in ("users", "accounts", "groups"):
            value = getattr(self, name)
            if value is not None and not _WHO.fullmatch(value):
                raise BadInput(f"{name} {value!r} is not a list of names; separate them by commas")
        for name in ("partition", "flags"):
            value = getattr(self, name)
            if value is not None and not _WORDS.fullmatch(value):
                raise BadInput(f"{name} {value!r} is not valid; give words separated by commas")

    def argv(self, now: float) -> list[str]:
        """Return the scontrol command that makes the reservation, with an absolute start."""
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
        assignments = [f"{name}={value}" for name, value in words.items() if value is not None]
        return ["scontrol", "create", "reservation", *assignments]

    def begin(self, now: float) -> float:
        """Return the start in epoch seconds."""
        return parse_begin_time(self.start, now) or now

    @property
    def seconds(self) -> int:
        """The duration in seconds."""
        return parse_time_limit(self.duration)

    def node_names(self, known: Capabilities) -> tuple[str, ...] | None:
        """Return the names of the nodes; None where Slurm chooses them.

        Raises:
            BadInput: for a node that the cluster does not have.
        """
        if self.nodes is None:
            return None
        known_names = [node.name for node in known.nodes]
        if self.nodes.upper() == _ALL_NODES:
            return tuple(known_names)
        try:
            names = expand_nodes(self.nodes)
        except ValueError as error:
            raise BadInput(str(error)) from error
        for name in names:
            if known_names and name not in known_names:
                raise BadInput(f"no node {name!r}; {did_you_mean(name, known_names)}")
        return names


class ReservationConflicts(msgspec.Struct, frozen=True):
    """Jobs and reservations that conflict with a new reservation.

    Attributes:
        jobs: running on its nodes, with a time limit after its start.
        reservations: that share a node and a time with it.
    """

    jobs: tuple[QueueRow, ...]
    reservations: tuple[Reservation, ...]

    def refusals(self, flags: str | None) -> Iterable[str]:
        """Return why slurmctld would refuse it, each with the flag that allows it."""
        flags_set = {flag.strip().upper() for flag in (flags or "").split(",")}
        if self.jobs and "IGNORE_JOBS" not in flags_set:
            yield "jobs may still run there when it begins; --flags IGNORE_JOBS allows that"
        if self.reservations and not flags_set & {"MAINT", "OVERLAP"}:
            names = ", ".join(each.name for each in self.reservations)
            yield f"it overlaps with {names}; --flags OVERLAP or MAINT allow that"


def find_conflicts(
    cluster: Submitter, booking: ReservationRequest, now: float
) -> ReservationConflicts:
    """Find running jobs and other reservations on its nodes; none if Slurm chooses the nodes.

    Raises:
        BadInput: for a node that the cluster does not have.
        SlurmError: when slurmctld does not answer.
    """
    names = booking.node_names(cluster.capabilities())
    if names is None:
        return ReservationConflicts((), ())
    own_nodes, begin = set(names), booking.begin(now)
    rows = cluster.queue(
        QueueFilter(states=("RUNNING", "SUSPENDED", "COMPLETING"), hidden=True)
    ).rows
    others = cluster.standing().reservations
    return ReservationConflicts(
        tuple(
            row
            for row in rows
            if own_nodes & set(expand_nodes(row.node_list)) and _latest_end(row) > begin
        ),
        tuple(
            each
            for each in others
            if own_nodes & set(each.nodes)
            and each.start < begin + booking.seconds
            and each.end > begin
        ),
    )


def _latest_end(row: QueueRow) -> float:
    """Return when a job's time limit ends, in epoch seconds; infinite without a limit."""
    seconds = parse_elapsed(row.time_limit)
    return float("inf") if seconds is None or row.started is None else row.started + seconds


def require_operator(cluster: Submitter, doing: str) -> None:
    """Refuse users who are no operators of Slurm.

    While slurmdbd does not answer, slurmctld decides.

    Raises:
        Refused: saying who is allowed.
    """
    own = current_user(cluster.slurm)
    if own in ("root", cluster.capabilities().config.get("SlurmUser", "").split("(")[0]):
        return
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "user", own, "format=AdminLevel"]
    try:
        level = cluster.slurm.run(argv).strip()
    except DatabaseDown:
        return
    if level not in _OPERATORS:
        raise Refused(
            f"only operators of Slurm {doing}; {own} is not one (sacctmgr: AdminLevel"
            f" {level or 'None'}); ask an operator"
        )
