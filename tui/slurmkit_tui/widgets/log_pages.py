"""Pages of a file by byte offsets, so that no lines are counted from its begin.

A line longer than `LONGEST` bytes is shown as several. All functions read through `ReadPiece`, so
that the file may be anywhere, and read no more than a page needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from slurmkit.jobs.log import FilePiece

LONGEST = 1 << 14  # bytes of a line
_BLOCK = 1 << 16  # bytes read at once
_SEARCHED = 1 << 18  # bytes searched at once; more would stall the screen

ReadPiece = Callable[[int, int], FilePiece]


class PageLine(NamedTuple):
    """A line, or a part of a very long one; `begin` is its offset in the file."""

    begin: int
    text: bytes


class LogPage(NamedTuple):
    """The lines that fit on a screen.

    Attributes:
        end: offset after the last line.
        size: size of the file in bytes.
    """

    lines: tuple[PageLine, ...]
    end: int
    size: int

    @property
    def begin(self) -> int:
        """Offset of the first line."""
        return self.lines[0].begin if self.lines else 0


def page_from(read: ReadPiece, begin: int, rows: int) -> LogPage:
    """Read the page that begins with the line at an offset."""
    lines: list[PageLine] = []
    at, size = begin, begin
    while len(lines) < rows:
        piece = read(at, max(_BLOCK, LONGEST * 2))
        size = piece.size
        if not piece.data:
            break
        more, at = _split(piece, rows - len(lines))
        lines += more
    return LogPage(tuple(lines), at, size)


def _split(piece: FilePiece, rows: int) -> tuple[list[PageLine], int]:
    """Split a piece into whole lines; return them and the offset of the next one.

    The last line of the file may lack its line end.
    """
    lines: list[PageLine] = []
    at, data = 0, piece.data
    last = piece.begin + len(data) >= piece.size
    while at < len(data) and len(lines) < rows:
        end = data.find(b"\n", at, at + LONGEST)
        if end < 0 and not last and len(data) - at < LONGEST:
            break
        stop = end if end >= 0 else min(len(data), at + LONGEST)
        lines.append(PageLine(piece.begin + at, data[at:stop]))
        at = stop + (end >= 0)
    return lines, piece.begin + at


def first_lines(page: LogPage, rows: int, height: Callable[[bytes], int]) -> LogPage:
    """Return the first lines of a page that fit on `rows` lines of the screen, at least one.

    Args:
        page: the page.
        rows: lines of the screen.
        height: returns on how many lines of the screen a line is drawn.
    """
    used, fit = 0, 0
    for line in page.lines:
        used += height(line.text)
        if used > rows:
            break
        fit += 1
    fit = max(1, fit)
    end = page.lines[fit].begin if fit < len(page.lines) else page.end
    return page._replace(lines=page.lines[:fit], end=end)


def last_lines(page: LogPage, rows: int, height: Callable[[bytes], int]) -> LogPage:
    """Return the last lines of a page that fit on `rows` lines of the screen; see `first_lines`."""
    used, fit = 0, 0
    for line in reversed(page.lines):
        used += height(line.text)
        if used > rows:
            break
        fit += 1
    return page._replace(lines=page.lines[-max(1, fit) :])


def offset_above(read: ReadPiece, offset: int, rows: int) -> int:
    """Return the offset of the line that is `rows` lines above the one at an offset."""
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
    """Return where lines begin in a piece; `first` if it is the begin of the file."""
    starts = [match.end() for match in re.finditer(b"\n", data) if match.end() < len(data)]
    return [0, *starts] if first and data else starts


def last_page(read: ReadPiece, rows: int) -> LogPage:
    """Read the last page of the file."""
    size = read(0, 0).size
    return page_from(read, offset_above(read, size, rows), rows)


def line_begin(read: ReadPiece, offset: int) -> int:
    """Return the offset of the begin of the line that contains an offset."""
    begin = max(0, offset - LONGEST)
    data = read(begin, offset - begin).data
    newline = data.rfind(b"\n")
    return begin + newline + 1 if newline >= 0 else begin


def find_forward(
    read: ReadPiece,
    pattern: re.Pattern[bytes],
    begin: int,
    report: Callable[[float], bool] = lambda _part: True,
    likely: Callable[[bytes], bool] = lambda _data: True,
) -> int | None:
    """Return the offset of the first line at or after `begin` that matches; None for none.

    Args:
        read: reads the file.
        pattern: the pattern to search.
        begin: offset of the begin of a line.
        report: called with the searched share, 0 to 1; returns False to give up.
        likely: tells quickly whether bytes can contain a match at all.
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
        if not report(at / max(1, piece.size)):
            return None


def find_backward(
    read: ReadPiece,
    pattern: re.Pattern[bytes],
    end: int,
    report: Callable[[float], bool] = lambda _part: True,
) -> int | None:
    """Return the offset of the last line before `end` that matches; None for none.

    See `find_forward`.
    """
    at = end
    while at > 0:
        begin = max(0, at - _SEARCHED)
        data = read(begin, at - begin).data
        cut = 0 if begin == 0 else data.find(b"\n") + 1
        matches = list(pattern.finditer(data, cut))
        if matches:
            return begin + data.rfind(b"\n", 0, matches[-1].start()) + 1
        at = begin + cut if cut and begin + cut < at else begin
        if not report(1 - at / max(1, end)):
            return None
    return None
