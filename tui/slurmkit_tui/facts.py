"""The facts of one job, in words."""

from __future__ import annotations

from slurmkit.facts import Fact, clock, course, gpus, output, state
from slurmkit.jobs.info import JobInfo
from slurmkit.queue.rows import QueueRow
from slurmkit_tui.snapshot import Line


def facts(line: Line) -> list[Fact]:
    """What the row of the queue says."""
    row = line.row
    waits = ("State", state(row.state, row.reason))
    return [*_who(row), waits, ("Submitted", clock(row.submitted)), *_size(row)]


def all_facts(line: Line, info: JobInfo, at: float) -> list[Fact]:
    """What the row says and what was found at `at`, in epoch seconds; the newer word wins."""
    found = [*_who(line.row), *course(info), *gpus(info), *_size(line.row)]
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
