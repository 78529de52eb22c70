"""Text whose long lines are wrapped and indented, for example names and values in two columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from textual.content import Content
from textual.geometry import Size
from textual.widgets import Static

from slurmkit.formats.display import printable

_NARROWEST = 20  # cells of a value; on narrower screens it also uses the room below its name
_SMALL_INDENT = 2


class TextLine(NamedTuple):
    """A line of text.

    Attributes:
        content: the text.
        indent: cells before its second line and the next ones, if it is too long for one.
    """

    content: Content
    indent: int = 0


TextLines = Sequence[TextLine]


def plain_lines(text: str | Content) -> list[TextLine]:
    """Return the lines of a text; nothing is indented."""
    content = Content(text) if isinstance(text, str) else text
    return [TextLine(line) for line in content.split(allow_blank=True)]


def two_columns(rows: Sequence[tuple[str, str]]) -> list[TextLine]:
    """Return names and values in two columns; values are escaped and hold no markup."""
    size = max((len(name) for name, _ in rows), default=0) + 2
    return [
        TextLine(Content.assemble((name.ljust(size), "$quiet"), printable(value)), size)
        for name, value in rows
    ]


def wrap_lines(lines: TextLines, width: int) -> list[Content]:
    """Break long lines at blanks, and indent their rest."""
    return [piece for line in lines for piece in _wrap_line(line, width)]


def _wrap_line(line: TextLine, width: int) -> Iterator[Content]:
    content, indent = line
    if content.cell_length <= width:
        yield content
        return
    if width - indent < _NARROWEST:
        indent = min(indent, _SMALL_INDENT)
    name, value = content[:indent], content[indent:]
    for piece in value.wrap(max(1, width - indent)):
        yield name + piece
        name = Content(" " * indent)


class WrappedText(Static):
    """Lines of text, broken at the width of the widget."""

    def __init__(
        self,
        lines: TextLines = (),
        *,
        id: str | None = None,  # noqa: A002 - Textual's name
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes, markup=False)
        self._lines = lines

    def show(self, lines: TextLines) -> None:
        """Show other lines."""
        self._lines = lines
        self.refresh(layout=True)

    def render(self) -> Content:
        return Content("\n").join(wrap_lines(self._lines, max(1, self.content_size.width)))

    def get_content_width(self, container: Size, viewport: Size) -> int:
        del container, viewport
        return max((line.content.cell_length for line in self._lines), default=0)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        del container, viewport
        return len(wrap_lines(self._lines, max(1, width)))
