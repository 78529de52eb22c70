"""The facts of one job in words, for every screen that shows them; not escaped yet."""

from __future__ import annotations

from datetime import UTC, datetime

from slurmkit.jobinfo import JobInfo
from slurmkit.tres import gpu_types, gres

Fact = tuple[str, str]


def course(info: JobInfo) -> list[Fact]:
    """What became of a job so far, and where."""
    code = f", exit code {info.exit_code}" if info.is_over and info.exit_code else ""
    start = "Starts about" if info.state == "PENDING" else "Started"
    return [
        ("State", state(info.state, info.reason) + code),
        ("Submitted", clock(info.submitted)),
        (start, clock(info.started)),
        ("Ended", clock(info.ended)) if info.is_over else ("Elapsed", info.elapsed),
        ("Nodes", info.node_list or "none yet"),
    ]


def gpus(info: JobInfo) -> list[Fact]:
    """What generic resources a job has, and which GPUs on which node while it holds them."""
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
    """Where a job writes."""
    return ("Output", info.output or "unknown")


def state(name: str, reason: str) -> str:
    """Say a state, with the reason of one that waits."""
    return f"{name} ({reason})" if name == "PENDING" else name


def clock(epoch: float | None) -> str:
    """Write a time in the zone of this machine."""
    if epoch is None:
        return "unknown"
    return datetime.fromtimestamp(epoch, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
