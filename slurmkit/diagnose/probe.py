"""Ask the nodes of a running job what its processes do, with a short step of the job.

Only the job's owner may start a step in it. The step shares CPUs, memory and GPUs with the job's
own steps (`--overlap`), takes none of them away, and ends by itself after some seconds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from slurmkit.diagnose import inside_job
from slurmkit.errors import SlurmError, SlurmTimeout
from slurmkit.formats.display import join_names
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.queue_rows import QueueRow

NEEDED_MEMORY = 32 << 20
"""Bytes of the job's memory that a step takes on a node: 17 MB were measured, more with NVML."""
_WATCHED = 2.0  # seconds
_DEADLINE = 20  # seconds after which the program on a node ends by itself
_PATIENCE = 30.0  # seconds for the whole step
_MINUTES = 2  # after which slurmctld ends a step that is left, because srun was killed
_MOST_NODES = 64
_ONE_BY_ONE = 8  # at most so many nodes are asked one by one, after a step on all of them failed
STEP_NAME = "slurmkit-why"
_NO_GRES = "none"
_SHORT = 160  # characters of an error of srun


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a process did while it was watched; see `inside_job.Processes`.

    Attributes:
        rank: RANK of its environment; empty if it has none.
        task: SLURM_PROCID; empty if it has none.
        step: step id; empty for the batch script.
        name: name of the program, as the kernel has it.
        command: program and script, without further arguments.
        state: letter of ps, at the end.
        states: how often it was seen in each state.
        waits: how often it was seen asleep in each function of the kernel.
        blocked: the kernel's function for each thread that was uninterruptible (D) at every look,
            and did not wake between them.
        cpu: CPU seconds meanwhile; None if unknown, as all below.
        cpu_total: CPU seconds since its start.
        read: bytes read meanwhile.
        rss: resident memory in bytes.
        tracer: id of the process that traces it; 0 for none.
    """

    pid: int
    parent: int
    rank: str
    task: str
    step: str
    name: str
    command: str
    state: str
    states: dict[str, int]
    waits: dict[str, int]
    blocked: tuple[str, ...]
    cpu: float | None
    cpu_total: float | None
    read: int | None
    rss: int | None
    threads: int
    tracer: int


class WatchedNode(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a job on one node.

    Attributes:
        began: epoch seconds, by the node's clock.
        seconds: how long they were watched.
        left_out: processes beyond the most that are watched.
        memory_limit: of the job on this node, in bytes; None if it has no cgroup.
        memory_used: bytes in use, each page counted once; None if unknown.
        memory_by: what says so: `pss` (each process's share of its pages) or `cgroup`.
    """

    began: float
    seconds: float
    left_out: int
    memory_limit: int | None
    memory_used: int | None = None
    memory_by: str = ""
    processes: tuple[ProcessFacts, ...]


class DriverGpu(msgspec.Struct, frozen=True, kw_only=True):
    """What NVIDIA's driver says of a GPU now; None is unknown.

    Attributes:
        minor: number of its device file.
        index: Slurm's index.
        utilization: percent.
        memory_used: MiB.
        memory_total: MiB.
        throttled: what holds its clocks back.
        degrees: temperature in degrees Celsius.
        clock: MHz.
        top_clock: the highest clock, in MHz.
    """

    minor: int | None
    index: int | None
    utilization: int | None
    memory_used: int | None
    memory_total: int | None
    throttled: tuple[str, ...] | None
    degrees: int | None
    clock: int | None
    top_clock: int | None


class DriverGpus(msgspec.Struct, frozen=True):
    """The GPUs of a job on one node, from the driver; `problem` says why there are none."""

    gpus: tuple[DriverGpu, ...] = ()
    problem: str = ""


class NcclAnswer(msgspec.Struct, frozen=True):
    """NCCL's answer about the job; `problem` says why there is none although NCCL is there."""

    text: str = ""
    problem: str = ""


class PythonStack(msgspec.Struct, frozen=True):
    """The Python stack of a process, as py-spy prints it; `problem` says why there is none."""

    pid: int
    lines: tuple[str, ...]
    problem: str = ""


