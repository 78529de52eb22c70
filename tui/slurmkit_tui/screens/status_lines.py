"""The lines above and below the view: tabs, counts, source and age of the answer, problems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from slurmkit.formats.display import printable
from slurmkit.formats.durations import format_duration
from slurmkit_tui.session import ClusterSession, LastAnswer, PollSchedule
from slurmkit_tui.views import VIEWS
from slurmkit_tui.views.base import SummaryPart, View

_DOT = ("  ·  ", "$quiet")


class TabLine(Static):
    """A line of tabs with their keys. A click on a tab posts `Clicked`."""

    class Clicked(Message):
        """A tab was clicked."""

        def __init__(self, tab: str) -> None:
            super().__init__()
            self.tab = tab

    def __init__(self, current: str, *, heading: str = "", id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, markup=False)
        self._current = current
        self._heading = heading

    def show(self, current: str) -> None:
        """Mark the current tab."""
        self._current = current
        self.refresh()

    def render(self) -> Content:
        """Draw the heading and the tabs."""
        styles = {self._current: "$primary bold reverse"}
        words = self.tab_texts(self.size.width)
        tabs = ((words[each], styles.get(each, "$quiet")) for each in words)
        return Content.assemble((self._heading, "$primary bold"), *tabs)

    def tab_texts(self, room: int) -> dict[str, str]:
        """Return the text of each tab, for `room` cells."""
        raise NotImplementedError

    def on_click(self, event: events.Click) -> None:
        """Post the tab under the mouse."""
        right = cell_len(self._heading)
        for tab, words in self.tab_texts(self.size.width).items():
            left, right = right, right + cell_len(words)
            if left <= event.x < right:
                self.post_message(self.Clicked(tab))


class Tabs(TabLine):
    """The first line: the views with their digits."""

    def tab_texts(self, room: int) -> dict[str, str]:
        """Return key and title of each view; without room for the titles, only the keys."""
        wide = {each.name: f" {each.key} {each.title} " for each in VIEWS}
        close = {each.name: f" {each.key} {each.title}" for each in VIEWS}
        for words in (wide, close):
            if sum(map(len, words.values())) <= room:
                return words
        digits = {each.name: f" {each.key}" for each in VIEWS}
        return digits | {self._current: f"{close[self._current]} "}


class Summary(Static):
    """The line above the view: the cluster, and counts of the rows shown."""

    def show(self, session: ClusterSession, view: View) -> None:
        """Show the cluster's name and the view's counts."""
        name = printable(session.cluster or "cluster unknown")
        self.update(_join([(name, "$primary bold"), *view.summary()]))


class StatusValues(NamedTuple):
    """Values that the line below the view shows.

    Attributes:
        asked: name of the command or daemon that is asked.
        marks: marks of an unusual mode, for example `PAUSED`.
    """

    session: ClusterSession
    last_answer: LastAnswer
    asked: str
    marks: Sequence[str]


class StatusLine(Static):
    """The line below the view: source and age of the answer, interval, number of Slurm calls."""

    def show(self, of: StatusValues, *, now: float) -> None:
        """Show the age of the answer and how long it took; on a narrow screen the age alone."""
        marks: list[SummaryPart] = [(mark, "$warning bold") for mark in of.marks]
        age, every = _age(of, now), f"every {_seconds(of.last_answer.pace.delay)}"
        line = _join([*marks, f"{age}{_took(of)}", every, _calls(of.session.feed.calls)])
        for shorter in ([f"{age}{_took(of)}", every], [age, every], [age]):
            if line.cell_length > self.content_size.width > 0:
                line = _join([*marks, *shorter])
        self.update(line)


class ProblemLine(Static):
    """The line that is visible only while Slurm does not answer."""

    def show(self, words: str, pace: PollSchedule, *, now: float) -> None:
        """Show the problem and the time of the next try; an empty text hides the line."""
        self.display = bool(words)
        self.update(
            Content.assemble(("✗ ", "bold"), printable(words), f" · {_next_try(pace, now)}")
        )


def _age(of: StatusValues, now: float) -> str:
    answer = of.last_answer.answer
    if answer is None:
        return f"{of.asked}: no answer yet"
    age = max(0.0, now - answer.taken)
    return f"{answer.source} {_seconds(age)} ago"


def _took(of: StatusValues) -> str:
    answer = of.last_answer.answer
    return "" if answer is None else f", took {answer.seconds:.2f} s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else format_duration(int(seconds))


def _calls(calls: int) -> str:
    return f"{calls} Slurm call{'' if calls == 1 else 's'}"


def _next_try(pace: PollSchedule, now: float) -> str:
    if pace.asking:
        return "asking again…"
    if pace.next_at is None:
        return "r asks again"
    return f"next try in {_seconds(max(0.0, pace.next_at - now))}"


def _join(parts: Iterable[SummaryPart]) -> Content:
    spread = [piece for part in parts for piece in (_DOT, part)]
    return Content.assemble(*spread[1:])
