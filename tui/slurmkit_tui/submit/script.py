"""The script that is sent, on the screen: all of its lines, and only those seen are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from textual.content import Content
from textual.highlight import highlight
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget

from slurmkit.text import printable

if TYPE_CHECKING:
    from slurmkit.planner import Plan

_COLOURED = 400  # lines; a lexer takes longer for more than somebody types at a stretch


class Script(NamedTuple):
    """What is sent, line by line, as a terminal may show it.

    Attributes:
        coloured: the first lines again, with colours.
    """

    lines: tuple[str, ...]
    coloured: tuple[Content, ...] = ()


NO_SCRIPT = Script(())


def script_of(plan: Plan) -> Script:
    """Make the scripts of a plan ready for the screen; runs in a thread."""
    whole = "\n\n".join(each.script.removesuffix("\n") for each in plan.submissions)
    lines = tuple(printable(line.expandtabs(8)) for line in whole.split("\n"))
    language = "python" if "python" in lines[0] else "bash"
    coloured = highlight("\n".join(lines[:_COLOURED]), language=language)
    return Script(lines, tuple(coloured.split("\n", allow_blank=True)))


def cuts(line: str, width: int) -> Iterator[int]:
    """Columns at which the rows of a line begin; a wide character is never cut."""
    yield 0
    if line.isascii():
        yield from range(width, len(line), width)
        return
    begin = at = 0
    for char in line:
        size = cell_len(char)
        if at + size - begin > width:
            yield at
            begin = at
        at += size


class ScriptView(Widget):
    """Draws a script; long lines go on in the next row."""

    def __init__(self) -> None:
        super().__init__(id="form-script")
        self._script = NO_SCRIPT
        self._rows: list[tuple[int, int, int]] = []  # of a line, from and up to a column

    def update(self, script: Script) -> None:
        """Show another script."""
        if script != self._script:
            self._script = script
            self._lay_out()

    def on_resize(self) -> None:
        """Break its lines anew."""
        self._lay_out()

    def _lay_out(self) -> None:
        width = max(1, self.size.width)
        rows: list[tuple[int, int, int]] = []
        for number, line in enumerate(self._script.lines):
            begins = [*cuts(line, width)]
            ends = [*begins[1:], begins[-1] + width]
            rows += [(number, begin, end) for begin, end in zip(begins, ends, strict=True)]
        self._rows = rows
        self.styles.height = len(rows)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw one row of the screen."""
        style = self.visual_style
        if y >= len(self._rows):
            return Strip.blank(self.size.width, self.rich_style)
        number, begin, end = self._rows[y]
        _, coloured = self._script
        text = self._script.lines[number]
        line = coloured[number] if number < len(coloured) else Content(text)
        (strip,) = Visual.to_strips(self, line, max(1, cell_len(text)), 1, style)
        return strip.crop(begin, end).extend_cell_length(self.size.width, self.rich_style)
