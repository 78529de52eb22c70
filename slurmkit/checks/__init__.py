"""Our own checks: what says no before the queue does.

Each check is a pure function from a `Request` to findings; `CHECKS` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from slurmkit.checks import (
    access,
    amounts,
    balance,
    counts,
    habits,
    identity,
    licenses,
    partition,
    places,
    reservations,
    shapes,
    survival,
    times,
    walls,
)
from slurmkit.checks.dependencies import check_dependencies
from slurmkit.checks.inforce import is_strict
from slurmkit.checks.nearest import Search
from slurmkit.checks.switches import check_topology
from slurmkit.findings import Finding
from slurmkit.request import Request

__all__ = ["CHECKS", "check", "check_all", "check_dependencies", "check_topology"]

CHECKS: tuple[Callable[[Request], Iterable[Finding]], ...] = (
    identity.unknown,
    identity.association,
    identity.qos,
    identity.threshold,
    access.state,
    access.accounts,
    access.qos,
    access.groups,
    access.doors,
    partition.max_time,
    partition.node_counts,
    partition.max_cpus,
    partition.max_memory,
    partition.memory_per_cpu,
    places.features,
    places.named_nodes,
    shapes.shapes,
    shapes.all_memory,
    licenses.licenses,
    reservations.asked_for,
    reservations.in_the_way,
    amounts.amounts,
    amounts.least,
    walls.default_time,
    walls.job_wall,
    walls.group_wall,
    balance.job_minutes,
    balance.budgets,
    balance.running_minutes,
    counts.running,
    counts.submitted,
    counts.arrays,
    times.begin,
    times.deadline,
    times.warning_signal,
    survival.told,
    survival.doubts,
    habits.mail,
    habits.topology,
)
"""In the order in which findings are shown."""


def check(request: Request) -> tuple[Finding, ...]:
    """Every finding on one request; an error's `fix` makes a request that passes all checks."""
    found = _judge(request)
    if not any(each.severity == "error" for each in found):
        return found
    search = Search(request, CHECKS)
    return tuple(_fixed(each, search) for each in found)


def _judge(request: Request) -> tuple[Finding, ...]:
    return tuple(dict.fromkeys(finding for each in CHECKS for finding in each(request)))


def _fixed(finding: Finding, search: Search) -> Finding:
    if finding.severity != "error":
        return finding
    return msgspec.structs.replace(finding, fix=search.fix(finding))


def check_all(requests: Sequence[Request]) -> tuple[Finding, ...]:
    """Findings on one spec in each partition it names.

    The job starts where it can: a partition that it does not fit beside one that it fits is a
    warning, unless sbatch refuses the job for it.
    """
    found = [check(request) for request in requests]
    good = [request for request, said in zip(requests, found, strict=True) if not _errors(said)]
    if not good or len(good) == len(requests):
        return tuple(dict.fromkeys(finding for said in found for finding in said))
    names = tuple(request.partition.name for request in good)
    kept = (
        _beside(finding, request, names)
        for request, said in zip(requests, found, strict=True)
        for finding in said
    )
    return tuple(dict.fromkeys(kept))


def _errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error"]


def _beside(finding: Finding, request: Request, good: tuple[str, ...]) -> Finding:
    """What an error in one partition is worth while others fit."""
    if finding.severity != "error":
        return finding
    fits = ",".join(good)
    fix = (("partition", fits),)
    if _refuses_all(finding, request):
        message = f"{finding.message}, whole, though partition {fits} fits"
        return msgspec.structs.replace(finding, message=message, fix=fix)
    name = request.partition.name
    message = f"not in partition {name}: {finding.message}; partition {fits} fits"
    return msgspec.structs.replace(finding, severity="warning", message=message, fix=fix)


def _refuses_all(finding: Finding, request: Request) -> bool:
    """Whether one such partition keeps the job from starting anywhere (job_mgr.c)."""
    if finding.code in access.DENIES_ALL:
        return True
    if finding.code.startswith(("qos-", "assoc-")):
        return is_strict(request)
    is_part = finding.code.startswith("partition-") and finding.code != "partition-state"
    return is_part and partition.enforce_part_limits(request) in ("ALL", "YES")
