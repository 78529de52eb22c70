"""A workflow on a terminal: its plan, and how far it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from slurmkit.cli.planned import plan_json, say_estimate_facts, say_finding
from slurmkit.cli.show import table
from slurmkit.cluster import Cluster
from slurmkit.facts import clock, tally
from slurmkit.findings import Finding
from slurmkit.jobs.lookup import look_up_all
from slurmkit.planner import Plan
from slurmkit.states import kind
from slurmkit.workflows.drawing import dominators, tree, waits_for
from slurmkit.workflows.plan import WorkflowPlan
from slurmkit.workflows.record import Record
from slurmkit.workflows.sent import every
from slurmkit.workflows.standing import NOT_SENT, Standing, standings, verdicts
from slurmkit.workflows.whole import total

_PLANNED = ("JOB", "JOBS", "NODES", "GPUS", "LIMIT", "WAITS")
_SENT = ("JOB", "STATE", "JOBID", "TIME", "WHY")
_LISTED = ("TOKEN", "NAME", "SENT", "JOBS", "STATES", "FILE")
_ENTRY = ("token", "name", "created", "phase", "file")
_COLOURS = {"running": "green", "bad": "red", "done": None, "waiting": "yellow"}


def show_plan(made: WorkflowPlan) -> None:
    """Draw the jobs that are planned: what each asks for and waits for."""
    edges = {name: [str(edge) for edge in made.workflow.edges(name)] for name in made.plans}
    rows = [(drawn, *_asks(made.plans[name]), waits) for drawn, name, waits in _drawn(edges)]
    table(_PLANNED, rows, right={"JOBS", "NODES"})


def _drawn(edges: Mapping[str, list[str]]) -> list[tuple[str, str, str]]:
    """Each job as it is drawn, its name, and what its place does not say of its order."""
    graph = {
        name: [before for text in own if (before := text.partition(":")[0]) in edges]
        for name, own in edges.items()
    }
    above = dominators(graph)
    return [(drawn, name, waits_for(edges[name], above[name])) for drawn, name in tree(graph)]


def _asks(plan: Plan) -> tuple[str, str, str, str]:
    options = dict(plan.submissions[0].options)
    gpus = next((options[n] for n in ("gpus-per-node", "gpus", "gres") if n in options), "")
    jobs = plan.estimate.tasks if plan.estimate else 1
    return str(jobs), options.get("nodes", "1"), gpus, options.get("time", "")


def say_plan(made: WorkflowPlan) -> None:
    """Tell on standard error what was found, worst last, and what all jobs cost together."""
    found = [(name, each) for name, plan in made.plans.items() for each in _of(plan)]
    found += [("", each) for each in made.findings]
    for severity in ("note", "warning", "error"):
        for finding, names in _alike(found, severity).items():
            say_finding(finding, _named(names))
    if made.plans:
        say_estimate_facts([("Total", total(made.plans.values()).words())])


def _of(plan: Plan) -> tuple[Finding, ...]:
    return (*plan.notes, *plan.warnings, *plan.errors)


def _alike(found: list[tuple[str, Finding]], severity: str) -> dict[Finding, list[str]]:
    """What is said of several jobs is said once."""
    alike: dict[Finding, list[str]] = {}
    for name, finding in found:
        if finding.severity == severity:
            alike.setdefault(finding, []).append(name)
    return alike


def _named(names: list[str]) -> str:
    several = f" and {len(names) - 3} more" if len(names) > 3 else ""
    said = ", ".join(filter(None, names[:3]))
    return f"{said}{several}: " if said else ""


def plan_as_json(made: WorkflowPlan) -> dict[str, Any]:
    """The plan for programs: each job's as `slurmkit plan --json`, and the whole."""
    return {
        "name": made.workflow.name,
        "jobs": {
            name: plan_json(plan) | {"after": list(map(str, made.workflow.edges(name)))}
            for name, plan in made.plans.items()
        },
        "findings": msgspec.to_builtins(made.findings),
        "total": msgspec.to_builtins(total(made.plans.values())),
    }


def show_sent(found: Mapping[str, Standing]) -> None:
    """Draw the jobs of a workflow and how far each is."""
    edges = {name: [str(edge) for edge in one.edges] for name, one in found.items()}
    made = verdicts(found)
    rows = []
    for drawn, name, waits in _drawn(edges):
        one = found[name]
        state = "SKIPPED" if made[name] == "skipped" else one.state
        why = _why(one, found) or waits
        rows.append((drawn, state, ",".join(one.ids), _time(one), why))
    table(_SENT, rows, paint=_paint)


def _paint(column: str, text: str) -> str | None:
    if column != "STATE" or text in (NOT_SENT, "SKIPPED"):
        return None
    return _COLOURS.get(kind(text))


def _time(one: Standing) -> str:
    return "" if one.info is None or one.state == "PENDING" else one.info.elapsed


def _why(one: Standing, found: Mapping[str, Standing]) -> str:
    """Why it waits, or did not run."""
    if one.info is None:
        return ""
    if one.info.tally:
        return tally(one.info.tally)
    if one.state == "PENDING":
        open_ones = [str(edge) for edge in one.edges if not found[edge.name].is_over]
        held = one.info.reason.startswith("JobHeld")
        if held or not open_ones:
            return one.info.reason
        return waits_for(open_ones, None)
    if one.state == "CANCELLED":
        return given_up(one, found) or "cancelled"
    code = one.info.exit_code
    return f"exit code {code}" if code and one.state != "COMPLETED" else ""


def given_up(one: Standing, found: Mapping[str, Standing]) -> str:
    """Which jobs ended so that this one could not run any more; empty where none did."""
    ends = [found[edge.name] for edge in one.edges if found[edge.name].has_broken(edge)]
    several = f" and {len(ends) - 2} more" if len(ends) > 2 else ""
    said = ", ".join(f"{end.name} {end.state}" for end in ends[:2])
    return f"given up: {said}{several}" if ends else ""


def standing_json(one: Standing) -> dict[str, Any]:
    """One job for programs."""
    return {
        "name": one.name,
        "ids": list(one.ids),
        "state": one.state,
        "after": list(map(str, one.edges)),
        "info": msgspec.to_builtins(one.info),
    }


def list_workflows(cluster: Cluster, most: int, *, as_json: bool) -> None:
    """List workflows with how many jobs are in which state; Slurm is asked about all together."""
    records = [sent.record for sent in every(cluster)][:most]
    ids = [job_id for record in records for job_id in record.ids]
    infos = look_up_all(cluster.backend, cluster.slurm, ids) if ids else {}
    found = [(record, _counts(standings(record, infos))) for record in records]
    if as_json:
        entries = [
            {name: getattr(record, name) for name in _ENTRY} | {"states": counts}
            for record, counts in found
        ]
        click.echo(msgspec.json.encode(entries))
    elif found:
        table(_LISTED, [_listed(*each) for each in found], right={"JOBS"})
    else:
        click.echo("no workflow was sent from here; see: slurmkit workflow submit --help", err=True)


def _listed(record: Record, counts: dict[str, int]) -> tuple[str, ...]:
    jobs = str(len(record.jobs))
    return record.token, record.name, clock(record.created), jobs, tally(counts), record.file


def _counts(found: Mapping[str, Standing]) -> dict[str, int]:
    return dict(Counter(one.state for one in found.values()))
