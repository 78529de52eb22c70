"""What tells a task of an array its logical index and, in a sweep, its parameters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from slurmkit.checks.say import error, note, warning
from slurmkit.findings import Finding
from slurmkit.planning.chunks import Chunk, limits, split, throttle
from slurmkit.spec import JobSpec, is_shell
from slurmkit.sweep import Sweep, marked

INDEX = "SLURMKIT_ARRAY_TASK_ID"
"""The index of a task in the whole array; Slurm's own counts in each of several anew."""
_SLURMS = re.compile(r"(?<![A-Za-z_])SLURM_ARRAY_TASK_(ID|MIN|MAX|COUNT)\b")
_ALONE = re.compile(r"%\d*a")
_OF_ARRAY = re.compile(r"%\d*[Aj]")
_SCRIPT_SIZE = re.compile(r"max_script_size=(\d+)", re.IGNORECASE)
_DEFAULT_SCRIPT_SIZE = 4 * 1024 * 1024  # slurm.conf(5) max_script_size
_SOURCE = "slurm.conf: MaxArraySize"


def chunks(spec: JobSpec, config: Mapping[str, str]) -> tuple[Chunk, ...]:
    """The arrays of Slurm that a job comes to; none for a job without one."""
    return split(spec.array, limits(config)) if spec.array is not None else ()


def is_logical(spec: JobSpec, parts: Iterable[Chunk]) -> bool:
    """Whether an array is more to its user than what Slurm knows of it."""
    found = tuple(parts)
    return len(found) > 1 or any(part.offset for part in found) or spec.sweep is not None


def to_start(spec: JobSpec) -> JobSpec:
    """The job as a launcher writes it: marks stand in its command where values go."""
    if spec.sweep is None:
        return spec
    # Its words were checked with the parameters; the marked ones hold none.
    return msgspec.structs.replace(spec, command=marked(spec.command), sweep=None)


def lines(spec: JobSpec, chunk: Chunk | None) -> tuple[str, ...]:
    """Lines of any POSIX shell that export a task's index and its parameters."""
    if chunk is None or (spec.script is not None and not _told(spec, chunk)):
        return ()
    slurms = (
        f"$((SLURM_ARRAY_TASK_ID + {chunk.offset}))" if chunk.offset else "$SLURM_ARRAY_TASK_ID"
    )
    index = f"export {INDEX}={slurms}"
    return (index, *_points(spec.sweep, chunk)) if spec.sweep else (index,)


def _told(spec: JobSpec, chunk: Chunk) -> bool:
    """A script stands as it is unless it must be told something."""
    script = spec.script or ""
    return is_shell(script) and (bool(chunk.offset or spec.sweep) or INDEX in script)


def _points(sweep: Sweep, chunk: Chunk) -> Iterator[str]:
    yield f"# The parameters of each task: points {chunk.tasks[0]} to {chunk.tasks[-1]}."
    yield f"case ${INDEX} in"
    for task in chunk.tasks:
        given = (f"{n}={shlex.quote(value)}" for n, value in sweep.values(task).items())
        yield f"{task}) {' '.join(given)} ;;"
    yield f'*) echo "slurmkit: there is no point ${INDEX}" >&2; exit 2 ;;'
    yield "esac"
    yield f"export {' '.join(sweep.names)}"


def findings(spec: JobSpec, parts: tuple[Chunk, ...]) -> Iterator[Finding]:
    """What an array in several parts means for its job, and what keeps it from being one."""
    if not parts or not (len(parts) > 1 or parts[0].offset):
        return
    yield note("array-split", _divided(spec, parts), _SOURCE)
    yield from _index(spec)
    yield from _files(spec, parts)
    if "aftercorr" in (spec.dependency or ""):
        message = (
            "--dependency=aftercorr compares indices of Slurm's arrays, which count anew in each of"
            f" these {len(parts)}; wait for the whole of the other job: afterok"
        )
        yield error("array-aftercorr", message, _SOURCE)


def _divided(spec: JobSpec, parts: tuple[Chunk, ...]) -> str:
    count, most = sum(len(part.tasks) for part in parts), throttle(spec.array or "")
    if len(parts) == 1:
        return f"{count:,} tasks in one array that Slurm counts from 0, {parts[0].offset:,} less"
    said = f"{count:,} tasks in {len(parts)} arrays of Slurm, one after the other in index"
    if most is None:
        return said
    if parts[-1].after is not None:
        return f"{said}; %{most} is less than one for each: each starts when the last has ended"
    given = "+".join(part.array.partition("%")[2] for part in parts)
    return f"{said}; %{most} divided among them: {given}"


def _index(spec: JobSpec) -> Iterator[Finding]:
    texts = (*spec.command, spec.script or "")
    reads = next((found[0] for text in texts if (found := _SLURMS.search(text))), None)
    what = "script" if spec.script is not None else "command"
    if spec.script is not None and not is_shell(spec.script):
        message = (
            f"a script that is no shell's cannot be told its index beyond MaxArraySize, {INDEX};"
            " give the program as a command"
        )
        yield error("array-script", message, _SOURCE)
    elif reads is not None:
        message = (
            f"the {what} reads {reads}, which counts anew in each of Slurm's arrays; it must read"
            f" {INDEX}, the index in the whole"
        )
        yield error("array-index", message, _SOURCE)
    elif spec.sweep is None and not any(INDEX in text for text in texts):
        message = f"what reads SLURM_ARRAY_TASK_ID in this job must read {INDEX} instead"
        yield warning("array-index", message, _SOURCE)


def _files(spec: JobSpec, parts: tuple[Chunk, ...]) -> Iterator[Finding]:
    for name in ("output", "error"):
        path = getattr(spec, name) or ""
        if len(parts) > 1 and _ALONE.search(path) and not _OF_ARRAY.search(path):
            fix = ((name, _ALONE.sub(lambda found: f"%A_{found[0]}", path, count=1)),)
            message = (
                f"--{name}={path}: tasks of several of Slurm's arrays would write to one file;"
                " add %A, the number of the array"
            )
            yield error("array-files", message, _SOURCE, fix)


def too_long(script: str, config: Mapping[str, str]) -> Iterator[Finding]:
    """A script that slurmctld would refuse for its size: of a sweep it holds the points."""
    found = _SCRIPT_SIZE.search(config.get("SchedulerParameters", ""))
    most, size = int(found[1]) if found else _DEFAULT_SCRIPT_SIZE, len(script.encode())
    if size >= most:
        message = (
            f"its script has {size:,} bytes, and slurmctld takes less than {most:,}"
            " (max_script_size); let the values of the sweep be shorter, e.g. names of files"
        )
        yield error("script-size", message, "slurm.conf: SchedulerParameters=max_script_size")