class FullMemory(msgspec.Struct, frozen=True):
    """The memory of a job on a node where nothing was watched, because there is so little left.

    Attributes:
        used: bytes in use.
        limit: the most, in bytes.
        taken: epoch seconds, by the node's clock.
    """

    used: int
    limit: int
    taken: float


class ProbedNode(msgspec.Struct, frozen=True):
    """All that the program on one node found."""

    processes: WatchedNode | None = None
    gpus: DriverGpus = DriverGpus()
    nccl: NcclAnswer = NcclAnswer()
    stacks: tuple[PythonStack, ...] = ()
    full: FullMemory | None = None


class Probe(msgspec.Struct, frozen=True):
    """What the nodes of a job answered.

    Attributes:
        nodes: by name; only those that answered.
        problems: why a node, or all of them, did not answer.
        failed: whether a step was started, or tried, and no node answered.
        timed_out: whether the step was given up after its time.
    """

    nodes: Mapping[str, ProbedNode]
    problems: tuple[str, ...] = ()
    failed: bool = False
    timed_out: bool = False


def probe_job(
    slurm: SlurmCommands, row: QueueRow, held: Mapping[str, Sequence[int]] | None = None
) -> Probe:
    """Watch the processes of a job for some seconds on each of its nodes.

    If the step fails, it is tried without GPUs. If that fails too and the nodes are few, each is
    asked in a step of its own: so the node that does not answer has a name.

    Args:
        slurm: runs srun.
        row: the running job.
        held: Slurm's indices of the job's GPUs, by node.
    """
    nodes = expand_nodes(row.node_list)
    watch = {"seconds": _WATCHED}
    gres = _gres(nodes, held or {})
    asked = _run(slurm, row, nodes[:_MOST_NODES], watch, gres=gres)
    if not asked.nodes and not asked.timed_out and gres != _NO_GRES:
        asked = _run(slurm, row, nodes[:_MOST_NODES], watch)
    if not asked.nodes and 1 < len(nodes) <= _ONE_BY_ONE:
        with ThreadPoolExecutor(len(nodes)) as pool:
            each = [*pool.map(lambda node: _run(slurm, row, [node], watch), nodes)]
        asked = _join(each)
    if len(nodes) > _MOST_NODES:
        more = f"only the first {_MOST_NODES} of its {len(nodes)} nodes were asked"
        asked = msgspec.structs.replace(asked, problems=(*asked.problems, more))
    return msgspec.structs.replace(asked, failed=not asked.nodes)


def _gres(nodes: Sequence[str], held: Mapping[str, Sequence[int]]) -> str:
    """Return the GRES with which a step sees all GPUs of the job.

    By default a step gets what the job asked for, as `--gpus-per-task=1`: that is one GPU for the
    step's one task. Where the numbers differ from node to node, no option asks for all of them.
    """
    counts = {len(held.get(node, ())) for node in nodes}
    count = counts.pop() if len(counts) == 1 else 0
    return f"gpu:{count}" if count else _NO_GRES


def _join(several: Sequence[Probe]) -> Probe:
    nodes = {name: node for one in several for name, node in one.nodes.items()}
    return Probe(nodes, tuple(problem for one in several for problem in one.problems))


def read_stacks(slurm: SlurmCommands, row: QueueRow, pids: Mapping[str, Sequence[int]]) -> Probe:
    """Read the Python stacks of processes with py-spy.

    Args:
        slurm: runs srun.
        row: the job.
        pids: process ids by node.
    """
    stacks = {node: list(pids[node]) for node in pids}
    return _run(slurm, row, list(pids), {"stacks": stacks})


