"""The facts of one job, in words."""

from __future__ import annotations

from datetime import UTC, datetime

from slurmkit.jobinfo import JobInfo
from slurmkit.queue import QueueRow
from slurmkit.tres import gpu_types
from slurmkit_tui.snapshot import Line

Fact = tuple[str, str]


def facts(line: Line, info: JobInfo | None) -> list[Fact]:
    """What the row says, and what was found since: the newer word wins."""
    row = line.row
    if info is None:
        return _who(row) + _when(row) + _what(row)
    found = _who(row) + _state(info) + _what(row) + _gpus(info)
    return [*found, ("Output", info.output or "unknown"), ("Source", f"{info.source}, now")]


def _who(row: QueueRow) -> list[Fact]:
    return [
        ("Name", row.name),
        ("User", f"{row.user}, account {row.account}"),
        ("Queue", f"partition {row.partition}, QOS {row.qos}, priority {row.priority}"),
    ]


def _when(row: QueueRow) -> list[Fact]:
    why = f" ({row.reason})" if row.state == "PENDING" else ""
    return [("State", row.state + why), ("Submitted", clock(row.submitted))]


def _state(info: JobInfo) -> list[Fact]:
    why = f" ({info.reason})" if info.state == "PENDING" else ""
    code = f", exit code {info.exit_code}" if info.is_over and info.exit_code else ""
    start = "Starts about" if info.state == "PENDING" else "Started"
    return [
        ("State", info.state + why + code),
        ("Submitted", clock(info.submitted)),
        (start, clock(info.started)),
        ("Ended", clock(info.ended)) if info.is_over else ("Elapsed", info.elapsed),
        ("Nodes", info.node_list or "none yet"),
    ]


def _what(row: QueueRow) -> list[Fact]:
    return [
        ("Limit", row.time_limit),
        (
            "Size",
            f"{row.nodes} node{'s' * (row.nodes != 1)}, {row.cpus} CPU{'s' * (row.cpus != 1)}",
        ),
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
    running = info.state not in ("PENDING", "COMPLETED") and not info.is_over
    return running and bool(gpu_types(info.tres)) and not info.gpu_indices


def _indices(held: list[int]) -> str:
    return ", ".join(map(str, held))


def clock(epoch: float | None) -> str:
    """Write a time in the zone of this machine."""
    if epoch is None:
        return "unknown"
    local = datetime.fromtimestamp(epoch, UTC).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S %Z")
