"""Checks of scheduling: how jobs are placed, limited, preempted and requeued."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from slurmkit.doctor.case import Check, CheckContext, CheckFinding
from slurmkit.formats.tres import Gres
from slurmkit.state.model import Partition

_SIGNAL_RELEASE = (
    23,
    2,
)  # from here on PreemptParameters=send_user_signal; SlurmctldParameters before
_DELAY_RELEASE = (25, 11)  # from here on SlurmctldParameters=requeue_delay
_SOON = 60  # seconds; slurmkit polls more often


def check_select_type(case: CheckContext) -> Iterator[CheckFinding]:
    """Check for cons_tres, without which GPUs cannot be allocated one by one."""
    used = case.config.get("SelectType", "")
    if not used.endswith("cons_tres"):
        yield CheckFinding(
            "error" if case.gpu_nodes else "warning",
            f"SelectType={used or 'unknown'}",
            "--gpus, --gpus-per-task and binding to GPUs are refused",
            "SelectType=select/cons_tres",
            "slurm.conf, then restart slurmctld",
        )


def check_memory(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that memory is allocated like CPUs, and that a job without --mem does not get all."""
    if "memory" not in case.config.get("SelectTypeParameters", "").lower():
        yield CheckFinding("warning",
                    f"SelectTypeParameters={case.config.get('SelectTypeParameters') or 'none'}:"
                    " memory is not allocated to jobs",
                    "jobs can use up each other's memory",
                    "SelectTypeParameters=CR_Core_Memory")  # fmt: skip
        return
    cluster_defaults = (case.config.get(key) for key in ("DefMemPerCPU", "DefMemPerNode"))
    if any(value not in (None, "", "0", "UNLIMITED") for value in cluster_defaults):
        return
    if bare := [each.name for each in case.partitions if not _has_default_memory(each)]:
        share = min((node.memory // node.cpus for node in case.nodes if node.cpus), default=4096)
        yield CheckFinding("warning",
                    f"DefMemPerCPU is not set for {', '.join(bare)}, and memory is allocated",
                    "a job without --mem gets all memory of its nodes, so that their other GPUs"
                    " stay idle",
                    f"DefMemPerCPU={share}")  # fmt: skip


def _has_default_memory(partition: Partition) -> bool:
    """Return whether a partition sets a default for memory."""
    per_gpu = "DefMemPerGPU" in partition.settings.get("JobDefaults", "")
    return bool(partition.def_mem_per_cpu or partition.def_mem_per_node or per_gpu)


def check_time_limits(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that every partition has a time limit and a default time."""
    if endless := _names(each for each in case.partitions if each.max_time is None):
        yield CheckFinding("warning", f"no MaxTime in {endless}",
                    "a job may hold its GPUs for ever, and Slurm cannot plan other jobs after it",
                    "PartitionName=… MaxTime=7-00:00:00")  # fmt: skip
    if bare := _names(each for each in case.partitions if each.default_time is None):
        yield CheckFinding("note", f"no DefaultTime in {bare}",
                    "a job without --time asks for the longest time, and waits longer",
                    "PartitionName=… DefaultTime=1:00:00")  # fmt: skip


def _names(partitions: Iterable[Partition]) -> str:
    return ", ".join(each.name for each in partitions)


def check_partition_limits(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that a job over a partition's limits is refused at submit."""
    if case.config.get("EnforcePartLimits", "NO").upper() in ("NO", ""):
        yield CheckFinding("warning", "EnforcePartLimits=NO",
                    "a job over a partition's limits is accepted, and waits for ever; slurmkit"
                    " warns before it submits, sbatch does not",
                    "EnforcePartLimits=ALL")  # fmt: skip


def check_gpu_mixtures(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that no partition mixes different GPUs that one request may mean."""
    for partition in case.gpu_partitions():
        gpus = [
            gres
            for node in case.gpu_nodes
            if partition.name in node.partitions
            for gres in node.gres
            if gres.name == "gpu"
        ]
        yield from _check_partition_gpus(partition.name, gpus)


def _check_partition_gpus(name: str, gpus: list[Gres]) -> Iterator[CheckFinding]:
    """Check the GPUs of one partition: all typed or all untyped, all whole or all MIG slices."""
    typed = {gres.type is not None for gres in gpus}
    sliced = {gres.is_mig for gres in gpus}
    if len(typed) > 1:
        yield CheckFinding("warning", f"partition {name} has typed and untyped GPUs",
                    "the GPUs of a job with both are counted wrongly, and their type is unknown",
                    "a Type= for every GPU in gres.conf and slurm.conf, or two partitions",
                    "gres.conf and slurm.conf")  # fmt: skip
    if len(sliced) > 1:
        yield CheckFinding("warning", f"partition {name} has whole GPUs and MIG slices",
                    "a job that asks for a GPU without a type may get a slice",
                    "a partition of its own for nodes with MIG")  # fmt: skip


def check_preemption_signal(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that a job gets its signal before it is preempted."""
    kind = case.config.get("PreemptType", "")
    if not kind or kind.endswith("none") or case.words("PreemptMode") <= {"off"}:
        return
    parameters = case.words("PreemptParameters") | case.words("SlurmctldParameters")
    if not parameters & {"send_user_signal", "preempt_send_user_signal"}:
        late = case.release[:2] < _SIGNAL_RELEASE
        fix = "SlurmctldParameters=preempt_" if late else "PreemptParameters="
        yield CheckFinding("warning", f"PreemptType={kind} without send_user_signal",
                    "the batch script of a preempted job gets no warning before it is killed: the"
                    " signal of its --signal is not sent, and no checkpoint is written",
                    f"{fix}send_user_signal")  # fmt: skip


def check_requeue(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that jobs are requeued by default when their node fails."""
    if case.config.get("JobRequeue") == "0":
        yield CheckFinding("note", "JobRequeue=0",
                    "jobs on a node that fails are lost, unless submitted with --requeue",
                    "JobRequeue=1")  # fmt: skip


def check_job_age(case: CheckContext) -> Iterator[CheckFinding]:
    """Check how long slurmctld remembers ended jobs."""
    found = re.match(r"\d+", case.config.get("MinJobAge") or "")
    seconds = int(found[0]) if found else None
    if seconds == 0:
        yield CheckFinding(
            "warning",
            "MinJobAge=0",
            "slurmctld never forgets a job, so its memory fills up",
            "MinJobAge=300",
        )
    elif seconds is not None and seconds < _SOON:
        yield CheckFinding("warning", f"MinJobAge={seconds}",
                    "slurmctld forgets jobs that ended before slurmkit asks for them again, so each"
                    " has to be looked up in slurmdbd; dependencies on them are refused",
                    "MinJobAge=300")  # fmt: skip


def check_requeue_delay(case: CheckContext) -> Iterator[CheckFinding]:
    """Check how long a requeued job has to wait before it can start."""
    settings = ",".join(case.config.get(key, "") for key in ("SlurmctldParameters", "AuthInfo"))
    found = re.search(r"requeue_delay=(\d+)", settings) or re.search(r"cred_expire=(\d+)", settings)
    delay = int(found[1]) if found else 120
    if delay > _SOON:
        newer = case.release[:2] >= _DELAY_RELEASE
        key = "SlurmctldParameters=requeue_delay" if newer else "AuthInfo=cred_expire"
        yield CheckFinding("note", f"a requeued job waits {delay} s"
                    f" ({found[0] if found else 'the default of AuthInfo=cred_expire'})",
                    "after a preemption, or a checkpoint at the time limit, GPUs stay idle for that"
                    " long",
                    f"{key}={_SOON}")  # fmt: skip


CHECKS = (
    Check("select-type", "GPUs are allocated one by one", check_select_type),
    Check("memory", "memory is allocated to jobs, with a default", check_memory),
    Check("time-limits", "every partition has MaxTime and DefaultTime", check_time_limits),
    Check("part-limits", "partitions' limits are enforced at submit", check_partition_limits),
    Check("mixtures", "no partition mixes GPUs that one request may mean", check_gpu_mixtures),
    Check(
        "preemption",
        "jobs get a signal before they are preempted, or no job is preempted",
        check_preemption_signal,
    ),
    Check("requeue", "jobs are requeued when their node fails", check_requeue),
    Check("job-age", "slurmctld remembers ended jobs long enough", check_job_age),
    Check("requeue-delay", "requeued jobs start again soon", check_requeue_delay),
)
