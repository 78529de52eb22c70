"""The memory of a running job: how near its limit it is, and whether a step has room in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil

import msgspec

from slurmkit.diagnose.model import RunningFact, RunningFinding
from slurmkit.diagnose.probe import Probe
from slurmkit.formats.memory import format_bytes, parse_bytes
from slurmkit.formats.tres import parse_tres
from slurmkit.jobs.steps import StepsSnapshot, StepUse
from slurmkit.state.queue_rows import QueueRow

_NEAR_LIMIT = 0.9
_SOURCES = {"pss": "/proc", "cgroup": "its cgroup"}


class JobMemory(msgspec.Struct, frozen=True):
    """The memory of a job on one node.

    Attributes:
        used: bytes in use.
        limit: bytes; an equal share of what the job holds where it has no cgroup.
        source: what says so.
        is_most: whether `used` may be too much: pages that processes share count several times.
    """

    used: float
    limit: float | None
    source: str
    is_most: bool = False


def watched_memory(row: QueueRow, probed: Probe) -> dict[str, JobMemory]:
    """Return the memory of a job by node, as its nodes say."""
    share = _limit(row)
    found: dict[str, JobMemory] = {}
    for name, node in probed.nodes.items():
        watched = node.processes
        if node.full is not None:
            found[name] = JobMemory(node.full.used, node.full.limit, "its cgroup")
        elif watched is not None and watched.memory_used is not None:
            source = _SOURCES.get(watched.memory_by, "/proc")
            found[name] = JobMemory(watched.memory_used, watched.memory_limit or share, source)
        elif watched is not None:
            sizes = [each.rss for each in watched.processes if each.rss is not None]
            is_most = len(sizes) > 1
            found[name] = JobMemory(sum(sizes), watched.memory_limit or share, "/proc", is_most)
    return found


def measured_memory(row: QueueRow, steps: StepsSnapshot) -> JobMemory | None:
    """Return the memory of a job on its fullest node, as Slurm measures it; None if it does not.

    Slurm does not say how the memory of a step is spread over nodes: on several of them each task
    counts with the most that one task ever had.
    """
    uses = [each for step in steps.rows if (each := _on_one_node(step, row.nodes)) is not None]
    if not uses:
        return None
    return JobMemory(sum(uses), _limit(row), "sstat", is_most=row.nodes > 1)


def _on_one_node(step: StepUse, nodes: int) -> float | None:
    """Return the memory of a running step on one node, in bytes; at most, if there are several."""
    use = step.use
    if use.mem_now is None or step.is_allocation or not step.runs:
        return None
    if nodes <= 1 or use.task_peak is None or not use.tasks:
        return use.mem_now
    return min(use.mem_now, use.task_peak * ceil(use.tasks / nodes))


def why_no_room(memory: JobMemory | None, needed: int) -> str:
    """Return why a step that needs so many bytes may not start in a job; empty if it may.

    What a step needs counts for its job, and Slurm ends a job above its limit.
    """
    if memory is None or memory.limit is None or memory.limit - memory.used >= needed:
        return ""
    most = " at most" if memory.is_most else ""
    return (
        f"{format_bytes(memory.used)}{most} of the {format_bytes(memory.limit)} of memory that it"
        f" has on a node are in use: a look inside needs {format_bytes(needed)} of them, and Slurm"
        " ends a job above its limit; so no step was started"
    )


def _limit(row: QueueRow) -> float | None:
    whole = parse_bytes(parse_tres(row.tres).get("mem", ""))
    return whole / row.nodes if whole and row.nodes else None


def near_limit(memory: Mapping[str, JobMemory], taken: float) -> Iterator[RunningFinding]:
    """Find the node on which a job is nearest its limit, from nine tenths of it on."""
    near = [
        (each.used / each.limit, node, each.used, each.limit, each.source)
        for node, each in memory.items()
        if each.limit and not each.is_most and each.used >= _NEAR_LIMIT * each.limit
    ]
    if near:
        _, node, used, limit, source = max(near)
        yield RunningFinding(
            kind="memory",
            text=f"{format_bytes(used)} of {format_bytes(limit)} are in use on {node}",
            source=source,
            taken=taken,
            advice="Slurm ends a job above its limit: ask for more with --mem next time",
        )


def memory_fact(memory: Mapping[str, JobMemory], taken: float) -> Iterable[RunningFact]:
    """Describe the memory on the node where the job uses the most; nothing if none is known."""
    if not memory:
        return
    node, most = max(memory.items(), key=lambda item: item[1].used)
    of = "" if most.limit is None else f" of {format_bytes(most.limit)}"
    where = f" on {node}" + (", the most of its nodes" if len(memory) > 1 else "")
    shared = "; at most: pages that its processes share count for each" if most.is_most else ""
    text = f"{format_bytes(most.used)}{of}{where}{shared}"
    yield RunningFact(about="Memory", text=text, source=most.source, taken=taken)
