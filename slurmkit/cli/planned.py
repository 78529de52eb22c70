"""A plan as people and programs read it."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from slurmkit.estimate import Estimate, Share
from slurmkit.facts import clock
from slurmkit.findings import Finding
from slurmkit.planner import Plan
from slurmkit.text import printable

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan for programs; findings have all their fields."""
    made: dict[str, Any] = msgspec.to_builtins(plan)
    made["submissions"] = [
        {"script": s.script, "options": dict(s.options), "after": list(s.after)}
        for s in plan.submissions
    ]
    for name in ("errors", "warnings", "notes"):
        made[name] = list(map(_finding, getattr(plan, name)))
    return made


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "message": finding.message,
        "source": finding.source,
        "fix": dict(finding.fix),
        "unsafe": finding.unsafe,
    }


def say_findings(plan: Plan) -> None:
    """Tell on standard error what was changed and found, worst last."""
    for change in plan.changes:
        before, after = change.before or "nothing", change.after or "nothing"
        _say("note", f"policy {change.policy} changed {change.field}: {before} -> {after}")
    for finding in (*plan.notes, *plan.warnings, *plan.errors):
        source = f" ({finding.source})" if finding.source else ""
        _say(finding.severity, f"{finding.message}{source}")
        if finding.fix:
            _tell(f"       fits: {finding.fix_words}")


def say_estimate(plan: Plan) -> None:
    """Tell on standard error what the job would use and cost, and when it might start."""
    made = plan.estimate
    if made is None:
        return
    facts = [
        ("Uses at most", _amounts(made)),
        ("Billing", f"{made.billing} ({made.sources['billing']})"),
        ("Costs", _cost(made)),
        ("Budget", _budget(made.share) if made.share else ""),
        ("Starts about", _start(made)),
        ("Checked", f"against the cluster as read at {clock(plan.capabilities_taken)}"),
    ]
    for name, value in facts:
        if value:
            _tell(f"{name.ljust(14)}{value}")


def _amounts(made: Estimate) -> str:
    if made.hours is None:
        return "unknown: the job would have no time limit"
    gpus = ", ".join(f"{hours:g} {kind}".strip() for kind, hours in (made.gpu_hours or {}).items())
    parts = [f"{gpus} GPU-hours" if gpus else "", f"{made.cpu_hours:g} CPU-hours"]
    if made.memory_hours is not None:
        parts.append(f"{made.memory_hours:g} GiB-hours")
    tasks = f", {made.tasks} tasks" if made.tasks > 1 else ""
    amounts = ", ".join(filter(None, parts))
    return f"{amounts} in {made.hours:g} h{tasks} ({made.sources['hours']})"


def _cost(made: Estimate) -> str:
    if made.cost is None and made.cloud_cost is None:
        return ""
    here = f"{made.cost} {made.currency}" if made.cost is not None else "unknown"
    cloud = f"; in a cloud {made.cloud_cost} {made.currency}" if made.cloud_cost is not None else ""
    return f"{here}{cloud} ({made.sources['cost']})"


def _budget(share: Share) -> str:
    part = f"{share.share:.1%} of " if share.share is not None else ""
    return f"{part}{share.left:g} {share.tres}-hours left ({share.source})"


def _start(made: Estimate) -> str:
    if made.start is None:
        return "unknown"
    return f"{clock(made.start)} ({made.start_source})"


def _say(severity: str, words: str) -> None:
    click.secho(f"{severity}: ", fg=_COLOURS[severity], bold=True, err=True, nl=False)
    _tell(words)


def _tell(words: str) -> None:
    click.echo(printable(words), err=True)
