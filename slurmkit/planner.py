"""From a JobSpec to exactly what is sent to Slurm, checked against the live cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from slurmkit.capabilities.model import Capabilities, Partition
from slurmkit.checks import check_all, check_dependencies, check_topology
from slurmkit.checks.again import rebuilder
from slurmkit.checks.switches import TOO_FEW
from slurmkit.config import nearest
from slurmkit.errors import BadInput
from slurmkit.estimate import Estimate, estimate
from slurmkit.fabric import with_fabric
from slurmkit.findings import Finding
from slurmkit.launchers.mpi import MPIRUN
from slurmkit.launchers.step import Step
from slurmkit.machine import machine_of
from slurmkit.options import with_options
from slurmkit.planning.chunks import Chunk
from slurmkit.planning.contained import Contained, contained, for_other_nodes
from slurmkit.planning.kinds import Kind
from slurmkit.planning.places import on_machine
from slurmkit.planning.requests import Shape, Site, request_for
from slurmkit.planning.requests import chosen as requested
from slurmkit.planning.script import (
    Submission,
    has_foreign_options,
    step_options,
    submission,
)
from slurmkit.planning.secrets import secrets
from slurmkit.planning.shape import shape_of, site_names
from slurmkit.planning.tasks import chunks, is_logical, to_start, too_long
from slurmkit.planning.tasks import findings as of_array
from slurmkit.planning.trial import after_start, trial
from slurmkit.plugins import Launcher, launcher
from slurmkit.policies import Change, review
from slurmkit.preflight.lines import Place, preflight, with_preflight
from slurmkit.request import Request
from slurmkit.slurm import Slurm
from slurmkit.spec import JobSpec, with_array
from slurmkit.survive.lines import Pace, survival
from slurmkit.survive.settings import kill_wait, preempt_mode, with_survival
from slurmkit.sweep import unmarked

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

__all__ = ["Plan", "Submission", "plan", "plan_unasked"]

Lines = tuple[str, ...]
_FRESH = 5.0  # seconds in which nobody changes a limit and sends a job that it stops


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a spec comes to on one cluster at one moment.

    Attributes:
        submissions: in the order they are sent.
        errors: why it should not be sent; also `warnings` and `notes`.
        changes: what the site's policies changed in the spec.
        estimate: what it would use and cost, and when it might start.
        spec: the spec as it is submitted, after the policies.
        capabilities_taken: epoch seconds at which the cluster's settings and shapes were read.
    """

    submissions: tuple[Submission, ...]
    errors: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    changes: tuple[Change, ...] = ()
    estimate: Estimate | None = None
    spec: JobSpec
    capabilities_taken: float

    @property
    def unsafe(self) -> tuple[Finding, ...]:
        """Errors that keep it from being sent whatever the user says."""
        return tuple(finding for finding in self.errors if finding.unsafe)


def plan(spec: JobSpec, cluster: Cluster, *, ask: bool = True, known: Site | None = None) -> Plan:
    """Render and check `spec`; the same spec, cluster and working directory give the same bytes.

    Args:
        spec: what is wanted.
        cluster: where.
        ask: also let slurmctld judge it (`sbatch --test-only`), which gives the start estimate;
            it is asked only when our own checks find no error.
        known: what was read of the cluster a moment ago; it is read by default.

    Raises:
        BadInput: when the spec cannot be rendered at all.
        SlurmError: when Slurm does not answer.
    """
    spec = on_machine(spec, machine_of(cluster.slurm))
    site = known or (cluster.capabilities(), cluster.standing())
    found = _check(spec, cluster.slurm, site)
    if _of(found.findings, "error") and time.time() - site[0].taken > _FRESH:
        # What is kept on disk may be older than what the admin changed a minute ago.
        site = (cluster.capabilities(refresh=True), site[1])
        found = _check(spec, cluster.slurm, site)
    start: int | None = None
    refused: tuple[Finding, ...] = ()
    # Of fewer switches than it needs --test-only says "never", though the job starts later on more.
    in_vain = any(finding.code == TOO_FEW for finding in found.findings)
    if ask and not in_vain and not _of(found.findings, "error"):
        begin = after_start(found.spec, site[1])
        start, refused = trial(cluster.slurm, found.submissions[0], *begin)
    return _made(found, site, start, refused)


def plan_unasked(spec: JobSpec, site: Site) -> Plan:
    """As `plan`, by what is known of a cluster: no command is run.

    So there is no start, jobs in `--dependency` are not looked up, and slurmctld does not judge it.

    Raises:
        BadInput: when the spec cannot be rendered at all.
    """
    return _made(_check(spec, None, site), site)


def requests_of(spec: JobSpec, site: Site) -> tuple[Request, ...]:
    """What a job comes to in each partition it names; empty where that cannot be worked out."""
    return _check(spec, None, site).requests


