"""A workflow on a terminal and as JSON: its plan, the state of its jobs, and the wait for it."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from slurmkit.cli.jobs import print_notice, show_progress
from slurmkit.cli.json_output import JsonOutput
from slurmkit.cli.submit import plan_json, plan_row, print_estimate_facts, print_finding
from slurmkit.cli.tables import Fit, print_table
from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.workflow import (
    NOT_SENT,
    SentWorkflow,
    WorkflowJobStatus,
    load_workflows,
    resume_verdicts,
    workflow_statuses,
)
from slurmkit.cluster.workflow_plan import WorkflowPlan, add_up_estimates
from slurmkit.cluster.workflow_record import WorkflowRecord
from slurmkit.formats.display import format_time, printable
from slurmkit.formats.job_states import state_kind
from slurmkit.jobs.describe import format_state_counts
from slurmkit.jobs.exit_codes import describe_end
from slurmkit.jobs.lookup import read_jobs
from slurmkit.jobs.poller import WatchedJob, settle_watched_codes
from slurmkit.planning.planner import Plan
from slurmkit.spec.findings import Finding

_PLANNED = ("JOB", "JOBS", "NODES", "GPUS", "LIMIT", "WAITS")
_SENT = ("JOB", "STATE", "JOBID", "TIME", "WHY")
_LISTED = ("TOKEN", "NAME", "SENT", "JOBS", "STATES", "FILE")
_ENTRY = ("token", "name", "created", "phase", "file")
_COLOURS = {"running": "green", "bad": "red", "done": None, "waiting": "yellow"}
Graph = Mapping[str, Sequence[str]]
"""The jobs that each job waits for, by name, in topological order."""
_MANY = 3  # names that a line lists in full


def print_workflow_plan(planned: WorkflowPlan) -> None:
    """Print the planned jobs as a tree: what each asks for and waits for."""
    edges = {name: [str(edge) for edge in planned.workflow.edges(name)] for name in planned.plans}
    rows = [
        (drawn, *_requested(planned.plans[name]), waits)
        for drawn, name, waits in _tree_lines(edges)
    ]
    print_table(_PLANNED, rows, right={"JOBS", "NODES"}, fit=Fit(("JOB",), ("WAITS",)))


def _tree_lines(edges: Mapping[str, list[str]]) -> list[tuple[str, str, str]]:
    """Return for each job its line of the tree, its name, and dependencies the tree hides."""
    graph = {
        name: [before for text in own if (before := text.partition(":")[0]) in edges]
        for name, own in edges.items()
    }
    above = dominators(graph)
    return [(drawn, name, waits_for(edges[name], above[name])) for drawn, name in draw_tree(graph)]


def _requested(plan: Plan) -> tuple[str, str, str, str]:
    """Return the number of jobs, the nodes, the GPUs and the time limit of a plan."""
    options = dict(plan.submissions[0].options)
    gpus = next((options[n] for n in ("gpus-per-node", "gpus", "gres") if n in options), "")
    jobs = plan.estimate.tasks if plan.estimate else 1
    return str(jobs), options.get("nodes", "1"), gpus, options.get("time", "")


def print_workflow_findings(planned: WorkflowPlan) -> None:
    """Print the findings to standard error, the worst last, and what all jobs cost together."""
    findings = [
        (name, each)
        for name, plan in planned.plans.items()
        for each in (*plan.notes, *plan.warnings, *plan.errors)
    ]
    findings += [("", each) for each in planned.findings]
    for severity in ("note", "warning", "error"):
        for finding, names in _jobs_by_finding(findings, severity).items():
            print_finding(finding, _join_names(names))
    if planned.plans:
        print_estimate_facts([("Total", add_up_estimates(planned.plans.values()).summary())])


def _jobs_by_finding(
    findings: list[tuple[str, Finding]], severity: str
) -> dict[Finding, list[str]]:
    """Return the findings of a severity, each with the names of all jobs that have it."""
    alike: dict[Finding, list[str]] = {}
    for name, finding in findings:
        if finding.severity == severity:
            alike.setdefault(finding, []).append(name)
    return alike


def _join_names(names: list[str]) -> str:
    """Return `a, b, c and 2 more: `; empty for a finding of the whole workflow."""
    several = f" and {len(names) - 3} more" if len(names) > 3 else ""
    first = ", ".join(filter(None, names[:3]))
    return f"{first}{several}: " if first else ""


def print_workflow_plan_json(planned: WorkflowPlan, as_json: JsonOutput) -> None:
    """Print the plan for programs: each job as in `slurmkit plan --json`, and the total."""
    jobs = {
        name: plan_json(plan) | {"after": list(map(str, planned.workflow.edges(name)))}
        for name, plan in planned.plans.items()
    }
    name = {"name": planned.workflow.name}
    further = {
        "findings": msgspec.to_builtins(planned.findings),
        "total": msgspec.to_builtins(add_up_estimates(planned.plans.values())),
    }
    rows = [{"name": job} | plan_row(facts) for job, facts in jobs.items()]
    taken = min((plan.capabilities_taken for plan in planned.plans.values()), default=None)
    as_json.print(rows, taken=taken, further=name | further)


def print_workflow_jobs(jobs: Mapping[str, WorkflowJobStatus]) -> None:
    """Print the jobs of a workflow as a tree, with the state of each."""
    edges = {name: [str(edge) for edge in job.edges] for name, job in jobs.items()}
    job_verdicts = resume_verdicts(jobs)
    rows = []
    for drawn, name, waits in _tree_lines(edges):
        job = jobs[name]
        state = "SKIPPED" if job_verdicts[name] == "skipped" else job.state
        elapsed = "" if job.info is None or job.state == "PENDING" else job.info.elapsed
        rows.append((drawn, state, ",".join(job.ids), elapsed, _state_reason(job, jobs) or waits))
    fit = Fit(("JOB", "STATE", "JOBID"), ("WHY",), least=("TIME",))
    print_table(_SENT, rows, paint=_paint, fit=fit)


def _paint(column: str, text: str) -> str | None:
    if column != "STATE" or text in (NOT_SENT, "SKIPPED"):
        return None
    return _COLOURS.get(state_kind(text))


def _state_reason(job: WorkflowJobStatus, jobs: Mapping[str, WorkflowJobStatus]) -> str:
    """Return why a job waits or did not run."""
    if job.info is None:
        return ""
    if job.info.tally:
        return format_state_counts(job.info.tally)
    if job.state == "PENDING":
        open_ones = [str(edge) for edge in job.edges if not jobs[edge.name].is_over]
        held = job.info.reason.startswith("JobHeld")
        if held or not open_ones:
            return job.info.reason
        return waits_for(open_ones, None)
    if job.state == "CANCELLED":
        return given_up_reason(job, jobs) or "cancelled"
    return describe_end(job.info.exit_code) if job.state != "COMPLETED" else ""


def given_up_reason(job: WorkflowJobStatus, jobs: Mapping[str, WorkflowJobStatus]) -> str:
    """Name the jobs whose end made this one impossible; empty if there are none."""
    ends = [jobs[edge.name] for edge in job.edges if jobs[edge.name].has_broken(edge)]
    several = f" and {len(ends) - 2} more" if len(ends) > 2 else ""
    causes = ", ".join(f"{end.name} {end.state}" for end in ends[:2])
    return f"given up: {causes}{several}" if ends else ""


def workflow_job_json(job: WorkflowJobStatus) -> dict[str, Any]:
    """Return one job for programs."""
    return {
        "name": job.name,
        "ids": list(job.ids),
        "state": job.state,
        "after": list(map(str, job.edges)),
        "info": msgspec.to_builtins(job.info),
    }


def print_workflows(cluster: Cluster, most: int, *, as_json: JsonOutput | None) -> None:
    """List workflows with the number of jobs in each state; all jobs are looked up at once."""
    records = [sent.record for sent in load_workflows(cluster)][:most]
    ids = [job_id for record in records for job_id in record.ids]
    infos = read_jobs(cluster.backend, cluster.slurm, ids) if ids else {}
    counted = [
        (record, dict(Counter(job.state for job in workflow_statuses(record, infos).values())))
        for record in records
    ]
    if as_json:
        entries = [
            {name: getattr(record, name) for name in _ENTRY} | {"states": counts}
            for record, counts in counted
        ]
        as_json.print(entries)
    elif counted:
        fit = Fit(("TOKEN", "NAME"), ("STATES",), least=("FILE", "SENT"))
        print_table(_LISTED, [_listed(*each) for each in counted], right={"JOBS"}, fit=fit)
    else:
        click.echo(
            "no workflow was submitted from here; see: slurmkit workflow submit --help", err=True
        )


def _listed(record: WorkflowRecord, counts: dict[str, int]) -> tuple[str, ...]:
    jobs = str(len(record.jobs))
    return (
        record.token,
        record.name,
        format_time(record.created),
        jobs,
        format_state_counts(counts),
        record.file,
    )


def wait_for_workflow(sent: SentWorkflow, timeout: float | None) -> int:
    """Wait until all jobs have ended; return 0 if all that were to run completed, else 1."""
    record = sent.record
    if record.phase == "sending":
        print_notice(
            f"workflow {record.name} is not completely submitted; to complete it: slurmkit workflow"
            f" resume {record.name}"
        )
    try:
        with sent.cluster.poller.watch(record.ids) as watch:
            show_progress(watch, timeout)
            known = settle_watched_codes(sent.cluster.slurm, watch.known)
    except KeyboardInterrupt:
        print_notice(
            "no longer waiting, but not cancelled; to cancel: slurmkit workflow cancel"
            f" {sent.token}"
        )
        return 128 + signal.SIGINT
    return _print_result(record, known)


def _print_result(record: WorkflowRecord, known: dict[str, WatchedJob]) -> int:
    """Print which jobs did not complete, and return the exit code."""
    jobs = workflow_statuses(record, {job_id: job.info for job_id, job in known.items()})
    bad = [
        jobs[name]
        for name, verdict in resume_verdicts(jobs).items()
        if verdict not in ("done", "skipped")
    ]
    for job in bad:
        why = given_up_reason(job, jobs) or _end_words(job)
        click.echo(printable(f"{job.name}: {why}"), err=True)
    good = len(jobs) - len(bad)
    click.echo(f"workflow {record.name}: {good} of {len(jobs)} jobs are done", err=True)
    if bad:
        click.echo(f"see: slurmkit workflow show {record.name}", err=True)
    return 1 if bad else 0


def _end_words(job: WorkflowJobStatus) -> str:
    """Describe how a job ended, as `FAILED, exit code 2 (job 12)`."""
    ids = ",".join(job.ids)
    how = describe_end(job.info.exit_code) if job.info and job.state == "FAILED" else ""
    return f"{job.state}{f', {how}' if how else ''}{f' (job {ids})' if ids else ''}"


def draw_tree(graph: Graph) -> list[tuple[str, str]]:
    """Return (drawn name with its branches, name) of each job, from top to bottom."""
    parents = dominators(graph)
    below: dict[str | None, list[str]] = {}
    for name in graph:
        below.setdefault(parents[name], []).append(name)
    lines: list[tuple[str, str]] = []
    stack = [(root, "", "") for root in reversed(below.get(None, []))]
    while stack:  # a chain may be longer than Python nests calls
        name, branches, stem = stack.pop()
        lines.append((branches + name, name))
        children = below.get(name, [])
        for child in reversed(children):
            last = child == children[-1]
            branch, further = ("└─ ", "   ") if last else ("├─ ", "│  ")
            stack.append((child, stem + branch, stem + further))
    return lines


def dominators(graph: Graph) -> dict[str, str | None]:
    """Return the immediate dominator of each job; None where there is none."""
    parents: dict[str, str | None] = {}
    for name, before in graph.items():
        chains = [_ancestors(each, parents) for each in before]
        others = [set(chain) for chain in chains[1:]]
        nearest = chains[0] if chains else []
        parents[name] = next((each for each in nearest if all(each in o for o in others)), None)
    return parents


def _ancestors(name: str, parents: Mapping[str, str | None]) -> list[str]:
    """Return a job and its ancestors in the tree, nearest first."""
    chain = [name]
    while (above := parents[chain[-1]]) is not None:
        chain.append(above)
    return chain


def waits_for(edges: Sequence[str], parent: str | None) -> str:
    """Return what a job waits for; empty if that is only its parent in the tree."""
    if not edges or list(edges) == [parent]:
        return ""
    if len(edges) <= _MANY:
        return f"after {', '.join(edges)}"
    return f"after {edges[0]} … {edges[-1]} ({len(edges)} jobs)"
