"""Access: the account and QOS of the job, and who may use a partition or a reservation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from slurmkit.config.files import did_you_mean
from slurmkit.formats.durations import format_minutes
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.planning.checks.limits import association_chain, limits_enforced
from slurmkit.planning.checks.limits_use import time_limit_minutes
from slurmkit.planning.checks.nodes import candidate_nodes
from slurmkit.planning.checks.partition import partition_consequence
from slurmkit.planning.request import Request
from slurmkit.slurm.machine import LOCAL_MACHINE
from slurmkit.spec.findings import Finding, Pairs, error, note, warning
from slurmkit.state.model import Reservation

DENIED_EVERYWHERE = ("partition-root-only", "partition-needs-reservation", "partition-alloc-nodes")
"""Codes of errors that keep a job out of every partition it names, not only out of this one."""
_ANCESTORS_COUNT = (23, 2)  # before 23.02 only the job's own account counted


def partition_state(request: Request) -> Iterator[Finding]:
    """Report a partition that takes no jobs, or that starts none."""
    name, state_ = request.partition.name, request.partition.state
    source = f"partition {name}: State={state_}"
    instead = request.partition.settings.get("Alternate", "")
    if state_ in ("DRAIN", "INACTIVE") and instead not in ("", "(null)"):
        message = f"partition {name} is {state_}: its jobs go to {instead}, whose limits then apply"
        yield warning("partition-state", message, source, (("partition", instead),))
    elif state_ in ("DRAIN", "INACTIVE"):
        message = f"partition {name} is {state_} and takes no jobs; sbatch would refuse it"
        yield error("partition-state", message, source)
    elif state_ == "DOWN":
        message = f"partition {name} is DOWN: jobs are taken, but none starts until it is UP again"
        yield warning("partition-state", message, source)


def allowed_accounts(request: Request) -> Iterator[Finding]:
    """Check AllowAccounts and DenyAccounts; Slurm ignores DenyAccounts if AllowAccounts is set."""
    partition, account = request.partition, request.account
    enforcing = ("associations", "limits", "qos", "safe")
    if account is None or not any(map(request.capabilities.enforces, enforcing)):
        return
    names = {account}
    if request.capabilities.release >= _ANCESTORS_COUNT:
        names |= {above.account for above in association_chain(request)}
    allowed, denied = partition.allow_accounts, set(partition.deny_accounts)
    if allowed is not None and not names & set(allowed):
        yield _not_allowed(request, f"account {account}", "AllowAccounts", allowed)
    elif allowed is None and names & denied:
        yield _denied(request, f"account {account}", "DenyAccounts", partition.deny_accounts)


def allowed_qos(request: Request) -> Iterator[Finding]:
    """Check AllowQos and DenyQos; Slurm ignores DenyQos if AllowQos is set."""
    partition, own = request.partition, request.qos
    if own is None:
        return
    if partition.allow_qos is not None and own.name not in partition.allow_qos:
        yield _not_allowed(request, f"QOS {own.name}", "AllowQos", partition.allow_qos)
    elif partition.allow_qos is None and own.name in partition.deny_qos:
        yield _denied(request, f"QOS {own.name}", "DenyQos", partition.deny_qos)


def allowed_groups(request: Request) -> Iterator[Finding]:
    """Check AllowGroups, which names Unix groups; root is always allowed."""
    allowed, standing = request.partition.allow_groups, request.standing
    if allowed is None or standing.user == "root" or set(allowed) & set(standing.groups):
        return
    yield _not_allowed(request, f"user {standing.user}", "AllowGroups", allowed)


def _not_allowed(request: Request, who: str, key: str, names: tuple[str, ...]) -> Finding:
    allows = f"partition {request.partition.name} allows {', '.join(names)} only ({key})"
    return _access(request, key, f"{who}: {allows}; {partition_consequence(request)}", names)


def _denied(request: Request, who: str, key: str, names: tuple[str, ...]) -> Finding:
    denies = f"partition {request.partition.name} denies {', '.join(names)} ({key})"
    return _access(request, key, f"{who}: {denies}; {partition_consequence(request)}", names)


_CODES = {
    "AllowAccounts": "partition-allow-accounts",
    "DenyAccounts": "partition-deny-accounts",
    "AllowQos": "partition-allow-qos",
    "DenyQos": "partition-deny-qos",
    "AllowGroups": "partition-allow-groups",
}


def _access(request: Request, key: str, message: str, names: tuple[str, ...]) -> Finding:
    source = f"partition {request.partition.name}: {key}={','.join(names)}"
    return error(_CODES[key], message, source)


def partition_access(request: Request) -> Iterator[Finding]:
    """Check RootOnly, ReqResv, DisableRootJobs and AllocNodes: sbatch says `Access denied`."""
    name, settings, user = request.partition.name, request.partition.settings, request.standing.user
    refused = "sbatch would refuse it"
    if settings.get("RootOnly") == "YES" and user != "root":
        message = f"partition {name} is for root only (RootOnly); {refused}"
        yield error("partition-root-only", message, f"partition {name}: RootOnly=YES")
    if settings.get("DisableRootJobs") == "YES" and user == "root":
        message = f"partition {name} takes no jobs of root (DisableRootJobs); {refused}"
        yield error("partition-no-root", message, f"partition {name}: DisableRootJobs=YES")
    if settings.get("ReqResv") == "YES" and request.spec.reservation is None:
        message = f"partition {name} can be used only in a reservation (ReqResv); {refused}"
        yield error("partition-needs-reservation", message, f"partition {name}: ReqResv=YES")
    allowed, host = settings.get("AllocNodes", "ALL"), request.standing.host or LOCAL_MACHINE.name
    if allowed.upper() not in ("ALL", "(NULL)", "") and host not in expand_nodes(allowed):
        message = (
            f"partition {name} takes jobs from {allowed} only (AllocNodes), and this is {host};"
            f" {refused}"
        )
        yield error("partition-alloc-nodes", message, f"partition {name}: AllocNodes={allowed}")


_RESERVATIONS = "scontrol show reservation"
_UNTIL_STARTED = 120  # seconds that a user takes to submit, and Slurm to start the job
_OTHER_NODES_FLAGS = ("FLEX", "ANY_NODES")


def requested_reservation(request: Request) -> Iterator[Finding]:
    """Report a reservation that is unknown, over, not allowed, elsewhere, or too small or short.

    Slurm chooses one of several, but refuses the job if one of them is unknown or not allowed
    (`_get_resv_list` in src/slurmctld/reservation.c).
    """
    names = [name for name in (request.spec.reservation or "").split(",") if name]
    known = {each.name: each for each in request.standing.reservations}
    refused = False
    for name in names:
        if found := _refused_reservation(request, name, known):
            message, code = found
            rest: Pairs = (("reservation", ",".join(each for each in names if each != name)),)
            yield error(code, f"{message}; sbatch would refuse it", _RESERVATIONS, rest)
            refused = True
    if len(names) == 1 and not refused:
        yield from _size(request, known[names[0]])
        yield from _ends_first(request, known[names[0]])


def _refused_reservation(
    request: Request, name: str, known: Mapping[str, Reservation]
) -> tuple[str, str] | None:
    """Return why slurmctld refuses a reservation, with the code of the finding."""
    if name not in known:
        hint = did_you_mean(name, sorted(known)) if known else "there is none"
        return f"no reservation {name!r}; {hint}", "no-reservation"
    reservation = known[name]
    if reservation.end <= request.standing.taken:
        return f"reservation {name} has ended", "reservation-over"
    if may_use(request, reservation):
        return None
    who = ", ".join((*reservation.users, *reservation.accounts, *reservation.groups))
    return f"reservation {name} is for {who or 'others'}", "reservation-access"


def may_use(request: Request, reservation: Reservation) -> bool:
    """Return whether the user and account may use the reservation."""
    standing = request.standing
    accounts = list(
        dict.fromkeys(
            [request.account or "", *(above.account for above in association_chain(request))]
        )
    )
    return reservation.admits(standing.user, accounts, standing.groups)


def _size(request: Request, reservation: Reservation) -> Iterator[Finding]:
    known = bool(request.capabilities.nodes)
    if not known or not reservation.nodes or set(_OTHER_NODES_FLAGS) & set(reservation.flags):
        return
    inside = [node for node in candidate_nodes(request) if node.name in reservation.nodes]
    if len(inside) < request.nodes:
        message = (
            f"reservation {reservation.name} has {len(inside)} nodes of partition"
            f" {request.partition.name} that fit, the job needs {request.nodes};"
            " sbatch would refuse it"
        )
        fix: Pairs = (("nodes", str(len(inside))),) if inside else _partition(request, reservation)
        yield error("reservation-nodes", message, _RESERVATIONS, fix)


def _partition(request: Request, reservation: Reservation) -> Pairs:
    nodes = [node for node in request.capabilities.nodes if node.name in reservation.nodes]
    names = [reservation.partition] if reservation.partition else []
    names += [name for node in nodes for name in node.partitions]
    return (("partition", names[0]),) if names and names[0] != request.partition.name else ()


def _ends_first(request: Request, reservation: Reservation) -> Iterator[Finding]:
    time, start = time_limit_minutes(request), max(request.standing.taken, reservation.start)
    left = int(reservation.end - start) // 60
    if "FLEX" in reservation.flags or (time is not None and time <= left):
        return
    asks = "has no time limit" if time is None else f"asks for {format_minutes(time)}"
    message = (
        f"{asks}; reservation {reservation.name} ends in {format_minutes(left)}"
        " and Slurm kills its jobs then"
    )
    fix: Pairs = (("time", format_minutes(left)),) if left else ()
    yield warning("reservation-ends-first", message, _RESERVATIONS, fix)


def blocking_reservation(request: Request) -> Iterator[Finding]:
    """Note another reservation that takes the job's nodes before the job could end."""
    time, now = time_limit_minutes(request), request.standing.taken
    for each in sorted(request.standing.reservations, key=lambda r: r.start):
        if each.name == request.spec.reservation or not _leaves_too_few_nodes(request, each):
            continue
        if each.end <= now or (time is not None and each.start >= now + time * 60):
            continue
        left = int(each.start - now) // 60
        until = "is in force" if left <= 0 else f"begins in {format_minutes(left)}"
        message = (
            f"reservation {each.name} {until} on the nodes that fit: the job waits until it ends"
        )
        # Sent a minute from now, it has to fit, too.
        fits = int(each.start - now - _UNTIL_STARTED) // 60
        limit = format_minutes(fits)
        shorter = f"; with a time limit of {limit} it could start before" if fits > 0 else ""
        fix: Pairs = (("time", limit),) if fits > 0 else ()
        yield note("reservation-in-the-way", message + shorter, _RESERVATIONS, fix)
        return


