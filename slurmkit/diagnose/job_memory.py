"""The memory of a running job: how near its limit it is, and whether a step has room in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil

import msgspec

from slurmkit.diagnose.model import RunningFact, RunningFinding
from slurmkit.diagnose.probe import NEEDED_MEMORY, Probe
from slurmkit.formats.memory import format_bytes, parse_bytes
from slurmkit.formats.tres import parse_tres
from slurmkit.jobs.steps import StepsSnapshot, StepUse
from slurmkit.state.queue_rows import QueueRow

_NEAR_LIMIT = 0.9
_SOURCES = {"pss": "/proc", "cgroup": "its cgroup"}


class NodeMemory(msgspec.Struct, frozen=True):
    """The memory of a job on one node.

    Attributes:
        used: bytes in use; the most that it can be, if that is not known exactly.
        limit: bytes; an equal share of what the job holds where it has no cgroup.
        source: what says so.
        least: the least that it can be; None if `used` is exact.
    """

    used: float
    limit: float | None
    source: str
    least: float | None = None

    @property
    def certain(self) -> float:
        """Bytes that are in use for certain."""
        return self.used if self.least is None else self.least


def watched_memory(row: QueueRow, probed: Probe) -> dict[str, NodeMemory]:
    """Return the memory of a job by node, as its nodes say."""
    share = _limit(row)
    found: dict[str, NodeMemory] = {}
    for name, node in probed.nodes.items():
        watched = node.processes
        if node.full is not None:
            found[name] = NodeMemory(node.full.used, node.full.limit, "its cgroup")
        elif watched is not None and watched.memory_used is not None:
            source = _SOURCES.get(watched.memory_by, "/proc")
            found[name] = NodeMemory(watched.memory_used, watched.memory_limit or share, source)
        elif watched is not None:
            sizes = [each.rss for each in watched.processes if each.rss is not None]
            # Pages that processes share count for each of them.
            least = max(sizes) if len(sizes) > 1 else None
            found[name] = NodeMemory(sum(sizes), watched.memory_limit or share, "/proc", least)
    return found


def measured_memory(row: QueueRow, steps: StepsSnapshot) -> NodeMemory | None:
    """Return the memory of a job on its fullest node, as Slurm samples it; None if it does not.

    Slurm does not say how the memory of a step is spread over nodes. On several of them, the
    fullest has at least an equal share of it, and at most what the step's tasks there have if each
    is at the most that one of them ever had.
    """
    found = [(step, step.use.mem_now) for step in steps.rows if step.use.mem_now is not None]
    if not found:
        return None
    whole = sum(now for _, now in found)
    if row.nodes <= 1:
        return NodeMemory(whole, _limit(row), "sstat")
    most = sum(_most_on_one_node(step, now, row.nodes) for step, now in found)
    return NodeMemory(most, _limit(row), "sstat", min(most, whole / row.nodes))


def _most_on_one_node(step: StepUse, now: float, nodes: int) -> float:
    peak, tasks = step.use.task_peak, step.use.tasks
    if peak is None or not tasks:
        return now
    return min(now, peak * ceil(tasks / (step.nodes or nodes)))


def why_no_room(memory: NodeMemory | None) -> str:
    """Return why no step may start in a job that Slurm would end with it; empty if one may."""
    needed = f"a look inside needs {format_bytes(NEEDED_MEMORY)} of the job's memory on each node"
    end = "so no step was started, because Slurm ends a job above its limit"
    if memory is None:
        return f"{needed}, and how much it uses is not known; {end}"
    if memory.limit is None or memory.limit - memory.used >= NEEDED_MEMORY:
        return ""
    free = format_bytes(max(0.0, memory.limit - memory.used))
    may = "is" if memory.least is None else "may be"
    return f"{needed}, and on one only {free} of {format_bytes(memory.limit)} {may} free; {end}"


def _limit(row: QueueRow) -> float | None:
    whole = parse_bytes(parse_tres(row.tres).get("mem", ""))
    return whole / row.nodes if whole and row.nodes else None


def near_limit(memory: Mapping[str, NodeMemory], taken: float) -> Iterator[RunningFinding]:
    """Find the node on which a job is nearest its limit, from nine tenths of it on."""
    near = [
        (each.certain / each.limit, node)
        for node, each in memory.items()
        if each.limit and each.certain >= _NEAR_LIMIT * each.limit
    ]
    if near:
        _, node = max(near)
        fullest = memory[node]
        least = "" if fullest.least is None else "at least "
        used = f"{least}{format_bytes(fullest.certain)} of {format_bytes(fullest.limit or 0)}"
        yield RunningFinding(
            kind="memory",
            text=f"{used} are in use on {node}",
            source=fullest.source,
            taken=taken,
            advice="Slurm ends a job above its limit: ask for more with --mem next time",
        )


def memory_fact(memory: Mapping[str, NodeMemory], taken: float) -> Iterable[RunningFact]:
    """Describe the memory on the node where the job uses the most; nothing if none is known."""
    if not memory:
        return
    node, most = max(memory.items(), key=lambda item: item[1].used)
    of = "" if most.limit is None else f" of {format_bytes(most.limit)}"
    where = f" on {node}" + (", the most of its nodes" if len(memory) > 1 else "")
    least = "" if most.least is None else f"{format_bytes(most.least)} to "
    shared = "; its processes may share pages" if least and most.source == "/proc" else ""
    text = f"{least}{format_bytes(most.used)}{of}{where}{shared}"
    yield RunningFact(about="Memory", text=text, source=most.source, taken=taken)
