"""Arrays and sweeps: how an array is split into Slurm arrays, and the script lines of its tasks.

An array over Slurm's limits is sent as several. The script gives each task its index in the user's
array, and the parameters of its point.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from slurmkit.formats.job_ids import parse_index_spans
from slurmkit.spec.findings import Finding, error, note, warning
from slurmkit.spec.jobspec import JobSpec, is_shell
from slurmkit.spec.submission import Chunk, Submission
from slurmkit.spec.sweep import Sweep, mark_parameters
from slurmkit.state.arrays import format_indices

TASK_ID_VARIABLE = "SLURMKIT_ARRAY_TASK_ID"
"""The index of a task in the user's array. Slurm numbers each part of a split array by itself."""
_SLURMS = re.compile(r"(?<![A-Za-z_])SLURM_ARRAY_TASK_(ID|MIN|MAX|COUNT)\b")
_TASK_PATTERN = re.compile(r"%\d*a")
_ARRAY_PATTERN = re.compile(r"%\d*[Aj]")
_SCRIPT_SIZE = re.compile(r"max_script_size=(\d+)", re.IGNORECASE)
_DEFAULT_SCRIPT_SIZE = 4 * 1024 * 1024  # slurm.conf(5) max_script_size
_SOURCE = "slurm.conf: MaxArraySize"
_MAX_TASKS = re.compile(r"max_array_tasks=(\d+)", re.IGNORECASE)
DEFAULT_SIZE = 1001  # slurm.conf(5) MaxArraySize


def is_logical(spec: JobSpec, parts: Iterable[Chunk]) -> bool:
    """Return whether the user's array differs from what Slurm knows of it, or is a sweep."""
    chunks_ = tuple(parts)
    return len(chunks_) > 1 or any(part.offset for part in chunks_) or spec.sweep is not None


def with_sweep_marks(spec: JobSpec) -> JobSpec:
    """Return a sweep's job for a launcher: its command has marks where the values go."""
    # The command was checked with its parameters already; marked words have none.
    return msgspec.structs.replace(spec, command=mark_parameters(spec.command), sweep=None)


def array_task_lines(spec: JobSpec, chunk: Chunk) -> tuple[str, ...]:
    """Return POSIX shell lines that export a task's index and its parameters."""
    if spec.script is not None and not _needs_index(spec, chunk):
        return ()
    slurms = (
        f"$((SLURM_ARRAY_TASK_ID + {chunk.offset}))" if chunk.offset else "$SLURM_ARRAY_TASK_ID"
    )
    index = f"export {TASK_ID_VARIABLE}={slurms}"
    return (index, *_sweep_lines(spec.sweep, chunk)) if spec.sweep else (index,)


def _needs_index(spec: JobSpec, chunk: Chunk) -> bool:
    """Return whether a script needs the index or parameters; else it stays unchanged."""
    script = spec.script or ""
    return is_shell(script) and (bool(chunk.offset or spec.sweep) or TASK_ID_VARIABLE in script)


def _sweep_lines(sweep: Sweep, chunk: Chunk) -> Iterator[str]:
    yield f"# The parameters of each task: points {chunk.tasks[0]} to {chunk.tasks[-1]}."
    yield f"case ${TASK_ID_VARIABLE} in"
    for task in chunk.tasks:
        assignments = (f"{n}={shlex.quote(value)}" for n, value in sweep.values(task).items())
        yield f"{task}) {' '.join(assignments)} ;;"
    yield f'*) echo "slurmkit: there is no point ${TASK_ID_VARIABLE}" >&2; exit 2 ;;'
    yield "esac"
    yield f"export {' '.join(sweep.names)}"


def check_array(
    spec: JobSpec,
    chunks: tuple[Chunk, ...],
    submissions: Iterable[Submission],
    config: Mapping[str, str],
) -> Iterator[Finding]:
    """Check an array as it is sent: how it is split, and the size of its longest script."""
    yield from check_split_array(spec, chunks)
    longest = max((each.script for each in submissions), key=len)
    yield from check_script_size(longest, config)


def check_split_array(spec: JobSpec, parts: tuple[Chunk, ...]) -> Iterator[Finding]:
    """Explain an array that is split, and report what would break it."""
    if not parts or not (len(parts) > 1 or parts[0].offset):
        return
    yield note("array-split", _split_words(spec, parts), _SOURCE)
    yield from _index(spec)
    yield from _files(spec, parts)
    if "aftercorr" in (spec.dependency or ""):
        message = (
            "--dependency=aftercorr compares Slurm's array indices, and these start again in each"
            f" of the {len(parts)} Slurm arrays of this job; wait for the whole other job: afterok"
        )
        yield error("array-aftercorr", message, _SOURCE)


def _split_words(spec: JobSpec, parts: tuple[Chunk, ...]) -> str:
    count, most = sum(len(part.tasks) for part in parts), array_throttle(spec.array or "")
    if len(parts) == 1:
        return f"{count:,} tasks; Slurm's own array indices are {parts[0].offset:,} lower"
    message = f"{count:,} tasks, split into {len(parts)} Slurm arrays of consecutive indices"
    if most is None:
        return message
    if parts[-1].after is not None:
        return (
            f"{message}; %{most} is less than one task for each, so each array starts when the one"
            " before has ended"
        )
    throttles = "+".join(part.array.partition("%")[2] for part in parts)
    return f"{message}; %{most} divided among them: {throttles}"


