"""The limits of QOS and associations that apply to a request, in Slurm's order.

From src/slurmctld/acct_policy.c: for each limit and TRES the partition's QOS comes before the
job's QOS (the other way round with the QOS flag OverPartQOS). Where a QOS sets a limit, no
association sets it. Of the associations from the user's up to root every group limit applies. Of
a limit for one job or user only the nearest applies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from slurmkit.planning.request import Request
from slurmkit.state.model import Association, Limits, LimitUsage, Qos

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
# A QOS limit on jobs per account also replaces the association's MaxJobs.
_PER_ACCOUNT_FIELDS = {
    "max_jobs": ("max_jobs_per_account",),
    "max_submit": ("max_submit_per_account",),
}
_SCALED_BY_LIMIT_FACTOR = ("grp_tres", "max_tres_per_job")


class EffectiveLimit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit that applies to a request.

    Attributes:
        field: name of the field of `Limits`.
        kind: whether a QOS or an association sets it.
        holder: who sets it, for people: `QOS high`, `account vision`.
        tres: TRES name, empty for times and numbers of jobs.
        value: amount, as in `Limits`.
        usage: current use that Slurm compares with it: of the user, account or all holder's jobs.
    """

    field: str
    kind: Literal["qos", "assoc"]
    holder: str
    tres: str
    value: int
    usage: LimitUsage

    @property
    def code(self) -> str:
        """The code of its findings, e.g. `qos-max-tres-per-user`."""
        return f"{self.kind}-{self.field.replace('_', '-')}"

    @property
    def setting(self) -> str:
        """The setting as sacctmgr writes it: `MaxTRESPerUser gres/gpu=8`, `MaxWall=60`."""
        name = SLURM_NAMES[self.field]
        per_user = self.kind == "qos" and self.field in _PER_ACCOUNT_FIELDS
        name = f"{name}PerUser" if per_user else name
        return f"{name} {self.tres}={self.value}" if self.tres else f"{name}={self.value}"

    @property
    def source(self) -> str:
        """The source of its findings, e.g. `QOS high: MaxTRESPerUser gres/gpu=8`."""
        return f"{self.holder}: {self.setting}"

    @property
    def whose(self) -> str:
        """The jobs that share the limit, e.g. `one user`, `all its jobs together`."""
        if self.field.startswith("grp_"):
            return "all its jobs together"
        if self.field.endswith("per_node"):
            return "on each node"
        if self.field.endswith("per_account"):
            return "one account"
        is_job = self.field.endswith("per_job") or self.field == "max_wall"
        return "one job" if is_job or self.kind == "assoc" else "one user"


def limits_enforced(request: Request) -> bool:
    """Return whether this cluster enforces limits of QOS and associations at all."""
    known = request.capabilities
    return known.enforces("limits") or known.enforces("safe")


def refused_at_submit(request: Request) -> bool:
    """Return whether sbatch refuses a job over a limit; otherwise the job pends for ever."""
    judges = _qos_in_order(request)
    return not judges or any("DenyOnLimit" in qos.flags for qos, _ in judges)


def limit_consequence(request: Request) -> str:
    """Return what Slurm does with a job over a limit, in words."""
    return "sbatch would refuse it" if refused_at_submit(request) else "it would pend for ever"


def effective_limits(request: Request, field: str) -> Iterator[EffectiveLimit]:
    """Yield every limit of one field that applies to `request`, in Slurm's order."""
    if not limits_enforced(request):
        return
    taken: set[str] = set()
    for qos, holder in _qos_in_order(request):
        usage = _usage_of(qos, field, request)
        values = _limit_values(qos.limits, field)
        for tres, value in values.items():
            if tres not in taken:
                yield EffectiveLimit(
                    field=field, kind="qos", holder=holder, tres=tres, value=value, usage=usage
                )
        taken |= values.keys()
        taken |= {
            name
            for also in _PER_ACCOUNT_FIELDS.get(field, ())
            for name in _limit_values(qos.limits, also)
        }
    yield from _association_limits(request, field, taken)


def association_chain(request: Request) -> tuple[Association, ...]:
    """Return the user's association and those above it; empty when it is unknown."""
    own = request.association
    return request.standing.chain(own) if own else ()


def _association_limits(request: Request, field: str, taken: set[str]) -> Iterator[EffectiveLimit]:
    factor = request.qos.limit_factor if request.qos and field in _SCALED_BY_LIMIT_FACTOR else 1.0
    for association in association_chain(request):
        values = _limit_values(association.limits, field)
        for tres, value in values.items():
            if tres not in taken:
                yield EffectiveLimit(
                    field=field,
                    kind="assoc",
                    holder=association.name,
                    tres=tres,
                    value=int(value * factor) if factor > 0 else value,
                    usage=association.usage,
                )
        if not field.startswith("grp_"):
            taken = taken | values.keys()


def _qos_in_order(request: Request) -> list[tuple[Qos, str]]:
    own, parts = request.qos, request.partition_qos
    judges = [(own, f"QOS {own.name}")] if own else []
    if parts and (own is None or parts.name != own.name):
        of_partition = (parts, f"QOS {parts.name} of partition {request.partition.name}")
        first = own is not None and "OverPartQOS" in own.flags
        judges.insert(len(judges) if first else 0, of_partition)
    return judges


def _limit_values(limits: Limits, field: str) -> dict[str, int]:
    value = getattr(limits, field)
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"": value}


def _usage_of(qos: Qos, field: str, request: Request) -> LimitUsage:
    if field.startswith("grp_"):
        return qos.usage
    if field.endswith("per_account"):
        return qos.account_usage.get(request.account or "", LimitUsage())
    return qos.user_usage
