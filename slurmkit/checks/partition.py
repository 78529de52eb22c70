"""What a partition allows one job: time, nodes, CPUs and memory."""

from __future__ import annotations

from collections.abc import Iterator

from slurmkit.checks.say import Pairs, error, memory, memory_option, note, wall
from slurmkit.checks.walls import minutes
from slurmkit.durations import parse_time_limit
from slurmkit.findings import Finding
from slurmkit.request import Request

REFUSES = ("ALL", "ANY", "YES")
"""Values of EnforcePartLimits with which sbatch refuses what a partition does not allow."""


def enforce_part_limits(request: Request) -> str:
    """EnforcePartLimits: ALL, ANY or NO; the old YES means ALL."""
    return request.capabilities.config.get("EnforcePartLimits", "NO").upper()


def fate(request: Request) -> str:
    """What Slurm does with a job that a partition does not allow, in words."""
    refused = enforce_part_limits(request) in REFUSES
    return "sbatch would refuse it" if refused else "it would pend for ever"


def max_time(request: Request) -> Iterator[Finding]:
    """A longer time limit than MaxTime; a shorter `--time-min` may still start."""
    partition, time = request.partition, minutes(request)
    if partition.max_time is None or time is None or _flag(request, "PartitionTimeLimit"):
        return
    if time <= partition.max_time or _least_time(request) <= partition.max_time:
        return
    most = wall(partition.max_time)
    allows = f"partition {partition.name} allows {most} (MaxTime)"
    message = f"asks for {wall(time)}; {allows}; {fate(request)}"
    yield error("partition-max-time", message, f"partition {partition.name}: MaxTime={most}")


def _least_time(request: Request) -> float:
    least = request.spec.time_min
    return float("inf") if least is None else -(-parse_time_limit(least) // 60)


def _flag(request: Request, name: str) -> bool:
    return request.qos is not None and name in request.qos.flags


def node_counts(request: Request) -> Iterator[Finding]:
    """Fewer nodes than MinNodes or more than MaxNodes."""
    partition, nodes, spec = request.partition, request.nodes, request.spec
    raised = spec.nodes is None and spec.ntasks is not None and spec.gpus is None  # by slurmctld
    raised = raised or (request.most_nodes or 0) >= partition.min_nodes
    if nodes < partition.min_nodes and not raised and not _flag(request, "PartitionMinNodes"):
        yield _nodes(request, "MinNodes", partition.min_nodes, "takes jobs of at least")
    most = partition.max_nodes
    if most is not None and nodes > most and not _flag(request, "PartitionMaxNodes"):
        yield _nodes(request, "MaxNodes", most, "allows one job")


def _nodes(request: Request, key: str, limit: int, allows: str) -> Finding:
    name = request.partition.name
    asks = f"asks for {request.nodes} node{'' if request.nodes == 1 else 's'}"
    message = f"{asks}; partition {name} {allows} {limit} ({key}); {fate(request)}"
    code = f"partition-{key[:3].lower()}-nodes"
    fix: Pairs = (("nodes", str(limit)),) if key == "MinNodes" else ()
    return error(code, message, f"partition {name}: {key}={limit}", fix)


def max_cpus(request: Request) -> Iterator[Finding]:
    """More CPUs on a node than MaxCPUsPerNode; newer releases refuse it whatever else is set."""
    name, most = request.partition.name, request.partition.max_cpus_per_node
    cpus = request.per_node.get("cpu", 0)
    if most is not None and cpus > most:
        allows = f"partition {name} allows {most} (MaxCPUsPerNode)"
        message = f"asks for {cpus} CPUs on a node; {allows}; it can never start"
        source = f"partition {name}: MaxCPUsPerNode={most}"
        yield error("partition-max-cpus-per-node", message, source)


def max_memory(request: Request) -> Iterator[Finding]:
    """More memory on a node than MaxMemPerNode; none asked for means all of a node."""
    most, source = _limit(request, "MaxMemPerNode", request.partition.max_mem_per_node)
    if most is None or _limit(request, "MaxMemPerCPU", request.partition.max_mem_per_cpu)[0]:
        return
    wanted = request.per_node.get("mem")
    here = request.capabilities.nodes_of(request.partition.name)
    all_of_it = here[0].memory if here else 0  # slurmctld, too, takes the first node for all
    if (all_of_it if wanted is None else wanted) > most:
        asks = "all memory of its nodes" if wanted is None else f"{memory(wanted)} on a node"
        allows = f"{source} allows {memory(most)}"
        message = f"asks for {asks}; {allows}; {fate(request)}"
        yield error("partition-max-mem-per-node", message, source, (("mem", memory_option(most)),))


def memory_per_cpu(request: Request) -> Iterator[Finding]:
    """More memory for a CPU than MaxMemPerCPU: Slurm gives the job more CPUs instead."""
    most, source = _limit(request, "MaxMemPerCPU", request.partition.max_mem_per_cpu)
    wanted, cpus = request.per_node.get("mem", 0), request.per_node.get("cpu", 1)
    if most is None or wanted <= most * cpus:
        return
    raised = -(-wanted // most)
    gets = f"{memory(wanted)} on a node makes it {raised} CPUs there instead of {cpus}"
    why = f"{source} allows {memory(most)} for each"
    fitting = max((node.cpus for node in request.fitting), default=0)
    if fitting and raised > fitting:
        message = f"{gets}; {why}, and no node has that many; sbatch would refuse it"
        yield error("partition-max-mem-per-cpu", message, source)
    else:
        yield note("partition-max-mem-per-cpu", f"{gets}: {why}", source)


def _limit(request: Request, key: str, own: int | None) -> tuple[int | None, str]:
    """The partition's limit, else that of the whole cluster, and where it stands."""
    if own is not None:
        return own, f"partition {request.partition.name}: {key}={own}M"
    value = request.capabilities.config.get(key, "")
    if value.isdigit() and int(value):
        return int(value), f"slurm.conf: {key}={value}M"
    return None, ""
