"""Begin, deadline and warning signal against the clock and the time limit."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator

from slurmkit.checks.say import Pairs, error, wall, warning
from slurmkit.checks.walls import minutes
from slurmkit.findings import Finding
from slurmkit.request import Request

_RELATIVE = re.compile(r"now(?:\s*\+\s*(\d+)\s*([a-z]*))?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DEFAULT_SIGNAL_SECONDS = 60  # sbatch(1) --signal


def moment(text: str, now: float) -> float | None:
    """Epoch seconds of sbatch's `now+1hour` and `2026-12-24T18:00`; None for its other forms.

    Local times are those of this machine, as sbatch takes them.
    """
    match = _RELATIVE.fullmatch(text.strip().lower())
    if match:
        return now + int(match[1] or 0) * _UNITS.get((match[2] or "s")[:1], 1)
    if not _DATE.fullmatch(text):
        return None
    try:
        return dt.datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return None


def begin(request: Request) -> Iterator[Finding]:
    """A begin in the past, which Slurm takes as now."""
    text, now = request.spec.begin, request.standing.taken
    at = moment(text, now) if text else None
    if at is not None and at < now - 60:
        message = f"--begin={text} has passed: the job may start at once"
        yield warning("begin-passed", message, "--begin", (("begin", ""),))


def deadline(request: Request) -> Iterator[Finding]:
    """A deadline that has passed, or comes before the job could end."""
    text, now = request.spec.deadline, request.standing.taken
    at = moment(text, now) if text else None
    if at is None:
        return
    start = max(now, moment(request.spec.begin, now) or now) if request.spec.begin else now
    left, time = int(at - start) // 60, minutes(request)
    if left <= 0:
        message = f"--deadline={text} has passed; sbatch would refuse it"
        yield error("deadline-passed", message, "--deadline", (("deadline", ""),))
    elif time is not None and time > left and request.spec.time_min is None:
        message = f"asks for {wall(time)}; its deadline is in {wall(left)}; sbatch would refuse it"
        fix: Pairs = (("time", wall(max(left - 1, 1))),)
        yield error("deadline-too-near", message, "--deadline", fix)


def warning_signal(request: Request) -> Iterator[Finding]:
    """A warning that comes as soon as the job starts."""
    text, time = request.spec.signal, minutes(request)
    if text is None or time is None or request.spec.survive:  # which has words of its own
        return
    name, _, seconds = text.partition("@")
    ahead = int(seconds) if seconds else _DEFAULT_SIGNAL_SECONDS
    if ahead >= time * 60:
        message = (
            f"--signal={text} is sent {ahead} s before the end of a job of {wall(time)}:"
            " as soon as it starts"
        )
        fix: Pairs = (("signal", f"{name}@{max(time * 30, 1)}"),)
        yield warning("signal-at-start", message, "--signal", fix)
