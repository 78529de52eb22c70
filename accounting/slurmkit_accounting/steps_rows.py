"""Steps as sacct prints them: what was measured, with values that cannot be left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from slurmkit.tres import size_in_bytes
from slurmkit_accounting import readers
from slurmkit_accounting.rows import Key, identify

STEP_FIELDS = (
    "DBIndex", "JobIDRaw", "JobID", "State", "Submit", "Start", "End", "NTasks", "TotalCPU",
    "TRESUsageInTot", "ConsumedEnergyRaw", "JobName",
)  # fmt: skip
# A live AveCPU once read 213503982334-14:25:51: nothing of one step is as much.
_ABSURD_MS = 10**15
_ABSURD_MIB = 2**36
_MOST_TASKS = 10**8


class Step(NamedTuple):
    """One step, named as the columns of table `steps` after `run_id`.

    Attributes:
        step: `batch`, `extern`, `interactive`, `0`, ...
        cpu_used_ms: milliseconds of CPU of all its tasks; like all below None when not measured.
        mem_peak_mib: the most memory of each task, added up.
        gpu_used_permille: GPU utilisation of all its tasks together, in 1/1000 of one GPU.
        gpu_mem_peak_mib: the most GPU memory of each task, added up.
    """

    step: str
    state: str
    name: str
    start: int | None
    end: int | None
    tasks: int | None
    cpu_used_ms: int | None
    mem_peak_mib: int | None
    gpu_used_permille: int | None
    gpu_mem_peak_mib: int | None
    energy_joules: int | None


class StepBatch(NamedTuple):
    """Some steps, each with the key of its run."""

    steps: list[tuple[Key, Step]]


def steps_argv(mark: str, *selection: str) -> list[str]:
    """Build the command: rows of runs come with it, each before its steps."""
    flags = ["-a", "-D", "--noconvert", "--noheader", "-p", f"--delimiter={mark}"]
    return ["sacct", *flags, f"--format={','.join(STEP_FIELDS)}", *selection]


def read_steps(lines: Iterable[str], mark: str, size: int) -> Iterator[StepBatch]:
    """Read steps; lines that cannot be read are left out: nothing is charged by them.

    Args:
        lines: sacct's output, line ends kept.
        mark: the delimiter the rows were asked for with.
        size: steps of a batch.
    """
    run: Key | None = None
    found: list[tuple[Key, Step]] = []
    for parts in _whole(lines, mark):
        job = parts[2]
        if "." not in job:
            run = _key(parts)
        elif run is not None:
            found.append((run, _step(parts)))
        if len(found) >= size:
            yield StepBatch(found)
            found = []
    if found:
        yield StepBatch(found)


def _whole(lines: Iterable[str], mark: str) -> Iterator[list[str]]:
    held, end = "", f"{mark}\n"
    for line in lines:
        held += line
        if line.endswith(end):
            parts = held.replace("\0", "\ufffd").split(mark)
            if len(parts) > len(STEP_FIELDS):
                parts[0] = parts[0].rpartition("\n")[2]
                if len(parts) == len(STEP_FIELDS) + 1:
                    yield parts
                held = ""


def _key(parts: list[str]) -> Key | None:
    try:
        number = readers.index(parts[0])
        if number is not None:
            return number
        return identify(None, readers.number(parts[1]), readers.moment(parts[4]))
    except ValueError:
        return None


def _step(parts: list[str]) -> Step:
    _, _, job, state, _, start, end, tasks, cpu, usage, energy, name, *_ = parts
    mem, util, gpu_mem = _usage(usage)
    return Step(  # in order: by name takes twice as long
        job.partition(".")[2],
        readers.state(state),
        name,
        _TIMES[start],
        _TIMES[end],
        _TASKS[tasks],
        _cpu(cpu),
        mem,
        util,
        gpu_mem,
        _ENERGY[energy],
    )


def _read(read: Callable[[str], int | None], text: str) -> int | None:
    """What cannot be read was not measured."""
    try:
        return read(text)
    except ValueError:
        return None


_TIMES = readers.Memo[str, int | None](partial(_read, readers.epoch))
_TASKS = readers.Memo[str, int | None](
    lambda text: _below(_MOST_TASKS, _read(readers.optional, text))
)
_ENERGY = readers.Memo[str, int | None](partial(_read, readers.energy))


def _cpu(text: str) -> int | None:
    return _below(_ABSURD_MS, _read(readers.milliseconds, text))


def _usage(text: str) -> tuple[int | None, int | None, int | None]:
    """Memory, GPU utilisation and GPU memory of a TRESUsageInTot text."""
    mem = mebibytes_used(_amount(text, "mem"))
    if "gres/gpu" not in text:
        return mem, None, None
    util = _amount(text, "gres/gpuutil")
    return (
        mem,
        _below(_MOST_TASKS, int(util)) and int(util) * 10 if util.isdecimal() else None,
        mebibytes_used(_amount(text, "gres/gpumem")),
    )


def _amount(text: str, name: str) -> str:
    """One of the amounts of a TRES text, of which all are rarely wanted."""
    return f",{text}".partition(f",{name}=")[2].partition(",")[0]


def mebibytes_used(text: str) -> int | None:
    """Bytes, or with a unit as old releases print it, in MiB, rounded up; None without."""
    size = size_in_bytes(text)
    value = None if size is None else -int(-size // 2**20)
    return value if value is None or value <= _ABSURD_MIB else None


def _below(most: int, value: int | None) -> int | None:
    return value if value is not None and value <= most else None
