"""How a job ended, judged from what slurmctld, slurmdbd and its log say; no I/O."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence

import msgspec

from slurmkit.durations import format_duration
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.outcome import NO_OUTPUT, Evidence, Kind, Outcome, Run
from slurmkit.jobs.sacct import Step
from slurmkit.tres import parse_tres

_KINDS: dict[str, Kind] = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "TIMEOUT": "timeout",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node_failure",
    "OUT_OF_MEMORY": "out_of_memory",
    "CANCELLED": "cancelled",
    "DEADLINE": "deadline",
    "BOOT_FAIL": "boot_failure",
}
MEMORY_MESSAGE = re.compile(rb"error: (?:Step|Job)Id=\S+ exceeded memory limit")
"""What slurmstepd writes to the job's log when it kills a step for its memory, 22.05 to 26.05."""
_UNITS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def outcome_of(info: JobInfo, known: Evidence) -> Outcome:
    """Say how a job that is over has ended."""
    code, number = _exit(info, known.steps)
    # What polls for memory kills as root, but sacct may name the step's owner.
    said = known.memory_said and _is_killed(info, known.steps)
    over_memory = said or (killed_by_slurm(info, known.steps) and _over_limit(known.steps))
    over_memory = over_memory or _lost_to_memory(info, known.steps) is not None
    kind = "out_of_memory" if over_memory else _KINDS.get(info.state, "unknown")
    if kind == "preempted" and info.exit_code == "0:0" and known.restarts[-1:]:
        # Of a job that requeued itself in its grace Slurm 24.11 says so after its last run, too.
        kind = "completed" if known.restarts[-1].reason == "done" else kind
    ran = info.started is not None and info.ended is not None
    outcome = Outcome(
        job_id=info.job_id,
        kind=kind,
        exit_code=code,
        signal=number,
        signal_name=signal_name(number) if number else None,
        cancelled_by=info.cancelled_by,
        started=info.started,
        ended=info.ended,
        elapsed=(info.ended or 0) - (info.started or 0) if ran else None,
        nodes=info.node_list,
        runs=tuple(map(_run, known.runs)),
        restarts=known.restarts,
        log=known.log,
        first_failure=known.first_failure,
        tally=info.tally,
        source=info.source,
    )
    return msgspec.structs.replace(outcome, words=_words(outcome, info, known))


def _is_killed(info: JobInfo, steps: Sequence[Step]) -> bool:
    ends = (parse_exit(step.exit_code)[1] for step in steps[1:])
    return info.state == "FAILED" and signal.SIGKILL in ends


def killed_by_slurm(info: JobInfo, steps: Sequence[Step]) -> bool:
    """Whether a failed job lost a step to SIGKILL from root: what OverMemoryKill does."""
    return info.state == "FAILED" and any(
        step.state == "CANCELLED by 0" and parse_exit(step.exit_code)[1] == signal.SIGKILL
        for step in steps[1:]
    )


def _lost_to_memory(info: JobInfo, steps: Sequence[Step]) -> Step | None:
    """The step of a failed job that ran out of memory: the job itself is only FAILED then."""
    lost = (step for step in steps[1:] if step.state == "OUT_OF_MEMORY")
    return next(lost, None) if info.state == "FAILED" else None


def _over_limit(steps: Sequence[Step]) -> bool:
    limit = _bytes(parse_tres(steps[0].tres).get("mem", "")) if steps else None
    used = [_bytes(step.max_rss) or 0 for step in steps if step.state == "CANCELLED by 0"]
    return limit is not None and max(used, default=0) > limit


def _bytes(text: str) -> float | None:
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "")
    try:
        return float(number) * float(1024 ** _UNITS.get(unit, 0))
    except ValueError:
        return None


def parse_exit(text: str | None) -> tuple[int | None, int | None]:
    """Exit code and signal of `code:signal`; a signal ended it without a code."""
    code, _, number = (text or "").partition(":")
    if not code.isdigit() or not number.isdigit():
        return None, None
    return (None, int(number)) if int(number) else (int(code), None)


