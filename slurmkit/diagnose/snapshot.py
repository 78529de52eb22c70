"""All facts from which the explanation of one pending job is computed.

Its request is read from squeue; the queue, the nodes and the limits are read at the same time.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache

import msgspec

from slurmkit.errors import BadInput, NoSuchJob, SlurmError
from slurmkit.formats.durations import parse_time_limit
from slurmkit.formats.scontrol import expand_nodes, parse_amount, parse_tres_counts
from slurmkit.formats.tres import Tres
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.records import read_records, record_mark
from slurmkit.spec.gpus import Gpus, Per
from slurmkit.state.associations import read_standing
from slurmkit.state.cache import load_capabilities
from slurmkit.state.model import Capabilities, Reservation, Standing
from slurmkit.state.nodes import NODES_COMMAND, NodeRow, parse_nodes
from slurmkit.state.queue import read_queue
from slurmkit.state.queue_rows import QueueRow, parse_epoch

# The squeue -O field of each value below; Slurm 22.05 to 26.05 have all of them.
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
# Jobs with these reasons are not candidates for scheduling yet.
_NOT_YET = ("Dependency", "DependencyNeverSatisfied", "BeginTime", "JobHeld", "BadConstraints")


class PendingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a pending job's request that a queue row does not have.

    Attributes:
        evaluated: epoch seconds at which a scheduler last evaluated the job.
        planned_nodes: nodes on which backfill plans to start the job; empty without a plan.
        restarts: how often the job was requeued.
        memory: MiB, per node or per CPU; 0 means all memory of a node.
        exclude: nodes named in `--exclude`.
        exclusive: whether the job wants whole nodes.
        gpus: the GPU request; None for none.
        odd: GRES that cannot be written as one GPU request.
        cpus_per_gpu: value of `--cpus-per-gpu`; None if not given.
        memory_per_gpu: value of `--mem-per-gpu` in MiB; None if not given.
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


def read_pending_request(
    slurm: SlurmCommands, job_id: str, release: tuple[int, ...]
) -> PendingRequest:
    """Read one pending job's request from squeue.

    Raises:
        NoSuchJob: when the job has left the queue.
        SlurmError: when Slurm does not answer or its answer cannot be read.
    """
    newer = [field for since, field in _NEWER if release >= since]
    argv = ["squeue", "--all", f"--jobs={job_id}"]
    records = read_records(slurm, argv, [*_FIELDS.values(), *newer])
    if not records:
        raise NoSuchJob(f"job {job_id} has left the queue")
    values = dict(zip([*_FIELDS, *newer], records[0], strict=True))
    if "ExcNodes" not in values:  # before 24.05 only the short form has them
        mark = record_mark()
        text = slurm.run([*argv, "--noheader", "-o", f"%x{mark}"])
        values["ExcNodes"] = text.partition(mark)[0]
    return parse_pending_request(values)


def parse_pending_request(found: dict[str, str]) -> PendingRequest:
    """Parse one job's values, keyed as in `_FIELDS`; newer fields have squeue's own names.

    Raises:
        SlurmError: for a number that cannot be parsed.
    """
    stripped = {name: value.strip() for name, value in found.items()}
    values = {name: "" if v in ("(null)", "N/A") else v for name, v in stripped.items()}
    try:
        return _pending_request(values)
    except ValueError as error:
        raise SlurmError(f"squeue printed a job that cannot be read: {error}") from error


def _pending_request(values: dict[str, str]) -> PendingRequest:
    gpus, odd = _gpu_request(values)
    # Before 26.05 squeue shows a job that wants whole nodes as OverSubscribe=NO.
    if "Exclusive" in values:
        exclusive = values["Exclusive"] == "NODE"
    else:
        exclusive = values["over_subscribe"] == "NO"
    return PendingRequest(
        evaluated=parse_epoch(values["evaluated"]),
        planned_nodes=values["planned_nodes"],
        restarts=_number(values["restarts"]),
        max_nodes=_number(values["max_nodes"]),
        tasks=max(1, _number(values["tasks"])),
        cpus_per_task=max(1, _number(values["cpus_per_task"])),
        tasks_per_node=_number(values["tasks_per_node"]),
        memory=parse_amount(values["memory"]) or 0,
        time_min="" if values["time_min"] == "0:00" else values["time_min"],
        exclude=values.get("ExcNodes", ""),
        exclusive=exclusive,
        contiguous=values["contiguous"] == "1",
        switches=_number(values["switches"]),
        licenses=values["licenses"],
        batch=values["batch"] == "1",
        nice=_number(values["nice"]),
        error=values["error"],
        deadline=parse_epoch(values["deadline"]),
        gpus=gpus,
        odd=odd,
        cpus_per_gpu=_per_gpu(values["cpus_per_tres"]),
        memory_per_gpu=_per_gpu(values["memory_per_tres"]),
    )


def _number(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else 0


def _per_gpu(text: str) -> int | None:
    match = _GRES.fullmatch(text)
    return int(match["n"]) if match and match["name"] == "gpu" and match["n"] else None


def _gpu_request(values: dict[str, str]) -> tuple[Gpus | None, tuple[str, ...]]:
    """Return the GPU request, and the GRES that cannot be part of it."""
    requests: list[Gpus] = []
    odd = [item for item in values["per_socket"].split(",") if item]
    fields: tuple[tuple[str, Per], ...] = (
        ("per_job", "job"),
        ("per_node", "node"),
        ("per_task", "task"),
    )
    for field, per in fields:
        for item in filter(None, values[field].split(",")):
            request = _parse_gpu_item(item, per)
            if request is not None:
                requests.append(request)
            elif not item.startswith("cpu"):  # 24.11 and later repeat --cpus-per-task here
                odd.append(item)
    if len(requests) > 1:
        return None, (*odd, *map(str, requests))
    return (requests[0] if requests else None), tuple(odd)


def _parse_gpu_item(item: str, per: Per) -> Gpus | None:
    match = _GRES.fullmatch(item)
    if match is None or match["name"] not in ("gpu", "shard", "mps"):
        return None
    count = int(match["n"] or 1)
    if match["name"] == "gpu":
        return Gpus(count, match["type"], per)
    if per != "node" or match["type"]:
        return None
    return Gpus(shard=count) if match["name"] == "shard" else Gpus(mps=count)


class PendingSnapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Everything that the explanation of one pending job is computed from.

    Attributes:
        job: the job's row in the queue.
        asked: the parts of the job's request that the row does not have.
        rows: the whole queue, the job included.
        nodes: all nodes and their current use.
        standing: associations, QOS and reservations, as the job's user sees them.
        taken: epoch seconds at which Slurm was asked.
        license_holders: licences by raw id of jobs that run; read only if the job waits for some.
        planned: nodes that backfill has planned for pending jobs, by raw id; read only on request.
    """

    job: QueueRow
    asked: PendingRequest
    rows: tuple[QueueRow, ...]
    nodes: tuple[NodeRow, ...]
    capabilities: Capabilities
    standing: Standing
    taken: float
    license_holders: dict[str, str] = msgspec.field(default_factory=dict)
    planned: dict[str, str] = msgspec.field(default_factory=dict)

    @cached_property
    def partitions(self) -> tuple[str, ...]:
        """Names of the partitions the job waits in."""
        return tuple(self.job.partition.split(","))

    @cached_property
    def total_tres(self) -> Tres:
        """TRES that the whole job requests; for an array, each task."""
        return job_tres(self.job)

    @cached_property
    def per_node(self) -> Tres:
        """TRES that the job requests on each node, rounded up."""
        return tres_per_node(self.job)

    @cached_property
    def reservations(self) -> tuple[Reservation, ...]:
        """The cluster's reservations that have not ended."""
        return tuple(r for r in self.standing.reservations if r.end > self.taken)

    @cached_property
    def hides_jobs(self) -> bool:
        """Whether PrivateData hides other users' jobs."""
        return "jobs" in self.capabilities.config.get("PrivateData", "").lower().split(",")

    def node(self, name: str) -> NodeRow | None:
        """Return the node of that name; None if there is none."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, NodeRow]:
        return {node.name: node for node in self.nodes}


def read_pending_snapshot(slurm: SlurmCommands, job: QueueRow, *, plans: bool) -> PendingSnapshot:
    """Read everything needed to explain a pending job; the commands run in parallel.

    Args:
        slurm: runs the commands.
        job: the job's row in the queue.
        plans: also read which nodes backfill has planned for pending jobs.

    Raises:
        SlurmError: when slurmctld does not answer or its answer cannot be read.
    """
    taken = time.time()
    reason = job.reason
    # Cached capabilities are minutes old. A reason that names the partition needs current limits.
    names_partition = (
        reason.startswith("Partition") or "partition" in reason or "NotAllowed" in reason
    )
    capabilities = load_capabilities(slurm, refresh=names_partition)
    with ThreadPoolExecutor(6) as pool:  # the commands wait, they do not work
        rows = pool.submit(read_queue, slurm)
        nodes = pool.submit(slurm.run, NODES_COMMAND)
        standing = pool.submit(read_standing, slurm, job.user)
        asked = pool.submit(read_pending_request, slurm, job.raw_id, capabilities.release)
        holders = pool.submit(read_license_holders, slurm) if reason == "Licenses" else None
        planned = pool.submit(read_planned_nodes, slurm) if plans else None
    return PendingSnapshot(
        job=job,
        asked=asked.result(),
        rows=rows.result().rows,
        nodes=parse_nodes(nodes.result()),
        capabilities=capabilities,
        standing=standing.result(),
        taken=taken,
        license_holders=holders.result() if holders else {},
        planned=planned.result() if planned else {},
    )


def read_planned_nodes(slurm: SlurmCommands) -> dict[str, str]:
    """Read the nodes that backfill has planned for pending jobs, by raw job id."""
    argv = ["squeue", "--all", "--states=PENDING"]
    try:
        rows = read_records(slurm, argv, ("JobID", "SchedNodes"))
    except SlurmError:
        return {}
    return {job.strip(): nodes for job, nodes in rows if nodes not in ("", "(null)", "N/A")}


def read_license_holders(slurm: SlurmCommands) -> dict[str, str]:
    """Read the licences of all jobs that hold resources, by raw id."""
    argv = ["squeue", "--all", "--states=running,suspended,completing"]
    rows = read_records(slurm, argv, ("JobID", "Licenses"))
    return {raw_id.strip(): text for raw_id, text in rows if text not in ("", "(null)", "N/A")}


def tres_per_node(job: QueueRow) -> Tres:
    """Return a job's TRES per node, rounded up. Slurm prints only the job's total."""
    return _divide_tres(job.tres, max(1, job.nodes))


@lru_cache(maxsize=4096)  # many jobs are alike
def _divide_tres(text: str, nodes: int) -> Tres:
    return {name: -(-value // nodes) for name, value in _parse_tres(text).items() if name != "node"}


@lru_cache(maxsize=4096)
def expand_node_list(text: str) -> tuple[str, ...]:
    """Expand a Slurm node list. Most jobs have one node, which needs no parsing."""
    return expand_nodes(text) if "[" in text or "," in text else tuple(filter(None, [text]))


def job_tres(job: QueueRow) -> Tres:
    """Return the TRES of the whole job: allocated, or requested while it is pending."""
    return _parse_tres(job.tres)


@lru_cache(maxsize=4096)
def _parse_tres(text: str) -> Tres:
    return parse_tres_counts(text)


def time_limit_seconds(job: QueueRow) -> int | None:
    """Return a job's time limit in seconds; None if it has none."""
    try:
        return parse_time_limit(job.time_limit)
    except BadInput:  # UNLIMITED, NOT_SET, INVALID
        return None


def latest_end(job: QueueRow) -> int | None:
    """Return when a running job reaches its time limit, in epoch seconds; None if unknown."""
    seconds = time_limit_seconds(job)
    return None if seconds is None or job.started is None else job.started + seconds


def holds_nodes(job: QueueRow) -> bool:
    """Return whether a job holds nodes now; completing and suspended jobs do."""
    return job.state != "PENDING" and not job.ended and bool(job.node_list)


def is_eligible(job: QueueRow, now: float) -> bool:
    """Return whether a pending job is eligible: not held, no open dependency or begin time."""
    if job.state != "PENDING" or job.priority == 0 or job.reason.startswith(_NOT_YET):
        return False
    return job.eligible is not None and job.eligible <= now
