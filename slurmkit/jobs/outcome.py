"""How a job ended, judged from slurmctld, slurmdbd and its log.

The last run's state and exit code come from sacct, or from squeue while slurmdbd does not know the
end. They can hide why a job failed. So its steps are read, for a signal or too much memory, and
the end of its log, for slurmstepd's message on memory and the rank that failed first. An
array or het job has the outcome of its worst part.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from slurmkit.errors import DatabaseDown, LogUnavailable, NoSuchJob, NotOver, Refused, SshError
from slurmkit.formats.durations import format_duration
from slurmkit.formats.job_ids import group_by_id
from slurmkit.formats.memory import parse_bytes
from slurmkit.formats.tres import parse_tres
from slurmkit.jobs.accounting_records import SacctStep, read_steps
from slurmkit.jobs.backends.protocol import Backend
from slurmkit.jobs.exit_codes import (
    ExitCode,
    describe_exit_codes,
    parse_exit_code,
    read_squeue_codes,
    settle_exit_codes,
    signal_name,
)
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.log import LogFile, find_log_path
from slurmkit.jobs.lookup import (
    is_part,
    merge_parts,
    newest_job_runs,
    read_database_runs,
    read_queue_rows,
    summarize_parts,
    worst_job,
)
from slurmkit.jobs.poller import LAG_SECONDS
from slurmkit.jobs.rank_failures import RankFailure, first_failure, with_log_lines
from slurmkit.jobs.run_history import RunRecord, read_history
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.machine import machine_of

OutcomeKind = Literal[
    "completed",
    "failed",
    "timeout",
    "preempted",
    "node_failure",
    "out_of_memory",
    "cancelled",
    "deadline",
    "boot_failure",
    "unknown",
]

NO_OUTPUT = 53
"""Signal with which slurmd ends a job if it could not open the job's output path."""
_LOG_END = 1 << 18  # bytes read from the end of a log
_AGAIN_SECONDS = 1.0  # between two questions to slurmdbd
_KINDS: dict[str, OutcomeKind] = {
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
MEMORY_MESSAGE = re.compile(
    rb"error: (?:(?:Step|Job)Id=\S+ exceeded memory limit|Exceeded job memory limit)"
)
"""slurmstepd's line in the job's log when it kills a step for its memory, 22.05 to 26.05."""


class JobRun(msgspec.Struct, frozen=True):
    """One run of a job; a requeued job has several. Times are epoch seconds."""

    state: str
    submitted: int | None
    started: int | None
    ended: int | None
    nodes: str
    exit_code: str | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended.

    Attributes:
        kind: what ended it.
        exit_code: of the batch script, 0 to 255; None if there is none or it is unknown.
        exit_codes: the two possible exit codes if sacct may have taken 128 off; else empty.
        signal: number of the signal that ended the job, or the step that its script waited for.
        signal_name: e.g. SIGSEGV.
        cancelled_by: name or uid of the user who cancelled it; None when unknown.
        started: start of the last run in epoch seconds, like `ended`.
        elapsed: seconds the last run took.
        nodes: node list of the last run.
        runs: every run, oldest first; several after requeues; empty if slurmdbd gave no answer.
        restarts: ended runs of a job sent with `--survive`, from its own history.
        log: path of the job's output; None when unknown.
        first_failure: the rank that failed first, if the log tells.
        words: all of that in one line; escape it before showing it.
        tally: for an array or het job, its parts by state; the other facts are about the worst.
        part: id of that worst part; empty for a single job.
        part_words: how that part ended, in one line.
        source: the command that gave the facts.
    """

    job_id: str
    kind: OutcomeKind
    exit_code: int | None = None
    exit_codes: tuple[int, ...] = ()
    signal: int | None = None
    signal_name: str | None = None
    cancelled_by: str | None = None
    started: int | None = None
    ended: int | None = None
    elapsed: int | None = None
    nodes: str = ""
    runs: tuple[JobRun, ...] = ()
    restarts: tuple[RunRecord, ...] = ()
    log: str | None = None
    first_failure: RankFailure | None = None
    words: str = ""
    tally: dict[str, int] = msgspec.field(default_factory=dict)
    part: str = ""
    part_words: str = ""
    source: Literal["squeue", "sacct"]

    @property
    def exit_status(self) -> int:
        """Exit status for a command that waited for the job.

        The job's own exit code, 128 + N for signal N, 1 for any other failure, 0 if completed.
        """
        if self.kind == "completed":
            return 0
        if self.kind != "failed":
            return 1
        if self.signal is not None:
            return 1 if self.signal == NO_OUTPUT else 128 + self.signal
        return self.exit_code or 1


class OutcomeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about an ended job that its JobInfo does not hold.

    Attributes:
        runs: all runs of this job in sacct, oldest first.
        restarts: ended runs in the job's own history.
        steps: allocation and steps of the last run.
        has_memory_message: whether slurmstepd wrote "exceeded memory limit" to the log.
        first_failure: the rank that failed first, if the log tells.
        log: path of the job's output.
    """

    runs: Sequence[JobInfo] = ()
    restarts: tuple[RunRecord, ...] = ()
    steps: Sequence[SacctStep] = ()
    has_memory_message: bool = False
    first_failure: RankFailure | None = None
    log: str | None = None


def read_outcome(backend: Backend, slurm: SlurmCommands, job_id: str) -> Outcome:
    """Read how a job ended; for an array or het job, its worst part.

    Raises:
        NotOver: while it, or a part of it, has not ended.
        NoSuchJob: when neither slurmctld nor slurmdbd knows it.
        DatabaseDown: when it has left the queue and slurmdbd does not answer.
    """
    parts, runs = _ended_parts(backend, slurm, job_id)
    info = worst_job(list(parts.values()))
    outcome = _read_one_outcome(slurm, info, group_by_id([info.job_id], runs)[info.job_id])
    if len(parts) == 1 and not is_part(job_id, info.job_id):
        return outcome
    whole = summarize_parts(job_id, parts)
    states = ", ".join(f"{count} {state}" for state, count in whole.tally.items())
    return msgspec.structs.replace(
        outcome,
        job_id=job_id,
        started=whole.started,
        ended=whole.ended,
        elapsed=whole.ended - whole.started if whole.ended and whole.started else None,
        nodes=whole.node_list,
        log=None,
        tally=whole.tally,
        part=info.job_id,
        part_words=outcome.words,
        words=f"{states}; {info.job_id}: {outcome.words}",
    )


def _ended_parts(
    backend: Backend, slurm: SlurmCommands, job_id: str
) -> tuple[dict[str, JobInfo], Sequence[JobInfo]]:
    """Return the last run of each part, and all runs.

    slurmdbd hears of an end some seconds after slurmctld; it gets `LAG_SECONDS`.
    """
    end = time.monotonic() + LAG_SECONDS
    while True:
        rows = read_queue_rows(backend, [job_id])[job_id]
        answered, runs = _read_runs(slurm, job_id, required=not rows)
        runs = newest_job_runs(runs, rows)
        parts = merge_parts(job_id, rows, runs)
        if not parts:
            raise NoSuchJob(f"no job {job_id} in the queue or in the accounting database")
        for info in parts.values():
            if not info.is_over:
                raise NotOver(f"job {info.job_id} has not ended ({info.state}); wait for it first")
        complete = all(info.source == "sacct" for info in parts.values())
        if complete or not answered or time.monotonic() >= end:
            return parts, runs
        time.sleep(_AGAIN_SECONDS)


def _read_runs(
    slurm: SlurmCommands, job_id: str, *, required: bool
) -> tuple[bool, Sequence[JobInfo]]:
    """Return whether slurmdbd answered, and the runs it knows."""
    try:
        return True, read_database_runs(slurm, [job_id])[job_id]
    except (DatabaseDown, Refused):  # Refused: this cluster keeps no accounts
        if required:
            raise
        return False, ()


def _read_one_outcome(slurm: SlurmCommands, info: JobInfo, runs: Sequence[JobInfo]) -> Outcome:
    """Read the steps and the log of one ended job, and judge its end."""
    (info,) = settle_exit_codes(slurm, [info])
    if info.source == "squeue":
        codes = read_squeue_codes(slurm, [info]) if info.state == "FAILED" else {}
        info = msgspec.structs.replace(info, exit_code=codes.get(info.raw_id))
        return judge_outcome(info, OutcomeEvidence(log=info.output))
    steps = read_steps(slurm, info.job_id) if info.state in {"FAILED", "TIMEOUT"} else ()
    failed = info.state == "FAILED" or _is_cancelled_by_root(info)
    end = _end_of_log(slurm, info, LogFile(stderr=True)) if failed else b""
    # If each rank has its own file, slurmstepd writes into the file of rank 0.
    first = _end_of_log(slurm, info, LogFile(rank=0)) if failed else b""
    evidence = OutcomeEvidence(
        runs=tuple(runs),
        restarts=read_history(slurm, info.job_id) if len(runs) > 1 else (),
        steps=steps,
        has_memory_message=any(map(MEMORY_MESSAGE.search, (end, first))),
        first_failure=_first_failure(slurm, info, end),
        log=_log_path(slurm, info, LogFile()) if info.started else None,
    )
    return judge_outcome(info, evidence)


def _first_failure(slurm: SlurmCommands, info: JobInfo, end: bytes) -> RankFailure | None:
    """Return the rank that failed first; its last lines may be in its own file."""
    failure = first_failure(end.decode("utf-8", "replace"))
    if failure is None or failure.lines:
        return failure
    own = _end_of_log(slurm, info, LogFile(rank=failure.rank))
    return with_log_lines(failure, own.decode("utf-8", "replace"))


def _log_path(slurm: SlurmCommands, info: JobInfo, which: LogFile) -> str | None:
    try:
        return find_log_path(slurm, info, which)
    except LogUnavailable:
        return None


def _end_of_log(slurm: SlurmCommands, info: JobInfo, which: LogFile) -> bytes:
    """Read the end of a job's file; empty when it cannot be read."""
    path = _log_path(slurm, info, which)
    try:
        if path is None:
            return b""
        with machine_of(slurm).open(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_END))
            return file.read()
    except (OSError, SshError):
        return b""