def _leaves_too_few_nodes(request: Request, reservation: Reservation) -> bool:
    free = [node for node in request.fitting if node.name not in reservation.nodes]
    return len(request.fitting) >= request.nodes > len(free)


_ASSOCIATIONS = "scontrol show assoc_mgr"
NO_ACCOUNT = "no-account-at-all"
"""Code of the error that the user has no association at all."""
FOLLOWS_FROM_NO_ACCOUNT = (
    *("unknown-account", "unknown-limits", "unknown-qos", "unknown-partition-qos", "no-qos"),
    *("qos-", "assoc-", "partition-allow-", "partition-deny-"),
)
"""Beginnings of the codes of findings that say nothing more to a user without an association."""


def hidden_limits(request: Request) -> Iterator[Finding]:
    """Warn of limits that Slurm does not show, so that they could not be checked."""
    for why in request.standing.hidden:
        yield warning("unknown-limits", f"some limits could not be checked: {why}", _ASSOCIATIONS)
    named = request.partition.qos
    if named is not None and request.partition_qos is None and limits_enforced(request):
        name = request.partition.name
        message = f"the limits of QOS {named} of partition {name} could not be checked"
        yield warning("unknown-partition-qos", message, f"partition {name}: QOS={named}")


def account_association(request: Request) -> Iterator[Finding]:
    """Report a user without an association with the account, if associations are enforced."""
    enforcing = ("associations", "limits", "qos", "safe", "wckeys")
    if request.association is not None or not any(map(request.capabilities.enforces, enforcing)):
        return
    user, account = request.standing.user, request.account
    known = sorted({own.account for own in request.standing.associations if own.user == user})
    if not known and request.standing.associations:
        # slurmctld shows everybody their own associations, whatever PrivateData says.
        message = (
            f"you have no account on this cluster (no association of {user}); ask its"
            " administrators for one; sbatch would refuse it"
        )
        yield error(NO_ACCOUNT, message, _ASSOCIATIONS)
    elif not known and request.standing.hidden:
        message = f"the account of {user} is not known, so its limits could not be checked"
        yield warning("unknown-account", message, _ASSOCIATIONS)
    elif account is None:
        message = f"{user} has no default account; name one with --account"
        yield error("no-account", message, _ASSOCIATIONS, _account(request, known))
    else:
        named = f"{user} has no association with account {account!r}"
        hint = did_you_mean(account, known) if known else "and with no other"
        message = f"{named}; {hint}; sbatch would refuse it"
        yield error("no-association", message, _ASSOCIATIONS, _account(request, known))


