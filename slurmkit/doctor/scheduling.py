"""How jobs are placed, bounded, preempted and requeued."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from slurmkit.capabilities.model import Gres, Partition
from slurmkit.doctor.case import Case
from slurmkit.doctor.model import Check, Found

_SIGNAL = (23, 2)  # PreemptParameters=send_user_signal; SlurmctldParameters before
_DELAY = (25, 11)  # SlurmctldParameters=requeue_delay
_SOON = 60  # seconds: slurmkit's own polling stays below


def select_type(case: Case) -> Iterator[Found]:
    """GPUs are only given out one by one with cons_tres."""
    used = case.config.get("SelectType", "")
    if not used.endswith("cons_tres"):
        yield Found("error" if case.gpu_nodes else "warning", f"SelectType={used or 'unknown'}",
                    "--gpus, --gpus-per-task and binding to GPUs are refused",
                    "SelectType=select/cons_tres",
                    "slurm.conf, then restart slurmctld")  # fmt: skip


def memory(case: Case) -> Iterator[Found]:
    """Memory is given out like CPUs, and a job that asks for none gets a share, not all of it."""
    if "memory" not in case.config.get("SelectTypeParameters", "").lower():
        yield Found("warning",
                    f"SelectTypeParameters={case.config.get('SelectTypeParameters') or 'none'}:"
                    " memory is not given out",
                    "jobs can use up each other's memory",
                    "SelectTypeParameters=CR_Core_Memory")  # fmt: skip
        return
    if any(_default(case.config.get(key)) for key in ("DefMemPerCPU", "DefMemPerNode")):
        return
    if bare := [each.name for each in case.partitions if not _own_default(each)]:
        share = min((node.memory // node.cpus for node in case.nodes if node.cpus), default=4096)
        yield Found("warning",
                    f"DefMemPerCPU is not set for {', '.join(bare)}, and memory is given out",
                    "a job that does not say --mem takes all memory of its nodes, so that their"
                    " other GPUs stay idle",
                    f"DefMemPerCPU={share}")  # fmt: skip


def _default(value: str | None) -> bool:
    return value not in (None, "", "0", "UNLIMITED")


def _own_default(partition: Partition) -> bool:
    per_gpu = "DefMemPerGPU" in partition.settings.get("JobDefaults", "")
    return bool(partition.def_mem_per_cpu or partition.def_mem_per_node or per_gpu)


def times(case: Case) -> Iterator[Found]:
    """Partitions bound the time of jobs, and say what is taken for granted."""
    if endless := _names(each for each in case.partitions if each.max_time is None):
        yield Found("warning", f"no MaxTime in {endless}",
                    "a job may hold its GPUs for ever, and nothing can be planned around it",
                    "PartitionName=… MaxTime=7-00:00:00")  # fmt: skip
    if bare := _names(each for each in case.partitions if each.default_time is None):
        yield Found("note", f"no DefaultTime in {bare}",
                    "a job that does not say --time asks for the longest time, and waits longer",
                    "PartitionName=… DefaultTime=1:00:00")  # fmt: skip


def _names(partitions: Iterable[Partition]) -> str:
    return ", ".join(each.name for each in partitions)


def part_limits(case: Case) -> Iterator[Found]:
    """What a partition does not allow is refused at once."""
    if case.config.get("EnforcePartLimits", "NO").upper() in ("NO", ""):
        yield Found("warning", "EnforcePartLimits=NO",
                    "a job over a partition's limits is accepted, and waits for ever; slurmkit"
                    " says so before, sbatch does not",
                    "EnforcePartLimits=ALL")  # fmt: skip


def mixtures(case: Case) -> Iterator[Found]:
    """GPUs that the same request may mean, but that are not alike, want partitions of their own."""
    for partition in case.gpu_partitions():
        gpus = [
            gres
            for node in case.gpu_nodes
            if partition.name in node.partitions
            for gres in node.gres
            if gres.name == "gpu"
        ]
        yield from _mixture(partition.name, gpus)


def _mixture(name: str, gpus: list[Gres]) -> Iterator[Found]:
    typed = {gres.type is not None for gres in gpus}
    sliced = {gres.is_mig for gres in gpus}
    if len(typed) > 1:
        yield Found("warning", f"partition {name} has typed and untyped GPUs",
                    "a job over both is counted wrongly, and the type of what it got is unknown",
                    "a Type= for every GPU in gres.conf and slurm.conf, or two partitions",
                    "gres.conf and slurm.conf")  # fmt: skip
    if len(sliced) > 1:
        yield Found("warning", f"partition {name} has whole GPUs and MIG slices",
                    "who asks for a GPU without a type may be given a slice",
                    "a partition of its own for nodes with MIG")  # fmt: skip


def preemption(case: Case) -> Iterator[Found]:
    """A job that is to be preempted must hear of it."""
    kind = case.config.get("PreemptType", "")
    if not kind or kind.endswith("none") or case.words("PreemptMode") <= {"off"}:
        return
    told = case.words("PreemptParameters") | case.words("SlurmctldParameters")
    if not told & {"send_user_signal", "preempt_send_user_signal"}:
        late = case.release[:2] < _SIGNAL
        fix = "SlurmctldParameters=preempt_" if late else "PreemptParameters="
        yield Found("warning", f"PreemptType={kind} without send_user_signal",
                    "the batch shell of a preempted job hears nothing before it is killed: the"
                    " signal asked for with --signal is not sent, and no checkpoint is written",
                    f"{fix}send_user_signal")  # fmt: skip


def requeue(case: Case) -> Iterator[Found]:
    """Whether jobs go back to the queue by default."""
    if case.config.get("JobRequeue") == "0":
        yield Found("note", "JobRequeue=0",
                    "jobs on a node that fails are lost, unless they were sent with --requeue",
                    "JobRequeue=1")  # fmt: skip


def job_age(case: Case) -> Iterator[Found]:
    """How long slurmctld remembers jobs that ended."""
    seconds = _seconds(case.config.get("MinJobAge"))
    if seconds == 0:
        yield Found("warning", "MinJobAge=0", "slurmctld forgets no job, and fills its memory",
                    "MinJobAge=300")  # fmt: skip
    elif seconds is not None and seconds < _SOON:
        yield Found("warning", f"MinJobAge={seconds}",
                    "jobs are forgotten between two looks at the queue, so that every one has to"
                    " be looked up in slurmdbd; dependencies on them are refused",
                    "MinJobAge=300")  # fmt: skip


def requeue_delay(case: Case) -> Iterator[Found]:
    """How long a requeued job has to wait."""
    said = ",".join(case.config.get(key, "") for key in ("SlurmctldParameters", "AuthInfo"))
    found = re.search(r"requeue_delay=(\d+)", said) or re.search(r"cred_expire=(\d+)", said)
    delay = int(found[1]) if found else 120
    if delay > _SOON:
        newer = case.release[:2] >= _DELAY
        key = "SlurmctldParameters=requeue_delay" if newer else "AuthInfo=cred_expire"
        yield Found("note", f"a requeued job waits {delay} s"
                    f" ({found[0] if found else 'the default of AuthInfo=cred_expire'})",
                    "after a preemption or a checkpoint at the time limit GPUs stay idle so long",
                    f"{key}={_SOON}")  # fmt: skip


def _seconds(text: str | None) -> int | None:
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else None


CHECKS = (
    Check("select-type", "GPUs are given out one by one", select_type),
    Check("memory", "memory is given out, with a default", memory),
    Check("time-limits", "every partition has MaxTime and DefaultTime", times),
    Check("part-limits", "partitions' limits are enforced at submit", part_limits),
    Check("mixtures", "no partition mixes GPUs that are asked for alike", mixtures),
    Check("preemption", "preempted jobs are told, or none is preempted", preemption),
    Check("requeue", "jobs are requeued when their node fails", requeue),
    Check("job-age", "slurmctld remembers ended jobs long enough", job_age),
    Check("requeue-delay", "requeued jobs start again soon", requeue_delay),
)
