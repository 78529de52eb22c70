"""What happens at each ending of a job that survives, and where a cluster keeps it from that."""

from __future__ import annotations

from collections.abc import Iterator

from slurmkit.checks.say import error, note, wall, warning
from slurmkit.checks.walls import minutes
from slurmkit.findings import Finding
from slurmkit.request import Request
from slurmkit.survive.model import ENDINGS, mebibytes
from slurmkit.survive.settings import kill_wait, preempt_mode, sends_user_signal

_EARLY = 60  # seconds that Slurm may send a signal before its time (sbatch(1) --signal)
_SHORT_KILL_WAIT = 10  # seconds in which scontrol can be asked three times
_AGENTS = ("torchrun", "accelerate", "deepspeed")
_NAMES = {
    "timeout": "at its time limit",
    "preempt": "when preempted",
    "node-fail": "when a node is lost",
    "oom": "out of memory",
}
_BACK = {"requeue": "it goes back to the queue", "hold": "it goes back to the queue, held"}


def told(request: Request) -> Iterator[Finding]:
    """What happens at each ending, in words."""
    policy = request.spec.survive
    if not policy:
        return
    words = {"timeout": _timeout, "preempt": _preempt, "node-fail": _node_fail, "oom": _oom}
    for ending in ENDINGS:
        action = policy.action(ending)
        said = words[ending](request, action) if action else "as Slurm has it"
        yield note(f"survive-{ending}", f"{_NAMES[ending]}: {said}", f"--on-{ending}")
    yield note(
        "survive-limit",
        f"it comes back {policy.max_restarts} times at most; when its command fails by itself, it"
        " does not",
        "--max-restarts",
    )


def _asked(request: Request) -> str:
    policy = request.spec.survive
    signal = policy.checkpoint_signal
    by = f"by {signal} and a file" if signal else "by a file ($SLURMKIT_CHECKPOINT_FILE)"
    return f"the work is asked for a checkpoint {by}"


def _timeout(request: Request, action: str) -> str:
    policy = request.spec.survive
    before = f"{policy.grace} to {policy.grace + _EARLY} s before it {_asked(request)}"
    if action == "fail":
        return f"{before}, and the job ends as TIMEOUT"
    return f"{before}; what has not ended {policy.grace} s later is stopped, and {_BACK[action]}"


def _preempt(request: Request, action: str) -> str:
    config, mode = request.capabilities.config, _mode(request)
    if mode in ("off", "within"):
        return "Slurm preempts no such job here"
    if mode == "suspend":
        return "Slurm suspends such a job, and lets it go on later"
    grace = request.qos.grace_time if request.qos else 0
    tell = _asked(request) if sends_user_signal(config) else "its steps get SIGTERM"
    tell = f"{tell}, {grace} s before it is ended" if grace else "its steps get SIGTERM at once"
    if mode == "requeue":
        does = {
            "requeue": "Slurm itself puts it back in the queue",
            "hold": "Slurm itself puts it back in the queue; its next run holds itself",
            "fail": "Slurm itself puts it back in the queue; its next run ends at once, failed",
        }
        return f"{tell}; {does[action]}"
    return f"{tell}; {_BACK.get(action, 'it ends as PREEMPTED')}"


def _node_fail(_: Request, action: str) -> str:
    does = {
        "requeue": "Slurm itself puts it back in the queue",
        "hold": "Slurm puts it back in the queue; its next run holds itself",
        "fail": "its next run ends at once, failed",
    }
    return f"{does[action]}; what still runs on a node that was lost stops itself"


def _oom(request: Request, action: str) -> str:
    policy = request.spec.survive
    if action == "fail":
        return "the job fails"
    if policy.oom_max_mem is None:
        return _BACK[action]
    return f"{_BACK[action]}, with twice the memory, {policy.oom_max_mem} at most"


def _mode(request: Request) -> str:
    site = (request.capabilities, request.standing)
    return preempt_mode(site, request.partition, request.qos.name if request.qos else None)


def doubts(request: Request) -> Iterator[Finding]:
    """What of it cannot be, or is likely not meant."""
    if not request.spec.survive:
        return
    yield from _time(request)
    yield from _settings(request)
    yield from _memory(request)
    yield from _signal(request)


