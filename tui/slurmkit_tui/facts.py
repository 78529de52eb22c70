"""The facts of one job, in words."""

from __future__ import annotations

from datetime import UTC, datetime

from slurmkit.jobinfo import JobInfo
from slurmkit.queue import QueueRow
from slurmkit.tres import gpu_types
from slurmkit_tui.snapshot import Line

Fact = tuple[str, str]


def facts(line: Line) -> list[Fact]:
    """What the row of the queue says."""
    row = line.row
    state = ("State", _state(row.state, row.reason))
    return [*_who(row), state, ("Submitted", clock(row.submitted)), *_size(row)]


def all_facts(line: Line, info: JobInfo, at: float) -> list[Fact]:
    """What the row says and what was found at `at`, in epoch seconds; the newer word wins."""
    found = [*_who(line.row), *_course(info), *_gpus(info), *_size(line.row)]
    output = ("Output", info.output or "unknown")
    return [*found, output, ("Source", f"{info.source} at {clock(at)}")]


def _who(row: QueueRow) -> list[Fact]:
    return [
        ("Name", row.name),
        ("User", f"{row.user}, account {row.account}"),
        ("Queue", f"partition {row.partition}, QOS {row.qos}, priority {row.priority}"),
    ]


def _state(state: str, reason: str) -> str:
    return f"{state} ({reason})" if state == "PENDING" else state


def _course(info: JobInfo) -> list[Fact]:
    code = f", exit code {info.exit_code}" if info.is_over and info.exit_code else ""
    start = "Starts about" if info.state == "PENDING" else "Started"
    return [
        ("State", _state(info.state, info.reason) + code),
        ("Submitted", clock(info.submitted)),
        (start, clock(info.started)),
        ("Ended", clock(info.ended)) if info.is_over else ("Elapsed", info.elapsed),
        ("Nodes", info.node_list or "none yet"),
    ]


def _size(row: QueueRow) -> list[Fact]:
    plural = "s" * (row.nodes != 1), "s" * (row.cpus != 1)
    return [
        ("Limit", row.time_limit),
        ("Size", f"{row.nodes} node{plural[0]}, {row.cpus} CPU{plural[1]}"),
        ("Directory", row.workdir),
    ]


def _gpus(info: JobInfo) -> list[Fact]:
    if "=" not in info.tres:
        return [("GPUs", "unknown: Slurm lists no TRES for this job")]
    types = gpu_types(info.tres)
    total = ", ".join(f"{n} {kind}".strip() for kind, n in types.items()) or "none"
    held = [(f"  {node}", f"GPU {_indices(at)}") for node, at in info.gpu_indices.items()]
    missing = [("  where", "unknown: Slurm does not say")] if _unsaid(info) else []
    return [("GPUs", total), *held, *missing]


def _unsaid(info: JobInfo) -> bool:
    holds = info.state != "PENDING" and not info.is_over
    return holds and bool(gpu_types(info.tres)) and not info.gpu_indices


def _indices(held: list[int]) -> str:
    return ", ".join(map(str, held))


def clock(epoch: float | None) -> str:
    """Write a time in the zone of this machine."""
    if epoch is None:
        return "unknown"
    local = datetime.fromtimestamp(epoch, UTC).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S %Z")
