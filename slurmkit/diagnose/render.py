"""Render an explanation as lines, for the command line and the TUI."""

from __future__ import annotations

from collections.abc import Iterator

from slurmkit.diagnose.model import (
    Alternative,
    Blocker,
    EndExplanation,
    Explanation,
    Priority,
    RunComparison,
    RunningExplanation,
    StartEstimate,
    WaitExplanation,
    WatchedRank,
)
from slurmkit.formats import display
from slurmkit.formats.memory import format_bytes
from slurmkit.jobs.pending_reasons import TIME

ExplanationLine = tuple[str, str]
_MOST_RANKS = 32  # that are listed


def explanation_lines(explanation: Explanation) -> Iterator[ExplanationLine]:
    """Yield an explanation as pairs of a name and a value, not escaped."""
    if explanation.waiting is not None:
        yield from _waiting(explanation.waiting, explanation.taken)
    if explanation.running is not None:
        yield from _running(explanation.running, explanation.taken)
    if explanation.ended is not None:
        yield from _ended(explanation.ended)
    if explanation.compared is not None:
        yield from _compared(explanation.compared, explanation.taken)
    yield from _listed("Note", explanation.notes)


def _listed(name: str, values: Iterator[str] | tuple[str, ...]) -> Iterator[ExplanationLine]:
    """Yield the name with the first value, then the other values without a name."""
    for value in values:
        yield name, value
        name = ""


def _waiting(waiting: WaitExplanation, now: float) -> Iterator[ExplanationLine]:
    yield "Reason", waiting.reason
    yield from _listed("Now", waiting.details)
    yield from _listed("Blocked by", _blockers(waiting, now))
    yield "Who can act", _who(waiting)
    for rank in waiting.ranks:
        out = f"; {rank.out_of_it} more cannot start yet" if rank.out_of_it else ""
        yield "Rank", f"{rank.place} of {rank.waiting} in partition {rank.partition}{out}"
    for priority in waiting.priority:
        yield from _listed("Priority", _priority(priority))
    yield "Start", _start(waiting.start, now)
    yield from _listed("Sooner", _alternatives(waiting, now))


def _who(waiting: WaitExplanation) -> str:
    """Return who can change the reason; with alternatives, the user can."""
    if waiting.who == TIME and waiting.alternatives:
        return "you, with a change listed below (Sooner); or wait: it passes by itself"
    if waiting.who == TIME and waiting.advice == "wait":
        return "nobody needs to: it passes by itself"
    return f"{waiting.who}; {waiting.advice}"


def _blockers(waiting: WaitExplanation, now: float) -> Iterator[str]:
    for blocker in waiting.blockers:
        yield _blocker(blocker, now)
    if waiting.more_blockers:
        yield f"and {waiting.more_blockers} more"


def _blocker(blocker: Blocker, now: float) -> str:
    who = f" of {blocker.user} ({blocker.account})" if blocker.user else ""
    state = f", {blocker.state.lower()}" if blocker.state else ""
    until = (
        f", until {display.format_moment(blocker.until, now)} at the latest"
        if blocker.until
        else ""
    )
    return f"{blocker.kind} {blocker.name}{who}{state}: {blocker.holds}{until}"


def _priority(priority: Priority) -> Iterator[str]:
    yield f"{priority.total} in partition {priority.partition}; {priority.reading}"
    parts = (
        f"{factor.name} {factor.points:.0f}"
        + (f" of {factor.most:.0f}" if factor.most is not None else "")
        for factor in priority.factors
    )
    yield ", ".join(parts)


def _start(start: StartEstimate | None, now: float) -> str:
    if start is None:
        return "unknown: Slurm has no estimate"
    where = f" on {start.nodes}" if start.nodes else ""
    # Without nodes it is a time that was set, such as a begin time.
    at = display.format_moment(start.at, now) if start.nodes else format_exact_moment(start.at, now)
    age = f", computed {display.format_seconds(now - start.taken)} ago" if start.taken else ""
    return f"{at}{where}, from {start.source}{age}"


