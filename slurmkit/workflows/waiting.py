"""Whether jobs of a workflow can wait for each other as they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmkit.checks.say import error, warning
from slurmkit.findings import Finding
from slurmkit.jobs.ids import spans
from slurmkit.planner import Plan
from slurmkit.planning.requests import Site
from slurmkit.workflows.model import Edge, Workflow

_SOURCE = "sbatch(1) --dependency"


def order(workflow: Workflow, plans: Mapping[str, Plan], site: Site) -> tuple[Finding, ...]:
    """Findings on what jobs wait for."""
    return tuple(
        finding
        for name in plans
        for finding in (
            *_alternatives(workflow, name),
            *(f for edge in workflow.edges(name) for f in _edge(name, edge, plans, site)),
        )
    )


def _alternatives(workflow: Workflow, name: str) -> Iterator[Finding]:
    own = workflow.jobs[name].dependency or ""
    if "?" in own and workflow.edges(name):
        message = (
            f"job {name}: its dependency {own} waits for any of several jobs, and its after for all"
            " of them; Slurm cannot join these"
        )
        yield error("after-alternatives", message, _SOURCE)


def _edge(name: str, edge: Edge, plans: Mapping[str, Plan], site: Site) -> Iterator[Finding]:
    if edge.kind == "burstbuffer" and site[0].config.get("BurstBufferType") in (None, "(null)", ""):
        message = f"job {name}, after {edge}: this cluster has no burst buffers (BurstBufferType)"
        yield warning("after-no-burst-buffer", message, "slurm.conf: BurstBufferType")
    if edge.kind == "corr" and edge.name in plans:
        yield from _tasks(name, edge, plans[name], plans[edge.name])


def _tasks(name: str, edge: Edge, own: Plan, other: Plan) -> Iterator[Finding]:
    """Each task waits for the one of its index."""
    head = f"job {name}, after {edge}:"
    if len(own.submissions) > 1 or len(other.submissions) > 1:
        message = f"{head} an array of several parts has no corresponding tasks; wait for all of it"
        yield error("after-corr-parts", message, _SOURCE)
    elif _indices(own) != _indices(other):
        message = f"{head} these are not arrays of the same indexes; tasks without a like one"
        yield warning("after-corr-indexes", f"{message} wait for the whole or for none", _SOURCE)


def _indices(plan: Plan) -> set[int]:
    array = dict(plan.submissions[0].options).get("array", "")
    return {index for span in spans(array) for index in span}
