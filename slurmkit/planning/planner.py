"""Plans: a JobSpec turned into the exact submissions, checked against the live cluster."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from slurmkit.config.files import one_configuration
from slurmkit.errors import BadInput, Refused, SlurmkitError
from slurmkit.planning.arrays import (
    array_limits_of,
    check_array,
    is_logical,
    split_array,
    with_sweep_marks,
)
from slurmkit.planning.checks.files import check_files
from slurmkit.planning.checks.live import (
    TOO_FEW_SWITCHES,
    check_dependencies,
    check_topology,
    is_about_dependency,
)
from slurmkit.planning.checks.options import gpu_binding, unread_options
from slurmkit.planning.checks.partition import named_partitions, partition_names
from slurmkit.planning.checks.registry import check_each, findings_on_all
from slurmkit.planning.containers import ContainerStep, check_architecture, container_step
from slurmkit.planning.estimate import Estimate, estimate_in_all
from slurmkit.planning.fabric import with_nccl_variables
from slurmkit.planning.gpu_request import ResolvedGpus
from slurmkit.planning.launchers.base import Launcher, LaunchStep, make_launcher
from slurmkit.planning.launchers.mpi import check_mpi_plugin
from slurmkit.planning.layout import with_gpus_for_tasks
from slurmkit.planning.policies import PolicyChange, apply_policies
from slurmkit.planning.preflight.lines import PreflightTarget, preflight_lines, with_preflight
from slurmkit.planning.request import (
    JobShape,
    Request,
    SiteState,
    request_for,
    selected_by_spec,
)
from slurmkit.planning.script import step_options, write_submission
from slurmkit.planning.secrets import check_secrets, secret_variables
from slurmkit.planning.shape import job_shape, load_gpu_type_names
from slurmkit.planning.survival import (
    SurvivalTimings,
    parse_kill_wait,
    preempt_mode_of,
    survival_lines,
    with_survival_options,
)
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.machine import Machine, machine_of
from slurmkit.spec.findings import Finding, Pairs, Severity, note
from slurmkit.spec.jobspec import JobSpec, with_array
from slurmkit.spec.option_values import SBATCH_OPTIONS
from slurmkit.spec.sbatch_options import with_options
from slurmkit.spec.submission import Chunk, Submission
from slurmkit.spec.sweep import expand_marks
from slurmkit.state.model import Capabilities, Partition, Standing
from slurmkit.state.past_waits import load_past_waits

__all__ = ["Plan", "Submission", "plan", "plan_offline"]

Lines = tuple[str, ...]
_FRESH = 5.0  # seconds; capabilities younger than this need not be read again after an error
# 24.11 also prints this for jobs that sbatch takes and runs: with a nodelist shorter than the
# number of nodes, or in a partition whose nodes are drained.
_UNRELIABLE_REFUSAL = "Requested node configuration is not available"
# The job waits until these are free: the test cannot say when (src/common/slurm_errno.c).
_IN_USE = (
    "Requested nodes are busy",  # also licences
    "Requested reservation is in use",
    "Licenses not available",
)
_FIX_ROUNDS = 4
_TRIAL_SECONDS = 2.0  # in which the proposed changes of a job with errors are tried
_FIXES_UNTRIED = note(
    "fixes-untried",
    f"trying all changes that might help takes longer than {_TRIAL_SECONDS:g} seconds here, so"
    " some errors have no proposal; correct the others first, then plan again",
    "slurmkit plan",
)
_OF_NODES = ("node-count", "node-shape")
_START = re.compile(r"to start at (\d+)")


class PlanTarget(Protocol):
    """The part of a `Cluster` that planning uses."""

    @property
    def slurm(self) -> SlurmCommands:
        """The runner of Slurm's commands."""
        ...

    def capabilities(self, *, refresh: bool = False) -> Capabilities:
        """Return what the cluster is and has; see `Cluster.capabilities`."""
        ...

    def standing(self) -> Standing:
        """Return the limits of who submits, and their use; see `Cluster.standing`."""
        ...


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The submissions of a spec on one cluster at one moment, with all findings.

    Attributes:
        submissions: in the order they are sent.
        errors: findings that stop the submit; `warnings` and `notes` do not.
        changes: changes to the spec by the site's policies.
        estimate: use, cost and start time.
        spec: the spec as it is submitted, after the policies.
        capabilities_taken: epoch seconds at which the cluster's settings and nodes were read.
    """

    submissions: tuple[Submission, ...]
    errors: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    changes: tuple[PolicyChange, ...] = ()
    estimate: Estimate | None = None
    spec: JobSpec
    capabilities_taken: float

    @property
    def unsafe(self) -> tuple[Finding, ...]:
        """Errors that stop the submit even with `--force`."""
        return tuple(finding for finding in self.errors if finding.unsafe)


@one_configuration()
def plan(
    spec: JobSpec, cluster: PlanTarget, *, ask: bool = True, known: SiteState | None = None
) -> Plan:
    """Render and check `spec`; the same spec, cluster and working directory give the same bytes.

    Args:
        spec: the job.
        cluster: the cluster it is for.
        ask: also ask slurmctld (`sbatch --test-only`), which gives the start estimate; it is
            asked only when our own checks find no error.
        known: capabilities and standing, read a moment ago; by default they are read now.

    Raises:
        BadInput: when the spec cannot be rendered at all.
        SlurmError: when Slurm does not answer.
    """
    spec = for_login_machine(spec, machine_of(cluster.slurm))
    site = known or SiteState(cluster.capabilities(), cluster.standing())
    checked = _plan_and_check(spec, site, cluster.slurm)
    if checked.errors and time.time() - site.capabilities.taken > _FRESH:
        # The cache on disk may be older than a change that an admin made a minute ago.
        site = SiteState(cluster.capabilities(refresh=True), site.standing)
        checked = _plan_and_check(spec, site, cluster.slurm)
    checked = _with_tried_fixes(checked, spec, site) if checked.errors else checked
    release = site.capabilities.release
    files = check_files(checked.spec, cluster.slurm, release, remote=ask)
    warnings = (*checked.warnings, *files)
    checked = msgspec.structs.replace(checked, warnings=warnings)
    # With fewer switches than the job needs, --test-only says "never", but after the maximum wait
    # the job starts on more switches.
    doubts = (*checked.warnings, *checked.notes)
    in_vain = any(finding.code == TOO_FEW_SWITCHES for finding in doubts)
    if not ask or in_vain or checked.errors:
        return checked
    begin = begin_after_reservation(checked.spec, site.standing)
    start, refusal = run_test_only(cluster.slurm, checked.submissions[0], *begin)
    return _with_test_result(checked, start, refusal)


def with_past_waits(checked: Plan, cluster: PlanTarget) -> Plan:
    """Return a plan without errors with how long jobs like it waited, where that is known.

    For who shows the estimate: the first call of an hour may wait for the ledger some seconds.
    """
    known, name = checked.estimate, cluster.capabilities().cluster_name
    if checked.errors or known is None or known.job_kind is None or not name:
        return checked
    waits = load_past_waits(cluster.slurm, name)
    known = msgspec.structs.replace(
        known, waited=waits.describe(known.job_kind), past_waits=waits.find(known.job_kind)
    )
    return msgspec.structs.replace(checked, estimate=known)


@one_configuration()
def plan_offline(spec: JobSpec, site: SiteState) -> Plan:
    """Plan from known facts of a cluster, without running any command.

    So there is no start estimate, and neither the jobs in `--dependency` nor slurmctld are asked.

    Raises:
        BadInput: when the spec cannot be rendered at all.
    """
    checked = _plan_and_check(spec, site, slurm=None)
    return _with_tried_fixes(checked, spec, site) if checked.errors else checked


def _with_tried_fixes(checked: Plan, spec: JobSpec, site: SiteState) -> Plan:
    """Return the plan with fixes of its errors only where the changed job has no error left.

    Where an error's own fix does not make the job pass, the fixes of all errors are proposed
    together. A fix is not proposed if no time is left to try it.
    """
    trials = _FixTrials(checked, spec, site)
    of_all: Pairs = ()
    if not all(
        trials.passes(each.fix) for each in checked.errors if each.code not in trials.untried
    ):
        of_all = trials.fix_of_all(checked.errors)
    errors = [
        error
        if error.code in trials.untried
        else msgspec.structs.replace(error, fix=error.fix if trials.passes(error.fix) else of_all)
        for error in checked.errors
    ]
    notes = (*checked.notes, *((_FIXES_UNTRIED,) if trials.late else ()))
    return msgspec.structs.replace(checked, errors=tuple(dict.fromkeys(errors)), notes=notes)


class _FixTrials:
    """Trials of fixes: the job is planned again with each.

    Args:
        checked: the plan of the job as it is, which has errors.
        spec: the job.
        site: the cluster's capabilities and the user's standing.

    Attributes:
        untried: codes of errors whose fixes cannot be tried.
        late: whether no time was left for some trial.
    """

    def __init__(self, checked: Plan, spec: JobSpec, site: SiteState) -> None:
        self.untried = {each.code for each in checked.errors if not _can_be_tried(each)}
        self.late = False
        self._spec = spec
        self._site = site
        self._asked = tuple(filter(is_about_dependency, checked.errors))  # by commands of Slurm
        self._own_doubts = {each.key for each in checked.warnings if each.keeps_from_starting}
        self._passed: dict[Pairs, bool] = {}
        self._deadline = time.monotonic() + _TRIAL_SECONDS

    def passes(self, fix: Pairs) -> bool:
        """Return whether nothing keeps the job with this fix from starting."""
        if fix not in self._passed:
            left = self._left(fix, search=False) if fix else None
            passed = left is not None and all(error.code in self.untried for error in left)
            self._passed[fix] = passed
        return self._passed[fix]

    def fix_of_all(self, errors: Sequence[Finding]) -> Pairs:
        """Return a fix of one error that passes, or the fixes of all together; empty for none."""
        if own := next((each.fix for each in errors if self.passes(each.fix)), ()):
            return own
        changed: dict[str, str] = {}
        for _ in range(_FIX_ROUNDS):  # a fix may bring back what another one removed
            fixes = [each.fix for each in errors if _can_be_tried(each)]
            more = dict(pair for fix in fixes for pair in fix)
            if more.items() <= changed.items():
                break
            changed |= more
            together = tuple(changed.items())
            if self.passes(together):
                return together
            errors = self._left(together, search=True) or ()
        return ()

    def _left(self, fix: Pairs, *, search: bool) -> tuple[Finding, ...] | None:
        """Return what keeps the changed job from starting; None if unplannable, or too late.

        Warnings that the unchanged job already has are ignored.
        """
        self.late = time.monotonic() >= self._deadline
        if self.late:
            return None
        try:
            changed = with_options(self._spec, fix)
            again = _plan_and_check(changed, self._site, slurm=None, search=search)
        except SlurmkitError:  # also a site's policy that fails on this job only
            return None
        doubts = (each for each in again.warnings if each.keeps_from_starting)
        asked = self._asked if changed.dependency == self._spec.dependency else ()
        return (
            *again.errors,
            *asked,
            *(each for each in doubts if each.key not in self._own_doubts),
        )


def _can_be_tried(error: Finding) -> bool:
    """Return whether a fix has only options of sbatch, which a spec can be changed by."""
    return all(name in SBATCH_OPTIONS for name, _ in error.fix)


def requests_of(spec: JobSpec, site: SiteState) -> tuple[Request, ...]:
    """Return the request in each partition the job names; empty if it cannot be computed."""
    job = resolve_spec(spec, site.capabilities)
    return amounts_per_partition(lay_out_job(job.spec, job.partitions, site.capabilities), site)


def _plan_and_check(
    spec: JobSpec, site: SiteState, slurm: SlurmCommands | None, *, search: bool = True
) -> Plan:
    """Plan a job step by step, and join the findings of all steps.

    Args:
        spec: the job.
        site: the cluster's capabilities and the user's standing.
        slurm: looks up the jobs of `--dependency` and the topology; None to run no command.
        search: search for the fixes of errors, which takes most of the time.
    """
    config = site.capabilities.config
    resolved = resolve_spec(spec, site.capabilities)
    job = lay_out_job(resolved.spec, resolved.partitions, site.capabilities)
    requests = amounts_per_partition(job, site)
    judged = check_each(requests, search=search)
    able = [each.request for each in judged if each.fits] or requests
    array = job.spec.array
    chunks = split_array(array, array_limits_of(config)) if array is not None else ()
    submissions = write_submissions(job, chunks, site)
    about_array = check_array(job.spec, chunks, submissions, config) if chunks else ()
    written = (*job.findings, *about_array)
    findings = [
        *resolved.findings,
        *written,
        *check_secrets(job.spec),
        *(
            findings_on_all(judged)
            if judged
            else _limits_with_fixes(job, written, site, search=search)
        ),
        *(check_dependencies(slurm, job.spec) if slurm and job.spec.dependency else ()),
        *(check_topology(slurm, requests) if slurm and _names_network_places(job.spec) else ()),
    ]
    return Plan(
        submissions=submissions,
        errors=_of(findings, "error"),
        warnings=_of(findings, "warning"),
        notes=_of(findings, "note"),
        changes=resolved.changes,
        estimate=estimate_in_all(able) if able else None,
        spec=job.spec,
        capabilities_taken=site.capabilities.taken,
    )


def _names_network_places(spec: JobSpec) -> bool:
    """Return whether a job asks for few switches or whole blocks of the network."""
    return spec.switches is not None or spec.segment is not None


def _of(findings: Iterable[Finding], severity: str) -> tuple[Finding, ...]:
    return tuple(dict.fromkeys(f for f in findings if f.severity == severity))


class ResolvedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A spec with all options set that follow from it, and the partitions it names.

    Attributes:
        changes: changes by the site's policies.
        findings: of the policies and of the network's profile.
    """

    spec: JobSpec
    partitions: tuple[Partition, ...]
    changes: tuple[PolicyChange, ...]
    findings: tuple[Finding, ...]


