"""The jobs of a benchmark run: which nodes they measure, and the workflow that is sent.

One job for each node holds it whole, so that nothing else disturbs it, with a low priority and a
short time limit. At most `limit` jobs are there at a time: each waits for the end of one before it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from slurmkit.config.files import load_section
from slurmkit.config.prices import canonical_type
from slurmkit.errors import BadInput
from slurmkit.formats.scontrol import fold_nodes
from slurmkit.planning.preflight.lines import PreflightSection
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch
from slurmkit.spec.workflow import Workflow
from slurmkit.state.model import Capabilities
from slurmkit.state.nodes import NodeChoice, NodeRow, select_nodes
from slurmkit_accounting.benchmarks import inside
from slurmkit_accounting.benchmarks.results import (
    NO_GPU,
    PREFLIGHT_RESULTS,
    BenchmarkJob,
    BenchmarkRecord,
    RunFolder,
)

TESTS = ("gpu", "disk", "nccl", "cpu")
NICE = 10_000
_DEVICE_SECONDS = 240  # at most for one GPU; PyTorch alone may take a minute to load
_DISK_SECONDS = 60


class BenchmarkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run shall measure, and how its jobs are sent.

    Attributes:
        choice: which nodes.
        gpu_type: only nodes with GPUs of this type.
        tests: of `TESTS`; None for `gpu` and `disk`, and `nccl` where the site has it.
        group: nodes that NCCL measures together.
        limit: jobs at a time.
        drained: whether nodes that are down or drained get jobs, too.
        python: the Python of the jobs.
        seconds: of each measurement of a GPU.
        disk: the folder that is measured.
        disk_mib: size of the file there.
        options: fields of `JobSpec` for all jobs.
    """

    choice: NodeChoice = NodeChoice()
    gpu_type: str | None = None
    tests: tuple[str, ...] | None = None
    group: int = 2
    limit: int = 8
    drained: bool = False
    python: str = "python3"
    seconds: float = 2.0
    disk: str = "/tmp"  # noqa: S108 - it makes a file without a name there
    disk_mib: int = 1024
    options: dict[str, str | int | None] = {}


class ChosenNodes(msgspec.Struct, frozen=True):
    """The nodes of a run.

    Attributes:
        rows: those that get jobs, idle ones first.
        closed: those that are down or drained and get none.
    """

    rows: tuple[NodeRow, ...]
    closed: tuple[NodeRow, ...]


def choose_nodes(nodes: Sequence[NodeRow], request: BenchmarkRequest) -> ChosenNodes:
    """Return the nodes that a run measures.

    Raises:
        BadInput: for a node, partition or GPU type that does not exist, and when none is left.
    """
    rows = select_nodes(nodes, request.choice)
    if request.gpu_type is not None:
        wanted = canonical_type(request.gpu_type).casefold()
        known = {gpu.type or "" for row in nodes for gpu in row.gpus}
        rows = tuple(row for row in rows if wanted in {_canonical(t) for t in _types(row)})
        if wanted not in {_canonical(name) for name in known}:
            types = ", ".join(sorted(filter(None, known))) or "none"
            raise BadInput(f"there are no GPUs of type {request.gpu_type!r}; types: {types}")
    elif not request.choice.nodelist and "cpu" not in (request.tests or ()):
        rows = tuple(row for row in rows if row.gpus)
    rows = tuple(row for row in rows if row.partitions)
    usable = [row for row in rows if row.usable or request.drained]
    closed = tuple(row for row in rows if row not in usable)
    if not usable:
        why = f": {fold_nodes(row.name for row in closed)} are down or drained" if closed else ""
        raise BadInput(
            f"no node is left to measure{why}; name some with --nodes or --partition; nodes without"
            " GPUs are measured with --test cpu"
        )
    usable.sort(key=lambda row: row.cpus_allocated > 0)  # stable
    return ChosenNodes(tuple(usable), closed)


def _types(row: NodeRow) -> list[str]:
    return [gpu.type or "" for gpu in row.gpus]


def _canonical(name: str) -> str:
    return canonical_type(name).casefold() if name else ""


def choose_tests(request: BenchmarkRequest) -> tuple[str, ...]:
    """Return the tests of a run.

    Raises:
        BadConfig: for a wrong configuration.
    """
    if request.tests is not None:
        return tuple(test for test in TESTS if test in request.tests)
    has_program = bool(load_section("preflight", PreflightSection).program)
    return ("gpu", "disk", *(("nccl",) if has_program else ()))


