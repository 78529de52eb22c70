"""What a partition allows one job: time, nodes, CPUs and memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from slurmkit.config.files import did_you_mean
from slurmkit.formats.durations import format_minutes, parse_time_limit
from slurmkit.formats.memory import format_mib, memory_option
from slurmkit.planning.amounts import memory_limit, takes_whole_nodes
from slurmkit.planning.checks.limits_use import time_limit_minutes
from slurmkit.planning.checks.nodes import cpus_of_most_tasks
from slurmkit.planning.request import Request
from slurmkit.spec.findings import Finding, Pairs, error, note, warning
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Capabilities, Partition

_SBATCH_COUNTS_NODES_SINCE = (23, 11)
REFUSING_VALUES = ("ALL", "ANY", "YES")
"""Values of EnforcePartLimits with which sbatch refuses a job over a partition's limits."""


def named_partitions(spec: JobSpec, capabilities: Capabilities) -> tuple[Partition, ...]:
    """Return the partitions that a job names and the cluster has, else the default partition."""
    if spec.partition is None:
        default = capabilities.default_partition
        return (default,) if default else ()
    found = map(capabilities.partition, dict.fromkeys(spec.partition.split(",")))
    return tuple(partition for partition in found if partition)


def partition_names(spec: JobSpec, capabilities: Capabilities) -> Iterator[Finding]:
    """Report each partition that does not exist, and a job without one.

    If slurmctld hides all partitions (PrivateData), say that nothing could be checked.
    """
    known = [partition.name for partition in capabilities.partitions]
    if not known:
        why = "; ".join(capabilities.hidden) or "slurmctld shows no partition"
        message = f"slurmkit could check nothing here, only slurmctld itself can: {why}"
        yield warning("unknown-partitions", message, "scontrol show partition")
    elif spec.partition is not None:
        for name in dict.fromkeys(spec.partition.split(",")):
            if name not in known:
                message = f"no partition {name!r}; {did_you_mean(name, known)}"
                yield error("partition-unknown", message, "partitions")
    elif capabilities.default_partition is None:
        message = "this cluster has no default partition; name one with --partition: "
        yield error("partition-none", message + ", ".join(known), "slurm.conf")


def enforce_part_limits(request: Request) -> str:
    """Return EnforcePartLimits: ALL, ANY or NO; the old YES means ALL."""
    return request.capabilities.config.get("EnforcePartLimits", "NO").upper()


def partition_consequence(request: Request) -> str:
    """Return what Slurm does with a job over a partition's limits, in words."""
    refused = enforce_part_limits(request) in REFUSING_VALUES
    return "sbatch would refuse it" if refused else "it would pend for ever"


