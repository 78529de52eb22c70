"""The registry of slurmkit's own checks, which find errors before the job is in the queue.

Each check is a pure function from a `Request` to findings. `CHECKS` lists them all but those that
run commands of Slurm, which are in `live`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from slurmkit.planning.checks import access, limits_use, nodes, options, partition, times
from slurmkit.planning.checks.fixes import FixSearch
from slurmkit.planning.checks.limits import refused_at_submit
from slurmkit.planning.request import Request
from slurmkit.spec.findings import Finding

CHECKS: tuple[Callable[[Request], Iterable[Finding]], ...] = (
    access.hidden_limits,
    access.account_association,
    access.requested_qos,
    access.usage_threshold,
    access.partition_state,
    access.allowed_accounts,
    access.allowed_qos,
    access.allowed_groups,
    access.partition_access,
    partition.max_time,
    partition.node_counts,
    partition.max_cpus,
    partition.max_memory,
    partition.memory_per_cpu,
    nodes.constraint_features,
    nodes.named_nodes,
    nodes.preferred_features,
    nodes.node_shapes,
    nodes.whole_nodes_of_parts,
    nodes.mixed_gpu_types,
    nodes.tasks_of_sockets,
    nodes.overcommitted_cpus,
    nodes.whole_node_memory,
    options.license_counts,
    access.requested_reservation,
    access.blocking_reservation,
    limits_use.tres_limits,
    limits_use.minimum_tres,
    limits_use.default_time,
    limits_use.job_wall_time,
    limits_use.group_wall_time,
    limits_use.job_minutes,
    limits_use.group_minutes,
    limits_use.running_minutes,
    limits_use.running_jobs,
    limits_use.submitted_jobs,
    limits_use.array_limits,
    times.begin,
    times.deadline,
    times.warning_signal,
    times.endings,
    times.survival_conflicts,
    options.mail_options,
    options.topology_options,
    options.expedited_requeue,
    options.memory_update,
    options.options_for_gpus,
    options.fewest_cpus,
    options.ignored_hint,
    options.binding_plugins,
    options.core_selection,
    options.spreading,
    options.passed_on_options,
)
"""All checks, in the order in which their findings are shown."""


def check(request: Request, *, search: bool = True) -> tuple[Finding, ...]:
    """Return every finding on one request.

    Args:
        request: the job in one partition.
        search: search for the `fix` of each error: options with which the request passes all
            checks. Otherwise an error has at most the fix that its own check knows.
    """
    findings = tuple(dict.fromkeys(finding for check_ in CHECKS for finding in check_(request)))
    if any(finding.code == access.NO_ACCOUNT for finding in findings):
        left = (f for f in findings if not f.code.startswith(access.FOLLOWS_FROM_NO_ACCOUNT))
        findings = tuple(sorted(left, key=lambda finding: finding.code != access.NO_ACCOUNT))
    if not search or not _errors(findings):
        return findings
    fixes = FixSearch(request, CHECKS)
    return tuple(
        msgspec.structs.replace(finding, fix=fixes.fix(finding))
        if finding.severity == "error"
        else finding
        for finding in findings
    )


class Judged(NamedTuple):
    """The job in one partition, and the findings on it there."""

    request: Request
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        """Whether nothing keeps the job from starting in this partition."""
        return not _errors(self.findings)


def check_each(requests: Sequence[Request], *, search: bool = True) -> tuple[Judged, ...]:
    """Judge one spec in each partition that it names; `search` is as for `check`."""
    return tuple(Judged(request, check(request, search=search)) for request in requests)


def findings_on_all(judged: Sequence[Judged]) -> tuple[Finding, ...]:
    """Join the findings on one spec in each partition that it names.

    The job starts in any partition that fits. So an error in one partition becomes a warning when
    another partition fits, unless sbatch refuses the whole job for it.
    """
    names = tuple(each.request.partition.name for each in judged if each.fits)
    if not names or len(names) == len(judged):
        return tuple(dict.fromkeys(finding for each in judged for finding in each.findings))
    in_each = (
        _while_others_fit(finding, each.request, names)
        for each in judged
        for finding in each.findings
    )
    return tuple(dict.fromkeys(in_each))


def _errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error"]


def _while_others_fit(finding: Finding, request: Request, good: tuple[str, ...]) -> Finding:
    """Return the finding as it counts when the partitions `good` fit the job."""
    if finding.severity != "error":
        return finding
    fits = ",".join(good)
    fix = (("partition", fits),)
    if _refused_everywhere(finding, request):
        message = f"{finding.message}; it refuses the whole job, although partition {fits} fits"
        return msgspec.structs.replace(finding, message=message, fix=fix)
    name = request.partition.name
    message = f"not in partition {name}: {finding.message}; partition {fits} fits"
    return msgspec.structs.replace(finding, severity="warning", message=message, fix=fix)


def _refused_everywhere(finding: Finding, request: Request) -> bool:
    """Return whether this error in one partition keeps the job out of all (job_mgr.c)."""
    if finding.code in access.DENIED_EVERYWHERE:
        return True
    if finding.code.startswith(("qos-", "assoc-")):
        return refused_at_submit(request)
    is_part = finding.code.startswith("partition-") and finding.code != "partition-state"
    return is_part and partition.enforce_part_limits(request) in ("ALL", "YES")
