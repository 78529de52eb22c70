"""Descriptions of one job as (title, text) lines for every screen; not escaped yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurmkit.formats.display import format_time
from slurmkit.formats.tres import format_gpus, gpu_types
from slurmkit.jobs.exit_codes import describe_end

if TYPE_CHECKING:
    from slurmkit.jobs.info import JobInfo
    from slurmkit.jobs.outcome import Outcome
    from slurmkit.jobs.run_history import RunRecord

Fact = tuple[str, str]


def progress_facts(info: JobInfo) -> list[Fact]:
    """Describe a job's state, times and nodes."""
    how = describe_end(info.exit_code) if info.is_over else ""
    waits = info.state == "PENDING"
    return [
        ("State", f"{format_state(info.state, info.reason)}{how and f', {how}'}"),
        ("Submitted", format_time(info.submitted)),
        ("Starts about" if waits else "Started", format_time(info.started)),
        *([("Elapsed", info.elapsed)] if not waits and not info.is_over else []),
        *([("Ended", format_time(info.ended))] if info.is_over else []),
        ("Nodes", info.node_list or "none yet"),
        *([("Parts", format_state_counts(info.tally))] if info.tally else []),
    ]


def outcome_facts(outcome: Outcome) -> list[Fact]:
    """Describe how a job ended, and after how many runs."""
    runs = [run.state for run in outcome.runs]
    several = [("Runs", f"{len(runs)}: {', '.join(runs)}")] if len(runs) > 1 else []
    return [("Outcome", outcome.words), *several, *restart_facts(outcome.restarts)]


def restart_facts(runs: Sequence[RunRecord]) -> list[Fact]:
    """Describe why each run of a requeued job ended, when, and on which nodes."""
    if len(runs) < 2 and not any(run.action in ("requeue", "hold", "slurm") for run in runs):
        return []
    return [(f"  run {each.run}", _run(each)) for each in runs]


def _run(run: RunRecord) -> str:
    if not run.reason:
        return f"on {run.nodes}, since {format_time(run.began)}"
    return f"on {run.nodes}, {_time_span(run.began, run.ended)}: {run.words or run.reason}"


def _time_span(began: int | None, ended: int | None) -> str:
    """Write a time span; the day only once if both times are on the same day."""
    first, last = format_time(began), format_time(ended)
    if None in (began, ended) or first[:10] != last[:10] or first[19:] != last[19:]:
        return f"{first} to {last}"
    return f"{first[:19]} to {last[11:]}"


def job_gpu_facts(info: JobInfo) -> list[Fact]:
    """Describe a job's GPUs, and while it holds them, their indices on each node."""
    if info.tally and "=" not in info.tres:
        return []
    if "=" not in info.tres:
        return [("GPUs", "unknown: Slurm lists no TRES for this job")]
    total = ", ".join(format_gpus(info.tres)) or "none"
    held = [
        (f"  {node}", f"GPU {', '.join(map(str, at))}") for node, at in info.gpu_indices.items()
    ]
    holds = info.state != "PENDING" and not info.is_over and gpu_types(info.tres)
    unknown = [("  where", "unknown: Slurm does not show it")] if holds and not held else []
    return [("GPUs", total), *held, *unknown]


def output_fact(info: JobInfo) -> Fact:
    """Describe where a job's output goes; a het job's script runs in its first component."""
    whole, het, _ = (info.part or info.job_id).partition("+")
    if het and info.output is None:
        return ("Output", f"in the output of {whole}+0")
    several = f"one file for each part, e.g. for {info.part}" if info.part else "unknown"
    return ("Output", info.output or several)


def format_state_counts(counts: dict[str, int]) -> str:
    """Write counts by state: `4 RUNNING, 36 PENDING`."""
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def format_state(name: str, reason: str) -> str:
    """Write a state; for a pending job add its reason, once Slurm has one."""
    known = reason not in ("", "None")
    return f"{name} ({reason})" if name == "PENDING" and known else name
