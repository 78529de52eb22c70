"""A pending job as a JobSpec again, and as the Request that checks and limits look at."""

from __future__ import annotations

from typing import Any

from slurmkit.capabilities.model import Partition
from slurmkit.errors import BadInput, SlurmError
from slurmkit.gpus import Gpus
from slurmkit.queue.rows import QueueRow
from slurmkit.request import Request
from slurmkit.spec import JobSpec
from slurmkit.why.asked import Asked
from slurmkit.why.scene import Scene, limit_seconds

# Nothing of a script is judged; sbatch wants one.
_SCRIPT = "#!/bin/sh\ntrue\n"


def spec_of(scene: Scene) -> JobSpec | None:
    """What the job asks for as a spec; None where it asks for what a spec cannot say."""
    job, asked = scene.job, scene.asked
    if asked.odd or "+" in job.job_id or not asked.batch:
        return None
    try:
        return JobSpec(script=_SCRIPT, **_given(job, asked, _memory(scene)))
    except BadInput:
        return None


def _given(job: QueueRow, asked: Asked, memory: dict[str, str]) -> dict[str, Any]:
    options = {"contiguous": ""} if asked.contiguous else {}
    per_node = asked.tasks_per_node or _evenly(asked.tasks, job.nodes)
    values: dict[str, Any] = {
        "nodes": job.nodes,
        "ntasks": None if per_node else asked.tasks,
        "ntasks_per_node": per_node,
        # CPUs asked for with GPUs are given to the tasks: the two options exclude each other.
        "cpus_per_task": -(-job.cpus // asked.tasks) if asked.cpus_per_gpu else asked.cpus_per_task,
        "gpus": _spread(asked.gpus, job.nodes),
        "time": None if limit_seconds(job) is None else job.time_limit,
        "time_min": asked.time_min,
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "reservation": job.reservation,
        "constraint": job.features,
        "licenses": asked.licenses,
        "nodelist": job.requested_nodes,
        "exclude": asked.exclude,
        "exclusive": asked.exclusive,
        "switches": str(asked.switches) if asked.switches else None,
        "options": options,
        **memory,
    }
    return {name: value for name, value in values.items() if value or name == "options"}


def _evenly(tasks: int, nodes: int) -> int:
    """Tasks on each of several nodes; 0 on one, and where they do not divide."""
    return 0 if nodes == 1 or tasks % nodes else tasks // nodes


def _spread(gpus: Gpus | None, nodes: int) -> Gpus | None:
    """A count for the whole job that its nodes divide evenly is one for each node."""
    if gpus is None or gpus.per != "job" or gpus.count % nodes:
        return gpus
    return Gpus(gpus.count // nodes, gpus.type)


def _memory(scene: Scene) -> dict[str, str]:
    """Slurm prints one size for memory per node and per CPU; the total tells which it is."""
    asked, total = scene.asked, scene.wants.get("mem", 0)
    if asked.memory_per_gpu is not None:
        return {"mem_per_gpu": f"{asked.memory_per_gpu}M"}
    if not asked.memory:
        return {"mem": "0"}
    per_node = abs(asked.memory * scene.job.nodes - total)
    per_cpu = abs(asked.memory * scene.job.cpus - total)
    return {"mem" if per_node <= per_cpu else "mem_per_cpu": f"{asked.memory}M"}


def request_of(scene: Scene) -> Request:
    """What the job comes to in the first of its partitions, by Slurm's own amounts.

    Raises:
        SlurmError: when the partition is not known.
    """
    job, known, standing = scene.job, scene.capabilities, scene.standing
    partition: Partition | None = known.partition(scene.partitions[0])
    if partition is None:
        raise SlurmError(f"partition {scene.partitions[0]} is not shown by scontrol")
    return Request(
        spec=spec_of(scene) or JobSpec(script=_SCRIPT),
        capabilities=known,
        standing=standing,
        partition=partition,
        nodes=job.nodes,
        tasks=scene.asked.tasks,
        seconds=limit_seconds(job),
        per_node=scene.per_node,
        total=scene.wants | {"node": job.nodes},
        fitting=(),
        account=job.account,
        association=standing.association(job.account, partition.name),
        qos=standing.qos_named(job.qos),
        partition_qos=standing.qos_named(partition.qos) if partition.qos else None,
    )
