"""The plan of a workflow: the plan of each job, findings on all jobs together, and totals.

All jobs are in the queue at the same time, so their totals are compared with job limits and
budgets; GPU-hours and costs are added up. The dependencies between the jobs are checked, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from slurmkit.errors import BadInput
from slurmkit.formats.display import format_quantity
from slurmkit.formats.job_ids import parse_index_spans
from slurmkit.formats.tres import format_tres_minutes
from slurmkit.jobs.backends.choice import check_backend
from slurmkit.planning.checks.limits import EffectiveLimit
from slurmkit.planning.checks.limits_use import (
    TresMinutesBudget,
    submit_limits,
    tres_minutes_budgets,
)
from slurmkit.planning.estimate import Estimate
from slurmkit.planning.planner import Plan, plan, requests_of
from slurmkit.planning.request import Request, SiteState
from slurmkit.spec.findings import Finding, error, warning
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.workflow import Edge, Workflow

if TYPE_CHECKING:
    from slurmkit.cluster.protocol import Submitter

# Options that do not change slurmctld's judgement of a job.
_UNJUDGED: dict[str, Any] = {
    **dict.fromkeys(("job_name", "output", "error", "comment")),
    "environment": {},
}
_SOURCE = "sbatch(1) --dependency"


class WorkflowTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Use of all jobs over their whole time limits; None is unknown, not zero.

    Attributes:
        jobs: number of Slurm jobs; each array task counts.
        gpu_hours: GPU-hours of all types together.
        cpu_hours: CPU-hours.
        billing_hours: billing × time.
        cost: cost on the site's own GPUs.
        cloud_cost: cost in a public cloud.
        currency: currency of both; None if the jobs have no price.
    """

    jobs: int
    gpu_hours: float | None
    cpu_hours: float | None
    billing_hours: float | None
    cost: Decimal | None
    cloud_cost: Decimal | None
    currency: str | None

    def summary(self) -> str:
        """Return the totals in one line."""
        gpus = format_quantity(self.gpu_hours, "GPU-hour")
        cpus = format_quantity(self.cpu_hours, "CPU-hour")
        cloud = "" if self.cloud_cost is None else f", in a cloud {self.cloud_cost:,}"
        cost = "cost unknown" if self.cost is None else f"{self.cost:,}{cloud} {self.currency}"
        priced = "" if not self.gpu_hours and self.cost is None else f", {cost}"
        return f"{format_quantity(self.jobs, 'job')}, at most {gpus}, {cpus}{priced}"


class WorkflowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a workflow on one cluster at one moment.

    Attributes:
        workflow: the workflow.
        plans: the plan of each job by name, in topological order.
        findings: findings on all jobs together, e.g. on job limits and budgets.
    """

    workflow: Workflow
    plans: Mapping[str, Plan]
    findings: tuple[Finding, ...] = ()

    @property
    def errors(self) -> tuple[tuple[str, Finding], ...]:
        """Errors, each with the name of its job, or with "" for the workflow as a whole."""
        own = [("", finding) for finding in self.findings if finding.severity == "error"]
        jobs = [(name, each) for name, plan in self.plans.items() for each in plan.errors]
        return (*jobs, *own)

    @property
    def unsafe(self) -> tuple[tuple[str, Finding], ...]:
        """Errors that prevent sending even with `force`, with names as in `errors`."""
        return tuple((name, finding) for name, finding in self.errors if finding.unsafe)


def plan_workflow(
    workflow: Workflow,
    cluster: Submitter,
    *,
    names: Collection[str] | None = None,
    arrays: Mapping[str, str] = MappingProxyType({}),
    ask: bool = True,
) -> WorkflowPlan:
    """Render and check each job like `planner.plan`, and check all of them together.

    Args:
        workflow: the workflow.
        cluster: the cluster to plan for.
        names: the jobs still to be sent; all by default.
        arrays: the tasks still to be sent, by the name of an array; all by default.
        ask: also let slurmctld judge the jobs (`sbatch --test-only`), once for jobs that are alike.

    Raises:
        BadConfig: for a wrong `[submit]`, as a submit would.
        BadInput: naming the job, when one cannot be rendered at all.
        SlurmError: when Slurm does not answer.
    """
    check_backend(cluster.backend)
    site = SiteState(cluster.capabilities(), cluster.standing())
    plans: dict[str, Plan] = {}
    judged: set[bytes] = set()
    for name in workflow.order():
        if names is not None and name not in names:
            continue
        spec = workflow.spec(name)
        if name in arrays:
            spec = msgspec.structs.replace(spec, array=arrays[name], array_throttle=None)
        key = _judgement_key(spec)
        try:
            job_plan = plan(spec, cluster, ask=ask and key not in judged, known=site)
        except BadInput as error:
            raise BadInput(f"job {name}: {error}") from error
        judged.add(key)
        plans[name] = job_plan
        if job_plan.capabilities_taken > site.capabilities.taken:
            # The plan read the capabilities again because of an error.
            site = SiteState(cluster.capabilities(), site.standing)
    findings = (*check_workflow_dependencies(workflow, plans, site), *check_totals(plans, site))
    return WorkflowPlan(workflow=workflow, plans=plans, findings=findings)


def _judgement_key(spec: JobSpec) -> bytes:
    """Return a key that is equal for jobs which slurmctld judges alike."""
    script = None if spec.script is None else "#!/bin/sh"
    command = ("x",) if spec.command else ()
    alike = msgspec.structs.replace(spec, command=command, script=script, **_UNJUDGED)
    return msgspec.json.encode(alike, order="deterministic")


def check_workflow_dependencies(
    workflow: Workflow, plans: Mapping[str, Plan], site: SiteState
) -> tuple[Finding, ...]:
    """Return the findings on the dependencies of all jobs."""
    findings: list[Finding] = []
    for name in plans:
        findings += _check_alternatives(workflow, name)
        for edge in workflow.edges(name):
            findings += _check_edge(name, edge, plans, site)
    return tuple(findings)


def _check_alternatives(workflow: Workflow, name: str) -> Iterator[Finding]:
    own = workflow.jobs[name].dependency or ""
    if "?" in own and workflow.edges(name):
        message = (
            f"job {name}: its dependency {own} waits for any of several jobs, but `after` waits"
            " for all; Slurm cannot join the two; write commas in place of each ?"
        )
        yield error("after-alternatives", message, _SOURCE)


def _check_edge(
    name: str, edge: Edge, plans: Mapping[str, Plan], site: SiteState
) -> Iterator[Finding]:
    if edge.kind == "burstbuffer" and site.capabilities.config.get("BurstBufferType") in (
        None,
        "(null)",
        "",
    ):
        message = f"job {name}, after {edge}: this cluster has no burst buffers (BurstBufferType)"
        yield warning("after-no-burst-buffer", message, "slurm.conf: BurstBufferType")
    if edge.kind == "corr" and edge.name in plans:
        yield from _check_same_tasks(name, edge, plans[name], plans[edge.name])


def _check_same_tasks(name: str, edge: Edge, own: Plan, other: Plan) -> Iterator[Finding]:
    """Check `corr`, by which each task waits for the task with its own index."""
    head = f"job {name}, after {edge}:"
    if len(own.submissions) > 1 or len(other.submissions) > 1:
        message = f"{head} an array in several parts has no corresponding tasks; wait for all of it"
        yield error("after-corr-parts", message, _SOURCE)
    elif _indices(own) != _indices(other):
        message = f"{head} the two arrays have different indexes; a task without a counterpart"
        yield warning(
            "after-corr-indexes", f"{message} waits for the whole array or for none", _SOURCE
        )


def _indices(plan: Plan) -> set[int]:
    array = dict(plan.submissions[0].options).get("array", "")
    return {index for span in parse_index_spans(array) for index in span}


def check_totals(plans: Mapping[str, Plan], site: SiteState) -> tuple[Finding, ...]:
    """Check all jobs together: they are in the queue at the same time, and share budgets."""
    requests = [own[0] for plan in plans.values() if (own := requests_of(plan.spec, site))]
    return (
        *_check_submit_limits(requests),
        *_check_job_count(requests, site),
        *_check_budgets(requests),
    )


def _check_submit_limits(requests: Iterable[Request]) -> Iterator[Finding]:
    wanted: dict[str, int] = {}
    limits: dict[str, EffectiveLimit] = {}
    for request in requests:
        for limit in submit_limits(request):
            limits[limit.source] = limit
            wanted[limit.source] = wanted.get(limit.source, 0) + request.tasks_in_array
    for source, limit in limits.items():
        room = max(limit.value - limit.usage.submitted, 0)
        if wanted[source] > room:
            message = (
                f"the workflow has {wanted[source]} jobs, but {limit.holder} allows"
                f" {limit.value} in the queue and has {limit.usage.submitted} ({limit.setting}), so"
                " sbatch would refuse the last jobs; split the workflow, or pack jobs together"
            )
            yield error(limit.code, message, source)


def _check_job_count(requests: Iterable[Request], site: SiteState) -> Iterator[Finding]:
    most = site.capabilities.config.get("MaxJobCount", "")
    count = sum(request.tasks_in_array for request in requests)
    if most.isdigit() and count >= int(most):
        message = (
            f"the workflow has {count} jobs; this cluster can hold {most} in all (MaxJobCount)"
        )
        yield error("max-job-count", message, f"slurm.conf: MaxJobCount={most}")


def _check_budgets(requests: Iterable[Request]) -> Iterator[Finding]:
    balance_of: dict[str, TresMinutesBudget] = {}
    wanted: dict[str, int] = {}
    for request in requests:
        for balance in tres_minutes_budgets(request):
            source = balance.limit.source
            balance_of[source] = balance
            wanted[source] = wanted.get(source, 0) + (balance.wanted or 0) * request.tasks_in_array
    for source, balance in balance_of.items():
        if wanted[source] > balance.left:
            limit = balance.limit
            message = (
                f"all jobs together use up to {format_tres_minutes(limit.tres, wanted[source])},"
                f" but {limit.holder} has {format_tres_minutes(limit.tres, balance.left)} left"
                f" ({limit.setting}); the last jobs may wait for ever"
            )
            yield warning(f"workflow-{limit.code}", message, source)


def add_up_estimates(plans: Iterable[Plan]) -> WorkflowTotal:
    """Add up the estimates; the sum is unknown if one of them is."""
    estimates = [plan.estimate for plan in plans]
    currencies = {each.currency for each in estimates if each and each.currency}
    has_price = len(currencies) == 1
    return WorkflowTotal(
        jobs=sum(each.tasks if each else 1 for each in estimates),
        gpu_hours=_sum(
            estimates, lambda e: None if e.gpu_hours is None else sum(e.gpu_hours.values())
        ),
        cpu_hours=_sum(estimates, lambda e: e.cpu_hours),
        billing_hours=_sum(estimates, lambda e: e.billing_hours),
        cost=_sum_cost(estimates, lambda e: e.cost) if has_price else None,
        cloud_cost=_sum_cost(estimates, lambda e: e.cloud_cost) if has_price else None,
        currency=next(iter(currencies)) if has_price else None,
    )


def _sum(
    estimates: Iterable[Estimate | None], value: Callable[[Estimate], float | None]
) -> float | None:
    parts = [None if each is None else value(each) for each in estimates]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _sum_cost(
    estimates: Iterable[Estimate | None], value: Callable[[Estimate], Decimal | None]
) -> Decimal | None:
    """Add up costs; a job without GPUs and without a price costs nothing."""
    amount = Decimal(0)
    for each in estimates:
        cost = None if each is None else value(each)
        is_free = each is not None and each.gpu_hours == {} and each.currency is None
        if cost is None and not is_free:
            return None
        amount += Decimal(0) if cost is None else cost
    return amount
