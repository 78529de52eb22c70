"""Scan a job's log for the cause of its failure: the most telling line, and the last lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

import msgspec

from slurmkit.diagnose.model import LogLine
from slurmkit.slurm.machine import LOCAL_MACHINE, Machine

_PIECE = 4 << 20  # bytes read from the start of the log, and as many from its end
_LAST = 10
_LONG = 300  # characters of a line that are shown
# Prefixes of torchrun's ranks and of `srun --label`.
_PREFIX = re.compile(r"^(?:\[(?:rank|default)?\d+\]:?\s?|\d+: )")
_TRACEBACK = "Traceback (most recent call last):"
_MEMORY = re.compile(r"error: (?:Step|Job)Id=\S+ exceeded memory limit")
# slurmstepd's message when it cannot start a program (src/slurmd/slurmstepd/task.c); the task then
# ends with the number of that error, as 2 or 13.
_EXECVE = re.compile(
    r"execve\(\): (?:bad interpreter\()?(?P<program>.+?)\)?: (?P<error>No such file or directory"
    r"|Permission denied|Exec format error)"
)
_SRUN = re.compile(r"srun: error: (?P<node>[\w.\-\[\],]+): (?P<tasks>tasks? [\d,\-]+): (?P<how>.+)")

LogPattern = tuple[re.Pattern[str], str]


def _log_pattern(pattern: str, means: str) -> LogPattern:
    return re.compile(pattern), means


# Patterns that name a cause. The first that matches a line gives its meaning.
_CAUSES: tuple[LogPattern, ...] = (
    _log_pattern(
        r"^slurmkit: preflight failed: ",
        "the check of its nodes failed (--preflight), so its command was not started: avoid the"
        " node with --exclude, and tell your administrator",
    ),
    _log_pattern(
        r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
        r"|cudaErrorMemoryAllocation",
        "the GPU's memory was full: use a smaller batch, or a GPU with more memory",
    ),
    _log_pattern(
        r"NCCL.*(?:timeout|timed out)|[Ww]atchdog caught collective operation timeout"
        r"|Timed out.*(?:rendezvous|c10d|TCPStore|gloo)",
        "ranks waited too long for each other: find the rank that failed or hung first",
    ),
    _log_pattern(
        r"uncorrectable ECC|CUDA_ERROR_ECC|ERROR_UNCORRECTABLE|NVRM: Xid|Xid \(",
        "the GPU itself is broken: tell your administrator, and avoid the node with --exclude",
    ),
    _log_pattern(
        r"no CUDA-capable device|CUDA_ERROR_NO_DEVICE|No CUDA GPUs are available|No devices were",
        "it saw no GPU: the job or its step did not ask for one",
    ),
    _log_pattern(
        r"CUDA driver version is insufficient|forward compatibility was attempted"
        r"|no kernel image is available",
        "its CUDA version does not fit the node's driver or GPU",
    ),
    _log_pattern(
        r"NCCL WARN|NCCL error|nccl(?:System|Internal|Remote|UnhandledCuda)Error|ncclInvalidUsage",
        "NCCL could not communicate: run it again with NCCL_DEBUG=INFO",
    ),
    _log_pattern(
        r"CUDA error|CUDA_ERROR|device-side assert|CUBLAS_STATUS|CUDNN_STATUS", "a CUDA call failed"
    ),
    _log_pattern(
        r"[Ee]xceeded (?:job )?memory limit|oom[-_ ]kill|Out Of Memory|Killed process",
        "it used more memory than it asked for: ask for more with --mem",
    ),
    _log_pattern(
        r"MemoryError|Cannot allocate memory|bad_alloc|DefaultCPUAllocator: can't allocate",
        "it could get no more memory: ask for more with --mem",
    ),
    _log_pattern(r"No space left on device", "a file system, /tmp or /dev/shm was full"),
    _log_pattern(r"[Qq]uota exceeded", "a quota was used up: see your quotas"),
    _log_pattern(r"execve\(\): .*No such file", "the node has no such file"),
    _log_pattern(r"execve\(\): .*Permission denied", "the file is not executable"),
    _log_pattern(
        r"command not found|: not found$",
        "a program is not on the node's PATH: load its module or environment in the script",
    ),
    _log_pattern(
        r"ModuleNotFoundError|No module named|ImportError",
        "a Python package is missing: is the environment activated in the script?",
    ),
    _log_pattern(
        r"error while loading shared libraries|cannot open shared object file",
        "a library is missing on the node: load its module in the script",
    ),
    _log_pattern(
        r"Exec format error", "a program for another kind of CPU, or a script without its #! line"
    ),
    _log_pattern(r"[Ii]llegal instruction", "a program built for another kind of CPU"),
    _log_pattern(
        r"[Ss]egmentation fault|SIGSEGV", "a bug: the program used memory that is not its own"
    ),
    _log_pattern(r"Address already in use|EADDRINUSE", "another job on the node uses that port"),
    _log_pattern(
        r"Stale file handle|Input/output error", "a file system failed: tell your administrator"
    ),
    _log_pattern(r"Permission denied", "it has no permission to read, write or run this"),
    _log_pattern(
        r"No such file or directory|FileNotFoundError", "a file does not exist on the node"
    ),
)
_ERRORS: tuple[LogPattern, ...] = (
    _log_pattern(r"^slurmstepd[\w.\-]*: error: ", "an error that Slurm reports on the node"),
    _log_pattern(r"^srun: error: ", "an error that Slurm reports for a step"),
    _log_pattern(
        r"(?i)\b(?:fatal|error|exception|assertion failed|aborted)\b",
        "the first line with an error",
    ),
)
_HARMLESS = re.compile(
    r"(?i)\b(?:0|no) errors?\b|error[_ ]?rate|errors?[=:] ?0\b|mean.?squared.?error"
)


class LogScan(msgspec.Struct, frozen=True):
    """What a scan of a log found.

    Attributes:
        first_error: the most telling line; None if there is none.
        means: what that line means.
        is_cause: whether the line names a cause, not only that something failed.
        over_memory: whether slurmstepd wrote that it killed a step for its memory.
        tasks: srun's messages: which task ended how, on which node.
        last: the last lines of the log.
        not_started: a program that slurmstepd could not start, and the error, if that is the
            first error.
    """

    first_error: LogLine | None = None
    means: str = ""
    is_cause: bool = False
    over_memory: bool = False
    tasks: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    not_started: tuple[str, str] | None = None


def scan_log_file(path: str, on: Machine = LOCAL_MACHINE) -> LogScan:
    """Read the start and the end of a log, and scan them.

    Raises:
        OSError: when the log does not exist or cannot be read.
    """
    with on.open(path) as source:
        begin = source.read(_PIECE)
        size = source.seek(0, os.SEEK_END)
        source.seek(max(_PIECE, size - _PIECE))
        end = source.read()
    return scan_log_text(begin.decode("utf-8", "replace"), end.decode("utf-8", "replace"))


def scan_log_text(begin: str, end: str = "") -> LogScan:
    """Scan a log: take the first line that names a cause, else the first with an error."""
    if len(end) < _PIECE:  # nothing lies between the two pieces
        lines = [*_numbered(begin + end)]
    else:
        lines = [*_numbered(begin), *(LogLine(text) for text in end.split("\n")[1:])]
    cause = _first_match(lines, _CAUSES)
    error, means = cause or _first_match(lines, _ERRORS) or (None, "")
    execve = _EXECVE.search(error.text) if error else None
    exits = [match for line in lines if (match := _SRUN.search(line.text))]
    tasks = dict.fromkeys(f"{m['tasks']} on {m['node']}: {m['how'].strip()}" for m in exits)
    last = [line.text[:_LONG] for line in lines if line.text.strip()][-_LAST:]
    return LogScan(
        first_error=error,
        means=means,
        is_cause=cause is not None,
        over_memory=any(_MEMORY.search(line.text) for line in lines),
        tasks=tuple(tasks)[:3],  # the first are those that failed by themselves
        last=tuple(last),
        not_started=(execve["program"], execve["error"]) if execve else None,
    )


def _numbered(text: str) -> Iterator[LogLine]:
    # A progress bar overwrites its line with carriage returns: keep only its last state.
    return (
        LogLine(line.rstrip("\r").rpartition("\r")[2], number)
        for number, line in enumerate(text.split("\n"), 1)
    )


def _first_match(
    lines: Sequence[LogLine], signs: tuple[LogPattern, ...]
) -> tuple[LogLine, str] | None:
    """Return the first line that matches, and its meaning; of a traceback, its exception line."""
    trace = False
    for line in lines:
        text = _PREFIX.sub("", line.text)
        if text.strip() == _TRACEBACK:
            trace = signs is _CAUSES
            continue
        if trace and (not text.strip() or text[0].isspace()):
            continue
        if means := _means(text, signs) or ("Python raised this" if trace else ""):
            return LogLine(line.text.strip()[:_LONG], line.number), means
        trace = False
    return None


def _means(text: str, signs: tuple[LogPattern, ...]) -> str:
    if _HARMLESS.search(text):
        return ""
    return next((means for pattern, means in signs if pattern.search(text)), "")
