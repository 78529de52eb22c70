"""Account, association and QOS: whether they exist, and what could not be looked up."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from slurmkit.checks.inforce import enforced
from slurmkit.checks.say import Pairs, error, warning
from slurmkit.config import nearest
from slurmkit.findings import Finding
from slurmkit.request import Request

_SOURCE = "scontrol show assoc_mgr"


def unknown(request: Request) -> Iterator[Finding]:
    """What Slurm does not show: limits that stand there could not be checked."""
    for why in request.standing.hidden:
        yield warning("unknown-limits", f"some limits could not be checked: {why}", _SOURCE)
    named = request.partition.qos
    if named is not None and request.partition_qos is None and enforced(request):
        name = request.partition.name
        message = f"the limits of QOS {named} of partition {name} could not be checked"
        yield warning("unknown-partition-qos", message, f"partition {name}: QOS={named}")


def association(request: Request) -> Iterator[Finding]:
    """Enforced associations, and none of this user with this account."""
    if request.association is not None or not _enforces_associations(request):
        return
    user, account = request.standing.user, request.account
    known = sorted({own.account for own in request.standing.associations if own.user == user})
    if not known and request.standing.hidden:
        message = f"the account of {user} is not known, so its limits could not be checked"
        yield warning("unknown-account", message, _SOURCE)
    elif account is None:
        message = f"{user} has no default account; name one with --account"
        yield error("no-account", message, _SOURCE, _account(request, known))
    else:
        named = f"{user} has no association with account {account!r}"
        hint = nearest(account, known) if known else "and with no other"
        message = f"{named}; {hint}; sbatch would refuse it"
        yield error("no-association", message, _SOURCE, _account(request, known))


def _enforces_associations(request: Request) -> bool:
    enforces = request.capabilities.enforces
    return any(map(enforces, ("associations", "limits", "qos", "safe", "wckeys")))


def _account(request: Request, known: list[str]) -> Pairs:
    """The nearest name, else the default account."""
    near = get_close_matches(request.account or "", known, n=1)
    default = request.standing.default_account
    found = [*near, *([default] if default in known else known)]
    return (("account", found[0]),) if found else ()


def qos(request: Request) -> Iterator[Finding]:
    """A QOS that does not exist, that the association may not use, or that needs a reservation."""
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
        message = f"QOS {name} is used within a reservation only; sbatch would refuse it"
        source = f"QOS {name}: Flags=RequiresReservation"
        yield error("qos-needs-reservation", message, source, (("qos", _other(request)),))


def _no_qos(request: Request) -> Iterator[Finding]:
    name, known = request.spec.qos or "", [qos.name for qos in request.standing.qos]
    if "," in name:
        message = f"which of the QOS {name} applies is decided by Slurm: their limits are unchecked"
        yield warning("unknown-qos", message, "sacctmgr show qos")
    elif not known:
        message = f"the limits of QOS {name} are not known and could not be checked"
        yield warning("unknown-qos", message, "sacctmgr show qos")
    else:
        message = f"no QOS {name!r}; {nearest(name, known)}; sbatch would refuse it"
        yield error("no-qos", message, "sacctmgr show qos", (("qos", _other(request)),))


def _other(request: Request) -> str:
    """The QOS the job would have without naming one; empty leaves it to Slurm."""
    own = request.association
    default = own.default_qos if own else ""
    return "" if request.qos and request.qos.name == default else default


def threshold(request: Request) -> Iterator[Finding]:
    """EnforceUsageThreshold compares a fair-share factor that is not known here."""
    if request.qos is not None and "EnforceUsageThreshold" in request.qos.flags:
        name = request.qos.name
        message = (
            f"QOS {name} starts jobs only above a fair-share factor (UsageThreshold), which could"
            " not be checked; see `slurmkit fairshare`"
        )
        yield warning("unknown-usage-threshold", message, f"QOS {name}: EnforceUsageThreshold")
