"""Who may use a partition, and whether it takes jobs at all."""

from __future__ import annotations

from collections.abc import Iterator

from slurmkit.capabilities.nodes import node_names
from slurmkit.checks.inforce import chain
from slurmkit.checks.partition import fate
from slurmkit.checks.say import error, warning
from slurmkit.findings import Finding
from slurmkit.machine import HERE
from slurmkit.request import Request

DENIES_ALL = ("partition-root-only", "partition-needs-reservation", "partition-alloc-nodes")
"""Codes of what keeps a job out of every partition it names, not only of this one."""
_ANCESTORS_COUNT = (23, 2)  # before, only the job's own account did


def state(request: Request) -> Iterator[Finding]:
    """A partition that takes no jobs, or starts none."""
    name, state_ = request.partition.name, request.partition.state
    source = f"partition {name}: State={state_}"
    instead = request.partition.settings.get("Alternate", "")
    if state_ in ("DRAIN", "INACTIVE") and instead not in ("", "(null)"):
        message = f"partition {name} is {state_}: its jobs go to {instead}, whose limits then hold"
        yield warning("partition-state", message, source, (("partition", instead),))
    elif state_ in ("DRAIN", "INACTIVE"):
        message = f"partition {name} is {state_} and takes no jobs; sbatch would refuse it"
        yield error("partition-state", message, source)
    elif state_ == "DOWN":
        message = f"partition {name} is DOWN: jobs are taken, but none starts until it is UP again"
        yield warning("partition-state", message, source)


def accounts(request: Request) -> Iterator[Finding]:
    """AllowAccounts and DenyAccounts; AllowAccounts goes before."""
    partition, account = request.partition, request.account
    if account is None or not _accounts_count(request):
        return
    names = {account}
    if request.capabilities.release >= _ANCESTORS_COUNT:
        names |= {above.account for above in chain(request)}
    allowed, denied = partition.allow_accounts, set(partition.deny_accounts)
    if allowed is not None and not names & set(allowed):
        yield _not_allowed(request, "account", account, ("AllowAccounts", allowed))
    elif allowed is None and names & denied:
        yield _denied(request, "account", account, ("DenyAccounts", partition.deny_accounts))


def _accounts_count(request: Request) -> bool:
    enforces = request.capabilities.enforces
    return any(map(enforces, ("associations", "limits", "qos", "safe")))


def qos(request: Request) -> Iterator[Finding]:
    """AllowQos and DenyQos; AllowQos goes before."""
    partition, own = request.partition, request.qos
    if own is None:
        return
    if partition.allow_qos is not None and own.name not in partition.allow_qos:
        yield _not_allowed(request, "QOS", own.name, ("AllowQos", partition.allow_qos))
    elif partition.allow_qos is None and own.name in partition.deny_qos:
        yield _denied(request, "QOS", own.name, ("DenyQos", partition.deny_qos))


def groups(request: Request) -> Iterator[Finding]:
    """AllowGroups: Unix groups; root may always."""
    allowed, standing = request.partition.allow_groups, request.standing
    if allowed is None or standing.user == "root" or set(allowed) & set(standing.groups):
        return
    yield _not_allowed(request, "user", standing.user, ("AllowGroups", allowed))


def _not_allowed(
    request: Request, what: str, who: str, setting: tuple[str, tuple[str, ...]]
) -> Finding:
    name, (key, names) = request.partition.name, setting
    allows = f"partition {name} allows {', '.join(names)} only ({key})"
    return _access(request, key, f"{what} {who}: {allows}; {fate(request)}", names)


def _denied(request: Request, what: str, who: str, setting: tuple[str, tuple[str, ...]]) -> Finding:
    name, (key, names) = request.partition.name, setting
    denies = f"partition {name} denies {', '.join(names)} ({key})"
    return _access(request, key, f"{what} {who}: {denies}; {fate(request)}", names)


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


def doors(request: Request) -> Iterator[Finding]:
    """RootOnly, ReqResv, DisableRootJobs and AllocNodes: sbatch says `Access denied` at once."""
    name, settings, user = request.partition.name, request.partition.settings, request.standing.user
    refused = "sbatch would refuse it"
    if settings.get("RootOnly") == "YES" and user != "root":
        message = f"partition {name} is for root only (RootOnly); {refused}"
        yield error("partition-root-only", message, f"partition {name}: RootOnly=YES")
    if settings.get("DisableRootJobs") == "YES" and user == "root":
        message = f"partition {name} takes no jobs of root (DisableRootJobs); {refused}"
        yield error("partition-no-root", message, f"partition {name}: DisableRootJobs=YES")
    if settings.get("ReqResv") == "YES" and request.spec.reservation is None:
        message = f"partition {name} is used through a reservation only (ReqResv); {refused}"
        yield error("partition-needs-reservation", message, f"partition {name}: ReqResv=YES")
    host = request.standing.host or HERE.name
    yield from _alloc_nodes(name, settings.get("AllocNodes", "ALL"), host)


def _alloc_nodes(name: str, allowed: str, here: str) -> Iterator[Finding]:
    if allowed.upper() in ("ALL", "(NULL)", "") or here in node_names(allowed):
        return
    message = (
        f"partition {name} takes jobs from {allowed} only (AllocNodes), and this is {here};"
        " sbatch would refuse it"
    )
    yield error("partition-alloc-nodes", message, f"partition {name}: AllocNodes={allowed}")
