"""Times of a job: begin, deadline, warning signal, and what happens at each of its endings.

The endings matter to a job that survives them (`--survive`): where the cluster prevents it, a
finding says so.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator

from slurmkit.formats.durations import format_minutes
from slurmkit.formats.memory import format_mib
from slurmkit.planning.checks.limits_use import time_limit_minutes
from slurmkit.planning.request import Request
from slurmkit.planning.survival import parse_kill_wait, preempt_mode_of, sends_user_signal
from slurmkit.spec.findings import Finding, Pairs, error, note, warning
from slurmkit.spec.survival import ENDINGS, size_in_mib

_RELATIVE = re.compile(r"now(?:\s*\+\s*(\d+)\s*([a-z]*))?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DEFAULT_SIGNAL_SECONDS = 60  # sbatch(1) --signal


def parse_begin_time(text: str, now: float) -> float | None:
    """Parse sbatch's `now+1hour` or `2026-12-24T18:00` to epoch seconds; None for other forms.

    Local times are in this machine's time zone, as sbatch takes them.
    """
    match = _RELATIVE.fullmatch(text.strip().lower())
    if match:
        return now + int(match[1] or 0) * _UNITS.get((match[2] or "s")[:1], 1)
    if not _DATE.fullmatch(text):
        return None
    try:
        return dt.datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return None


def begin(request: Request) -> Iterator[Finding]:
    """Warn of a begin time in the past, which Slurm takes as now."""
    text, now = request.spec.begin, request.standing.taken
    at = parse_begin_time(text, now) if text else None
    if at is not None and at < now - 60:
        message = f"--begin={text} has passed: the job may start at once"
        yield warning("begin-passed", message, "--begin", (("begin", ""),))


def deadline(request: Request) -> Iterator[Finding]:
    """Report a deadline that has passed, or that comes before the job could end."""
    text, now = request.spec.deadline, request.standing.taken
    at = parse_begin_time(text, now) if text else None
    if at is None:
        return
    start = (
        max(now, parse_begin_time(request.spec.begin, now) or now) if request.spec.begin else now
    )
    left, time = int(at - start) // 60, time_limit_minutes(request)
    if left <= 0:
        message = f"--deadline={text} has passed; sbatch would refuse it"
        yield error("deadline-passed", message, "--deadline", (("deadline", ""),))
    elif time is not None and time > left and request.spec.time_min is None:
        message = (
            f"asks for {format_minutes(time)}; its deadline is in {format_minutes(left)};"
            " sbatch would refuse it"
        )
        fix: Pairs = (("time", format_minutes(max(left - 1, 1))),)
        yield error("deadline-too-near", message, "--deadline", fix)


def warning_signal(request: Request) -> Iterator[Finding]:
    """Warn of a signal that Slurm would send as soon as the job starts."""
    text, time = request.spec.signal, time_limit_minutes(request)
    if text is None or time is None or request.spec.survive:  # checks.survival covers these jobs
        return
    name, _, seconds = text.partition("@")
    ahead = int(seconds) if seconds else _DEFAULT_SIGNAL_SECONDS
    if ahead >= time * 60:
        message = (
            f"--signal={text} is sent {ahead} s before the end of a job of {format_minutes(time)}:"
            " as soon as it starts"
        )
        fix: Pairs = (("signal", f"{name}@{max(time * 30, 1)}"),)
        yield warning("signal-at-start", message, "--signal", fix)


_SIGNAL_EARLY = 60  # seconds by which Slurm may send a signal early (sbatch(1) --signal)
_SHORT_KILL_WAIT = 10  # seconds; enough for three scontrol calls
_AGENTS = ("torchrun", "accelerate", "deepspeed")
_ENDING_WORDS = {
    "timeout": "at its time limit",
    "preempt": "when preempted",
    "node-fail": "when a node is lost",
    "oom": "out of memory",
}
_REQUEUE_WORDS = {"requeue": "it goes back to the queue", "hold": "it goes back to the queue, held"}


def endings(request: Request) -> Iterator[Finding]:
    """Describe what happens at each ending: time limit, preemption, lost node, out of memory."""
    policy = request.spec.survive
    if not policy:
        return
    words = {"timeout": _timeout, "preempt": _preempt, "node-fail": _node_fail, "oom": _oom}
    for ending in ENDINGS:
        action = policy.action(ending)
        what_happens = words[ending](request, action) if action else "left to Slurm"
        yield note(
            f"survive-{ending}", f"{_ENDING_WORDS[ending]}: {what_happens}", f"--on-{ending}"
        )
    by_itself = policy.on_timeout or policy.on_preempt
    but = ", unless with exit code 75" if by_itself in ("requeue", "hold") else ""
    yield note(
        "survive-limit",
        f"it comes back {policy.max_restarts} times at most; it does not come back when its command"
        f" itself fails{but}",
        "--max-restarts",
    )


def _checkpoint_words(request: Request) -> str:
    policy = request.spec.survive
    signal = policy.checkpoint_signal
    by = f"by {signal} and a file" if signal else "by a file ($SLURMKIT_CHECKPOINT_FILE)"
    return f"the work is asked for a checkpoint {by}"


def _timeout(request: Request, action: str) -> str:
    policy = request.spec.survive
    before = (
        f"{policy.grace} to {policy.grace + _SIGNAL_EARLY} s before it {_checkpoint_words(request)}"
    )
    if action == "fail":
        return f"{before}, and the job ends as TIMEOUT"
    return (
        f"{before}; what has not ended {policy.grace} s later is stopped,"
        f" and {_REQUEUE_WORDS[action]}"
    )


def _preempt(request: Request, action: str) -> str:
    config, mode = request.capabilities.config, _mode(request)
    if mode in ("off", "within"):
        return "Slurm does not preempt such jobs here"
    if mode == "suspend":
        return "Slurm suspends such a job, and resumes it later"
    grace = request.qos.grace_time if request.qos else 0
    tell = _checkpoint_words(request) if sends_user_signal(config) else "its steps get SIGTERM"
    tell = f"{tell}, {grace} s before it is ended" if grace else "its steps get SIGTERM at once"
    if mode == "requeue":
        does = {
            "requeue": "Slurm itself puts it back in the queue",
            "hold": "Slurm itself puts it back in the queue; its next run puts itself on hold",
            "fail": "Slurm itself puts it back in the queue; its next run fails at once",
        }
        return f"{tell}; {does[action]}"
    return f"{tell}; {_REQUEUE_WORDS.get(action, 'it ends as PREEMPTED')}"


def _node_fail(_: Request, action: str) -> str:
    does = {
        "requeue": "Slurm itself puts it back in the queue",
        "hold": "Slurm puts it back in the queue; its next run puts itself on hold",
        "fail": "its next run fails at once",
    }
    return f"{does[action]}; work that still runs on a lost node stops itself"


def _oom(request: Request, action: str) -> str:
    policy = request.spec.survive
    if action == "fail":
        return "the job fails"
    if policy.oom_max_mem is None:
        return _REQUEUE_WORDS[action]
    return f"{_REQUEUE_WORDS[action]}, with twice the memory, {policy.oom_max_mem} at most"


def _mode(request: Request) -> str:
    qos = request.qos.name if request.qos else None
    return preempt_mode_of(request.capabilities, request.standing, request.partition, qos)


def survival_conflicts(request: Request) -> Iterator[Finding]:
    """Report settings and options that prevent survival, or that are likely mistakes."""
    if not request.spec.survive:
        return
    yield from _time(request)
    yield from _settings(request)
    yield from _memory(request)
    yield from _signal(request)


def _time(request: Request) -> Iterator[Finding]:
    policy, time = request.spec.survive, time_limit_minutes(request)
    if time is None and policy.on_timeout:
        message = "the job has no time limit here, so it never ends at one; give --time"
        yield warning("survive-no-limit", message, "--on-timeout")
    elif time is not None and policy.grace >= time * 60:
        message = (
            f"--grace {policy.grace} is not shorter than the time limit of {format_minutes(time)}:"
            " the work would be asked to stop as soon as it starts;"
            f" give less, e.g. --grace {max(1, time * 6)}"
        )
        yield error("survive-grace", message, "--grace")
    elif time is not None and policy.grace + _SIGNAL_EARLY >= time * 60:
        message = (
            f"Slurm may send its warning {_SIGNAL_EARLY} s early,"
            " so the work may be asked to stop as soon as it starts:"
            f" --grace {policy.grace} and a limit of {format_minutes(time)}"
        )
        yield warning("survive-early", message, "sbatch(1) --signal")


def _settings(request: Request) -> Iterator[Finding]:
    policy, config, mode = request.spec.survive, request.capabilities.config, _mode(request)
    wait = parse_kill_wait(config)
    if wait < _SHORT_KILL_WAIT:
        message = (
            f"Slurm kills a job {wait} s after SIGTERM (KillWait); that is hardly enough time to"
            " requeue it with more memory"
        )
        yield warning("survive-kill-wait", message, "scontrol show config: KillWait")
    if config.get("JobRequeue") == "0" and policy.requeues:
        message = "this cluster requeues only jobs that ask for it; this job does, with --requeue"
        yield note("survive-job-requeue", message, "scontrol show config: JobRequeue")
    if policy.on_preempt and mode in ("requeue", "cancel"):
        yield from _preemption(request, mode)
    if request.spec.open_mode == "truncate":
        message = "--open-mode=truncate: each run would wipe the output of those before it"
        yield warning("survive-truncate", message, "--open-mode", (("open-mode", "append"),))


def _preemption(request: Request, mode: str) -> Iterator[Finding]:
    config, grace = request.capabilities.config, request.qos.grace_time if request.qos else 0
    if not grace:
        message = (
            "preempted jobs get no grace time here, so the work is not asked for a checkpoint;"
            " let it save regularly"
        )
        yield warning("survive-no-grace", message, "sacctmgr show qos: GraceTime")
    elif not sends_user_signal(config) and request.spec.survive.checkpoint_signal:
        signal = request.spec.survive.checkpoint_signal
        message = (
            f"a preemption sends SIGTERM to the steps, not {signal}, because send_user_signal is"
            " not set here; let the work write its checkpoint at SIGTERM, too"
        )
        yield warning("survive-no-signal", message, "scontrol show config: PreemptParameters")
    if mode == "cancel":
        message = (
            "Slurm cancels preempted jobs here, and this job requeues itself before that; Slurm may"
            " still show it as PREEMPTED at the end, so let jobs that follow it wait with afterany"
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
    most = size_in_mib(policy.oom_max_mem)
    largest = max((node.memory for node in request.fitting), default=0)
    per_node = most if spec.mem is not None else most * request.per_node.get("cpu", 1)
    if largest and per_node > largest:
        message = (
            f"--oom-max-mem {policy.oom_max_mem} comes to more than a node of partition"
            f" {request.partition.name} has ({format_mib(largest)}): it would wait for ever"
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
            f"Slurm sends {signal} to every process of a step, and {signal} ends each process that"
            " does not catch it; a shell script around the program must start the program by exec,"
            " or trap the signal"
        )
        yield warning("survive-wrapper", message, "--checkpoint-signal")
