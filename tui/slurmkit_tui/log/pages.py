"""Pages of a file told by offsets: nothing has to be counted from its beginning.

A line longer than `LONGEST` is shown in several. All functions read through `Read`, so that the
file may be anywhere, and do no more reading than a page needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from slurmkit.jobs.pages import Piece

LONGEST = 1 << 14
_BLOCK = 1 << 16
_SEARCHED = 1 << 18  # as much as one look through it may hold up the screen

Read = Callable[[int, int], Piece]


class LogLine(NamedTuple):
    """A line, or a part of a very long one."""

    begin: int
    text: bytes


class Page(NamedTuple):
    """What fits on a screen.

    Attributes:
        end: offset after its last line.
        size: of the file.
    """

    lines: tuple[LogLine, ...]
    end: int
    size: int

    @property
    def begin(self) -> int:
        """Offset of its first line."""
        return self.lines[0].begin if self.lines else 0


def page_from(read: Read, begin: int, rows: int) -> Page:
    """The page that begins with the line at an offset."""
    lines: list[LogLine] = []
    at, size = begin, begin
    while len(lines) < rows:
        piece = read(at, max(_BLOCK, LONGEST * 2))
        size = piece.size
        if not piece.data:
            break
        found, at = _split(piece, rows - len(lines))
        lines += found
    return Page(tuple(lines), at, size)


def _split(piece: Piece, rows: int) -> tuple[list[LogLine], int]:
    """Whole lines of a piece, and where the next one begins; the file's last may have no end."""
    found: list[LogLine] = []
    at, data = 0, piece.data
    last = piece.begin + len(data) >= piece.size
    while at < len(data) and len(found) < rows:
        end = data.find(b"\n", at, at + LONGEST)
        if end < 0 and not last and len(data) - at < LONGEST:
            break
        stop = end if end >= 0 else min(len(data), at + LONGEST)
        found.append(LogLine(piece.begin + at, data[at:stop]))
        at = stop + (end >= 0)
    return found, piece.begin + at


def above(read: Read, offset: int, rows: int) -> int:
    """Offset of the line that is `rows` lines above the one at an offset."""
    at = offset
    while rows > 0 and at > 0:
        begin = max(0, at - _BLOCK)
        data = read(begin, at - begin).data
        starts = _starts(data, first=begin == 0)
        if not starts:  # within a line longer than a block
            at, rows = at - min(LONGEST, at), rows - 1
        elif len(starts) >= rows:
            return begin + starts[-rows]
        else:
            at, rows = begin + starts[0], rows - len(starts)
    return at


def _starts(data: bytes, *, first: bool) -> list[int]:
    """Where lines begin in a piece that ends before the line we come from."""
    starts = [match.end() for match in re.finditer(b"\n", data) if match.end() < len(data)]
    return [0, *starts] if first and data else starts


def last_page(read: Read, rows: int) -> Page:
    """The end of the file."""
    size = read(0, 0).size
    return page_from(read, above(read, size, rows), rows)


def line_at(read: Read, offset: int) -> int:
    """Offset at which the line begins that an offset lies in."""
    begin = max(0, offset - LONGEST)
    data = read(begin, offset - begin).data
    found = data.rfind(b"\n")
    return begin + found + 1 if found >= 0 else begin


def find(
    read: Read,
    pattern: re.Pattern[bytes],
    begin: int,
    told: Callable[[float], bool] = lambda _part: True,
    likely: Callable[[bytes], bool] = lambda _data: True,
) -> int | None:
    """Offset of the first line from an offset on that a pattern is found in.

    Args:
        read: reads the file.
        pattern: what is looked for.
        begin: where a line begins.
        told: told of the part that was searched; returns False to give up.
        likely: says quickly whether the pattern may be found in some bytes at all.
    """
    at = begin
    while True:
        piece = read(at, _SEARCHED)
        cut = piece.data.rfind(b"\n") + 1
        whole = piece.data if at + len(piece.data) >= piece.size or not cut else piece.data[:cut]
        if not whole:
            return None
        if likely(whole) and (match := pattern.search(whole)):
            return at + whole.rfind(b"\n", 0, match.start()) + 1
        at += len(whole)
        if not told(at / max(1, piece.size)):
            return None


def find_back(
    read: Read,
    pattern: re.Pattern[bytes],
    end: int,
    told: Callable[[float], bool] = lambda _part: True,
) -> int | None:
    """Offset of the last line before an offset that a pattern is found in."""
    at = end
    while at > 0:
        begin = max(0, at - _SEARCHED)
        data = read(begin, at - begin).data
        cut = 0 if begin == 0 else data.find(b"\n") + 1
        matches = list(pattern.finditer(data, cut))
        if matches:
            return begin + data.rfind(b"\n", 0, matches[-1].start()) + 1
        at = begin + cut if cut and begin + cut < at else begin
        if not told(1 - at / max(1, end)):
            return None
    return None