def judge_outcome(info: JobInfo, known: OutcomeEvidence) -> Outcome:
    """Return how an ended job ended."""
    codes, number = _exit_and_signal(info, known.steps)
    # Memory polling kills as root, but sacct may name the step's owner.
    over_memory = (
        (
            known.has_memory_message
            and (_is_killed(info, known.steps) or _is_cancelled_by_root(info))
        )
        or (killed_by_slurm(info, known.steps) and _over_limit(known.steps))
        or _out_of_memory_step(info, known.steps) is not None
    )
    kind = "out_of_memory" if over_memory else _KINDS.get(info.state, "unknown")
    if kind == "preempted" and info.exit_code == "0:0" and known.restarts[-1:]:
        # After a job has requeued itself in its grace time, Slurm 24.11 keeps the state PREEMPTED
        # even if the last run completes.
        kind = "completed" if known.restarts[-1].reason == "done" else kind
    ran = info.started is not None and info.ended is not None
    outcome = Outcome(
        job_id=info.job_id,
        kind=kind,
        exit_code=codes[0] if len(codes) == 1 else None,
        exit_codes=codes if len(codes) > 1 else (),
        signal=number,
        signal_name=signal_name(number) if number else None,
        cancelled_by=info.cancelled_by,
        started=info.started,
        ended=info.ended,
        elapsed=(info.ended or 0) - (info.started or 0) if ran else None,
        nodes=info.node_list,
        runs=tuple(
            JobRun(run.state, run.submitted, run.started, run.ended, run.node_list, run.exit_code)
            for run in known.runs
        ),
        restarts=known.restarts,
        log=known.log,
        first_failure=known.first_failure,
        tally=info.tally,
        source=info.source,
    )
    return msgspec.structs.replace(outcome, words=_describe(outcome, info, known))