def max_time(request: Request) -> Iterator[Finding]:
    """Report a `--time-min` above the limit, and a limit above MaxTime that it does not lower."""
    partition, time = request.partition, time_limit_minutes(request)
    yield from _least_time(request, time)
    if partition.max_time is None or time is None or _flag(request, "PartitionTimeLimit"):
        return
    least = request.spec.time_min
    least_time = math.inf if least is None else -(-parse_time_limit(least) // 60)
    if min(time, least_time) <= partition.max_time:
        return
    most = format_minutes(partition.max_time)
    allows = f"partition {partition.name} allows {most} (MaxTime)"
    message = f"asks for {format_minutes(time)}; {allows}; {partition_consequence(request)}"
    yield error("partition-max-time", message, f"partition {partition.name}: MaxTime={most}")


def _least_time(request: Request, time: int | None) -> Iterator[Finding]:
    """Report a `--time-min` above the time limit (`_valid_job_part` in slurmctld)."""
    text = request.spec.time_min
    if text is None or time is None or _flag(request, "PartitionTimeLimit"):
        return
    least = parse_time_limit(text)
    if -(-least // 60) <= time:
        return
    limit = format_minutes(time)
    message = (
        f"--time-min={text} is above the time limit of {limit}; give at most {limit};"
        " sbatch would refuse it"
    )
    yield error("time-min", message, "sbatch(1) --time-min", (("time-min", limit),))


def _flag(request: Request, name: str) -> bool:
    return request.qos is not None and name in request.qos.flags


def node_counts(request: Request) -> Iterator[Finding]:
    """Report fewer nodes than MinNodes, or more than MaxNodes.

    Of a range slurmctld compares the least with MinNodes, and the most with MaxNodes
    (`_part_access_check` in src/slurmctld/job_mgr.c, in all releases from 22.05 on).
    """
    partition, least = request.partition, request.nodes
    if isinstance(request.spec.nodes, str):  # the tasks may need more than its least
        least = min(request.spec.least_nodes or least, least)
    elif counted := _nodes_counted_by_sbatch(request):
        least = counted
    raised = _raised_to_min_nodes(request)
    if least < partition.min_nodes and not raised and not _flag(request, "PartitionMinNodes"):
        fix = _range(request, partition.min_nodes, max(request.most_nodes or 0, least))
        yield _nodes(request, "MinNodes", partition.min_nodes, "takes jobs of at least", fix)
    limit, most = partition.max_nodes, max(request.most_nodes or 0, request.nodes)
    if limit is not None and most > limit and not _flag(request, "PartitionMaxNodes"):
        fix = _range(request, least, limit) if least <= limit else ()
        yield _nodes(request, "MaxNodes", limit, "allows one job", fix)


def _nodes_counted_by_sbatch(request: Request) -> int | None:
    """Return the number of nodes that sbatch itself computes for a job without `--nodes`."""
    spec = request.spec
    if spec.nodes is not None or spec.gpus is not None or spec.ntasks is None:
        return None
    if spec.ntasks_per_node is None or request.capabilities.release < _SBATCH_COUNTS_NODES_SINCE:
        return None
    return math.ceil(spec.ntasks / spec.ntasks_per_node)


def _raised_to_min_nodes(request: Request) -> bool:
    """Return whether slurmctld itself raises the job to MinNodes (`_valid_job_part`)."""
    spec = request.spec
    counted = _nodes_counted_by_sbatch(request) is not None
    if spec.nodes is None and not counted:
        return spec.ntasks is not None and spec.gpus is None
    enforced = enforce_part_limits(request) in REFUSING_VALUES
    can_grow = counted or (request.most_nodes or 0) >= request.partition.min_nodes
    return can_grow and not enforced


def _range(request: Request, least: int, most: int) -> Pairs:
    """Return the option for a range of nodes; for one number if it has only one."""
    is_range = request.most_nodes is not None and most > least
    return (("nodes", f"{least}-{most}" if is_range else str(least)),)


def _nodes(request: Request, key: str, limit: int, allows: str, fix: Pairs) -> Finding:
    name, most = request.partition.name, max(request.most_nodes or 0, request.nodes)
    up_to = "up to " if request.most_nodes and key == "MaxNodes" else ""
    count = most if key == "MaxNodes" else request.nodes
    asks = f"asks for {up_to}{count} node{'' if count == 1 else 's'}"
    message = f"{asks}; partition {name} {allows} {limit} ({key}); {partition_consequence(request)}"
    code = f"partition-{key[:3].lower()}-nodes"
    return error(code, message, f"partition {name}: {key}={limit}", fix)


def max_cpus(request: Request) -> Iterator[Finding]:
    """Report more CPUs on a node than MaxCPUsPerNode; newer releases always refuse this."""
    name, most = request.partition.name, request.partition.max_cpus_per_node
    cpus = max(request.per_node.get("cpu", 0), cpus_of_most_tasks(request))
    whole = takes_whole_nodes(request.spec, request.partition)
    if whole:  # `_allocate_sc` in src/plugins/select/cons_tres/job_test.c
        cpus = max(cpus, min((node.cpus for node in request.fitting), default=0))
    if most is not None and cpus > most:
        asks = f"takes all {cpus} CPUs of a node" if whole else f"asks for {cpus} CPUs on a node"
        allows = f"partition {name} allows {most} (MaxCPUsPerNode)"
        message = f"{asks}; {allows}; it can never start"
        source = f"partition {name}: MaxCPUsPerNode={most}"
        fix: Pairs = (("exclusive", ""),) if request.spec.exclusive is True else ()
        yield error("partition-max-cpus-per-node", message, source, fix)


def max_memory(request: Request) -> Iterator[Finding]:
    """Report more memory on a node than MaxMemPerNode; no `--mem` means all of a node."""
    most, source = _memory_limit(request, "MaxMemPerNode")
    if most is None or _memory_limit(request, "MaxMemPerCPU")[0]:
        return
    wanted = request.per_node.get("mem")
    here = request.capabilities.nodes_of(request.partition.name)
    all_of_it = here[0].memory if here else 0  # slurmctld, too, takes the first node for all
    if (all_of_it if wanted is None else wanted) > most:
        asks = "all memory of its nodes" if wanted is None else f"{format_mib(wanted)} on a node"
        allows = f"{source} allows {format_mib(most)}"
        message = f"asks for {asks}; {allows}; {partition_consequence(request)}"
        yield error("partition-max-mem-per-node", message, source, (("mem", memory_option(most)),))


def memory_per_cpu(request: Request) -> Iterator[Finding]:
    """Report more memory per CPU than MaxMemPerCPU: Slurm gives the job more CPUs instead."""
    most, source = _memory_limit(request, "MaxMemPerCPU")
    raised, cpus = request.raised_cpus, request.per_node.get("cpu", 1)
    if most is None or not raised:
        return
    wanted = request.per_node.get("mem")
    asks = "all memory of its nodes" if wanted is None else f"{format_mib(wanted)} on a node"
    gets = f"for {asks} the job gets {raised} CPUs there instead of {cpus}"
    why = f"{source} allows {format_mib(most)} for each"
    fitting = max((node.cpus for node in request.fitting), default=0)
    if fitting and raised > fitting:
        message = f"{gets}; {why}, and no node has that many; sbatch would refuse it"
        yield error("partition-max-mem-per-cpu", message, source, _as_much(request, most, fitting))
    else:
        yield note("partition-max-mem-per-cpu", f"{gets}: {why}", source)


def _as_much(request: Request, most: int, cpus: int) -> Pairs:
    """Return the option for the memory of that many CPUs, where the job asks for all memory."""
    return () if "mem" in request.per_node else (("mem", memory_option(most * cpus)),)


def _memory_limit(request: Request, key: str) -> tuple[int | None, str]:
    return memory_limit(request.partition, request.capabilities.config, key)