def _index(spec: JobSpec) -> Iterator[Finding]:
    texts = (*spec.command, spec.script or "")
    reads = next((match[0] for text in texts if (match := _SLURMS.search(text))), None)
    what = "script" if spec.script is not None else "command"
    if spec.script is not None and not is_shell(spec.script):
        message = (
            f"only a shell script can get {TASK_ID_VARIABLE}, its index beyond MaxArraySize;"
            " give the program as a command"
        )
        yield error("array-script", message, _SOURCE)
    elif reads is not None:
        message = (
            f"the {what} reads {reads}, which starts again in each Slurm array; it must read"
            f" {TASK_ID_VARIABLE}, the index in the whole array"
        )
        yield error("array-index", message, _SOURCE)
    elif spec.sweep is None and not any(TASK_ID_VARIABLE in text for text in texts):
        message = (
            f"programs of this job must read {TASK_ID_VARIABLE} instead of SLURM_ARRAY_TASK_ID"
        )
        yield warning("array-index", message, _SOURCE)


def _files(spec: JobSpec, parts: tuple[Chunk, ...]) -> Iterator[Finding]:
    for name in ("output", "error"):
        path = getattr(spec, name) or ""
        if len(parts) > 1 and _TASK_PATTERN.search(path) and not _ARRAY_PATTERN.search(path):
            fix = ((name, _TASK_PATTERN.sub(lambda match: f"%A_{match[0]}", path, count=1)),)
            message = (
                f"--{name}={path}: tasks of different Slurm arrays would write to the same file;"
                " add %A, the number of the array"
            )
            yield error("array-files", message, _SOURCE, fix)


def check_script_size(script: str, config: Mapping[str, str]) -> Iterator[Finding]:
    """Report a script that slurmctld refuses for its size; a sweep's script holds all points."""
    match = _SCRIPT_SIZE.search(config.get("SchedulerParameters", ""))
    most, size = int(match[1]) if match else _DEFAULT_SCRIPT_SIZE, len(script.encode())
    if size >= most:
        message = (
            f"the job's script has {size:,} bytes, and slurmctld takes less than {most:,}"
            " (max_script_size); make the values of the sweep shorter, e.g. names of files"
        )
        yield error("script-size", message, "slurm.conf: SchedulerParameters=max_script_size")


class ArrayLimits(msgspec.Struct, frozen=True):
    """The limits of one Slurm array: indices below `size`, and at most `tasks` tasks."""

    size: int = DEFAULT_SIZE
    tasks: int | None = None


def array_limits_of(config: Mapping[str, str]) -> ArrayLimits:
    """Parse the limits from slurm.conf (MaxArraySize, SchedulerParameters=max_array_tasks)."""
    most = _MAX_TASKS.search(config.get("SchedulerParameters", ""))
    return ArrayLimits(
        int(config.get("MaxArraySize") or DEFAULT_SIZE), int(most[1]) if most else None
    )


def array_indices(array: str) -> list[int]:
    """Parse the indices of an array such as `0,2,5-9%3`, in order."""
    return sorted(set().union(*parse_index_spans(array)))


def array_throttle(array: str) -> int | None:
    """Parse how many tasks of an array may run at once; None for all, as for `%0`."""
    return int(array.partition("%")[2] or 0) or None


def split_array(array: str, within: ArrayLimits) -> tuple[Chunk, ...]:
    """Split an array into Slurm arrays, in order; each index is in exactly one.

    The throttles of the chunks never add up to more than the array's own. If the throttle is below
    the number of chunks, the chunks run one after the other. On a cluster without arrays
    (MaxArraySize 0 or 1) the array is not split.
    """
    tasks = array_indices(array)
    if within.size < 2 or (tasks[-1] < within.size and len(tasks) <= (within.tasks or len(tasks))):
        return (Chunk(array, 0, tuple(tasks)),)
    parts = _index_groups(tasks, within)
    most = array_throttle(array)
    chained = most is not None and most < len(parts)
    throttles = [most] * len(parts)
    if most is not None and not chained:
        throttles = list(throttle_shares(most, list(map(len, parts))))
    return tuple(
        Chunk(
            array=format_indices(task - offset for task in part) + (f"%{share}" if share else ""),
            offset=offset,
            tasks=tuple(part),
            after=at - 1 if chained and at else None,
        )
        for at, (part, share) in enumerate(zip(parts, throttles, strict=True))
        for offset in [_offset(part, within.size)]
    )


def throttle_shares(most: int, sizes: Sequence[int]) -> list[int]:
    """Divide a throttle over chunks by size; each gets at least 1, none more than its tasks.

    Args:
        most: the throttle; at least the number of chunks.
        sizes: the number of tasks of each chunk.
    """
    total = sum(sizes)
    parts = [max(1, min(size, most * size // total)) for size in sizes]
    while sum(parts) > most:  # small chunks were raised to 1
        parts[parts.index(max(parts))] -= 1
    # The rest goes to the chunks with the most tasks per running task.
    while sum(parts) < min(most, total):
        room = [at for at, size in enumerate(sizes) if parts[at] < size]
        parts[max(room, key=lambda at: sizes[at] / parts[at])] += 1
    return parts


def _index_groups(tasks: Sequence[int], within: ArrayLimits) -> list[list[int]]:
    parts: list[list[int]] = []
    for task in tasks:
        fits = parts and task - _offset(parts[-1], within.size) < within.size
        if fits and len(parts[-1]) < (within.tasks or len(tasks)):
            parts[-1].append(task)
        else:
            parts.append([task])
    return parts


def _offset(part: Sequence[int], size: int) -> int:
    """Return the offset of a part; 0 where possible, so that Slurm shows the user's indices."""
    return 0 if part[0] < size else part[0]
