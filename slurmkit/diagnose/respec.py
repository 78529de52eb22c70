"""A pending job's spec, rebuilt from what Slurm shows, and commands that change the job.

Checks and limits are compared with the request of this spec. A command changes the job with
`scontrol update`, or else submits its script again and cancels it.
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from slurmkit.diagnose.snapshot import PendingRequest, PendingSnapshot, time_limit_seconds
from slurmkit.errors import BadInput, SlurmError
from slurmkit.formats.job_ids import whole_id
from slurmkit.planning.amounts import parse_memory_mib
from slurmkit.planning.request import Request
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.sbatch_options import option_values, with_options
from slurmkit.state.model import Partition
from slurmkit.state.queue_rows import QueueRow

# sbatch wants a script. No check looks at it.
_SCRIPT = "#!/bin/sh\ntrue\n"

Pairs = tuple[tuple[str, str], ...]
# For each sbatch option, its name in `scontrol update`. Not those of GPUs: sbatch has written them
# into the job's environment (SLURM_GPUS_PER_NODE), no update changes that, and every srun of the
# job would ask for the old GPUs: "Invalid generic resource (gres) specification".
_UPDATES = {
    "partition": "Partition",
    "time": "TimeLimit",
    "qos": "QOS",
    "account": "Account",
    "nodelist": "ReqNodeList",
    "nodes": "NumNodes",
    "mem": "MinMemoryNode",
    "mem-per-cpu": "MinMemoryCPU",
}
_NO_OPTIONS = "/^[[:space:]]*[^#[:space:]]/,$!{/^#SBATCH/d}"
_SLURMKIT_OPTIONS = {"partition", "time", "qos"}
# Slurm 22.05 keeps the old number of tasks.
_NODE_UPDATES_SINCE = (24, 11)


def rebuild_spec(snapshot: PendingSnapshot) -> JobSpec | None:
    """Return the job's request as a spec; None if a spec cannot express it."""
    job, asked = snapshot.job, snapshot.asked
    if asked.odd or "+" in job.job_id or not asked.batch:
        return None
    try:
        return JobSpec(script=_SCRIPT, **_spec_values(job, asked, _memory_option(snapshot)))
    except BadInput:
        return None