def _run(
    slurm: SlurmCommands,
    row: QueueRow,
    nodes: Sequence[str],
    asked: Mapping[str, Any],
    *,
    gres: str = _NO_GRES,
) -> Probe:
    leader = row.job_id.partition("+")[0]
    jobs = [row.raw_id, *([leader] if "+" in row.job_id else [])]
    parameters = {"jobs": jobs, "deadline": _DEADLINE, **asked}
    # srun would look for python3 on this machine, and then take the same path on the nodes.
    words = ["/usr/bin/env", "python3", "-IS", "-", json.dumps(parameters)]
    argv = [*_step(row, nodes), f"--gres={gres}", *words]
    source = Path(inside_job.__file__).read_text("utf-8")
    where = ", ".join(nodes[:3]) + (" …" if len(nodes) > 3 else "")
    try:
        output = slurm.run(argv, stdin=source, timeout=_PATIENCE)
    except SlurmError as error:
        late = isinstance(error, SlurmTimeout)
        answers = parse_parts(error.output.splitlines())
        # One node that hangs must not hide the others, which have answered.
        silent = [node for node in nodes if node not in answers]
        where = join_names(silent, 5) if answers and silent else where
        problem = f"{where}: {_explain_failure(error)}"
        return Probe(answers, (problem, *_left_out(answers)), timed_out=late)
    answers = parse_parts(output.splitlines())
    silent = [node for node in nodes if node not in answers]
    problems = [f"{join_names(silent, 5)}: no answer within {_DEADLINE} s"] if silent else []
    return Probe(answers, (*problems, *_left_out(answers)))


def _left_out(answers: Mapping[str, ProbedNode]) -> Iterator[str]:
    for name, node in answers.items():
        if node.full is not None:
            share = node.full.used / node.full.limit
            yield (
                f"{name}: {share:.0%} of the job's memory is in use, so its processes were not"
                " watched: that needs some memory of the job"
            )
        if node.processes is not None and node.processes.left_out:
            count = len(node.processes.processes)
            more = node.processes.left_out
            yield f"{name}: only {count} processes were watched, and {more} more were not"


def _step(row: QueueRow, nodes: Sequence[str]) -> list[str]:
    """Return srun with one task on each of these nodes, in parallel with the job's own steps.

    `--overlap` and `--mem=0` let it share the CPUs, GPUs and memory that the other steps hold, on
    all releases (`step_mgr.c`, `stepmgr.c`: SSF_OVERLAP_FORCE).
    """
    leader, part_of, part = row.job_id.partition("+")
    job = [f"--jobid={leader}", f"--het-group={part}"] if part_of else [f"--jobid={row.raw_id}"]
    return [
        "srun",
        *job,
        f"--nodelist={','.join(nodes)}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        "--overlap",
        "--mem=0",
        "--mpi=none",
        "--cpu-bind=none",
        "--input=all",
        "--chdir=/",
        "--quiet",
        f"--job-name={STEP_NAME}",
        f"--time={_MINUTES}",
    ]


def _explain_failure(error: SlurmError) -> str:
    words = str(error)
    if isinstance(error, SlurmTimeout):
        return f"no answer within {_PATIENCE:.0f} s: a node may be down or overloaded"
    if "python3" in words and ("No such file" in words or "execve" in words):
        return "it has no python3, so its processes could not be watched"
    return f"no step could be started: {words[:_SHORT]}"


def parse_parts(lines: Iterable[str]) -> dict[str, ProbedNode]:
    """Parse what the programs printed; a part that is not complete is left out."""
    pieces: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    counts: dict[tuple[str, str], int] = {}
    for line in lines:
        words = line.split(" ", 5)
        if len(words) == 6 and words[0] == inside_job.MARK and words[3].isdigit():
            key = words[1], words[2]
            pieces[key][int(words[3])] = words[5]
            counts[key] = int(words[4]) if words[4].isdigit() else 0
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for (node, name), some in pieces.items():
        if len(some) == counts[node, name]:
            try:
                found[node][name] = json.loads("".join(some[at] for at in sorted(some)))
            except ValueError:
                continue
    return {node: _to_node(parts) for node, parts in found.items()}


def _to_node(parts: dict[str, Any]) -> ProbedNode:
    try:
        return msgspec.convert(parts, ProbedNode)
    except msgspec.ValidationError:  # something on the node printed this
        return ProbedNode()
