"""What a pending job asks for, read from squeue."""

from __future__ import annotations

import re

import msgspec

from slurmkit.capabilities.text import amount
from slurmkit.errors import NoSuchJob, SlurmError
from slurmkit.gpus import Gpus, Per
from slurmkit.queue.rows import epoch, record_mark
from slurmkit.slurm import Slurm

# squeue -O field for each field of Asked; all of them are there on 22.05 to 26.05.
_FIELDS = {
    "evaluated": "LastSchedEval",
    "planned_nodes": "SchedNodes",
    "restarts": "RestartCnt",
    "max_nodes": "MaxNodes",
    "tasks": "NumTasks",
    "cpus_per_task": "cpus-per-task",
    "tasks_per_node": "NTPerNode",
    "memory": "MinMemory",
    "time_min": "MinTime",
    "deadline": "Deadline",
    "over_subscribe": "OverSubscribe",
    "contiguous": "Contiguous",
    "switches": "ReqSwitch",
    "licenses": "Licenses",
    "cpus_per_tres": "cpus-per-tres",
    "memory_per_tres": "mem-per-tres",
    "per_job": "tres-per-job",
    "per_node": "tres-per-node",
    "per_socket": "tres-per-socket",
    "per_task": "tres-per-task",
    "batch": "BatchFlag",
    "nice": "Nice",
    "error": "STDERR",
}
_NEWER = ((24, 5), "ExcNodes"), ((26, 5), "Exclusive")
# `gres/gpu:a100:2`, `gres:gpu:2` (22.05), `gres/gpu:a100=1` (--tres-per-task).
_GRES = re.compile(
    r"gres[:/](?P<name>[^:=]+)(?::(?P<type>[^:=]*[^:=\d][^:=]*))?(?:[:=](?P<n>\d+))?"
)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asks for, beyond what every row of the queue says.

    Attributes:
        evaluated: epoch seconds at which a scheduler last looked at it.
        planned_nodes: where backfill means to start it, empty when it has no plan.
        restarts: how often it was put back into the queue.
        memory: MiB, per node or per CPU; 0 for all of a node's.
        exclude: nodes it does not want.
        exclusive: whether it wants nodes for itself alone.
        gpus: None for none; `odd` holds GRES that cannot be said as one request for GPUs.
        cpus_per_gpu: None when CPUs are not asked for so; likewise `memory_per_gpu`, in MiB.
    """

    evaluated: int | None
    planned_nodes: str
    restarts: int
    max_nodes: int
    tasks: int
    cpus_per_task: int
    tasks_per_node: int
    memory: int
    time_min: str
    exclude: str
    exclusive: bool
    contiguous: bool
    switches: int
    licenses: str
    batch: bool
    nice: int
    error: str
    deadline: int | None
    gpus: Gpus | None = None
    odd: tuple[str, ...] = ()
    cpus_per_gpu: int | None = None
    memory_per_gpu: int | None = None


def read_asked(slurm: Slurm, job_id: str, release: tuple[int, ...]) -> Asked:
    """Ask squeue about one job.

    Raises:
        NoSuchJob: when it is no longer there.
        SlurmError: when Slurm does not answer or its answer cannot be read.
    """
    mark = record_mark()
    newer = [field for since, field in _NEWER if release >= since]
    fields = [*_FIELDS.values(), *newer]
    asked = ",".join(f"{field}:{mark}" for field in fields)
    text = slurm.run(["squeue", "--all", "--noheader", f"--jobs={job_id}", "-O", asked])
    parts = text.split(mark)
    if len(parts) <= len(fields):
        raise NoSuchJob(f"job {job_id} has left the queue")
    found = dict(zip([*_FIELDS, *newer], parts[: len(fields)], strict=True))
    if "ExcNodes" not in found:  # before 24.05 only the short form has them
        argv = ["squeue", "--all", "--noheader", f"--jobs={job_id}", "-o", f"%x{mark}"]
        found["ExcNodes"] = slurm.run(argv).partition(mark)[0]
    return parse_asked(found)


def parse_asked(found: dict[str, str]) -> Asked:
    """Read one job's values, by the fields of `Asked` and squeue's names of the newer ones.

    Raises:
        SlurmError: for a number that is none.
    """
    told = {name: _optional(value.strip()) for name, value in found.items()}
    try:
        return _asked(told)
    except ValueError as error:
        raise SlurmError(f"squeue printed a job that cannot be read: {error}") from error


def _asked(told: dict[str, str]) -> Asked:
    gpus, odd = _gpus(told)
    return Asked(
        evaluated=epoch(told["evaluated"]),
        planned_nodes=told["planned_nodes"],
        restarts=_number(told["restarts"]),
        max_nodes=_number(told["max_nodes"]),
        tasks=max(1, _number(told["tasks"])),
        cpus_per_task=max(1, _number(told["cpus_per_task"])),
        tasks_per_node=_number(told["tasks_per_node"]),
        memory=amount(told["memory"]) or 0,
        time_min="" if told["time_min"] == "0:00" else told["time_min"],
        exclude=told.get("ExcNodes", ""),
        exclusive=_exclusive(told),
        contiguous=told["contiguous"] == "1",
        switches=_number(told["switches"]),
        licenses=told["licenses"],
        batch=told["batch"] == "1",
        nice=_number(told["nice"]),
        error=told["error"],
        deadline=epoch(told["deadline"]),
        gpus=gpus,
        odd=odd,
        cpus_per_gpu=_per_gpu(told["cpus_per_tres"]),
        memory_per_gpu=_per_gpu(told["memory_per_tres"]),
    )


def _exclusive(told: dict[str, str]) -> bool:
    """Before 26.05 a job that wants its nodes alone is shown as one that does not share (NO)."""
    return told["Exclusive"] == "NODE" if "Exclusive" in told else told["over_subscribe"] == "NO"


def _optional(text: str) -> str:
    return "" if text in ("(null)", "N/A") else text


def _number(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else 0


def _per_gpu(text: str) -> int | None:
    match = _GRES.fullmatch(text)
    return int(match["n"]) if match and match["name"] == "gpu" and match["n"] else None


def _gpus(told: dict[str, str]) -> tuple[Gpus | None, tuple[str, ...]]:
    """The one request for GPUs, and what else of GRES is asked for."""
    wanted: list[Gpus] = []
    odd = [item for item in told["per_socket"].split(",") if item]
    places: tuple[tuple[str, Per], ...] = (
        ("per_job", "job"),
        ("per_node", "node"),
        ("per_task", "task"),
    )
    for field, per in places:
        for item in filter(None, told[field].split(",")):
            made = _gpu(item, per)
            if made is not None:
                wanted.append(made)
            elif not item.startswith("cpu"):  # 24.11 and later repeat --cpus-per-task here
                odd.append(item)
    if len(wanted) > 1:
        return None, (*odd, *map(str, wanted))
    return (wanted[0] if wanted else None), tuple(odd)


def _gpu(item: str, per: Per) -> Gpus | None:
    match = _GRES.fullmatch(item)
    if match is None or match["name"] not in ("gpu", "shard", "mps"):
        return None
    count = int(match["n"] or 1)
    if match["name"] == "gpu":
        return Gpus(count, match["type"], per)
    if per != "node" or match["type"]:
        return None
    return Gpus(shard=count) if match["name"] == "shard" else Gpus(mps=count)
