"""Lists to choose from that read without colour: what is chosen, and where the cursor is."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widgets import OptionList, SelectionList

_CURSOR = "▸"


class Choices(OptionList):
    """One of them; a mark stands before the one that Enter takes."""

    def _get_left_gutter_width(self) -> int:
        return 2

    def render_line(self, y: int) -> Strip:
        """Put the mark, or as much room, before a line."""
        line = super().render_line(y)
        first = next(iter(line), None)
        style = (first and first.style) or Style()
        here = self.highlighted is not None and style.meta.get("option") == self.highlighted
        return Strip([Segment(f"{_CURSOR} " if here else "  ", style), *line])


class Boxes(SelectionList[str]):
    """Any of them; a box stands before each, with a mark in it when it is chosen."""

    def render_line(self, y: int) -> Strip:
        """Draw a box in the place of Textual's button, which has the same sign either way."""
        drawn = [*super().render_line(y)]
        at = self.scroll_offset.y + y
        if at >= self.option_count:
            return Strip(drawn)
        mark = "x" if self.get_option_at_index(at).value in self.selected else " "
        cursor = _CURSOR if at == self.highlighted else " "
        _, button, _, gap, *line = drawn
        style = (gap.style or Style()) + Style(meta=button.style.meta if button.style else None)
        return Strip([Segment(f"[{mark}]", style), Segment(cursor, gap.style), *line])