def _is_killed(info: JobInfo, steps: Sequence[SacctStep]) -> bool:
    """Return whether a failed job lost a step to SIGKILL."""
    signals = (parse_exit_code(step.exit_code).signal for step in steps[1:])
    return info.state == "FAILED" and signal.SIGKILL in signals


def _is_cancelled_by_root(info: JobInfo) -> bool:
    """Return whether a job ended as by slurmd, where its steps together had too much memory."""
    return info.state == "CANCELLED" and info.cancelled_by == "root"


def killed_by_slurm(info: JobInfo, steps: Sequence[SacctStep]) -> bool:
    """Return whether a failed job lost a step to SIGKILL from root, as by OverMemoryKill."""
    return info.state == "FAILED" and any(
        step.state == "CANCELLED by 0" and parse_exit_code(step.exit_code).signal == signal.SIGKILL
        for step in steps[1:]
    )


def _out_of_memory_step(info: JobInfo, steps: Sequence[SacctStep]) -> SacctStep | None:
    """Return the OUT_OF_MEMORY step of a failed job: the job itself is only FAILED then."""
    lost = (step for step in steps[1:] if step.state == "OUT_OF_MEMORY")
    return next(lost, None) if info.state == "FAILED" else None


def _over_limit(steps: Sequence[SacctStep]) -> bool:
    """Return whether a step that root cancelled used more memory than was allocated."""
    limit = parse_bytes(parse_tres(steps[0].tres).get("mem", "")) if steps else None
    used = [parse_bytes(step.max_rss) or 0 for step in steps if step.state == "CANCELLED by 0"]
    return limit is not None and max(used, default=0) > limit


