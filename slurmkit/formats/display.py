"""Texts for people: TRES, numbers, times, lists, a time axis, and foreign text made printable."""

from __future__ import annotations

import datetime as dt
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from slurmkit.formats.tres import format_tres

# Joiners that names in Persian, Hindi and other languages need; they move nothing on a screen.
_HARMLESS = "\u200c\u200d"
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
DAY_SECONDS = 86400.0
SPARKS = "▁▂▃▄▅▆▇█"
PLAIN_SPARKS = "12345678"  # for terminals without these characters


def format_time(epoch: float | None) -> str:
    """Write a time in this machine's time zone; `unknown` for None."""
    if epoch is None:
        return "unknown"
    return datetime.fromtimestamp(epoch, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def format_percent(share: float | None) -> str:
    """Write a part of 1 as percent; `?` for None."""
    return "?" if share is None else f"{share:.0%}"


def spark_signs(percents: Sequence[float | None], *, plain: bool = False) -> str:
    """Return a curve of percentages as text, one sign for each: `▁` to `█`; `·` is unknown.

    Args:
        percents: values, oldest first.
        plain: use only ASCII: `1` to `8`, and `.` for unknown.
    """
    signs, unknown = (PLAIN_SPARKS, ".") if plain else (SPARKS, "·")
    top = len(signs) - 1
    return "".join(
        unknown if each is None else signs[min(max(int(each / 100 * len(signs)), 0), top)]
        for each in percents
    )


def format_number(number: float) -> str:
    """Write a number with at most two decimals: `0.67`, `40`, `1,234.5`; `<0.01`, not 0."""
    if 0 < abs(number) < 0.005:
        return "<0.01" if number > 0 else ">-0.01"
    return f"{number:,.2f}".rstrip("0").rstrip(".")


def format_quantity(number: float | None, noun: str) -> str:
    """Write a number with its noun: `1 CPU-hour`, `2.5 CPU-hours`; `unknown CPU-hours` for None."""
    written = "unknown" if number is None else format_number(number)
    return f"{written} {noun}" if written == "1" else f"{written} {noun}s"


def describe_gpus(tres: Mapping[str, int]) -> str:
    """Format the GPUs, shards and MPS of a TRES; `no GPU` for none."""
    typed = {name: n for name, n in tres.items() if name.startswith("gres/gpu:")}
    rest = tres.get("gres/gpu", 0) - sum(typed.values())
    found = [format_tres(name, n) for name, n in typed.items() if n]
    found += [format_tres("gres/gpu", rest)] if rest > 0 else []
    found += [format_tres(n, tres[n]) for n in ("gres/shard", "gres/mps") if tres.get(n)]
    return ", ".join(found) or "no GPU"


def describe_holding(tres: Mapping[str, int]) -> str:
    """Format the resources that others may wait for: GPUs, else CPUs and memory."""
    held = describe_gpus(tres)
    if held != "no GPU":
        return held
    return (
        ", ".join(format_tres(name, tres[name]) for name in ("cpu", "mem") if name in tres) or "?"
    )


def format_moment(epoch: int | None, now: float) -> str:
    """Format a time in this machine's time zone, and how far off it is: `14:05 (in 12 min)`."""
    if epoch is None:
        return "unknown"
    if abs(epoch - now) < 60:
        return "now" if epoch - now > -1 else "just now"
    local = datetime.fromtimestamp(epoch, UTC).astimezone()
    today = local.date() == datetime.fromtimestamp(now, UTC).astimezone().date()
    clock = local.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
    return f"{clock} ({format_distance(epoch - now)})"


def format_distance(seconds: float) -> str:
    """Format how far off a time is: `in 12 min`, `3 h ago`."""
    size = abs(seconds)
    if size < 90 * 60:
        length = f"{size / 60:.0f} min"
    else:
        length = f"{size / 3600:.0f} h" if size < 48 * 3600 else f"{size / 86400:.0f} days"
    return f"in {length}" if seconds > 0 else f"{length} ago"


def join_names(names: list[str], most: int = 4) -> str:
    """Join names, and after `most` of them say how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def format_seconds(value: float) -> str:
    """Format a short length of time: `12 s`, `5 min`."""
    return f"{max(0, value):.0f} s" if value < 120 else format_distance(value).removeprefix("in ")


def printable(text: str) -> str:
    r"""Return `text` with control, format and lone surrogate characters escaped.

    Job names, comments and directory entries reach every reader's terminal raw, so a newline
    could forge a row and an escape sequence could repaint the screen.

    >>> printable("evil\n\x1b[2J")
    'evil\\n\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(map(_escape, text))


def _escape(char: str) -> str:
    if unicodedata.category(char) not in _UNSAFE or char in _HARMLESS:
        return char
    return char.encode("unicode_escape").decode("ascii")


class TimeAxis:
    """A time axis of `width` characters for `format_seconds` from `start` (epoch seconds) on."""

    def __init__(self, start: float, seconds: float, width: int) -> None:
        self.start, self.seconds, self.width = start, seconds, width

    def bar(self, begin: float, end: float, mark: str) -> str:
        """Draw a span with `mark` in each character it touches; `>` where it goes on beyond."""
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
        """Write `now`, and each day's name where the day begins, as far as there is room."""
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
        """Yield the local midnights; a day may have 23 or 25 hours."""
        day = dt.datetime.fromtimestamp(self.start).astimezone().date()
        while True:
            day += dt.timedelta(days=1)
            at = dt.datetime.combine(day, dt.time()).astimezone()
            if at.timestamp() >= self.start + self.seconds:
                return
            yield at
