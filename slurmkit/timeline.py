"""Spans of time as bars on a line of text."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

DAY = 86400.0


class Axis:
    """A line of `width` characters from `start` on, `seconds` long; `start` in epoch seconds."""

    def __init__(self, start: float, seconds: float, width: int) -> None:
        self.start, self.seconds, self.width = start, seconds, width

    def bar(self, begin: float, end: float, mark: str) -> str:
        """A span as `mark` in each character it touches; `<` or `>` where it goes on beyond."""
        cell = self.seconds / self.width
        first = int(max(0.0, (begin - self.start) / cell))
        last = min(self.width, max(first + 1, -int(-(end - self.start) / cell // 1)))
        if end <= self.start or first >= self.width:
            return ""
        drawn = [mark] * (last - first)
        if end > self.start + self.seconds:
            drawn[-1] = ">"
        return " " * first + "".join(drawn)

    def days(self) -> str:
        """`now`, and the names of the days where they begin; of many days some."""
        line = [*"now", *" " * self.width][: self.width]
        free = len("now  ")
        for day in self._midnights():
            at = int((day.timestamp() - self.start) / self.seconds * self.width)
            name = day.strftime("%a %d")
            if at >= free and at + len(name) <= self.width:
                line[at : at + len(name)] = name
                free = at + len(name) + 2
        return "".join(line).rstrip()

    def _midnights(self) -> Iterable[dt.datetime]:
        """Local ones; a day may have 23 or 25 hours."""
        day = dt.datetime.fromtimestamp(self.start).astimezone().date()
        while True:
            day += dt.timedelta(days=1)
            at = dt.datetime.combine(day, dt.time()).astimezone()
            if at.timestamp() >= self.start + self.seconds:
                return
            yield at