def _exit(info: JobInfo, steps: Sequence[Step]) -> tuple[int | None, int | None]:
    """Exit code and signal, also of the step whose end the script passed on.

    srun ends with the signal's number (to 24.11) or with 128 more when its step was killed.
    """
    if info.state not in {"FAILED", "COMPLETED"}:
        return None, None
    code, number = parse_exit(info.exit_code)
    signals = [parse_exit(step.exit_code)[1] for step in steps[1:]]
    passed_on = next((at for at in signals if at and code in {at, 128 + at}), None)
    return code, passed_on or number


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11; `signal 53` for what the system has no name for."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _run(info: JobInfo) -> Run:
    facts = (info.state, info.submitted, info.started, info.ended, info.node_list, info.exit_code)
    return Run(*facts)


def _words(outcome: Outcome, info: JobInfo, known: Evidence) -> str:
    say = _SAY.get(outcome.kind)
    words = say(outcome, info, known) if say else _PLAIN[outcome.kind]
    if outcome.elapsed is not None:
        words += f", after {format_duration(max(0, outcome.elapsed))}"
    words += f" on {outcome.nodes}" if outcome.nodes else ""
    before = [run.state for run in outcome.runs[:-1]]
    return f"{words}; run {len(outcome.runs)}, before it {', '.join(before)}" if before else words


def _failed(outcome: Outcome, info: JobInfo, known: Evidence) -> str:
    # srun's own end is then that of whoever was ended for it, mostly SIGTERM.
    first = known.first_failure
    return f"failed: {first.words}" if first else _ended_badly(outcome, info, known)


def _ended_badly(outcome: Outcome, info: JobInfo, known: Evidence) -> str:
    if outcome.signal == NO_OUTPUT:
        where = outcome.log or "its output path"
        return f"failed: {where} or its directory could not be opened on the node"
    if killed_by_slurm(info, known.steps):
        return "failed: a step was killed (SIGKILL) by Slurm or root; perhaps for its memory"
    if outcome.signal is not None:
        return f"failed: ended by signal {outcome.signal} ({outcome.signal_name})"
    if outcome.exit_code is None:
        return "failed; its exit code is unknown"
    return f"failed with exit code {outcome.exit_code}"


def _out_of_memory(outcome: Outcome, info: JobInfo, known: Evidence) -> str:
    del outcome
    if info.state == "OUT_OF_MEMORY":
        return "out of memory"
    limit = parse_tres(known.steps[0].tres).get("mem") if known.steps else None
    of = f" of {limit}" if limit else ""
    if lost := _lost_to_memory(info, known.steps):
        return f"out of memory: step {lost.step_id} used more than its limit{of}, sacct says"
    says = "by the step's message" if known.memory_said else "by the memory sacct saw"
    return f"out of memory: a step used more than its limit{of} and was killed, {says}"


def _cancelled(outcome: Outcome, info: JobInfo, known: Evidence) -> str:
    del known
    if outcome.cancelled_by:
        return f"cancelled by {outcome.cancelled_by}"
    if info.reason == "DependencyNeverSatisfied":
        return f"cancelled by Slurm ({info.reason})"
    return "cancelled"  # its reason is that for which it waited before


def _timeout(outcome: Outcome, info: JobInfo, known: Evidence) -> str:
    del outcome
    limit = info.time_limit or (known.steps[0].time_limit if known.steps else "")
    return f"ran into its time limit{f' of {limit}' if limit else ''}"


_SAY: dict[str, Callable[[Outcome, JobInfo, Evidence], str]] = {
    "failed": _failed,
    "out_of_memory": _out_of_memory,
    "cancelled": _cancelled,
    "timeout": _timeout,
}
_PLAIN = {
    "completed": "completed",
    "preempted": "preempted by another job, and not requeued",
    "node_failure": "ended by the failure of a node",
    "deadline": "given up: it could not end before its deadline",
    "boot_failure": "ended because a node did not boot",
    "unknown": "unknown: neither slurmctld nor slurmdbd knows its end",
}