def format_exact_moment(at: int | None, now: float) -> str:
    """Format a time that a job waits for: `in 20 s` where others are called `now`."""
    if at is not None and 0 < at - now < 60:
        return f"in {display.format_seconds(at - now)}"
    return display.format_moment(at, now)


def _alternatives(waiting: WaitExplanation, now: float) -> Iterator[str]:
    for each in waiting.alternatives:
        yield from _alternative(each, now)
    if waiting.alternatives:
        yield "estimated from the current nodes, jobs and plans; sbatch --test-only does not object"
    elif waiting.no_alternatives:
        yield waiting.no_alternatives


def _alternative(each: Alternative, now: float) -> Iterator[str]:
    changes = " ".join(f"--{n}={value}" if value else f"no --{n}" for n, value in each.changes)
    yield f"{changes}: {display.format_moment(each.start, now)}"
    for note in each.notes:
        yield f"  {note}"
    yield f"  {each.command}"


def _running(running: RunningExplanation, now: float) -> Iterator[ExplanationLine]:
    yield "Runs", running.runs
    for finding in running.findings:
        yield "Found", f"{finding.text}{_origin(finding.source, finding.taken, now)}"
        if finding.advice:
            yield "  do", finding.advice
    for fact in running.facts:
        yield fact.about, f"{fact.text}{_origin(fact.source, fact.taken, now)}"
    yield from _listed("NCCL", running.nccl)
    name = "Ranks" if any(rank.rank is not None for rank in running.ranks) else "Processes"
    yield from _listed(name, map(_rank, running.ranks[:_MOST_RANKS]))
    if len(running.ranks) > _MOST_RANKS:
        yield "", f"and {len(running.ranks) - _MOST_RANKS} more; --json has all"
    for stack in running.stacks:
        yield "Stack", stack.title
        yield from _listed("", tuple(stack.lines) or (stack.problem or "py-spy printed nothing",))


def _origin(source: str, taken: float | None, now: float) -> str:
    """Return ` [squeue, 12 s ago]`; empty if both are unknown."""
    age = "" if taken is None else f"{display.format_seconds(now - taken)} ago"
    known = ", ".join(filter(None, [source, age]))
    return f"  [{known}]" if known else ""


def _rank(rank: WatchedRank) -> str:
    who = "" if rank.rank is None else f"{rank.rank} "
    parts = [f"{who}{rank.node} pid {rank.pid} {rank.command}: {rank.does}"]
    if rank.cpus is not None:
        parts.append(f"CPU {rank.cpus:.0%}")
    if rank.rss is not None:
        parts.append(format_bytes(rank.rss))
    parts.append(f"{rank.threads} thread{'' if rank.threads == 1 else 's'}")
    if rank.processes > 1:
        parts.append(f"{rank.processes} processes")
    return ", ".join(parts)


def _ended(ended: EndExplanation) -> Iterator[ExplanationLine]:
    yield from _listed("Details", ended.details)
    if ended.advice:
        yield "Do", ended.advice
    steps = (
        f"{step.step_id} {step.name} {step.state} {step.exit_code} on {step.nodes}"
        for step in ended.steps
    )
    yield from _listed("Steps", steps)
    if ended.first_error is not None:
        at = f"line {ended.first_error.number}: " if ended.first_error.number else ""
        yield "Error", f"{at}{ended.first_error.text}"
        yield "", ended.error_means
    yield "Log", ended.log_trouble or ended.log or "unknown"
    yield from _listed("Last lines", ended.last_lines)


def _compared(compared: RunComparison, now: float) -> Iterator[ExplanationLine]:
    yield "Compared", f"{compared.text}{_origin(compared.source, compared.taken, now)}"
    alike = [f"{each.about} {each.now}" for each in compared.facts if each.differs is False]
    if alike:
        yield "As before", ", ".join(alike)
    unknown = [f"{each.about}: {each.unknown}" for each in compared.facts if each.differs is None]
    yield from _listed("Unknown", tuple(unknown))
