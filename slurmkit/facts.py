"""The facts of one job in words, for every screen that shows them; not escaped yet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from slurmkit.tres import gpu_types, gres

if TYPE_CHECKING:
    from slurmkit.jobs.info import JobInfo
    from slurmkit.jobs.outcome import Outcome
    from slurmkit.survive.history import RunEnd

Fact = tuple[str, str]


def course(info: JobInfo) -> list[Fact]:
    """What became of a job so far, and where."""
    code = f", exit code {info.exit_code}" if info.is_over and info.exit_code else ""
    waits = info.state == "PENDING"
    return [
        ("State", state(info.state, info.reason) + code),
        ("Submitted", clock(info.submitted)),
        ("Starts about" if waits else "Started", clock(info.started)),
        *([("Elapsed", info.elapsed)] if not waits and not info.is_over else []),
        *([("Ended", clock(info.ended))] if info.is_over else []),
        ("Nodes", info.node_list or "none yet"),
        *([("Parts", tally(info.tally))] if info.tally else []),
    ]


def ending(outcome: Outcome) -> list[Fact]:
    """How a job ended, and after how many runs."""
    runs = [run.state for run in outcome.runs]
    several = [("Runs", f"{len(runs)}: {', '.join(runs)}")] if len(runs) > 1 else []
    return [("Outcome", outcome.words), *several, *restarts(outcome.restarts)]


def restarts(runs: Sequence[RunEnd]) -> list[Fact]:
    """Why each run of a job that was requeued ended, when, and on which nodes."""
    if len(runs) < 2 and not any(run.action in ("requeue", "hold", "slurm") for run in runs):
        return []
    return [(f"  run {each.run}", _run(each)) for each in runs]


def _run(run: RunEnd) -> str:
    if not run.reason:
        return f"on {run.nodes}, since {clock(run.began)}"
    return f"on {run.nodes}, {_span(run.began, run.ended)}: {run.words or run.reason}"


def _span(began: int | None, ended: int | None) -> str:
    """From when to when; the day once, where it is the same."""
    first, last = clock(began), clock(ended)
    if None in (began, ended) or first[:10] != last[:10] or first[19:] != last[19:]:
        return f"{first} to {last}"
    return f"{first[:19]} to {last[11:]}"


def gpus(info: JobInfo) -> list[Fact]:
    """What generic resources a job has, and which GPUs on which node while it holds them."""
    if info.tally and "=" not in info.tres:
        return []
    if "=" not in info.tres:
        return [("GPUs", "unknown: Slurm lists no TRES for this job")]
    total = ", ".join(gres(info.tres)) or "none"
    held = [
        (f"  {node}", f"GPU {', '.join(map(str, at))}") for node, at in info.gpu_indices.items()
    ]
    holds = info.state != "PENDING" and not info.is_over and gpu_types(info.tres)
    unsaid = [("  where", "unknown: Slurm does not say")] if holds and not held else []
    return [("GPUs", total), *held, *unsaid]


def output(info: JobInfo) -> Fact:
    """Where a job writes; the script of a het job runs in its first component."""
    whole, het, _ = (info.part or info.job_id).partition("+")
    if het and info.output is None:
        return ("Output", f"that of {whole}+0")
    several = f"one for each part, e.g. of {info.part}" if info.part else "unknown"
    return ("Output", info.output or several)


def tally(counts: dict[str, int]) -> str:
    """How many are in which state."""
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def state(name: str, reason: str) -> str:
    """Say a state, with the reason of one that waits, once the scheduler has looked at it."""
    return f"{name} ({reason})" if name == "PENDING" and reason != "None" else name


def clock(epoch: float | None) -> str:
    """Write a time in the zone of this machine."""
    if epoch is None:
        return "unknown"
    return datetime.fromtimestamp(epoch, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def percent(share: float | None) -> str:
    """A share in words; `?` while unknown."""
    return "?" if share is None else f"{share:.0%}"


def rounded(number: float) -> str:
    """A number in as few digits as are of use: `0.67`, `40`, `1,234.5`; `<0.01` is not nothing."""
    if 0 < abs(number) < 0.005:
        return "<0.01" if number > 0 else ">-0.01"
    return f"{number:,.2f}".rstrip("0").rstrip(".")
