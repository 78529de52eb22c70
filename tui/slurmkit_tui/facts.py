"""The facts of one job, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from slurmkit.doctor.model import Diagnosis
from slurmkit.facts import Fact, clock, course, gpus, output, restarts, state
from slurmkit.gpumap.model import Gpu, Sharing
from slurmkit.jobs.info import JobInfo
from slurmkit.nodes.cells import counted_gpus, gib, load, why
from slurmkit.nodes.read import NodeRow
from slurmkit.queue.rows import QueueRow
from slurmkit.survive.history import RunEnd, restart_words
from slurmkit_tui.myjobs import MyJob

_DEPENDED = re.compile(r":(\d+)")  # `afterok:12:13(unfulfilled),afterany:14_*(failed)`
_NAMED = 5


def facts(row: QueueRow) -> list[Fact]:
    """What the row of the queue says."""
    plural = "s" * (row.nodes != 1), "s" * (row.cpus != 1)
    return [
        ("Name", row.name),
        ("User", f"{row.user}, account {row.account}"),
        ("Queue", f"partition {row.partition}, QOS {row.qos}, priority {row.priority}"),
        ("State", state(row.state, row.reason)),
        ("Submitted", clock(row.submitted)),
        ("Limit", row.time_limit),
        ("Size", f"{row.nodes} node{plural[0]}, {row.cpus} CPU{plural[1]}"),
        *([("Waits for", row.dependency)] if row.dependency else []),
        ("Directory", row.workdir),
    ]


def waiters(job_id: str, rows: Iterable[QueueRow]) -> list[Fact]:
    """The jobs of a queue that depend on a job, or on the array it is of."""
    array = job_id.partition("_")[0]
    found = [
        f"{row.job_id} of {row.user}"
        for row in rows
        if row.dependency and array in _DEPENDED.findall(row.dependency)
    ]
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return [("Waited for by", ", ".join(found[:_NAMED]) + more)] if found else []


def all_facts(
    known: Sequence[Fact], info: JobInfo, at: float, runs: Sequence[RunEnd] = ()
) -> list[Fact]:
    """What was known and what was found at `at`, in epoch seconds; the newer word wins.

    `runs` is the history of one that was requeued.
    """
    owner = [("Name", info.name), ("User", f"{info.user}, account {info.account}")]
    limit = [("Limit", info.time_limit)] if info.time_limit else []
    found = [*owner, *course(info), *run_facts(info, runs), *limit, *gpus(info)]
    newer = {name for name, _ in found}
    older = [fact for fact in known if fact[0] not in newer]
    return [*found, *older, output(info), ("Source", f"{info.source} at {clock(at)}")]


def run_facts(info: JobInfo, runs: Sequence[RunEnd]) -> list[Fact]:
    """The runs of a job that was requeued: each on which nodes, from when to when, why it ended."""
    if not (each := restarts(runs)):
        return []
    waits = info.state == "PENDING"
    now = f"{'waits for ' if waits else ''}{restart_words(runs, waits=waits)}"
    return [("Runs", str(runs[-1].run + 1) if info.is_over else now), *each]


def ended_facts(job: MyJob) -> list[Fact]:
    """What the list of ended jobs says."""
    return [
        ("Name", job.name),
        ("State", f"{job.state}, exit code {job.exit_code or 'unknown'}"),
        ("Ended", clock(job.ended)),
        ("GPUs", job.gpus),
    ]


def diagnosis_facts(found: Diagnosis) -> list[Fact]:
    """What doctor found, what it means, and how it is mended."""
    rows = [
        ("Severity", found.severity),
        ("What", found.message),
        ("Meaning", found.meaning),
        ("Mend", found.fix),
        ("Where", found.where),
    ]
    return [(name, value) for name, value in rows if value]


def gpu_facts(gpu: Gpu) -> list[Fact]:
    """What is known of one GPU, and who has parts of it."""
    parts = (("Shards", gpu.shard), ("MPS", gpu.mps))
    shared = [(name, _parts(sharing)) for name, sharing in parts if sharing]
    return [
        ("GPU", f"{'?' if gpu.index is None else gpu.index} of {gpu.node}, {gpu.type or '?'}"),
        ("GPU is", gpu.state),
        *([("MIG", gpu.mig)] if gpu.mig else []),
        *([("Since", clock(gpu.since))] if gpu.since else []),
        *shared,
    ]


def _parts(sharing: Sharing) -> str:
    used, total = ("?" if n is None else str(n) for n in (sharing.used, sharing.total))
    by = ", ".join(
        f"{each.user} job {each.job_id}: {'?' if each.amount is None else each.amount}"
        for each in sharing.by
    )
    return f"{used} of {total}{f' ({by})' if by else ''}"


def node_facts(row: NodeRow) -> list[Fact]:
    """All that is known of a node."""
    memory = f"{gib(row.memory_allocated)} of {gib(row.memory)} GiB in use"
    return [
        ("State", row.state.lower()),
        *([("Reason", why(row))] if row.reason else []),
        *([("Closed", row.why_closed)] if row.why_closed else []),
        ("Partitions", ", ".join(row.partitions) or "none"),
        ("CPUs", f"{row.cpus_allocated} of {row.cpus} in use, load {load(row)}"),
        ("Memory", memory),
        ("GPUs", "  ".join(counted_gpus(row)) or "none"),
        ("Features", ", ".join(row.features) or "none"),
        ("Jobs", " ".join(row.jobs) or "none"),
    ]
