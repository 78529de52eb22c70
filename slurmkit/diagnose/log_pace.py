"""Whether a running job's log is silent for longer than is usual for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median

import msgspec

from slurmkit.diagnose.log_tail import read_tail
from slurmkit.diagnose.model import RunningFact, RunningFinding
from slurmkit.errors import LogUnavailable, SlurmError, SshError
from slurmkit.formats.display import format_seconds
from slurmkit.jobs.job import JobCluster
from slurmkit.slurm.machine import machine_of

_TAIL = 1 << 16  # bytes read of its end
_LEAST_SILENT = 300  # seconds; a shorter silence is never a finding
_BY_STAMPS = 5  # times the longest pause that its own times show
_BY_AVERAGE = 10  # times its average pause, which says less
_LEAST_PAUSES = 5
_DAY = 86400
# Times at the start of a line, perhaps in brackets or after a level: 2026-11-24 02:03:04,567 or
# 02:03:04.
_STAMP = re.compile(
    r"^.{0,24}?(?P<day>\d{4}-\d\d-\d\d)?[T ]?(?P<time>\d\d:\d\d:\d\d)(?P<part>[.,]\d{1,6})?"
)


class LogPace(msgspec.Struct, frozen=True, kw_only=True):
    """How often a job writes to its log.

    Attributes:
        path: of the log.
        size: bytes.
        silent: seconds since it was last written.
        pause: usual seconds between two lines; None if unknown.
        longest: the longest pause between two lines; None if unknown.
        by_stamps: whether the pauses are from times in the log itself, not an average over the run.
        taken: epoch seconds at which the file was looked at.
    """

    path: str
    size: int
    silent: float
    pause: float | None = None
    longest: float | None = None
    by_stamps: bool = False
    taken: float


def read_pace(cluster: JobCluster, job_id: str, started: int | None, now: float) -> LogPace | str:
    """Look at a job's log; return why that is not possible, if so.

    Args:
        cluster: of the job.
        job_id: of the job.
        started: epoch seconds at which it started.
        now: epoch seconds.
    """
    try:
        path = cluster.job(job_id).log_path()
    except (LogUnavailable, SlurmError) as error:
        return str(error)
    if path is None:
        return "Slurm does not say where it is"
    machine = machine_of(cluster.slurm)
    try:
        tail = read_tail(machine, path, _TAIL)
    except SshError as error:
        return str(error)
    except FileNotFoundError:
        return f"{path} does not exist on this machine"
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"
    return judge_pace(path, tail.text, tail.size, tail.modified, started, now)


def judge_pace(
    path: str, text: str, size: int, modified: float, started: int | None, now: float
) -> LogPace:
    """Return the pace of a log from its last lines.

    Args:
        path: of the log.
        text: its end.
        size: bytes of the whole log.
        modified: epoch seconds of its last change.
        started: epoch seconds at which the job started.
        now: epoch seconds.
    """
    lines = text.splitlines()
    silent = max(0.0, now - modified)
    pauses = _pauses(lines)
    if len(pauses) >= _LEAST_PAUSES:
        return LogPace(
            path=path, size=size, silent=silent, pause=median(pauses), longest=max(pauses),
            by_stamps=True, taken=now,
        )  # fmt: skip
    pause = None
    if started is not None and len(lines) > _LEAST_PAUSES and modified > started:
        whole = len(lines) * size / max(len(text.encode()), 1)  # lines, if all are as long
        pause = (modified - started) / whole
    return LogPace(path=path, size=size, silent=silent, pause=pause, taken=now)


def _pauses(lines: Sequence[str]) -> list[float]:
    """Return the seconds between two lines that begin with a time."""
    times = [*_times(lines)]
    return [each for before, after in pairwise(times) if 0 <= (each := after - before) < _DAY]


def _times(lines: Sequence[str]) -> Iterator[float]:
    """Yield the times of lines, in seconds; only differences mean something."""
    days = 0.0
    last = None
    for line in lines:
        match = _STAMP.match(line)
        if match is None:
            continue
        try:
            clock = datetime.strptime(match["time"], "%H:%M:%S")  # noqa: DTZ007 - no zone in it
            day = datetime.fromisoformat(match["day"]).toordinal() if match["day"] else 0
        except ValueError:
            continue
        part = float("0." + match["part"][1:]) if match["part"] else 0.0
        seconds = clock.hour * 3600 + clock.minute * 60 + clock.second + part
        if not day and last is not None and seconds < last - _DAY / 2:
            days += _DAY  # midnight has passed
        last = seconds
        yield day * _DAY + days + seconds


def pace_finding(pace: LogPace) -> RunningFinding | None:
    """Return the finding of a log that is silent for much longer than usual."""
    usual = (pace.longest, _BY_STAMPS) if pace.by_stamps else (pace.pause, _BY_AVERAGE)
    if usual[0] is None or pace.silent < max(_LEAST_SILENT, usual[0] * usual[1]):
        return None
    return RunningFinding(
        kind="silent",
        text=f"its log is silent for {format_seconds(pace.silent)}; {_usual(pace)}",
        source=pace.path,
        taken=pace.taken,
        advice="slurmkit log JOB shows its last lines",
    )


def _usual(pace: LogPace) -> str:
    if pace.by_stamps:
        return f"before, the longest pause was {_length(pace.longest)} (times in its last lines)"
    return f"before, it had {_rate(pace.pause)} on average over the run"


def _rate(pause: float | None) -> str:
    if pause is not None and pause < 2 / 3:
        return f"{1 / max(pause, 0.001):,.0f} lines a second"
    return f"a line every {format_seconds(max(pause or 0, 1))}"


def _length(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    return "less than 1 s" if seconds < 1 else format_seconds(seconds)


def pace_fact(pace: LogPace | str, elapsed: float | None, taken: float | None) -> RunningFact:
    """Describe when the log was last written.

    Args:
        pace: of the log, or why it is unknown.
        elapsed: seconds for which the job runs.
        taken: epoch seconds of the look at a log that is unknown.
    """
    if isinstance(pace, str):
        return RunningFact(about="Log", text=f"unknown: {pace}", source="the log", taken=taken)
    if not pace.size:
        ran = "" if elapsed is None else f" in {format_seconds(elapsed)}"
        text = f"empty: the job has written nothing{ran}; Python keeps its output back without -u"
        return RunningFact(about="Log", text=text, source=pace.path, taken=pace.taken)
    text = f"written {format_seconds(pace.silent)} ago"
    if pace.pause is not None:
        how = "by the times in it" if pace.by_stamps else "on average over the run"
        text += f"; usually {_rate(pace.pause)}, {how}"
    return RunningFact(about="Log", text=text, source=pace.path, taken=pace.taken)
