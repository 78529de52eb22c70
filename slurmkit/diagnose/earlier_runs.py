"""A running job compared with its earlier runs: same user, same name, same size."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from slurmkit.diagnose.model import RunningFact, RunningFinding
from slurmkit.errors import SlurmError
from slurmkit.formats.display import format_seconds
from slurmkit.formats.tres import gpu_count, parse_tres
from slurmkit.jobs.accounting_records import read_user_runs
from slurmkit.jobs.info import JobInfo
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.queue_rows import QueueRow

_DAYS = 30
_LAST = 10  # runs that are compared
_LEAST = 2  # fewer say nothing
_LONGER = 1.2  # times the longest earlier run
_SOURCE = "sacct"


class EarlierRuns(msgspec.Struct, frozen=True):
    """How long earlier runs took, in seconds, newest first.

    Attributes:
        problem: why that is unknown.
        taken: epoch seconds of the answer.
    """

    seconds: tuple[int, ...] = ()
    problem: str = ""
    taken: float | None = None


def read_earlier_runs(slurm: SlurmCommands, row: QueueRow, now: float) -> EarlierRuns:
    """Read how long the last completed runs of the same user, name and size took."""
    try:
        runs = read_user_runs(slurm, row.user, int(now) - _DAYS * 86400, name=row.name)
    except SlurmError as error:
        return EarlierRuns(problem=str(error), taken=now)
    return EarlierRuns(lengths_of_same_runs(runs, row), taken=now)


def lengths_of_same_runs(runs: Iterable[JobInfo], row: QueueRow) -> tuple[int, ...]:
    """Return the lengths of the completed runs like this job, newest first."""
    same = [
        run
        for run in runs
        if run.state == "COMPLETED"
        and run.name == row.name
        and run.user == row.user
        and _size(run.tres) == _size(row.tres)
        and run.raw_id != row.raw_id
        and run.started is not None
        and run.ended is not None
    ]
    same.sort(key=lambda run: run.ended or 0, reverse=True)
    return tuple((run.ended or 0) - (run.started or 0) for run in same[:_LAST])


def _size(tres: str) -> tuple[str, int]:
    """Return nodes and GPUs."""
    return parse_tres(tres).get("node", ""), gpu_count(tres)


def earlier_fact(earlier: EarlierRuns, elapsed: float | None) -> RunningFact:
    """Compare the run time so far with earlier runs."""
    ran = "" if elapsed is None else f"runs {format_seconds(elapsed)} now; "
    if earlier.problem:
        text = f"unknown: {earlier.problem}"
    elif not earlier.seconds:
        text = f"none of this name and size completed in the last {_DAYS} days"
    else:
        text = f"{ran}{_describe(earlier.seconds)}"
    return RunningFact(about="Earlier runs", text=text, source=_SOURCE, taken=earlier.taken)


def earlier_finding(earlier: EarlierRuns, elapsed: float | None) -> RunningFinding | None:
    """Return the finding of a run that is longer than all earlier ones."""
    if elapsed is None or len(earlier.seconds) < _LEAST:
        return None
    if elapsed <= _LONGER * max(earlier.seconds):
        return None
    return RunningFinding(
        kind="slower",
        text=f"it runs {format_seconds(elapsed)} now; {_describe(earlier.seconds)}",
        source=_SOURCE,
        taken=earlier.taken,
        advice="compare what is different: the node, the data, the program",
    )


def _describe(lengths: tuple[int, ...]) -> str:
    """Return `the last 6 took 2 h 10 min to 2 h 40 min`."""
    shortest, longest = (format_length(each) for each in (min(lengths), max(lengths)))
    if len(lengths) == 1:
        return f"the last one took {longest}"
    took = longest if shortest == longest else f"{shortest} to {longest}"
    usual = format_length(int(median(lengths)))
    return f"the last {len(lengths)} took {took}, half of them up to {usual}"


def format_length(seconds: int) -> str:
    """Format how long a run took: `48 s`, `12 min`, `2 h 10 min`."""
    if seconds < 120:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {rest} min" if rest else f"{hours} h"
