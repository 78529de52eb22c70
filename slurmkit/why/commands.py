"""The shell line that changes a pending job: in place where Slurm does that well, else anew."""

from __future__ import annotations

import shlex

import msgspec

from slurmkit.gpus import Gpus
from slurmkit.jobs.ids import whole_id
from slurmkit.options import option_values, with_options
from slurmkit.planning.requests import mebibytes
from slurmkit.spec import JobSpec
from slurmkit.why.scene import Scene

Pairs = tuple[tuple[str, str], ...]

# sbatch's options by the name that `scontrol update` has for them.
_UPDATES = {
    "partition": "Partition",
    "time": "TimeLimit",
    "qos": "QOS",
    "account": "Account",
    "nodelist": "ReqNodeList",
    "nodes": "NumNodes",
    "mem": "MinMemoryNode",
    "mem-per-cpu": "MinMemoryCPU",
    "gpus-per-node": "TresPerNode",
    "gpus": "TresPerJob",
}
_NO_OPTIONS = "/^[[:space:]]*[^#[:space:]]/,$!{/^#SBATCH/d}"
_OURS = {"partition", "time", "qos"}
_SHAPES = {"nodes", "gpus-per-node", "gpus"}
# Slurm 22.05 keeps the old GPUs in the amounts it accounts, and the old number of tasks.
_SHAPES_SINCE = (24, 11)


def command(scene: Scene, spec: JobSpec, pairs: Pairs) -> str:
    """Say how to change the job.

    Args:
        scene: of the job.
        spec: the job as it is.
        pairs: sbatch's long options and their new values.
    """
    names = {name for name, _ in pairs}
    in_place = names <= _UPDATES.keys()
    if in_place and names <= _OURS:
        return shlex.join(["slurmkit", "update", _updatable(scene.job.job_id), *_given(pairs)])
    if in_place and (not names & _SHAPES or scene.capabilities.release >= _SHAPES_SINCE):
        return update(scene.job.job_id, pairs)
    return submit_anew(scene, with_options(spec, pairs))


def _given(pairs: Pairs) -> list[str]:
    return [f"--{name}={value}" for name, value in pairs]


def update(job_id: str, pairs: Pairs) -> str:
    """A line of `scontrol update`, which keeps the job's number and age."""
    changes = (f"{_UPDATES[name]}={_value(name, value)}" for name, value in pairs)
    words = ["scontrol", "update", f"JobId={_updatable(job_id)}", *changes]
    return shlex.join(words)


def _updatable(job_id: str) -> str:
    """All waiting tasks of an array are changed by its own number."""
    return whole_id(job_id) if "[" in job_id else job_id


def _value(name: str, value: str) -> str:
    if name in ("gpus-per-node", "gpus"):
        return f"gres/gpu:{value}"
    return str(mebibytes(value)) if name.startswith("mem") else value


def submit_anew(scene: Scene, spec: JobSpec) -> str:
    """Lines that fetch the script, submit it with all its options, and cancel the job.

    The script's own #SBATCH lines, which sbatch reads before the first command, are taken out: the
    options name all that Slurm tells. Nothing is cancelled before the new job is there, since
    scontrol ends well even where it could not fetch the script.
    """
    number = _updatable(scene.job.job_id)
    file = f"job-{number}.sh"
    fetch = f"scontrol write batch_script {number} - | sed '{_NO_OPTIONS}' > {file}"
    options = " ".join(shlex.quote(_option(n, v)) for n, v in _options(scene, spec).items())
    return f"{fetch} && sbatch {options} {file} && scancel {number}"


def _option(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


def _options(scene: Scene, spec: JobSpec) -> dict[str, str]:
    job = scene.job
    found = {"job-name": job.name, "chdir": job.workdir}
    found |= {"output": job.output} if job.output else {}
    found |= {"error": scene.asked.error} if scene.asked.error not in ("", job.output) else {}
    found |= {"comment": job.comment} if job.comment else {}
    array = job.job_id.partition("_")[2].strip("[]")
    found |= {"array": array} if array else {}
    return found | spec_options(spec)


def spec_options(spec: JobSpec) -> dict[str, str]:
    """Options of a spec in the form that squeue told them in, not in that of a plan."""
    return option_values(spec) | gpu_options(spec.gpus)


def gpu_options(gpus: Gpus | None) -> dict[str, str]:
    """The one option that asks for these GPUs."""
    if gpus is None:
        return {}
    plain = msgspec.structs.replace(gpus, bind=None)
    if gpus.is_part:
        return {"gres": str(plain)}
    return {{"node": "gpus-per-node", "job": "gpus", "task": "gpus-per-task"}[gpus.per]: str(plain)}