def _spec_values(job: QueueRow, asked: PendingRequest, memory: dict[str, str]) -> dict[str, Any]:
    options = {"contiguous": ""} if asked.contiguous else {}
    per_node = asked.tasks_per_node
    if not per_node and job.nodes > 1 and asked.tasks % job.nodes == 0:
        per_node = asked.tasks // job.nodes
    values: dict[str, Any] = {
        "nodes": job.nodes,
        "ntasks": None if per_node else asked.tasks,
        "ntasks_per_node": per_node,
        # --cpus-per-gpu excludes --cpus-per-task: divide all CPUs among the tasks instead.
        "cpus_per_task": -(-job.cpus // asked.tasks) if asked.cpus_per_gpu else asked.cpus_per_task,
        "gpus": _spread(asked.gpus, job.nodes),
        "time": None if time_limit_seconds(job) is None else job.time_limit,
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


def _spread(gpus: Gpus | None, nodes: int) -> Gpus | None:
    """Turn a GPU count for the whole job into one per node, if the nodes divide it evenly."""
    if gpus is None or gpus.per != "job" or not nodes or gpus.count % nodes:
        return gpus
    return Gpus(gpus.count // nodes, gpus.type)


def _memory_option(snapshot: PendingSnapshot) -> dict[str, str]:
    """Return the memory option. Slurm prints one size; the total shows if it is per node or CPU."""
    asked, total = snapshot.asked, snapshot.total_tres.get("mem", 0)
    if asked.memory_per_gpu is not None:
        return {"mem_per_gpu": f"{asked.memory_per_gpu}M"}
    if not asked.memory:
        return {"mem": "0"}
    per_node = abs(asked.memory * snapshot.job.nodes - total)
    per_cpu = abs(asked.memory * snapshot.job.cpus - total)
    return {"mem" if per_node <= per_cpu else "mem_per_cpu": f"{asked.memory}M"}


def rebuild_request(snapshot: PendingSnapshot) -> Request:
    """Return the job as a request in its first partition, with the TRES that Slurm prints.

    Raises:
        SlurmError: when scontrol does not show the partition.
    """
    job, known, standing = snapshot.job, snapshot.capabilities, snapshot.standing
    partition: Partition | None = known.partition(snapshot.partitions[0])
    if partition is None:
        raise SlurmError(f"partition {snapshot.partitions[0]} is not shown by scontrol")
    return Request(
        spec=rebuild_spec(snapshot) or JobSpec(script=_SCRIPT),
        capabilities=known,
        standing=standing,
        partition=partition,
        nodes=job.nodes,
        tasks=snapshot.asked.tasks,
        seconds=time_limit_seconds(job),
        per_node=snapshot.per_node,
        total=snapshot.total_tres | {"node": job.nodes},
        fitting=(),
        account=job.account,
        association=standing.association(job.account, partition.name),
        qos=standing.qos_named(job.qos),
        partition_qos=standing.qos_named(partition.qos) if partition.qos else None,
    )


def change_command(snapshot: PendingSnapshot, spec: JobSpec, pairs: Pairs) -> str:
    """Return the shell line that changes the job.

    It updates the job in place where Slurm does that well. Otherwise it submits a new job.

    Args:
        snapshot: the snapshot of the job.
        spec: the job as it is.
        pairs: sbatch's long options and their new values.
    """
    names = {name for name, _ in pairs}
    in_place = names <= _UPDATES.keys()
    if in_place and names <= _SLURMKIT_OPTIONS:
        options = [f"--{name}={value}" for name, value in pairs]
        return shlex.join(["slurmkit", "update", _update_id(snapshot.job.job_id), *options])
    if in_place and ("nodes" not in names or snapshot.capabilities.release >= _NODE_UPDATES_SINCE):
        return scontrol_update(snapshot.job.job_id, pairs)
    return resubmit_command(snapshot, with_options(spec, pairs))


def scontrol_update(job_id: str, pairs: Pairs) -> str:
    """Return a line of `scontrol update`, which keeps the job's id and age."""
    changes = (f"{_UPDATES[name]}={_update_value(name, value)}" for name, value in pairs)
    words = ["scontrol", "update", f"JobId={_update_id(job_id)}", *changes]
    return shlex.join(words)


def _update_id(job_id: str) -> str:
    """Return the id that `scontrol update` takes; the array's own id means all pending tasks."""
    return whole_id(job_id) if "[" in job_id else job_id


def _update_value(name: str, value: str) -> str:
    return str(parse_memory_mib(value)) if name.startswith("mem") else value


def resubmit_command(snapshot: PendingSnapshot, spec: JobSpec) -> str:
    """Return a line that fetches the script, submits it with all its options, and cancels the job.

    The #SBATCH lines before the script's first command are removed: the options on the command
    line say all that Slurm prints of the job. The old job is cancelled only once the new one is
    submitted, because scontrol exits with 0 even if it could not fetch the script.
    """
    number = _update_id(snapshot.job.job_id)
    file = f"job-{number}.sh"
    fetch = f"scontrol write batch_script {number} - | sed '{_NO_OPTIONS}' > {file}"
    values = _submit_options(snapshot, spec).items()
    options = " ".join(shlex.quote(f"--{n}={v}" if v else f"--{n}") for n, v in values)
    return f"{fetch} && sbatch {options} {file} && scancel {number}"


def _submit_options(snapshot: PendingSnapshot, spec: JobSpec) -> dict[str, str]:
    job = snapshot.job
    options = {"job-name": job.name, "chdir": job.workdir}
    options |= {"output": job.output} if job.output else {}
    options |= (
        {"error": snapshot.asked.error} if snapshot.asked.error not in ("", job.output) else {}
    )
    options |= {"comment": job.comment} if job.comment else {}
    array = job.job_id.partition("_")[2].strip("[]")
    options |= {"array": array} if array else {}
    return options | spec_options(spec)


def spec_options(spec: JobSpec) -> dict[str, str]:
    """Return a spec's sbatch options, with the GPU option as squeue reported it."""
    return option_values(spec) | gpu_options(spec.gpus)


def gpu_options(gpus: Gpus | None) -> dict[str, str]:
    """Return the one sbatch option that requests these GPUs; none for None."""
    if gpus is None:
        return {}
    plain = msgspec.structs.replace(gpus, bind=None)
    if gpus.is_part:
        return {"gres": str(plain)}
    return {{"node": "gpus-per-node", "job": "gpus", "task": "gpus-per-task"}[gpus.per]: str(plain)}
