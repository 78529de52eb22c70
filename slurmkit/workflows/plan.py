"""From a workflow to exactly what is sent, each job and the whole checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from slurmkit.errors import BadInput
from slurmkit.findings import Finding
from slurmkit.planner import Plan, plan
from slurmkit.planning.requests import Site
from slurmkit.spec import JobSpec
from slurmkit.workflows.model import Workflow
from slurmkit.workflows.waiting import order
from slurmkit.workflows.whole import whole

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

# What of a job slurmctld does not judge.
_UNJUDGED: dict[str, Any] = {
    **dict.fromkeys(("job_name", "output", "error", "comment")),
    "environment": {},
}


class WorkflowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a workflow comes to on one cluster at one moment.

    Attributes:
        workflow: as it was given.
        plans: of each job by its name, each after those it waits for.
        findings: on the whole: more jobs than may be in the queue, a budget.
    """

    workflow: Workflow
    plans: Mapping[str, Plan]
    findings: tuple[Finding, ...] = ()

    @property
    def errors(self) -> tuple[tuple[str, Finding], ...]:
        """Why it should not be sent, each with the job it is about, empty for the whole."""
        own = [("", finding) for finding in self.findings if finding.severity == "error"]
        jobs = [(name, each) for name, plan in self.plans.items() for each in plan.errors]
        return (*jobs, *own)

    @property
    def unsafe(self) -> tuple[tuple[str, Finding], ...]:
        """Errors that keep it from being sent whatever the user says."""
        return tuple((name, finding) for name, finding in self.errors if finding.unsafe)


def plan_workflow(
    workflow: Workflow,
    cluster: Cluster,
    *,
    names: Collection[str] | None = None,
    arrays: Mapping[str, str] = MappingProxyType({}),
    ask: bool = True,
) -> WorkflowPlan:
    """Render and check each job as `slurmkit.plan` does, and count them together.

    Args:
        workflow: what is wanted.
        cluster: where.
        names: of the jobs to plan, those that are still to be sent; all by default.
        arrays: of arrays by name, the tasks that are still to be sent; all by default.
        ask: also let slurmctld judge jobs (`sbatch --test-only`), of those that are alike one.

    Raises:
        BadInput: naming the job, when one cannot be rendered at all.
        SlurmError: when Slurm does not answer.
    """
    site: Site = (cluster.capabilities(), cluster.standing())
    plans: dict[str, Plan] = {}
    judged: set[bytes] = set()
    for name in workflow.order():
        if names is not None and name not in names:
            continue
        spec = workflow.spec(name)
        if name in arrays:
            spec = msgspec.structs.replace(spec, array=arrays[name], array_throttle=None)
        key = _kind(spec)
        try:
            made = plan(spec, cluster, ask=ask and key not in judged, known=site)
        except BadInput as error:
            raise BadInput(f"job {name}: {error}") from error
        judged.add(key)
        plans[name] = made
        if made.capabilities_taken > site[0].taken:
            site = (cluster.capabilities(), site[1])  # they were read anew because of an error
    findings = (*order(workflow, plans, site), *whole(plans, site))
    return WorkflowPlan(workflow=workflow, plans=plans, findings=findings)


def _kind(spec: JobSpec) -> bytes:
    """The same for jobs that slurmctld judges alike."""
    script = None if spec.script is None else "#!/bin/sh"
    command = ("x",) if spec.command else ()
    alike = msgspec.structs.replace(spec, command=command, script=script, **_UNJUDGED)
    return msgspec.json.encode(alike, order="deterministic")