def _account(request: Request, known: list[str]) -> Pairs:
    """Return the option for the nearest account name, else for the default account."""
    near = get_close_matches(request.account or "", known, n=1)
    default = request.standing.default_account
    choices = [*near, *([default] if default in known else known)]
    return (("account", choices[0]),) if choices else ()


def requested_qos(request: Request) -> Iterator[Finding]:
    """Report a QOS that does not exist, is not allowed, or needs a reservation."""
    spec, own = request.spec, request.association
    if spec.qos is not None and request.qos is None:
        yield from _no_qos(request)
        return
    if request.qos is None or own is None:
        return
    name = request.qos.name
    if request.capabilities.enforces("qos") and own.qos and name not in own.qos:
        allowed = ", ".join(own.qos)
        message = f"{own.name} may not use QOS {name}, only {allowed}; sbatch would refuse it"
        source = f"{own.name}: QOS={','.join(own.qos)}"
        yield error("qos-not-allowed", message, source, (("qos", own.default_qos or own.qos[0]),))
    if "RequiresReservation" in request.qos.flags and spec.reservation is None:
        message = f"QOS {name} can be used only in a reservation; sbatch would refuse it"
        source = f"QOS {name}: Flags=RequiresReservation"
        yield error("qos-needs-reservation", message, source, (("qos", _default_qos(request)),))