def resolve_spec(spec: JobSpec, capabilities: Capabilities) -> ResolvedSpec:
    """Apply the policies, the launcher's defaults, preflight, survival and the network's profile.

    Raises:
        BadInput: for options that contradict each other.
    """
    reviewed = apply_policies(with_array(spec), capabilities)
    spec = with_gpus_for_tasks(with_array(reviewed.spec))
    spec = _launcher(spec).settle(spec)
    spec = with_preflight(spec) if spec.launch.preflight else spec
    spec = with_survival_options(spec) if spec.survive else spec
    partitions = named_partitions(spec, capabilities)
    spec, network = with_nccl_variables(spec, tuple(each.name for each in partitions))
    return ResolvedSpec(
        spec=spec,
        partitions=partitions,
        changes=reviewed.changes,
        findings=(*reviewed.findings, *network),
    )


def _launcher(spec: JobSpec) -> Launcher:
    return make_launcher(spec.launch.launcher or ("none" if spec.script is not None else "srun"))


class LaidOutJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job on this cluster, before its script is written.

    Attributes:
        partitions: those that the job names and the cluster has.
        shape: the GPUs meant, and the layout over nodes.
        work: shell lines that do the job's work; empty for a whole script.
        findings: on the partitions, the GPUs, the layout and the lines of work.
    """

    spec: JobSpec
    partitions: tuple[Partition, ...]
    shape: JobShape
    work: Lines
    findings: tuple[Finding, ...]


def lay_out_job(
    spec: JobSpec, partitions: tuple[Partition, ...], capabilities: Capabilities
) -> LaidOutJob:
    """Resolve the GPUs, lay the job out over nodes, and write the lines of its work."""
    shape = job_shape(spec, capabilities, partitions, load_gpu_type_names())
    launcher = _launcher(spec)
    container = container_step(spec, capabilities, shape.layout.least_nodes)
    step = LaunchStep(
        spec=with_sweep_marks(spec) if spec.sweep else spec,
        layout=shape.layout,
        options=(*step_options(spec), *container.wrapped.srun_options),
        prefix=container.wrapped.prefix,
        capabilities=capabilities,
        view=container.view,
    )
    preflight, preflight_findings = _preflight(step, shape.gpus, partitions, container)
    findings = (
        *partition_names(spec, capabilities),
        *(shape.gpus.findings if shape.gpus else ()),
        *shape.layout.findings,
        *gpu_binding(spec),
        *container.findings,
        *launcher.needs(step),
        *_check_image_architecture(container, spec, partitions, capabilities),
        *preflight_findings,
        *(check_mpi_plugin(spec, capabilities.mpi) if spec.launch.mpi else ()),
        *unread_options(spec, capabilities.release),
    )
    is_script = spec.script is not None
    work = () if is_script else container.around((*preflight, *launcher.lines(step)))
    return LaidOutJob(spec=spec, partitions=partitions, shape=shape, work=work, findings=findings)


def _preflight(
    step: LaunchStep,
    gpus: ResolvedGpus | None,
    partitions: Iterable[Partition],
    container: ContainerStep,
) -> tuple[Lines, tuple[Finding, ...]]:
    """Return the lines that measure the nodes before the work, with the findings on them."""
    if step.spec.launch.preflight is None:
        return (), ()
    type_asked = step.spec.gpus.type if step.spec.gpus else None
    return preflight_lines(
        PreflightTarget(
            step=step,
            type=(gpus.type if gpus else None) or type_asked,
            partitions=tuple(each.name for each in partitions),
            contained=container.named,
            bare=step_options(step.spec),
        )
    )


def _check_image_architecture(
    container: ContainerStep,
    spec: JobSpec,
    partitions: Iterable[Partition],
    capabilities: Capabilities,
) -> Iterable[Finding]:
    if not container.architecture:
        return ()
    nodes = capabilities.nodes_of(*(each.name for each in partitions))
    return check_architecture(container, selected_by_spec(spec, nodes))


def amounts_per_partition(job: LaidOutJob, site: SiteState) -> tuple[Request, ...]:
    """Return the request in each partition; none if the GPUs or the layout do not fit.

    Every limit would then only repeat that.
    """
    if _of(job.findings, "error"):
        return ()
    return tuple(request_for(job.spec, job.shape, each, site) for each in job.partitions)


def _limits_with_fixes(
    job: LaidOutJob, findings: Iterable[Finding], site: SiteState, *, search: bool
) -> tuple[Finding, ...]:
    """Return the findings on the job with all fixes applied, but not on its number of nodes.

    That number comes from the fixes, not from the user.
    """
    found = findings_on_all(check_each(amounts_with_fixes(job, findings, site), search=search))
    return tuple(finding for finding in found if finding.code not in _OF_NODES)


def amounts_with_fixes(
    job: LaidOutJob, findings: Iterable[Finding], site: SiteState
) -> tuple[Request, ...]:
    """Return the requests as they are once the fixes of all errors are applied.

    They are checked where GPUs or layout do not fit, so that one plan names every limit.
    """
    errors = _of(findings, "error")
    if not all(error.fix for error in errors):
        return ()
    try:
        spec = with_options(job.spec, (pair for error in errors for pair in error.fix))
        partitions = named_partitions(spec, site.capabilities)
        return amounts_per_partition(lay_out_job(spec, partitions, site.capabilities), site)
    except BadInput:
        return ()


def write_submissions(
    job: LaidOutJob, chunks: tuple[Chunk, ...], site: SiteState
) -> tuple[Submission, ...]:
    """Write the submission of the job, or of each Slurm array that its array is split into.

    Raises:
        BadInput: when an option would break out of its line.
    """
    spec = job.spec
    survival = _survival_lines(job, site) if spec.survive else ()
    if not chunks:
        return (write_submission(spec, job.shape, job.work, None, survival),)
    work = tuple(map(expand_marks, job.work)) if spec.sweep else job.work
    written = [write_submission(spec, job.shape, work, chunk, survival) for chunk in chunks]
    if not is_logical(spec, chunks):
        return tuple(written)
    return tuple(map(_as_part, written, chunks))


def _survival_lines(job: LaidOutJob, site: SiteState) -> Lines:
    mode = preempt_mode_of(*site, next(iter(job.partitions), None), job.spec.qos)
    kill_wait = parse_kill_wait(site.capabilities.config)
    return survival_lines(job.spec, mode, SurvivalTimings(kill_wait=kill_wait))


def _as_part(submission: Submission, chunk: Chunk) -> Submission:
    """Return the submission of one part of a user array, after the part that it waits for."""
    after = () if chunk.after is None else (chunk.after,)
    order = "afterany" if after else submission.order
    return msgspec.structs.replace(submission, after=after, order=order, part=chunk)


def _with_test_result(checked: Plan, start: int | None, refusal: tuple[Finding, ...]) -> Plan:
    """Return the plan with the start that `sbatch --test-only` estimates, or with its refusal."""
    known = checked.estimate
    if known and start is not None:
        known = msgspec.structs.replace(known, start=start, start_source="sbatch --test-only")
    return msgspec.structs.replace(
        checked,
        errors=_of((*checked.errors, *refusal), "error"),
        warnings=_of((*checked.warnings, *refusal), "warning"),
        notes=_of((*checked.notes, *refusal), "note"),
        estimate=known,
    )


def for_login_machine(spec: JobSpec, machine: Machine) -> JobSpec:
    """Return the spec with its working folder named, if the cluster is reached over SSH.

    Raises:
        BadInput: for a container and for secrets, which need the login node itself.
    """
    if machine.is_here:
        return spec
    if spec.container is not None:
        raise BadInput(
            "slurmkit looks up a container's image on the login node: plan and submit this job"
            " there, or start the container in a script of your own (--script)"
        )
    if names := ", ".join(secret_variables(spec)):
        raise BadInput(
            f"{names} looks like a secret, and slurmkit sends no secret over SSH: keep it in a file"
            " of your own on the cluster, and let the job read that file"
        )
    folder = posixpath.join(machine.folder, spec.chdir or "")
    return msgspec.structs.replace(spec, chdir=posixpath.normpath(folder))


def begin_after_reservation(spec: JobSpec, standing: Standing) -> tuple[str, ...]:
    """Return the test's options for a job in a reservation that has not begun.

    sbatch takes such a job and lets it wait. With --test-only it answers "Invalid time specified"
    (24.11).
    """
    starts = [each.start for each in standing.reservations if each.name == spec.reservation]
    if not starts or starts[0] <= standing.taken or spec.begin is not None:
        return ()
    return (f"--begin={time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(starts[0]))}",)


def run_test_only(
    slurm: SlurmCommands, submission: Submission, *options: str
) -> tuple[int | None, tuple[Finding, ...]]:
    """Run `sbatch --test-only`; return the estimated start in epoch seconds, and a refusal.

    An estimate is worth little: the test ignores QOS and association limits, and answers "now" for
    jobs that then wait for ever. Each call uses up a job id.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    try:
        answer = slurm.run(
            ["sbatch", "--test-only", *options], stdin=submission.script, errors=True
        )
    except Refused as refusal:
        return None, (_refusal(str(refusal), submission),)
    return parse_start(answer), ()


def _refusal(words: str, submission: Submission) -> Finding:
    """Return what an answer of `sbatch --test-only` means for the job."""
    if any(each in words for each in _IN_USE):
        licenses = dict(submission.options).get("licenses")
        what = f"nodes or licences ({licenses})" if licenses else "nodes"
        message = (
            f"all {what} that it needs are in use or reserved now: the job waits, and slurmctld"
            f" cannot say until when ({words})"
        )
        return note("slurm-busy", message, "sbatch --test-only")
    severity: Severity = "warning" if _UNRELIABLE_REFUSAL in words else "error"
    doubt = "; this is slurmctld's own check, and half of such jobs never start"
    return Finding(
        severity=severity,
        code="slurm-refuses",
        message=f"slurmctld refuses it: {words}{doubt if severity == 'warning' else ''}",
        source="sbatch --test-only",
    )


def parse_start(answer: str) -> int | None:
    """Parse the start from sbatch's answer with SLURM_TIME_FORMAT=%s; None if it has none."""
    match = _START.search(answer)
    return int(match[1]) if match else None
