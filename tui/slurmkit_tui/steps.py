"""The steps of a job as lines of a table."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from slurmkit.durations import format_duration
from slurmkit.facts import clock, percent
from slurmkit.jobs.steps import Steps, StepUse
from slurmkit.states import kind
from slurmkit.text import printable

_HEADS = (
    "STEP", "NAME", "STATE", "ELAPSED", "CPU EFF", "MEM PEAK", "ASKED", "GPU", "EXIT", "TASKS",
    "NODES", "STARTED",
)  # fmt: skip
_RIGHT = frozenset(("ELAPSED", "TASKS", "NODES", "CPU EFF", "MEM PEAK", "ASKED", "GPU"))
_QUIET = frozenset(("ASKED", "STARTED"))
_NAME = 16  # cells of a name
_SHOWN = 200
_COLOURS = {"bad": "$error bold", "running": "$success", "done": "$quiet"}


def table(found: Steps) -> Content:
    """Each step in a line, and below who said so."""
    steps = [row for row in found.rows if not row.is_allocation]
    asked = {row.step_id: row.mem_asked for row in found.rows if row.is_allocation}
    lines = [_cells(step, asked.get(step.step_id.partition(".")[0])) for step in steps[:_SHOWN]]
    shown = [_HEADS, *lines]
    widths = [max(len(line[at]) for line in shown) for at in range(len(_HEADS))]
    rows = [_line(line, widths, "") for line in lines]
    said = Content("\n").join(
        Content.styled(printable(line), "$quiet") for line in _notes(found, len(steps))
    )
    head = [_line(_HEADS, widths, "$quiet")] if steps else [Content("it has no steps yet")]
    return Content("\n").join([*head, *rows, Content(""), said])


def _cells(step: StepUse, allocated: float | None) -> tuple[str, ...]:
    name = printable(step.name) or "?"
    asked = allocated if step.mem_asked is None else step.mem_asked
    return (
        printable(step.step_id),
        name if len(name) <= _NAME else f"{name[: _NAME - 1]}…",
        printable(step.state),
        "?" if step.elapsed is None else format_duration(step.elapsed),
        percent(step.cpu_efficiency),
        size(step.use.mem_peak),
        size(asked),
        "?" if step.use.gpu_percent is None else f"{step.use.gpu_percent}%",
        step.exit_code or ("-" if step.runs else "?"),
        _number(step.use.tasks),
        _number(step.nodes),
        clock(step.started)[5:19] if step.started else "?",
    )


def _line(cells: Sequence[str], widths: Sequence[int], style: str) -> Content:
    padded = [
        cell.rjust(width) if head in _RIGHT else cell.ljust(width)
        for cell, width, head in zip(cells, widths, _HEADS, strict=True)
    ]
    parts = [(f"{text}  ", style or _style(at, cells[at])) for at, text in enumerate(padded)]
    return Content.assemble(*parts)


def _style(at: int, cell: str) -> str:
    if _HEADS[at] == "STATE":
        return _COLOURS.get(kind(cell), "")
    return "$quiet" if _HEADS[at] in _QUIET else ""


def _notes(found: Steps, count: int) -> list[str]:
    more = [f"the first {_SHOWN} of {count:,} steps"] if count > _SHOWN else []
    missing = [f"unknown in part: {found.missing}"] if found.missing else []
    meant = [
        "CPU EFF: CPU time used, of CPUs x elapsed. MEM PEAK: the most seen, of ASKED.",
        "GPU: utilisation, the average of its tasks. ? is what Slurm does not say.",
    ]
    return [*more, *missing, *meant, f"Source  {found.source} at {clock(int(found.taken))}"]


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def size(value: float | None) -> str:
    """Bytes with a binary unit; `?` while unknown."""
    if value is None:
        return "?"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"