def _made(
    found: _Checked, site: Site, start: int | None = None, refused: tuple[Finding, ...] = ()
) -> Plan:
    findings = (*found.findings, *refused)
    return Plan(
        submissions=found.submissions,
        errors=_of(findings, "error"),
        warnings=_of(findings, "warning"),
        notes=_of(findings, "note"),
        changes=found.changes,
        estimate=_estimate(found.requests, start),
        spec=found.spec,
        capabilities_taken=site[0].taken,
    )


class _Checked(msgspec.Struct, frozen=True):
    spec: JobSpec
    changes: tuple[Change, ...]
    submissions: tuple[Submission, ...]
    requests: tuple[Request, ...]
    findings: tuple[Finding, ...]


def _check(spec: JobSpec, slurm: Slurm | None, site: Site) -> _Checked:
    reviewed = review(with_array(spec), site[0])
    settled = with_survival(with_preflight(_settled(with_array(reviewed.spec))))
    partitions, _ = _partitions(settled, site[0])
    settled, network = with_fabric(settled, tuple(each.name for each in partitions))
    draft = _draft(settled, site)
    found = [*reviewed.findings, *network, *draft.findings, *secrets(settled)]
    judged = draft.requests or _as_fixed(settled, draft.findings, site)
    found += check_all(judged) if judged else ()
    if slurm is not None:
        found += check_dependencies(slurm, settled)
        found += check_topology(slurm, draft.requests)
    return _Checked(settled, reviewed.changes, draft.submissions, draft.requests, tuple(found))


class _Draft(msgspec.Struct, frozen=True):
    submissions: tuple[Submission, ...]
    requests: tuple[Request, ...]
    findings: tuple[Finding, ...]


def _draft(spec: JobSpec, site: Site) -> _Draft:
    capabilities, _ = site
    partitions, doubts = _partitions(spec, capabilities)
    kind, layout = shape_of(spec, capabilities, partitions, site_names())
    chosen = _launcher(spec)
    inside = contained(spec, capabilities, layout.least_nodes)
    step = Step(
        spec=to_start(spec),
        layout=layout,
        options=(*step_options(spec), *inside.wrapped.srun_options),
        prefix=inside.wrapped.prefix,
        capabilities=capabilities,
        view=inside.view,
    )
    found = [*doubts, *(kind.findings if kind else ()), *layout.findings]
    found += [*_binding(spec), *inside.findings, *chosen.needs(step)]
    if inside.architecture:
        may_get = requested(spec, capabilities.nodes_of(*(each.name for each in partitions)))
        found += for_other_nodes(inside, may_get)
    before, said = _preflight(step, kind, partitions, inside)
    found += [*said, *_mpi(spec, capabilities)]
    found += _unread(spec)
    made = (kind, layout)
    # Without GPUs that fit, or a layout, every other limit would only repeat that.
    judged = () if _of(found, "error") else partitions
    requests = tuple(request_for(spec, made, partition, site) for partition in judged)
    body = () if spec.script is not None else inside.around((*before, *chosen.lines(step)))
    sent, said = _submissions(spec, made, (body, _survival(spec, site, partitions)), capabilities)
    return _Draft(sent, requests, (*found, *said))


def _survival(spec: JobSpec, site: Site, partitions: Iterable[Partition]) -> tuple[str, ...]:
    """What stands first in the script of a job that survives; see `slurmkit.survive`."""
    mode = preempt_mode(site, next(iter(partitions), None), spec.qos)
    return survival(spec, mode, Pace(kill_wait=kill_wait(site[0].config)))


def _submissions(
    spec: JobSpec, made: Shape, text: tuple[Lines, Lines], capabilities: Capabilities
) -> tuple[tuple[Submission, ...], tuple[Finding, ...]]:
    """The job, or each array of Slurm it comes to; `text`: of its work, and what stands first."""
    parts, (body, before) = chunks(spec, capabilities.config), text
    if not parts:
        return (submission(spec, made, body, None, before),), ()
    body = tuple(map(unmarked, body)) if spec.sweep else body
    written = ((part, submission(spec, made, body, part, before)) for part in parts)
    sent = tuple(_as_part(spec, part, one, parts) for part, one in written)
    longest = max((each.script for each in sent), key=len)
    return sent, (*of_array(spec, parts), *too_long(longest, capabilities.config))


def _as_part(spec: JobSpec, part: Chunk, made: Submission, parts: tuple[Chunk, ...]) -> Submission:
    if not is_logical(spec, parts):
        return made
    after = () if part.after is None else (part.after,)
    order = "afterany" if after else made.order
    return msgspec.structs.replace(made, after=after, order=order, part=part)


def _preflight(
    step: Step, kind: Kind | None, partitions: Iterable[Partition], inside: Contained
) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    asked = step.spec.gpus.type if step.spec.gpus else None
    return preflight(
        Place(
            step=step,
            type=(kind.type if kind else None) or asked,
            partitions=tuple(each.name for each in partitions),
            contained=inside.named,
            bare=step_options(step.spec),
        )
    )


def _as_fixed(spec: JobSpec, findings: Iterable[Finding], site: Site) -> tuple[Request, ...]:
    """What to judge beside errors of the GPUs or their layout: the request as their fixes make it.

    So one plan names every limit that is in the way, not the first one only.
    """
    errors = _of(findings, "error")
    if not all(error.fix for error in errors):
        return ()
    try:
        return _draft(with_options(spec, (pair for e in errors for pair in e.fix)), site).requests
    except BadInput:
        return ()


