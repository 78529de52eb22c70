"""A plan as people and programs read it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

import click
import msgspec

from slurmkit.arrays import fold
from slurmkit.cli.show import hanging
from slurmkit.facts import clock
from slurmkit.findings import Finding
from slurmkit.planner import Plan, Submission
from slurmkit.planning.chunks import throttle
from slurmkit.planning.secrets import masked
from slurmkit.spec import JobSpec
from slurmkit.sweep import words_at
from slurmkit.text import printable

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan for programs; findings have all their fields."""
    made: dict[str, Any] = msgspec.to_builtins(plan)
    made["spec"]["environment"] = masked(plan.spec.environment)
    made["submissions"] = [
        {"script": s.script, "options": dict(s.options), "after": list(s.after)} | _part(s)
        for s in plan.submissions
    ]
    for name in ("errors", "warnings", "notes"):
        made[name] = list(map(_finding, getattr(plan, name)))
    return made


def _part(submission: Submission) -> dict[str, Any]:
    """Which tasks of an array it holds, where Slurm has others than its user."""
    part = submission.part
    if part is None:
        return {}
    return {"order": submission.order, "offset": part.offset, "tasks": fold(part.tasks)}


def tasks(plan: Plan) -> list[tuple[str, str]]:
    """What a sweep comes to: how many points, the first and the last of them, and the arrays."""
    sweep, parts = plan.spec.sweep, [each.part for each in plan.submissions if each.part]
    if sweep is None or not parts:
        return []
    count, limit = sum(len(part.tasks) for part in parts), throttle(plan.spec.array or "")
    said = f"{count:,}" + (f" of {len(sweep):,}" if count < len(sweep) else "")
    at_once = f"at most {limit:,} at once" if limit else "no limit to how many run at once"
    several = f"{len(parts)} arrays of Slurm; " if len(parts) > 1 else ""
    ends = {"First": parts[0].tasks[0], "Last": parts[-1].tasks[-1]}
    points = [(name, f"{at}: {_point(plan.spec, at)}") for name, at in ends.items()]
    return [("Points", f"{said}; {several}{at_once}"), *points]


def _point(spec: JobSpec, at: int) -> str:
    """Its command, or of a script its parameters."""
    values = spec.sweep.values(at) if spec.sweep else {}
    if spec.command:
        return shlex.join(words_at(spec.command, values))
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())


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
    facts = [*tasks(plan), *(plan.estimate.facts() if plan.estimate else [])]
    checked = f"against the cluster as read at {clock(plan.capabilities_taken)}"
    say_estimate_facts((*facts, ("Checked", checked)))


def say_estimate_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Tell named facts of an estimate on standard error."""
    for name, value in facts:
        hanging(f"{name.ljust(8)} ", value, indent=9, err=True)


def _say(severity: str, words: str) -> None:
    head = click.style(f"{severity}: ", fg=_COLOURS[severity], bold=True)
    hanging(head, words, indent=7, err=True)