def _exit_and_signal(info: JobInfo, steps: Sequence[SacctStep]) -> ExitCode:
    """Return a job's exit code and signal; also the signal of a step that its script passed on.

    When a signal kills a step, srun exits with 128 more, from which sacct may take 128 off.
    """
    if info.state not in {"FAILED", "COMPLETED"}:
        return ExitCode()
    ended = parse_exit_code(info.exit_code)
    signals = [parse_exit_code(step.exit_code).signal for step in steps[1:]]
    passed_on = next((sig for sig in signals if sig and {sig, 128 + sig} & {*ended.codes}), None)
    if passed_on is None:
        return ended
    return ExitCode(ended.codes if len(ended.codes) == 1 else (128 + passed_on,), passed_on)


def _describe(outcome: Outcome, info: JobInfo, known: OutcomeEvidence) -> str:
    """Return the outcome in one line."""
    describe = _DESCRIBE.get(outcome.kind)
    words = describe(outcome, info, known) if describe else _PLAIN[outcome.kind]
    return f"{words}{describe_run(outcome)}"


def describe_run(outcome: Outcome) -> str:
    """Describe the last run, and the runs before it: `, after 0:15 on c[1-2]`."""
    after = ""
    if outcome.elapsed is not None:
        after = f", after {format_duration(max(0, outcome.elapsed))}"
    where = f" on {outcome.nodes}" if outcome.nodes else ""
    before = [run.state for run in outcome.runs[:-1]]
    earlier = f"; this was run {len(outcome.runs)}, earlier runs: {', '.join(before)}"
    return f"{after}{where}{earlier if before else ''}"


def _describe_failed(outcome: Outcome, info: JobInfo, known: OutcomeEvidence) -> str:
    # The job's own exit status may come from a rank that srun ended after the first failure.
    if known.first_failure:
        return f"failed: {known.first_failure.message}"
    if outcome.signal == NO_OUTPUT:
        where = outcome.log or "its output path"
        return f"failed: {where} or its directory could not be opened on the node"
    if killed_by_slurm(info, known.steps):
        return "failed: a step was killed (SIGKILL) by Slurm or root, perhaps for too much memory"
    if outcome.signal is not None:
        return f"failed: ended by signal {outcome.signal} ({outcome.signal_name})"
    codes = outcome.exit_codes
    if outcome.exit_code is not None:
        codes = (outcome.exit_code,)
    return (
        f"failed with exit code {describe_exit_codes(codes)}"
        if codes
        else "failed; its exit code is unknown"
    )


def _describe_out_of_memory(outcome: Outcome, info: JobInfo, known: OutcomeEvidence) -> str:
    del outcome
    if info.state == "OUT_OF_MEMORY":
        return "out of memory"
    if info.state == "CANCELLED":
        return (
            "out of memory: its steps together used more than its limit, and Slurm ended it"
            " (source: the message in the log)"
        )
    limit = parse_tres(known.steps[0].tres).get("mem") if known.steps else None
    of = f" of {limit}" if limit else ""
    if lost := _out_of_memory_step(info, known.steps):
        return f"out of memory: step {lost.step_id} used more than its limit{of} (source: sacct)"
    source = "the step's message in the log" if known.has_memory_message else "memory use in sacct"
    return f"out of memory: a step used more than its limit{of} and was killed (source: {source})"


def _describe_cancelled(outcome: Outcome, info: JobInfo, known: OutcomeEvidence) -> str:
    del known
    if outcome.cancelled_by:
        return f"cancelled by {outcome.cancelled_by}"
    if info.reason == "DependencyNeverSatisfied":
        return f"cancelled by Slurm ({info.reason})"
    return "cancelled"  # the reason in squeue is why the job waited before


def _describe_timeout(outcome: Outcome, info: JobInfo, known: OutcomeEvidence) -> str:
    del outcome
    limit = info.time_limit or (known.steps[0].time_limit if known.steps else "")
    return f"ran into its time limit{f' of {limit}' if limit else ''}"


_DESCRIBE: dict[str, Callable[[Outcome, JobInfo, OutcomeEvidence], str]] = {
    "failed": _describe_failed,
    "out_of_memory": _describe_out_of_memory,
    "cancelled": _describe_cancelled,
    "timeout": _describe_timeout,
}
_PLAIN = {
    "completed": "completed",
    "preempted": "preempted by another job, and not requeued",
    "node_failure": "ended because a node failed",
    "deadline": "given up: it could not end before its deadline",
    "boot_failure": "ended because a node did not boot",
    "unknown": "unknown: neither slurmctld nor slurmdbd knows how it ended",
}