def _partitions(
    spec: JobSpec, capabilities: Capabilities
) -> tuple[tuple[Partition, ...], tuple[Finding, ...]]:
    if not capabilities.partitions:  # slurmctld shows none: PrivateData
        return (), (_hidden(capabilities),)
    if spec.partition is None:
        default = capabilities.default_partition
        return ((default,), ()) if default else ((), (_no_default(capabilities),))
    names = dict.fromkeys(spec.partition.split(","))
    found = {name: capabilities.partition(name) for name in names}
    missing = [name for name, partition in found.items() if partition is None]
    known = [partition.name for partition in capabilities.partitions]
    return (
        tuple(partition for partition in found.values() if partition),
        tuple(_no_partition(name, known) for name in missing),
    )


def _no_default(capabilities: Capabilities) -> Finding:
    known = ", ".join(partition.name for partition in capabilities.partitions)
    message = f"this cluster has no default partition; name one with --partition: {known}"
    return Finding(severity="error", code="partition-none", message=message, source="slurm.conf")


def _hidden(capabilities: Capabilities) -> Finding:
    why = "; ".join(capabilities.hidden) or "slurmctld shows no partition"
    message = f"nothing could be checked but by slurmctld itself: {why}"
    return Finding(
        severity="warning",
        code="unknown-partitions",
        message=message,
        source="scontrol show partition",
    )


def _no_partition(name: str, known: list[str]) -> Finding:
    message = f"no partition {name!r}; {nearest(name, known)}"
    return Finding(severity="error", code="partition-unknown", message=message, source="partitions")


def _launcher(spec: JobSpec) -> Launcher:
    return launcher(spec.launch.launcher or ("none" if spec.script is not None else "srun"))


def _settled(spec: JobSpec) -> JobSpec:
    return _launcher(spec).settle(spec)


def _binding(spec: JobSpec) -> Iterable[Finding]:
    """Parts of a GPU bind in two ways only (sbatch(1) `--tres-bind`)."""
    gpus = spec.gpus
    if gpus is None or gpus.bind is None or not gpus.is_part:
        return
    if gpus.bind != "none" and not gpus.bind.startswith("per_task:"):
        message = f"GPU binding {gpus.bind} is for whole GPUs; parts of one take none or per_task:N"
        yield Finding(
            severity="error", code="gpu-bind-part", message=message, source="sbatch(1) --tres-bind"
        )


def _unread(spec: JobSpec) -> Iterable[Finding]:
    """Options that stand where they are not looked at, or whose amounts are not worked out."""
    if has_foreign_options(spec.script or ""):
        message = "the script's #PBS or #BSUB lines are not read; write them as #SBATCH lines"
        yield Finding(severity="warning", code="script-foreign-options", message=message)
    if spec.mem_per_gpu is not None and (spec.gpus is None or spec.gpus.is_part):
        message = "--mem-per-gpu gives no memory to a job without whole GPUs; give --mem"
        fix = (("mem-per-gpu", ""), ("mem", spec.mem_per_gpu))
        yield Finding(severity="warning", code="mem-without-gpus", message=message, fix=fix)
    for name in ("gpus-per-socket", "tres-per-task", "ntasks-per-gpu"):
        if name in spec.options:
            message = f"what --{name} asks for is passed on, but neither checked nor estimated"
            yield Finding(severity="warning", code="unchecked-option", message=message)


def _mpi(spec: JobSpec, capabilities: Capabilities) -> Iterable[Finding]:
    known = capabilities.mpi
    if spec.launch.mpi in (None, MPIRUN if spec.launch.launcher == "mpi" else None):
        return
    if known is not None and spec.launch.mpi not in known:
        message = f"this Slurm has no MPI plugin {spec.launch.mpi!r}; it has {', '.join(known)}"
        yield Finding(
            severity="error", code="mpi-unknown", message=message, source="srun --mpi=list"
        )


def _of(findings: Iterable[Finding], severity: str) -> tuple[Finding, ...]:
    return tuple(dict.fromkeys(f for f in findings if f.severity == severity))


def _of_a_range(request: Request) -> Estimate:
    """An estimate for the most nodes that the job can get, with that for the least."""
    there = [request.most_nodes or 1, len(request.fitting), request.partition.max_nodes]
    most = min(number for number in there if number)
    if most <= request.nodes:
        return estimate(request)
    widest = rebuilder(request)((("nodes", str(most)),))
    return msgspec.structs.replace(estimate(widest or request), least=estimate(request))


def _estimate(requests: tuple[Request, ...], start: int | None) -> Estimate | None:
    """For the first partition named; where the job may go elsewhere too, a note says so."""
    if not requests:
        return None
    made = _of_a_range(requests[0])
    if start is None:
        return made
    return msgspec.structs.replace(made, start=start, start_source="sbatch --test-only")