def _time(request: Request) -> Iterator[Finding]:
    policy, time = request.spec.survive, minutes(request)
    if time is None and policy.on_timeout:
        message = "the job has no time limit here, so it never ends at one; give --time"
        yield warning("survive-no-limit", message, "--on-timeout")
    elif time is not None and policy.grace >= time * 60:
        message = (
            f"--grace {policy.grace} is no less than the time limit of {wall(time)}: the work would"
            f" be asked to stop as soon as it starts; give less, e.g. --grace {max(1, time * 6)}"
        )
        yield error("survive-grace", message, "--grace")
    elif time is not None and policy.grace + _EARLY >= time * 60:
        message = (
            f"Slurm may send its warning {_EARLY} s early, so the work may be asked to stop as soon"
            f" as it starts: --grace {policy.grace} and a limit of {wall(time)}"
        )
        yield warning("survive-early", message, "sbatch(1) --signal")


def _settings(request: Request) -> Iterator[Finding]:
    policy, config, mode = request.spec.survive, request.capabilities.config, _mode(request)
    wait = kill_wait(config)
    if wait < _SHORT_KILL_WAIT:
        message = (
            f"Slurm kills {wait} s after SIGTERM (KillWait), in which a job can hardly be requeued"
            " with more memory"
        )
        yield warning("survive-kill-wait", message, "scontrol show config: KillWait")
    if config.get("JobRequeue") == "0" and policy.comes_back:
        message = "this cluster requeues no job that does not ask for it; this one does: --requeue"
        yield note("survive-job-requeue", message, "scontrol show config: JobRequeue")
    if policy.on_preempt and mode in ("requeue", "cancel"):
        yield from _preemption(request, mode)
    if request.spec.open_mode == "truncate":
        message = "--open-mode=truncate: each run would wipe the output of those before it"
        yield warning("survive-truncate", message, "--open-mode", (("open-mode", "append"),))


def _preemption(request: Request, mode: str) -> Iterator[Finding]:
    config, grace = request.capabilities.config, request.qos.grace_time if request.qos else 0
    if not grace:
        message = "preempted jobs get no grace here: nothing asks the work for a checkpoint before"
        yield warning("survive-no-grace", message, "sacctmgr show qos: GraceTime")
    elif not sends_user_signal(config) and request.spec.survive.checkpoint_signal:
        signal = request.spec.survive.checkpoint_signal
        message = (
            f"a preemption sends SIGTERM to the steps, not {signal}, for send_user_signal is not"
            " set here: let the work write its checkpoint at SIGTERM, too"
        )
        yield warning("survive-no-signal", message, "scontrol show config: PreemptParameters")
    if mode == "cancel":
        message = (
            "preempted jobs are cancelled here, and this one requeues itself before; Slurm may call"
            " it PREEMPTED in the end all the same: jobs that follow it should wait by afterany"
        )
        yield note("survive-cancel", message, "PreemptMode")
    exempt = config.get("PreemptExemptTime", "")
    if exempt.strip("0:-") not in ("", "(null)", "NONE"):
        message = f"no job is preempted before it has run for {exempt}"
        yield note("survive-exempt", message, "scontrol show config: PreemptExemptTime")


def _memory(request: Request) -> Iterator[Finding]:
    spec, policy = request.spec, request.spec.survive
    if policy.on_oom == "requeue" and policy.oom_max_mem is None:
        message = "it would run out of the same memory again; give --oom-max-mem, e.g. 256G"
        yield warning("survive-same-memory", message, "--on-oom")
    if policy.oom_max_mem is None:
        return
    if spec.mem is None and spec.mem_per_cpu is None:
        message = "--oom-max-mem needs the memory to begin with; give --mem, e.g. --mem 16G"
        yield error("survive-memory", message, "--oom-max-mem")
        return
    most = mebibytes(policy.oom_max_mem)
    largest = max((node.memory for node in request.fitting), default=0)
    per_node = most if spec.mem is not None else most * request.per_node.get("cpu", 1)
    if largest and per_node > largest:
        message = (
            f"--oom-max-mem {policy.oom_max_mem} comes to more than a node of partition"
            f" {request.partition.name} has ({largest} MiB): it would wait for ever"
        )
        yield error("survive-memory", message, "scontrol show node: RealMemory")


def _signal(request: Request) -> Iterator[Finding]:
    spec, signal = request.spec, request.spec.survive.checkpoint_signal
    if signal and spec.launch.launcher in _AGENTS:
        message = (
            f"Slurm sends {signal} to every process of a step, and that ends {spec.launch.launcher}"
            " itself; let the program look for $SLURMKIT_CHECKPOINT_FILE, and leave out"
            " --checkpoint-signal"
        )
        yield warning("survive-agent", message, "--checkpoint-signal")
    elif signal and spec.script is None and spec.launch.launcher != "none":
        message = (
            f"Slurm sends {signal} to every process of a step, and it ends those that do not catch"
            " it: a shell script around the program must start it by exec, or trap the signal"
        )
        yield warning("survive-wrapper", message, "--checkpoint-signal")
