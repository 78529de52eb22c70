"""The sacct command for steps, and how its output is parsed; impossible values become None."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from slurmkit.formats.memory import parse_mib
from slurmkit_accounting.sacct import values
from slurmkit_accounting.sacct.rows import RunKey

STEP_FIELDS = (
    "JobIDRaw", "JobID", "State", "Submit", "Start", "End", "NTasks", "TotalCPU", "TRESUsageInTot",
    "ConsumedEnergyRaw", "JobName", "AdminComment",
)  # fmt: skip
# sacct once printed an AveCPU of 213503982334-14:25:51: no step can use so much.
_ABSURD_MS = 10**15
_ABSURD_MIB = 2**36
_MOST_TASKS = 10**8
_COMMENT = STEP_FIELDS.index("AdminComment")
_SUMMARY = "JS1:"  # how jobstats' summaries begin


class StepRow(NamedTuple):
    """One step; the fields are the columns of table `steps` after `run_id`.

    Attributes:
        step: `batch`, `extern`, `interactive`, `0`, ...
        cpu_used_ms: CPU milliseconds of all its tasks. This and all below: None if not measured.
        mem_peak_mib: peak memory of each task, summed.
        gpu_used_permille: GPU utilization of all its tasks together, in 1/1000 of one GPU.
        gpu_mem_peak_mib: peak GPU memory of each task, summed.
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
    """Some steps, each with the key of its run.

    Attributes:
        steps: the steps.
        summaries: jobstats' summary of some runs, from their AdminComment.
    """

    steps: list[tuple[RunKey, StepRow]]
    summaries: list[tuple[RunKey, str]]


def build_steps_argv(mark: str, *selection: str) -> list[str]:
    """Build the sacct command. It also prints the row of each run, before its steps."""
    flags = ["--local", "-a", "-D", "--noconvert", "--noheader", "-p", f"--delimiter={mark}"]
    return ["sacct", *flags, f"--format={','.join(STEP_FIELDS)}", *selection]


def parse_sacct_steps(lines: Iterable[str], mark: str, size: int) -> Iterator[StepBatch]:
    """Parse steps. Rows that cannot be parsed are left out: nothing is charged by steps.

    Args:
        lines: sacct's output, with line ends.
        mark: the delimiter passed to sacct.
        size: number of steps of a batch.
    """
    run: RunKey | None = None
    found: list[tuple[RunKey, StepRow]] = []
    summaries: list[tuple[RunKey, str]] = []
    for parts in _join_rows(lines, mark):
        job = parts[1]
        if "." not in job:
            run = _key(parts)
            if run is not None and parts[_COMMENT].startswith(_SUMMARY):
                summaries.append((run, parts[_COMMENT]))
        elif run is not None:
            found.append((run, _step(parts)))
        if len(found) + len(summaries) >= size:
            yield StepBatch(found, summaries)
            found, summaries = [], []
    if found or summaries:
        yield StepBatch(found, summaries)


def _join_rows(lines: Iterable[str], mark: str) -> Iterator[list[str]]:
    """Join lines to whole rows and split them into fields."""
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


def _key(parts: list[str]) -> RunKey | None:
    try:
        return values.parse_number(parts[0]), values.parse_required_time(parts[3])
    except ValueError:
        return None


def _step(parts: list[str]) -> StepRow:
    _, job, state, _, start, end, tasks, cpu, usage, energy, name, *_ = parts
    mem, util, gpu_mem = _usage(usage)
    return StepRow(  # positional: keyword arguments take twice as long
        job.partition(".")[2],
        values.parse_base_state(state),
        name,
        _TIMES[start],
        _TIMES[end],
        _TASKS[tasks],
        _below(_ABSURD_MS, _read(values.parse_elapsed_milliseconds, cpu)),
        mem,
        util,
        gpu_mem,
        _ENERGY[energy],
    )


def _read(read: Callable[[str], int | None], text: str) -> int | None:
    """Parse a value; None if it cannot be parsed, as if it was not measured."""
    try:
        return read(text)
    except ValueError:
        return None


_TIMES = values.ParseCache[str, int | None](partial(_read, values.parse_time))
_TASKS = values.ParseCache[str, int | None](
    lambda text: _below(_MOST_TASKS, _read(values.parse_optional_number, text))
)
_ENERGY = values.ParseCache[str, int | None](partial(_read, values.parse_joules))


def _usage(text: str) -> tuple[int | None, int | None, int | None]:
    """Parse memory, GPU utilization and GPU memory of a TRESUsageInTot text."""
    mem = parse_used_mebibytes(_amount(text, "mem"))
    if "gres/gpu" not in text:
        return mem, None, None
    util = _amount(text, "gres/gpuutil")
    return (
        mem,
        _below(_MOST_TASKS, int(util)) and int(util) * 10 if util.isdecimal() else None,
        parse_used_mebibytes(_amount(text, "gres/gpumem")),
    )


def _amount(text: str, name: str) -> str:
    """Return one amount of a TRES text; faster than parsing all of it."""
    return f",{text}".partition(f",{name}=")[2].partition(",")[0]


def parse_used_mebibytes(text: str) -> int | None:
    """Parse bytes (old releases print a unit) as MiB, rounded up; None if absent or absurd."""
    value = parse_mib(text, rounding="up", plain="")
    return value if value is None or value <= _ABSURD_MIB else None


def _below(most: int, value: int | None) -> int | None:
    return value if value is not None and value <= most else None
