"""What a job's log says of its failure: the line that tells most, and the last lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

import msgspec

from slurmkit.machine import HERE, Machine
from slurmkit.why.model import LogLine

_PIECE = 4 << 20  # bytes read of the beginning, and of the end
_LAST = 10
_LONG = 300  # characters of a line that are shown
# What ranks and `srun --label` put before a line.
_PREFIX = re.compile(r"^(?:\[(?:rank|default)?\d+\]:?\s?|\d+: )")
_TRACEBACK = "Traceback (most recent call last):"
_MEMORY = re.compile(r"error: (?:Step|Job)Id=\S+ exceeded memory limit")
_SRUN = re.compile(r"srun: error: (?P<node>[\w.\-\[\],]+): (?P<tasks>tasks? [\d,\-]+): (?P<how>.+)")

Sign = tuple[re.Pattern[str], str]


def _sign(pattern: str, means: str) -> Sign:
    return re.compile(pattern), means


# The first that fits a line says what it means.
_STRONG: tuple[Sign, ...] = (
    _sign(
        r"^slurmkit: preflight failed: ",
        "its nodes were measured first (--preflight), and its work was not begun: --exclude the"
        " node, and tell your administrator",
    ),
    _sign(
        r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
        r"|cudaErrorMemoryAllocation",
        "the GPU's memory was full: a smaller batch, or a GPU with more memory",
    ),
    _sign(
        r"NCCL.*(?:timeout|timed out)|[Ww]atchdog caught collective operation timeout"
        r"|Timed out.*(?:rendezvous|c10d|TCPStore|gloo)",
        "ranks waited for one another in vain: find the rank that failed or hung first",
    ),
    _sign(
        r"uncorrectable ECC|CUDA_ERROR_ECC|ERROR_UNCORRECTABLE|NVRM: Xid|Xid \(",
        "the GPU itself is in error: tell your administrator, and --exclude the node",
    ),
    _sign(
        r"no CUDA-capable device|CUDA_ERROR_NO_DEVICE|No CUDA GPUs are available|No devices were",
        "it saw no GPU: the job or its step did not ask for one",
    ),
    _sign(
        r"CUDA driver version is insufficient|forward compatibility was attempted"
        r"|no kernel image is available",
        "its CUDA does not go with the node's driver or GPU",
    ),
    _sign(
        r"NCCL WARN|NCCL error|nccl(?:System|Internal|Remote|UnhandledCuda)Error|ncclInvalidUsage",
        "NCCL could not communicate: run it again with NCCL_DEBUG=INFO",
    ),
    _sign(
        r"CUDA error|CUDA_ERROR|device-side assert|CUBLAS_STATUS|CUDNN_STATUS", "a CUDA call failed"
    ),
    _sign(
        r"exceeded memory limit|oom[-_ ]kill|Out Of Memory|Killed process",
        "it used more memory than it had asked for: --mem",
    ),
    _sign(
        r"MemoryError|Cannot allocate memory|bad_alloc|DefaultCPUAllocator: can't allocate",
        "it could get no more memory: --mem",
    ),
    _sign(r"No space left on device", "a file system, /tmp or /dev/shm was full"),
    _sign(r"[Qq]uota exceeded", "a quota was used up: see your quotas"),
    _sign(
        r"command not found|execve\(\).*No such file|: not found$",
        "a program is not on the node's PATH: load its module or environment in the script",
    ),
    _sign(
        r"ModuleNotFoundError|No module named|ImportError",
        "a Python package is missing: is the environment activated in the script?",
    ),
    _sign(
        r"error while loading shared libraries|cannot open shared object file",
        "a library is missing on the node: load its module in the script",
    ),
    _sign(
        r"Exec format error", "a program for another kind of CPU, or a script without its #! line"
    ),
    _sign(r"[Ii]llegal instruction", "a program built for another kind of CPU"),
    _sign(
        r"[Ss]egmentation fault|SIGSEGV", "a bug: the program touched memory that is not its own"
    ),
    _sign(r"Address already in use|EADDRINUSE", "another job on the node uses that port"),
    _sign(r"Stale file handle|Input/output error", "a file system failed: tell your administrator"),
    _sign(r"Permission denied", "it may not read, write or run that"),
    _sign(
        r"No such file or directory|FileNotFoundError", "a file is not there, as seen from the node"
    ),
)
_WEAK: tuple[Sign, ...] = (
    _sign(r"^slurmstepd[\w.\-]*: error: ", "Slurm says so on the node"),
    _sign(r"^srun: error: ", "Slurm says so of a step"),
    _sign(
        r"(?i)\b(?:fatal|error|exception|assertion failed|aborted)\b",
        "the first line with an error",
    ),
)
_NOT = re.compile(r"(?i)\b(?:0|no) errors?\b|error[_ ]?rate|errors?[=:] ?0\b|mean.?squared.?error")


class Reading(msgspec.Struct, frozen=True):
    """What was found in a log.

    Attributes:
        first_error: the line that tells most, None for none.
        means: what it says; `is_cause` when it names a cause, not only that something failed.
        over_memory: whether slurmstepd wrote that it killed a step for its memory.
        tasks: which task ended how on which node, as srun says.
        last: its last lines.
    """

    first_error: LogLine | None = None
    means: str = ""
    is_cause: bool = False
    over_memory: bool = False
    tasks: tuple[str, ...] = ()
    last: tuple[str, ...] = ()


def read_log(path: str, on: Machine = HERE) -> Reading:
    """Read a log's beginning and end.

    Raises:
        OSError: when it is not there or cannot be read.
    """
    with on.open(path) as source:
        begin = source.read(_PIECE)
        size = source.seek(0, os.SEEK_END)
        source.seek(max(_PIECE, size - _PIECE))
        end = source.read()
    return search(begin.decode("utf-8", "replace"), end.decode("utf-8", "replace"))


def search(begin: str, end: str = "") -> Reading:
    """Look for the line that tells most: the first that names a cause, else one with an error."""
    lines = [*_numbered(begin), *(LogLine(text) for text in end.split("\n")[1:])]
    lines = [*_numbered(begin + end)] if len(end) < _PIECE else lines
    cause = _first(lines, _STRONG)
    error, means = cause or _first(lines, _WEAK) or (None, "")
    over = any(_MEMORY.search(line.text) for line in lines)
    last = [line.text[:_LONG] for line in lines if line.text.strip()][-_LAST:]
    return Reading(error, means, cause is not None, over, tuple(_tasks(lines)), tuple(last))


def _numbered(text: str) -> Iterator[LogLine]:
    # A progress bar writes over its line again and again: only its last state was left.
    return (
        LogLine(line.rstrip("\r").rpartition("\r")[2], number)
        for number, line in enumerate(text.split("\n"), 1)
    )


def _first(lines: Sequence[LogLine], signs: tuple[Sign, ...]) -> tuple[LogLine, str] | None:
    """The first line with a sign; of a Python traceback the line of the exception counts."""
    trace = False
    for line in lines:
        text = _PREFIX.sub("", line.text)
        if text.strip() == _TRACEBACK:
            trace = signs is _STRONG
            continue
        if trace and (not text.strip() or text[0].isspace()):
            continue
        if means := _means(text, signs) or ("Python raised this" if trace else ""):
            return LogLine(line.text.strip()[:_LONG], line.number), means
        trace = False
    return None


def _means(text: str, signs: tuple[Sign, ...]) -> str:
    if _NOT.search(text):
        return ""
    return next((means for pattern, means in signs if pattern.search(text)), "")


def _tasks(lines: Sequence[LogLine]) -> Iterator[str]:
    """`task 3 on c1: Exited with exit code 1`; the first are those that failed by themselves."""
    found = (_SRUN.search(line.text) for line in lines)
    said = dict.fromkeys(f"{m['tasks']} on {m['node']}: {m['how'].strip()}" for m in found if m)
    yield from list(said)[:3]
