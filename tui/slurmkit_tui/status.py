"""What is shown, where it comes from and how old it is: a line above and lines below the view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from textual.content import Content
from textual.widgets import Static

from slurmkit.durations import format_duration
from slurmkit.text import printable
from slurmkit_tui.pace import Pace
from slurmkit_tui.session import Picture, Session
from slurmkit_tui.view import Part, View
from slurmkit_tui.views import VIEWS

_DOT = ("  ·  ", "$quiet")


class Tabs(Static):
    """The first line: the views by their digits."""

    def __init__(self, current: str) -> None:
        super().__init__(markup=False)
        self._current = current

    def show(self, current: str) -> None:
        """Mark the view that is shown."""
        self._current = current
        self.refresh()

    def render(self) -> Content:
        """Draw as much of the names as there is room for."""
        styles = {self._current: "$primary bold reverse"}
        words = self.words(self.size.width)
        return Content.assemble(*((words[each], styles.get(each, "$quiet")) for each in words))

    def words(self, room: int) -> dict[str, str]:
        """What stands there by view: of all views the digits, whatever the room."""
        wide = {each.name: f" {each.key} {each.title} " for each in VIEWS}
        close = {each.name: f" {each.key} {each.title}" for each in VIEWS}
        least = {each.name: f" {each.key}" for each in VIEWS}
        here = least | {self._current: f"{close[self._current]} "}
        fits = (words for words in (wide, close) if sum(map(len, words.values())) <= room)
        return next(fits, here)


class Summary(Static):
    """The line above the view: the cluster and what is shown of it."""

    def show(self, session: Session, view: View) -> None:
        """Count what is shown."""
        name = printable(session.cluster or "cluster unknown")
        self.update(_join([(name, "$primary bold"), *view.summary()]))


class Source(NamedTuple):
    """What the line below is made of."""

    session: Session
    picture: Picture
    asked: str
    marks: Sequence[str]


class Status(Static):
    """The line below: source, age, pace."""

    def show(self, of: Source, *, now: float) -> None:
        """Say how old the picture is, and what it cost."""
        parts: list[Part] = [(mark, "$warning bold") for mark in of.marks]
        parts += [_age(of, now), f"every {_seconds(of.picture.pace.delay)}"]
        self.update(_join([*parts, _called(of.session.feed.calls)]))


class Problem(Static):
    """The line that is there only while there is no answer."""

    def show(self, words: str, pace: Pace, *, now: float) -> None:
        """Say what is wrong and when it is tried again; nothing hides the line."""
        self.display = bool(words)
        self.update(Content.assemble(("✗ ", "bold"), printable(words), f" · {_next(pace, now)}"))


def _age(of: Source, now: float) -> str:
    answer = of.picture.answer
    if answer is None:
        return f"{of.asked}: no answer yet"
    age = max(0.0, now - answer.taken)
    return f"{answer.source} {_seconds(age)} ago, took {answer.seconds:.2f} s"


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
