"""What is shown, where it comes from and how old it is: a line above and lines below the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from textual.content import Content
from textual.widgets import Static

from slurmkit.durations import format_duration
from slurmkit.text import printable
from slurmkit_tui.pace import Pace
from slurmkit_tui.snapshot import Line, Snapshot

_DOT = ("  ·  ", "$quiet")
Part = str | tuple[str, str]


class Summary(Static):
    """The line above: the cluster and the jobs shown."""

    def show(self, snapshot: Snapshot | None, lines: Sequence[Line], filters: list[str]) -> None:
        """Count what is shown."""
        parts: list[Part] = [(_cluster(snapshot), "$primary bold")]
        if snapshot is not None:
            parts += _counts(snapshot, lines, filters)
        self.update(_join(parts))


class Source(NamedTuple):
    """What the line below is made of."""

    snapshot: Snapshot | None
    pace: Pace
    calls: int
    read_only: bool


class Status(Static):
    """The line below: source, age, pace."""

    def show(self, source: Source, *, now: float) -> None:
        """Say how old the picture is, and what it cost."""
        marks = {"PAUSED": source.pace.paused, "READ-ONLY": source.read_only}
        parts: list[Part] = [(word, "$warning bold") for word, on in marks.items() if on]
        parts += [_age(source.snapshot, now), f"every {_seconds(source.pace.delay)}"]
        self.update(_join([*parts, _called(source.calls)]))


class Problem(Static):
    """The line that is there only while Slurm does not answer."""

    def show(self, words: str, pace: Pace, *, now: float) -> None:
        """Say what is wrong and when it is tried again; nothing hides the line."""
        self.display = bool(words)
        self.update(Content.assemble(("✗ ", "bold"), printable(words), f" · {_next(pace, now)}"))


def _counts(snapshot: Snapshot, lines: Sequence[Line], filters: list[str]) -> Iterable[Part]:
    states = list(map(attrgetter("row.state"), lines))
    total = len(snapshot.lines)
    shown = f"{len(lines)} of {total} jobs ({printable(', '.join(filters))})"
    yield shown if filters else f"{total} job{'' if total == 1 else 's'}"
    yield (f"{states.count('RUNNING')} running", "$success")
    yield (f"{states.count('PENDING')} pending", "$warning")
    yield _held(lines) if snapshot.gpus_known or not lines else "GPUs unknown"


def _held(lines: Sequence[Line]) -> str:
    held = sum(map(attrgetter("held"), lines))
    return f"{held} GPU{'' if held == 1 else 's'} held"


def _age(snapshot: Snapshot | None, now: float) -> str:
    if snapshot is None:
        return "squeue: no answer yet"
    age = max(0.0, now - snapshot.taken)
    return f"squeue {_seconds(age)} ago, took {snapshot.seconds:.2f} s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else format_duration(int(seconds))


def _called(calls: int) -> str:
    return f"{calls} Slurm call{'' if calls == 1 else 's'}"


def _next(pace: Pace, now: float) -> str:
    if pace.asking:
        return "asking again…"
    if pace.next_at is None:
        return "r asks again"
    return f"next try in {_seconds(max(0.0, pace.next_at - now))}"


def _join(parts: Iterable[Part]) -> Content:
    spread = [piece for part in parts for piece in (_DOT, part)]
    return Content.assemble(*spread[1:])


def _cluster(snapshot: Snapshot | None) -> str:
    return printable((snapshot and snapshot.site.cluster_name) or "cluster unknown")
