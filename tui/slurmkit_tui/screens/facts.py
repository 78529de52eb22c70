"""Facts (label and text) of one job, GPU, node or finding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from slurmkit.doctor.case import Diagnosis
from slurmkit.formats.display import format_time
from slurmkit.formats.memory import format_mib
from slurmkit.jobs.describe import (
    Fact,
    format_state,
    job_gpu_facts,
    output_fact,
    progress_facts,
    restart_facts,
)
from slurmkit.jobs.exit_codes import describe_end
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.run_history import RunRecord, restart_words
from slurmkit.state.gpumap_model import Gpu, GpuSharing
from slurmkit.state.nodes import NodeRow, format_gpu_use, format_load, format_reason
from slurmkit.state.queue_rows import QueueRow
from slurmkit_tui.jobform.my_jobs import MyJobRow

_DEPENDED = re.compile(r":(\d+)")  # `afterok:12:13(unfulfilled),afterany:14_*(failed)`
_NAMED = 5


def queue_row_facts(row: QueueRow) -> list[Fact]:
    """Return the facts in a row of the queue."""
    nodes = f"{row.nodes} node{'s' * (row.nodes != 1)}"
    cpus = f"{row.cpus} CPU{'s' * (row.cpus != 1)}"
    return [
        ("Name", row.name),
        ("User", f"{row.user}, account {row.account}"),
        ("Queue", f"partition {row.partition}, QOS {row.qos}, priority {row.priority}"),
        ("State", format_state(row.state, row.reason)),
        ("Submitted", format_time(row.submitted)),
        ("Limit", row.time_limit),
        ("Size", f"{nodes}, {cpus}"),
        *([("Waits for", row.dependency)] if row.dependency else []),
        ("Directory", row.workdir),
    ]


def waiter_facts(job_id: str, rows: Iterable[QueueRow]) -> list[Fact]:
    """Return the jobs in the queue that depend on a job, or on its array."""
    array = job_id.partition("_")[0]
    waiting = [
        f"{row.job_id} of {row.user}"
        for row in rows
        if array in row.dependency and array in _DEPENDED.findall(row.dependency)
    ]
    more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
    return [("Waited for by", ", ".join(waiting[:_NAMED]) + more)] if waiting else []


def merged_facts(
    known: Sequence[Fact], info: JobInfo, at: float, runs: Sequence[RunRecord] = ()
) -> list[Fact]:
    """Combine the facts already known with newer ones, which win.

    Args:
        known: facts from the row of the view.
        info: the job as read at `at`.
        at: epoch seconds.
        runs: earlier runs of a requeued job.
    """
    owner = [("Name", info.name), ("User", f"{info.user}, account {info.account}")]
    limit = [("Limit", info.time_limit)] if info.time_limit else []
    current = [*owner, *progress_facts(info), *run_facts(info, runs), *limit, *job_gpu_facts(info)]
    newer = {name for name, _ in current}
    older = [fact for fact in known if fact[0] not in newer]
    return [*current, *older, output_fact(info), ("Source", f"{info.source} at {format_time(at)}")]


def run_facts(info: JobInfo, runs: Sequence[RunRecord]) -> list[Fact]:
    """Return the runs of a requeued job: nodes, begin, end, and why each ended."""
    if not (each := restart_facts(runs)):
        return []
    waits = info.state == "PENDING"
    now = f"{'waits for ' if waits else ''}{restart_words(runs, waits=waits)}"
    return [("Runs", str(runs[-1].run + 1) if info.is_over else now), *each]


def ended_facts(job: MyJobRow) -> list[Fact]:
    """Return the facts in the row of an ended job."""
    return [
        ("Name", job.name),
        ("State", f"{job.state}, {describe_end(job.exit_code) or 'exit code unknown'}"),
        ("Ended", format_time(job.ended)),
        ("GPUs", job.gpus),
    ]


def diagnosis_facts(finding: Diagnosis) -> list[Fact]:
    """Return a finding of the doctor: what it is, what it means, and how to fix it."""
    rows = [
        ("Severity", finding.severity),
        ("Finding", finding.message),
        ("Meaning", finding.meaning),
        ("Fix", finding.fix),
        ("Where", finding.where),
    ]
    return [(name, value) for name, value in rows if value]


def gpu_facts(gpu: Gpu) -> list[Fact]:
    """Return the facts of one GPU, and who uses parts of it."""
    parts = (("Shards", gpu.shard), ("MPS", gpu.mps))
    shared = [(name, _parts(sharing)) for name, sharing in parts if sharing]
    return [
        ("GPU", f"{'?' if gpu.index is None else gpu.index} of {gpu.node}, {gpu.type or '?'}"),
        ("GPU is", gpu.state),
        *([("MIG", gpu.mig)] if gpu.mig else []),
        *([("Since", format_time(gpu.since))] if gpu.since else []),
        *shared,
    ]


def _parts(sharing: GpuSharing) -> str:
    used, total = ("?" if n is None else str(n) for n in (sharing.used, sharing.total))
    by = ", ".join(
        f"{each.user} job {each.job_id}: {'?' if each.amount is None else each.amount}"
        for each in sharing.by
    )
    return f"{used} of {total}{f' ({by})' if by else ''}"


def node_facts(row: NodeRow) -> list[Fact]:
    """Return all facts of a node."""
    memory = f"{format_mib(row.memory_allocated)} of {format_mib(row.memory)} in use"
    return [
        ("State", row.state.lower()),
        *([("Reason", format_reason(row))] if row.reason else []),
        *([("Closed", row.why_closed)] if row.why_closed else []),
        ("Partitions", ", ".join(row.partitions) or "none"),
        ("CPUs", f"{row.cpus_allocated} of {row.cpus} in use, load {format_load(row)}"),
        ("Memory", memory),
        ("GPUs", "  ".join(format_gpu_use(row)) or "none"),
        ("Features", ", ".join(row.features) or "none"),
        ("Jobs", " ".join(row.jobs) or "none"),
    ]