def new_record(cluster: str, request: BenchmarkRequest, rows: Iterable[NodeRow]) -> BenchmarkRecord:
    """Return the record of a new run.

    Args:
        cluster: name of the cluster.
        request: the request.
        rows: its nodes, as `choose_nodes` gives them.

    Raises:
        BadInput: when there is nothing to measure.
    """
    now, tests, listed = int(time.time()), choose_tests(request), list(rows)
    alone = set(tests) - {"nccl"}
    jobs = {row.name: _job((row,)) for row in listed} if alone else {}
    if "nccl" in tests:
        jobs |= {
            f"nccl-{number}": _job(group, is_nccl=True)
            for number, group in enumerate(_groups(listed, request.group), 1)
        }
    if not jobs:
        raise BadInput(
            f"NCCL is measured between {request.group} nodes with GPUs of one type in one"
            " partition, and there are fewer; name other nodes, or --group 1 for each node alone"
        )
    name = time.strftime("benchmark-%Y%m%d-%H%M%S", time.gmtime(now))
    return BenchmarkRecord(name, cluster, now, tests, jobs)


def _job(rows: Sequence[NodeRow], *, is_nccl: bool = False) -> BenchmarkJob:
    gpus = rows[0].gpus
    one_type = (gpus[0].type or "") if len(gpus) == 1 else "" if gpus else NO_GPU
    names = tuple(row.name for row in rows)
    return BenchmarkJob(names, one_type, sum(gpu.total for gpu in gpus), is_nccl, len(gpus) > 1)


def _groups(rows: Iterable[NodeRow], size: int) -> list[tuple[NodeRow, ...]]:
    """Return groups of nodes that are alike; the last one may share nodes with the one before."""
    alike: dict[object, list[NodeRow]] = defaultdict(list)
    for row in rows:
        if len(row.gpus) == 1 and not any(gres.is_mig for gres in row.gres):
            gpu = row.gpus[0]
            alike[gpu.type, gpu.total, row.partitions].append(row)
    groups = []
    for nodes in alike.values():
        if len(nodes) >= size and nodes[0].gpus[0].total * size > 1:
            starts = [*range(0, len(nodes) - size + 1, size)]
            if len(nodes) % size:
                starts.append(len(nodes) - size)
            groups += [tuple(nodes[start : start + size]) for start in starts]
    return groups


def benchmark_workflow(
    folder: RunFolder,
    request: BenchmarkRequest,
    rows: Iterable[NodeRow],
    capabilities: Capabilities,
) -> Workflow:
    """Return the workflow of a run.

    Args:
        folder: its folder.
        request: the request.
        rows: all nodes of the run.
        capabilities: of the cluster.
    """
    by_name = {row.name: row for row in rows}
    record = folder.record
    jobs, after = {}, {}
    for number, (name, job) in enumerate(record.jobs.items()):
        nodes = [by_name[each] for each in job.nodes]
        shared = _shared_fields(folder, name, job, request) | {
            "partition": request.options.get("partition") or _partition(nodes[0], capabilities),
            "cpus_per_task": min(node.cpus for node in nodes),
        }
        spec = (
            _nccl_spec(folder, name) if name not in by_name else _node_spec(folder, name, request)
        )
        jobs[name] = msgspec.structs.replace(spec, **shared)
        if number >= request.limit:
            after[name] = [f"{list(record.jobs)[number - request.limit]}:any"]
    return Workflow(record.name, jobs, after)


def _partition(row: NodeRow, capabilities: Capabilities) -> str:
    default = capabilities.default_partition
    return default.name if default and default.name in row.partitions else row.partitions[0]


def _shared_fields(
    folder: RunFolder, name: str, job: BenchmarkJob, request: BenchmarkRequest
) -> dict[str, object]:
    """Return the fields that all jobs have in the same way."""
    given = {field: value for field, value in request.options.items() if value is not None}
    return {
        "job_name": f"benchmark-{name}",
        "nodelist": ",".join(job.nodes),
        "nodes": len(job.nodes),
        "ntasks_per_node": 1,
        # GPUs of several types cannot be asked for together; a whole node comes with all of them.
        "gpus": Gpus(job.gpus, job.gpu_type or None) if job.gpus and not job.is_mixed else None,
        "exclusive": True,
        "mem": "0",
        "requeue": False,
        "chdir": str(folder.path),
        "output": str(folder.log_of(name)),
        **given,
    }


def _node_spec(folder: RunFolder, name: str, request: BenchmarkRequest) -> JobSpec:
    record = folder.record
    ask = {
        "tests": [test for test in record.tests if test != "nccl"],
        "out": str(folder.results_of(name)),
        "gpus": record.jobs[name].gpus > 0,
        "seconds": request.seconds,
        "device_seconds": _DEVICE_SECONDS,
        "disk": request.disk,
        "disk_mib": min(request.disk_mib, inside.MOST_DISK_MIB),
        "disk_seconds": _DISK_SECONDS,
    }
    text = msgspec.json.encode(ask, order="deterministic").decode()
    command = (request.python, str(folder.program), text)
    return JobSpec(command=command, launch=Launch(launcher="none"))


def _nccl_spec(folder: RunFolder, name: str) -> JobSpec:
    return JobSpec(
        command=("true",),
        launch=Launch(preflight="nccl"),
        environment={PREFLIGHT_RESULTS: str(folder.results_of(name))},
    )
