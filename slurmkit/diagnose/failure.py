"""The explanation of how a job ended: from sacct, its nodes, its log, and what exit codes mean."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slurmkit.diagnose.log_scan import LogScan, scan_log_file
from slurmkit.diagnose.model import EndExplanation, Explanation, FailedStep
from slurmkit.diagnose.probe import STEP_NAME
from slurmkit.diagnose.snapshot import expand_node_list
from slurmkit.errors import BadInput, LogUnavailable, SlurmError
from slurmkit.formats import display
from slurmkit.formats.durations import format_duration, format_minutes, parse_time_limit
from slurmkit.formats.job_ids import queryable_id
from slurmkit.formats.memory import format_mib, memory_option, parse_mib
from slurmkit.formats.scontrol import parse_tres_counts
from slurmkit.jobs.accounting_records import SacctStep, read_steps
from slurmkit.jobs.exit_codes import sacct_exit_code, settle_step_codes
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.log import LogFile
from slurmkit.jobs.outcome import NO_OUTPUT, Outcome, describe_run
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.machine import Machine, machine_of
from slurmkit.slurm.records import read_records
from slurmkit.state.cache import load_capabilities
from slurmkit.state.nodes import NODES_COMMAND, parse_nodes
from slurmkit.state.queue import QueueFilter, read_queue

if TYPE_CHECKING:
    from slurmkit.jobs.job import Job, JobCluster

_STEP_FIELDS = ("JobID", "State", "ExitCode", "NodeList", "JobName")
_NOT_FAILED = ("COMPLETED", "RUNNING", "PENDING")
_STEP_LOST_MEMORY = (
    "a step ran out of memory, and a process of it may have been killed: the job completed, because"
    " its script ended with exit code 0"
)
_SOON = 120  # seconds after the end of a job within which its preemptor starts


def explain_end(cluster: JobCluster, job_id: str) -> Explanation:
    """Explain how a job ended.

    Raises:
        NoSuchJob: when neither slurmctld nor slurmdbd knows it.
        DatabaseDown: when only slurmdbd could know it and does not answer.
    """
    job = cluster.job(job_id)
    info, outcome = job.info(), job.outcome()
    if len(info.tally) > 1 or sum(info.tally.values()) > 1:
        job = cluster.job(worst_part(info, outcome))
        info, outcome = job.info(), job.outcome()
    log, trouble, reading = _log(job, info, outcome)
    outcome = _correct_from_log(outcome, reading)
    means, advice = _not_started(outcome, reading) or _means(outcome)
    # If Slurm ended the job, its log only repeats that. Show a line of it only if it names a cause.
    shows_error = reading.is_cause or outcome.kind == "failed"
    failed = outcome.first_failure
    last_line = (
        [f"last line of rank {failed.rank}: {failed.lines[-1]}"] if failed and failed.lines else []
    )
    steps = tuple(_steps(cluster.slurm, info.job_id))
    if outcome.kind == "completed" and any(step.state == "OUT_OF_MEMORY" for step in steps):
        means, advice = _STEP_LOST_MEMORY, END_ADVICE["out_of_memory"]
    details = [
        *([means] if means else []),
        *reading.tasks,
        *last_line,
        *read_end_facts(cluster.slurm, info, outcome),
    ]
    ended = EndExplanation(
        kind=outcome.kind,
        meaning=outcome.words,
        advice=advice,
        details=tuple(details),
        exit_code=info.exit_code,
        ended=info.ended,
        steps=steps,
        first_error=reading.first_error if shows_error else None,
        error_means=reading.means if shows_error else "",
        log=log,
        log_trouble=trouble,
        last_lines=reading.last,
    )
    return Explanation(
        job_id=info.job_id,
        name=info.name,
        user=info.user,
        account=info.account,
        partition=info.partition,
        state=info.state,
        answer=_answer(info, outcome, reading),
        ended=ended,
        source=info.source,
        taken=time.time(),
    )


def worst_part(info: JobInfo, outcome: Outcome) -> str:
    """Return the id of the array task or het component that the outcome is about."""
    return queryable_id(outcome.part) if outcome.part else info.job_id


def _answer(info: JobInfo, outcome: Outcome, reading: LogScan) -> str:
    when = f", {display.format_moment(info.ended, time.time())}" if info.ended else ""
    answer = f"job {info.job_id} {outcome.words}{when}"
    if outcome.kind == "failed" and reading.first_error is not None:
        return f"{answer}: {reading.first_error.text}"
    return answer


def _correct_from_log(outcome: Outcome, reading: LogScan) -> Outcome:
    """Correct a kill to out-of-memory if slurmstepd's message in the log says so.

    With JobAcctGatherParams=OverMemoryKill, sacct may say that the user killed the step.
    """
    if outcome.kind != "failed" or outcome.signal != signal.SIGKILL or not reading.over_memory:
        return outcome
    meaning = (
        "out of memory: a step used more than its limit and was killed (source: the step's message"
        " in the log)"
    )
    words = f"{meaning}{describe_run(outcome)}"
    return msgspec.structs.replace(outcome, kind="out_of_memory", words=words)


def _not_started(outcome: Outcome, reading: LogScan) -> tuple[str, str] | None:
    """Return what it means, and what to do, if the program of a failed step was never started.

    The step's exit code is then the number of the error (errno), which no program chose.
    """
    if outcome.kind != "failed" or reading.not_started is None:
        return None
    program, error = reading.not_started
    means, advice = NOT_STARTED[error]
    return f"{program} could not be started: {means}", advice


def _means(outcome: Outcome) -> tuple[str, str]:
    if outcome.kind == "completed":
        return "", ""
    if outcome.kind != "failed":
        return "", END_ADVICE.get(outcome.kind, "")
    if outcome.first_failure is not None:
        code = outcome.first_failure.exit_code
        return explain_exit_code(code) if code else ("", "")
    if outcome.signal is not None:
        return explain_signal(outcome.signal)
    if outcome.exit_codes:
        several = [(code, *explain_exit_code(code)) for code in outcome.exit_codes if code]
        meaning = "; or ".join(f"{code}: {means}" for code, means, _ in several)
        return meaning, "; or ".join(dict.fromkeys(advice for *_, advice in several))
    return explain_exit_code(outcome.exit_code) if outcome.exit_code else ("", "")


def _steps(slurm: SlurmCommands, job_id: str) -> Iterator[FailedStep]:
    """Read the failed steps of the last run from sacct."""
    try:
        records = read_records(slurm, ["sacct", f"--jobs={job_id}"], _STEP_FIELDS)
    except SlurmError:
        return
    steps = list(failed_steps(records))
    codes = {step.step_id: sacct_exit_code(slurm, step.exit_code, step.state) for step in steps}
    codes = settle_step_codes(slurm, job_id, codes)
    for step in steps:
        yield msgspec.structs.replace(step, exit_code=codes[step.step_id])


def failed_steps(records: Iterable[Sequence[str]]) -> Iterator[FailedStep]:
    """Yield the failed steps among sacct's records; a step's id has a dot."""
    for step_id, state, code, nodes, name in records:
        if "." in step_id and not state.startswith(_NOT_FAILED) and name != STEP_NAME:
            yield FailedStep(step_id=step_id, name=name, state=state, exit_code=code, nodes=nodes)


def _log(job: Job, info: JobInfo, outcome: Outcome) -> tuple[str | None, str, LogScan]:
    """Return the path of the log, why it could not be read (empty if it was), and what it says."""
    paths: list[str] = []
    for which in (LogFile(stderr=True), LogFile()):
        try:
            path = job.log_path(which)
        except (LogUnavailable, SlurmError) as error:
            return None, str(error), LogScan()
        paths += [path] if path and path not in paths else []
    if info.started is None:
        return None, "it never started, so it wrote nothing", LogScan()
    if outcome.signal == NO_OUTPUT:
        return paths[0] if paths else None, "it could not be opened: no output is saved", LogScan()
    return _read_telling_log(paths, machine_of(job.cluster.slurm))


def _read_telling_log(paths: list[str], on: Machine) -> tuple[str | None, str, LogScan]:
    """Read standard error; if it is empty, read standard output."""
    trouble = "Slurm does not say where its log is"
    for path in paths:
        try:
            reading = scan_log_file(path, on)
        except OSError as error:
            trouble = f"{path}: {error.strerror}, as seen from here"
            continue
        trouble = ""
        if reading.last or path == paths[-1]:
            return path, "", reading
    return (paths[0] if paths else None), trouble, LogScan()


def read_end_facts(slurm: SlurmCommands, info: JobInfo, outcome: Outcome) -> list[str]:
    """Return facts that help to understand why a job ended; unreadable ones are left out."""
    find_out = _BY_KIND.get(outcome.kind)
    if outcome.kind == "failed" and outcome.signal == NO_OUTPUT:
        return list(_output(outcome)) if machine_of(slurm).is_here else []
    try:
        return list(find_out(slurm, info, outcome)) if find_out else []
    except SlurmError:
        return []


def _output(outcome: Outcome) -> Iterator[str]:
    """Describe why the output file cannot be opened, as seen from this machine by this user."""
    if outcome.log is None:
        return
    path = Path(outcome.log)
    folder = path.parent
    try:
        yield from _folder(path, folder)
    except OSError as error:
        yield f"{folder}: {error.strerror}"


def _folder(path: Path, folder: Path) -> Iterator[str]:
    if not folder.exists():
        missing = next(p for p in [*reversed(folder.parents), folder] if not p.exists())
        yield f"{missing} does not exist; make it before you submit: mkdir -p {folder}"
    elif not folder.is_dir():
        yield f"{folder} is not a directory"
    elif path.is_dir():
        yield f"{path} is a directory, not a file"
    elif not os.access(folder if not path.exists() else path, os.W_OK):
        yield f"you may not write {path if path.exists() else folder}"
    else:
        yield f"you can write to {folder} from here: is it on a file system that the nodes share?"


def _timeout(slurm: SlurmCommands, info: JobInfo, outcome: Outcome) -> Iterator[str]:
    del outcome
    limits = longer_time_limit(slurm, info)
    if limits is None:
        return
    time, most = limits
    allows = f" (partition {info.partition} allows {format_minutes(most)})" if most else ""
    if time:
        yield f"to ask for more: --time={time}{allows}"
    else:
        yield (
            f"partition {info.partition} allows no more: let the job save its state, and go on in"
            " a new job"
        )


def longer_time_limit(slurm: SlurmCommands, info: JobInfo) -> tuple[str, int | None] | None:
    """Return a longer time limit after a timeout, and the partition's maximum in minutes.

    The limit is empty if the partition allows no longer one. The result is None if the old limit
    is unknown.

    Raises:
        SlurmError: when Slurm does not answer.
    """
    steps = read_steps(slurm, info.job_id)
    try:
        limit = parse_time_limit(info.time_limit or (steps[0].time_limit if steps else ""))
    except BadInput:
        return None
    if limit is None:
        return None
    partition = load_capabilities(slurm).partition(info.partition)
    most = partition.max_time if partition else None
    twice = limit * 2 if most is None else min(limit * 2, most * 60)
    return (format_duration(twice) if twice > limit else "", most)


def _out_of_memory(slurm: SlurmCommands, info: JobInfo, outcome: Outcome) -> Iterator[str]:
    del outcome
    steps = read_steps(slurm, info.job_id)
    had = parse_tres_counts(steps[0].tres).get("mem") if steps else None
    used = max((_mebibytes(step) for step in steps), default=0)
    if had:
        seen = f"; the most measured for one task is {format_mib(used)}" if used else ""
        yield f"it had {format_mib(had)} in all{seen} (sacct)"
        yield f"to ask for more: --mem={_more_memory_option(had, used, info)}"


def more_memory(slurm: SlurmCommands, info: JobInfo) -> str | None:
    """Return the memory per node to request after an out-of-memory; None if the old is unknown.

    Raises:
        SlurmError: when slurmdbd does not answer.
    """
    steps = read_steps(slurm, info.job_id)
    had = parse_tres_counts(steps[0].tres).get("mem") if steps else None
    return _more_memory_option(had, max(map(_mebibytes, steps)), info) if had else None


def _more_memory_option(had: int, used: int, info: JobInfo) -> str:
    return memory_option(
        max(2 * had, used * 3 // 2) // max(1, len(expand_node_list(info.node_list)))
    )


def _mebibytes(step: SacctStep) -> int:
    return parse_mib(step.max_rss, rounding="down", plain="") or 0


def _nodes(slurm: SlurmCommands, info: JobInfo, outcome: Outcome) -> Iterator[str]:
    del outcome
    own = set(expand_node_list(info.node_list))
    for node in parse_nodes(slurm.run(NODES_COMMAND)):
        if node.name in own:
            why = f": {node.reason}" if node.reason else ""
            yield f"{node.name} is {node.state} now{why}"


def _preempted(slurm: SlurmCommands, info: JobInfo, outcome: Outcome) -> Iterator[str]:
    """Name the jobs that started on the nodes right after: Slurm does not record preemptors."""
    del outcome
    own = set(expand_node_list(info.node_list))
    for row in read_queue(slurm, QueueFilter(states=("all",))).rows:
        since = None if info.ended is None or row.started is None else row.started - info.ended
        if since is None or not -5 <= since <= _SOON or row.raw_id == info.raw_id:
            continue
        if own & set(expand_node_list(row.node_list)):
            yield (
                f"job {row.job_id} of {row.user} (QOS {row.qos}) started on {row.node_list}"
                f" {display.format_seconds(since)} after"
            )


_BY_KIND: dict[str, Callable[[SlurmCommands, JobInfo, Outcome], Iterator[str]]] = {
    "timeout": _timeout,
    "out_of_memory": _out_of_memory,
    "node_failure": _nodes,
    "boot_failure": _nodes,
    "preempted": _preempted,
}

# Meaning and advice. A code above 128 is 128 plus the signal that ended the last command.
EXIT_CODES: dict[int, tuple[str, str]] = {
    1: ("the script's last command failed", "see the error in its log"),
    2: ("a command was called wrongly, or its input was wrong", "see the error in its log"),
    126: (
        "a command was found and could not be run",
        "make it executable (chmod +x), and check that it is built for the nodes' CPUs",
    ),
    127: (
        "a command was not found",
        "load its module or activate its environment in the script, or give its full path",
    ),
    255: ("a command ended with an error of its own, as ssh and MPI do", "see its log"),
}
NOT_STARTED: dict[str, tuple[str, str]] = {
    "No such file or directory": (
        "the node has no such file",
        "check its name and the working directory (--chdir), or give its full path",
    ),
    "Permission denied": (
        "it is not executable",
        "make it executable (chmod +x); a batch script is given with --script FILE",
    ),
    "Exec format error": (
        "it is no program for this node",
        "give a script its #! line, or --script FILE; build a program for the nodes' CPUs",
    ),
}
"""Meaning and advice by the error of execve(2)."""
SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGKILL: (
        "it was killed",
        "most often it used too much memory: ask for more with --mem; else find out who killed it",
    ),
    signal.SIGSEGV: (
        "it used memory that is not its own",
        "a bug in the program, or a library that does not fit it; use a debugger or a core file",
    ),
    signal.SIGBUS: (
        "a bus error",
        "often /dev/shm is full (data loader workers), or a file was truncated while it was read",
    ),
    signal.SIGABRT: (
        "it aborted itself",
        "an assertion failed, or NCCL's watchdog ended it; see the error in its log",
    ),
    signal.SIGILL: (
        "it used an instruction that this CPU does not have",
        "it was built for other CPUs; build it on the node, or choose nodes with --constraint",
    ),
    signal.SIGFPE: ("an arithmetic error, such as a division by 0", "see the error in its log"),
    signal.SIGTERM: ("it was asked to end", "see who cancelled it, or which command ended it"),
    signal.SIGINT: ("it was interrupted", "see which command interrupted it"),
    signal.SIGPIPE: ("it wrote to a command that had ended", "see which command ended first"),
    signal.SIGXCPU: ("it used up its CPU time (ulimit -t)", "ask your administrator for the limit"),
    NO_OUTPUT: (
        "its output file could not be opened on the node",
        "give an --output in a directory that exists on the node too, and that you can write to",
    ),
}
END_ADVICE: dict[str, str] = {
    "timeout": "ask for more time, or let it save its state and go on later: --on-timeout requeue",
    "out_of_memory": "ask for more memory: --mem or --mem-per-cpu",
    "preempted": "let it save its state and go on later: --on-preempt requeue; or use another QOS",
    "node_failure": "submit it again, with --on-node-fail requeue; --exclude avoids the node",
    "cancelled": "",
    "deadline": "submit it with a later --deadline, or a shorter --time",
    "boot_failure": "submit it again, and tell your administrator about the node",
    "unknown": "ask your administrator: its record is not in the accounting database",
}


def explain_exit_code(code: int) -> tuple[str, str]:
    """Return what an exit code means, and what to do."""
    if code in EXIT_CODES:
        return EXIT_CODES[code]
    if code > 128 and code - 128 in SIGNALS:
        means, advice = SIGNALS[code - 128]
        return f"its last command was ended by signal {code - 128}: {means}", advice
    return "the program chose this code itself", "see its documentation, and the error in its log"


def explain_signal(number: int) -> tuple[str, str]:
    """Return what a signal means, and what to do."""
    return SIGNALS.get(number, ("a signal ended it", "see the error in its log"))