def _no_qos(request: Request) -> Iterator[Finding]:
    name, known = request.spec.qos or "", [qos.name for qos in request.standing.qos]
    if "," in name:
        message = f"Slurm chooses one of the QOS {name}, so their limits could not be checked"
        yield warning("unknown-qos", message, "sacctmgr show qos")
    elif not known:
        message = f"the limits of QOS {name} are not known and could not be checked"
        yield warning("unknown-qos", message, "sacctmgr show qos")
    else:
        message = f"no QOS {name!r}; {did_you_mean(name, known)}; sbatch would refuse it"
        yield error("no-qos", message, "sacctmgr show qos", (("qos", _default_qos(request)),))


def _default_qos(request: Request) -> str:
    """Return the QOS that the job gets without `--qos`; empty leaves the choice to Slurm."""
    own = request.association
    default = own.default_qos if own else ""
    return "" if request.qos and request.qos.name == default else default


def usage_threshold(request: Request) -> Iterator[Finding]:
    """Warn of EnforceUsageThreshold: slurmkit does not know the fair-share factor it needs."""
    if request.qos is not None and "EnforceUsageThreshold" in request.qos.flags:
        name = request.qos.name
        message = (
            f"QOS {name} starts jobs only above a fair-share factor (UsageThreshold), which could"
            " not be checked; see `slurmkit fairshare`"
        )
        yield warning("unknown-usage-threshold", message, f"QOS {name}: EnforceUsageThreshold")
