"""A plan as people and programs read it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
import msgspec

from slurmkit.cli.show import hanging
from slurmkit.facts import clock
from slurmkit.findings import Finding
from slurmkit.planner import Plan
from slurmkit.planning.secrets import masked
from slurmkit.text import printable

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan for programs; findings have all their fields."""
    made: dict[str, Any] = msgspec.to_builtins(plan)
    made["spec"]["environment"] = masked(plan.spec.environment)
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
        say_finding(finding)


def say_finding(finding: Finding, what: str = "") -> None:
    """Tell one finding on standard error, after `what` it is about."""
    source = f" ({finding.source})" if finding.source else ""
    _say(finding.severity, f"{what}{finding.message}{source}")
    if finding.fix:  # to be copied, so it stays on one line
        click.echo(f"       fits: {printable(finding.fix_words)}", err=True)


def say_estimate(plan: Plan) -> None:
    """Tell on standard error what the job would use and cost, and when it might start."""
    facts = plan.estimate.facts() if plan.estimate else []
    checked = f"against the cluster as read at {clock(plan.capabilities_taken)}"
    say_estimate_facts((*facts, ("Checked", checked)))


def say_estimate_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Tell named facts of an estimate on standard error."""
    for name, value in facts:
        hanging(f"{name.ljust(8)} ", value, indent=9, err=True)


def _say(severity: str, words: str) -> None:
    head = click.style(f"{severity}: ", fg=_COLOURS[severity], bold=True)
    hanging(head, words, indent=7, err=True)
