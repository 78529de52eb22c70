"""Reservations: the one asked for, and those in the way."""

from __future__ import annotations

from collections.abc import Iterator

from slurmkit.capabilities.model import Reservation
from slurmkit.checks.inforce import chain
from slurmkit.checks.places import candidates
from slurmkit.checks.say import Pairs, error, note, wall, warning
from slurmkit.checks.walls import minutes
from slurmkit.config import nearest
from slurmkit.findings import Finding
from slurmkit.request import Request

_SOURCE = "scontrol show reservation"
_WAYS_ROUND = ("FLEX", "ANY_NODES")


def asked_for(request: Request) -> Iterator[Finding]:
    """A reservation that is unknown, over, somebody else's, elsewhere, too small or too short."""
    name = request.spec.reservation
    if name is None or "," in name:  # of several Slurm takes the one that fits
        return
    known = {each.name: each for each in request.standing.reservations}
    if name not in known:
        yield _unknown(name, sorted(known))
        return
    reservation = known[name]
    if reservation.end <= request.standing.taken:
        message = f"reservation {name} has ended; sbatch would refuse it"
        yield error("reservation-over", message, _SOURCE, (("reservation", ""),))
    elif not may_use(request, reservation):
        who = ", ".join((*reservation.users, *reservation.accounts, *reservation.groups))
        message = f"reservation {name} is for {who or 'others'}; sbatch would refuse it"
        yield error("reservation-access", message, _SOURCE, (("reservation", ""),))
    else:
        yield from _size(request, reservation)
        yield from _ends_first(request, reservation)


def _unknown(name: str, known: list[str]) -> Finding:
    hint = nearest(name, known) if known else "there is none"
    message = f"no reservation {name!r}; {hint}; sbatch would refuse it"
    return error("no-reservation", message, _SOURCE, (("reservation", ""),))


def may_use(request: Request, reservation: Reservation) -> bool:
    """Whether the user and account may use it."""
    standing = request.standing
    accounts = list(
        dict.fromkeys([request.account or "", *(above.account for above in chain(request))])
    )
    return reservation.admits(standing.user, accounts, standing.groups)


def _size(request: Request, reservation: Reservation) -> Iterator[Finding]:
    known = bool(request.capabilities.nodes)
    if not known or not reservation.nodes or set(_WAYS_ROUND) & set(reservation.flags):
        return
    inside = [node for node in candidates(request) if node.name in reservation.nodes]
    if len(inside) < request.nodes:
        message = (
            f"reservation {reservation.name} has {len(inside)} nodes of partition"
            f" {request.partition.name} that fit, the job needs {request.nodes};"
            " sbatch would refuse it"
        )
        fix: Pairs = (("nodes", str(len(inside))),) if inside else _partition(request, reservation)
        yield error("reservation-nodes", message, _SOURCE, fix)


def _partition(request: Request, reservation: Reservation) -> Pairs:
    nodes = [node for node in request.capabilities.nodes if node.name in reservation.nodes]
    names = [reservation.partition] if reservation.partition else []
    names += [name for node in nodes for name in node.partitions]
    return (("partition", names[0]),) if names and names[0] != request.partition.name else ()


def _ends_first(request: Request, reservation: Reservation) -> Iterator[Finding]:
    time, start = minutes(request), max(request.standing.taken, reservation.start)
    left = int(reservation.end - start) // 60
    if "FLEX" in reservation.flags or (time is not None and time <= left):
        return
    asks = "has no time limit" if time is None else f"asks for {wall(time)}"
    message = (
        f"{asks}; reservation {reservation.name} ends in {wall(left)} and Slurm kills its jobs then"
    )
    fix: Pairs = (("time", wall(left)),) if left else ()
    yield warning("reservation-ends-first", message, _SOURCE, fix)


def in_the_way(request: Request) -> Iterator[Finding]:
    """A reservation of others on all nodes that fit, before the job could end: it waits."""
    time, now = minutes(request), request.standing.taken
    for each in sorted(request.standing.reservations, key=lambda r: r.start):
        if each.name == request.spec.reservation or not _takes_too_many(request, each):
            continue
        if each.end <= now or (time is not None and each.start >= now + time * 60):
            continue
        left = int(each.start - now) // 60
        until = "is in force" if left <= 0 else f"begins in {wall(left)}"
        message = (
            f"reservation {each.name} {until} on the nodes that fit: the job waits for its end"
        )
        shorter = f"; a time limit of {wall(left)} could start before" if left > 0 else ""
        fix: Pairs = (("time", wall(left)),) if left > 0 else ()
        yield note("reservation-in-the-way", message + shorter, _SOURCE, fix)
        return


def _takes_too_many(request: Request, reservation: Reservation) -> bool:
    free = [node for node in request.fitting if node.name not in reservation.nodes]
    return len(request.fitting) >= request.nodes > len(free)
