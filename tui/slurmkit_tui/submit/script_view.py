"""The widget that shows the script to be submitted; only visible lines are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from textual.content import Content
from textual.highlight import highlight
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget

from slurmkit.formats.display import printable

if TYPE_CHECKING:
    from slurmkit.planning.planner import Plan

_COLOURED = 400  # lines; colouring more takes too long while somebody types


class ShownScript(NamedTuple):
    """The lines of a script, safe for a terminal.

    Attributes:
        coloured: the first lines again, with colours.
    """

    lines: tuple[str, ...]
    coloured: tuple[Content, ...] = ()


class _Row(NamedTuple):
    """One row on the screen: a part of a line, from column `begin` up to `end`."""

    line: int
    begin: int
    end: int


NO_SCRIPT = ShownScript(())


def prepare_script(plan: Plan) -> ShownScript:
    """Prepare the scripts of a plan for the screen. Runs in a thread."""
    whole = "\n\n".join(each.script.removesuffix("\n") for each in plan.submissions)
    lines = tuple(printable(line.expandtabs(8)) for line in whole.split("\n"))
    language = "python" if "python" in lines[0] else "bash"
    coloured = highlight("\n".join(lines[:_COLOURED]), language=language)
    return ShownScript(lines, tuple(coloured.split("\n", allow_blank=True)))


def wrap_columns(line: str, width: int) -> Iterator[int]:
    """Yield the columns at which a long line is wrapped; a wide character is never split."""
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
    """A script on the screen; long lines are wrapped."""

    def __init__(self) -> None:
        super().__init__(id="form-script")
        self._script = NO_SCRIPT
        self._rows: list[_Row] = []

    def update(self, script: ShownScript) -> None:
        """Show another script."""
        if script != self._script:
            self._script = script
            self._lay_out()

    def on_resize(self) -> None:
        """Wrap the lines for the new width."""
        self._lay_out()

    def _lay_out(self) -> None:
        width = max(1, self.size.width)
        rows: list[_Row] = []
        for number, line in enumerate(self._script.lines):
            begins = [*wrap_columns(line, width)]
            ends = [*begins[1:], begins[-1] + width]
            rows += [_Row(number, *span) for span in zip(begins, ends, strict=True)]
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
