"""The facts of one job, in words."""

from __future__ import annotations

from slurmkit.facts import Fact, clock, course, gpus, output, state
from slurmkit.jobs.info import JobInfo
from slurmkit.nodes.cells import counted_gpus, gib, load, why
from slurmkit.nodes.read import NodeRow
from slurmkit.queue.rows import QueueRow


def facts(row: QueueRow) -> list[Fact]:
    """What the row of the queue says."""
    waits = ("State", state(row.state, row.reason))
    return [*_who(row), waits, ("Submitted", clock(row.submitted)), *_size(row)]


def all_facts(row: QueueRow, info: JobInfo, at: float) -> list[Fact]:
    """What the row says and what was found at `at`, in epoch seconds; the newer word wins."""
    found = [*_who(row), *course(info), *gpus(info), *_size(row)]
    return [*found, output(info), ("Source", f"{info.source} at {clock(at)}")]


def _who(row: QueueRow) -> list[Fact]:
    return [
        ("Name", row.name),
        ("User", f"{row.user}, account {row.account}"),
        ("Queue", f"partition {row.partition}, QOS {row.qos}, priority {row.priority}"),
    ]


def _size(row: QueueRow) -> list[Fact]:
    plural = "s" * (row.nodes != 1), "s" * (row.cpus != 1)
    return [
        ("Limit", row.time_limit),
        ("Size", f"{row.nodes} node{plural[0]}, {row.cpus} CPU{plural[1]}"),
        ("Directory", row.workdir),
    ]


def node_facts(row: NodeRow) -> list[Fact]:
    """All that is known of a node."""
    memory = f"{gib(row.memory_allocated)} of {gib(row.memory)} GiB in use"
    return [
        ("State", row.state.lower()),
        *([("Reason", why(row))] if row.reason else []),
        *([("Closed", row.why_closed)] if row.why_closed else []),
        ("Partitions", ", ".join(row.partitions) or "none"),
        ("CPUs", f"{row.cpus_allocated} of {row.cpus} in use, load {load(row)}"),
        ("Memory", memory),
        ("GPUs", "  ".join(counted_gpus(row)) or "none"),
        ("Features", ", ".join(row.features) or "none"),
        ("Jobs", " ".join(row.jobs) or "none"),
    ]
