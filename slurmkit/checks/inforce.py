"""Which limits of QOS and associations are in force for a request, and in which order.

By src/slurmctld/acct_policy.c: for each limit and TRES the partition's QOS goes before the job's
(the other way round with the QOS flag OverPartQOS), and what a QOS limits no association limits.
Of the associations from the user's up to root every group limit holds, but only the nearest of a
limit for one job or user.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from slurmkit.capabilities.model import Association, Limits, Qos, Usage
from slurmkit.request import Request

SLURM_NAMES = {
    "max_tres_per_job": "MaxTRESPerJob",
    "max_tres_per_node": "MaxTRESPerNode",
    "max_tres_per_user": "MaxTRESPerUser",
    "max_tres_per_account": "MaxTRESPerAccount",
    "max_tres_mins_per_job": "MaxTRESMinsPerJob",
    "max_tres_run_mins_per_user": "MaxTRESRunMinsPerUser",
    "max_tres_run_mins_per_account": "MaxTRESRunMinsPerAccount",
    "min_tres_per_job": "MinTRESPerJob",
    "grp_tres": "GrpTRES",
    "grp_tres_mins": "GrpTRESMins",
    "grp_tres_run_mins": "GrpTRESRunMins",
    "grp_wall": "GrpWall",
    "grp_jobs": "GrpJobs",
    "grp_submit": "GrpSubmitJobs",
    "max_wall": "MaxWall",
    "max_jobs": "MaxJobs",
    "max_jobs_per_account": "MaxJobsPerAccount",
    "max_submit": "MaxSubmitJobs",
    "max_submit_per_account": "MaxSubmitJobsPerAccount",
}
# A QOS that limits jobs per account takes the place of an association's MaxJobs, too.
_ALSO = {"max_jobs": ("max_jobs_per_account",), "max_submit": ("max_submit_per_account",)}
_FACTORED = ("grp_tres", "max_tres_per_job")


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit in force.

    Attributes:
        field: of `Limits`.
        kind: whose it is.
        holder: for people: `QOS high`, `account vision`.
        tres: TRES name, empty for times and numbers of jobs.
        value: as in `Limits`.
        usage: what it is compared with, of the user, the account or all of the holder's jobs.
    """

    field: str
    kind: Literal["qos", "assoc"]
    holder: str
    tres: str
    value: int
    usage: Usage

    @property
    def code(self) -> str:
        """Of a finding: `qos-max-tres-per-user`."""
        return f"{self.kind}-{self.field.replace('_', '-')}"

    @property
    def setting(self) -> str:
        """As sacctmgr writes it: `MaxTRESPerUser gres/gpu=8`, `MaxWall=60`."""
        name = SLURM_NAMES[self.field]
        per_user = self.kind == "qos" and self.field in _ALSO
        name = f"{name}PerUser" if per_user else name
        return f"{name} {self.tres}={self.value}" if self.tres else f"{name}={self.value}"

    @property
    def source(self) -> str:
        """Of a finding: `QOS high: MaxTRESPerUser gres/gpu=8`."""
        return f"{self.holder}: {self.setting}"

    @property
    def whose(self) -> str:
        """Who shares it: `one user`, `all its jobs together`."""
        if self.field.startswith("grp_"):
            return "all its jobs together"
        if self.field.endswith("per_node"):
            return "on each node"
        if self.field.endswith("per_account"):
            return "one account"
        is_job = self.field.endswith("per_job") or self.field == "max_wall"
        return "one job" if is_job or self.kind == "assoc" else "one user"


def enforced(request: Request) -> bool:
    """Whether this cluster enforces limits of QOS and associations at all."""
    known = request.capabilities
    return known.enforces("limits") or known.enforces("safe")


def is_strict(request: Request) -> bool:
    """Whether sbatch refuses what exceeds a limit; otherwise the job pends for ever."""
    judges = _qos_in_order(request)
    return not judges or any("DenyOnLimit" in qos.flags for qos, _ in judges)


def fate(request: Request) -> str:
    """What Slurm does with a job that exceeds a limit, in words."""
    return "sbatch would refuse it" if is_strict(request) else "it would pend for ever"


def in_force(request: Request, field: str) -> Iterator[Limit]:
    """Every limit of one field that holds for `request`, in Slurm's order."""
    if not enforced(request):
        return
    taken: set[str] = set()
    for qos, holder in _qos_in_order(request):
        usage = _usage_of(qos, field, request)
        found = _values(qos.limits, field)
        for tres, value in found.items():
            if tres not in taken:
                yield Limit(
                    field=field, kind="qos", holder=holder, tres=tres, value=value, usage=usage
                )
        taken |= found.keys()
        taken |= {name for also in _ALSO.get(field, ()) for name in _values(qos.limits, also)}
    yield from _of_associations(request, field, taken)


def chain(request: Request) -> tuple[Association, ...]:
    """The user's association and those above it; empty when it is unknown."""
    own = request.association
    return request.standing.chain(own) if own else ()


def _of_associations(request: Request, field: str, taken: set[str]) -> Iterator[Limit]:
    factor = request.qos.limit_factor if request.qos and field in _FACTORED else 1.0
    for association in chain(request):
        found = _values(association.limits, field)
        for tres, value in found.items():
            if tres not in taken:
                yield Limit(
                    field=field,
                    kind="assoc",
                    holder=association.name,
                    tres=tres,
                    value=int(value * factor) if factor > 0 else value,
                    usage=association.usage,
                )
        if not field.startswith("grp_"):
            taken = taken | found.keys()


def _qos_in_order(request: Request) -> list[tuple[Qos, str]]:
    own, parts = request.qos, request.partition_qos
    judges = [(own, f"QOS {own.name}")] if own else []
    if parts and (own is None or parts.name != own.name):
        of_partition = (parts, f"QOS {parts.name} of partition {request.partition.name}")
        first = own is not None and "OverPartQOS" in own.flags
        judges.insert(len(judges) if first else 0, of_partition)
    return judges


def _values(limits: Limits, field: str) -> dict[str, int]:
    value = getattr(limits, field)
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"": value}


def _usage_of(qos: Qos, field: str, request: Request) -> Usage:
    if field.startswith("grp_"):
        return qos.usage
    if field.endswith("per_account"):
        return qos.account_usage.get(request.account or "", Usage())
    return qos.user_usage
