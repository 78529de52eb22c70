"""The grid of the GPU map: a line for each node, a cell for each GPU; drawn where it is seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import msgspec
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from slurmkit.gpumap.drawing import CLOSED, FREE, SEVERAL, UNKNOWN
from slurmkit.gpumap.model import Gpu
from slurmkit.nodes.read import NodeRow
from slurmkit.text import printable
from slurmkit_tui.actions import bindings
from slurmkit_tui.messages import Opened
from slurmkit_tui.table import fit

_COLOURS = 10  # holder--0 … in app.tcss
_NAME, _TYPE = 16, 30  # cells at most
_PLAIN = {FREE: "grid--free", CLOSED: "grid--closed", UNKNOWN: "grid--unknown", SEVERAL: ""}


class Holder(NamedTuple):
    """Who holds GPUs.

    Attributes:
        sign: the letter, or letters, in the map.
    """

    sign: str
    name: str
    gpus: int


class MapLine(msgspec.Struct, frozen=True, gc=False):
    """A node on the map; there are thousands, which the garbage collector need not look at."""

    row: NodeRow
    types: str
    gpus: tuple[Gpu, ...]
    cells: tuple[str, ...]
    note: str


class Widths(NamedTuple):
    """Cells of a node's name, its types and a mark; how many marks a line has at most."""

    name: int = 4
    type: int = 4
    mark: int = 1
    most: int = 0


def widths_of(lines: Sequence[MapLine]) -> Widths:
    """Measure all lines; of 10,000 nodes that takes longer than a frame."""
    most = max((len(line.cells) for line in lines), default=0)
    return Widths(
        min(_NAME, max(4, *(len(line.row.name) for line in lines), 4)),
        min(_TYPE, max((len(line.types) for line in lines), default=4)),
        max((len(sign) for line in lines for sign in (*line.cells, str(most - 1))), default=1),
        most,
    )


class GpuGrid(ScrollView, can_focus=True):
    """The map, with a cursor that follows its GPU."""

    BINDINGS = bindings("map")
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "grid--header", "grid--cursor", "grid--free", "grid--closed", "grid--unknown",
        "grid--mine", "grid--note", "grid--empty",
        *(f"holder--{number}" for number in range(_COLOURS)),
    }  # fmt: skip

    class By(Message):
        """Letters are wished for somebody else: user, account, job, in turn."""

    def __init__(self, empty: str) -> None:
        super().__init__()
        self.lines: Sequence[MapLine] = ()
        self._mine = ""
        self._empty = empty
        self._at = (0, 0)
        self._wide = Widths()
        self._base = Style()

    @property
    def node(self) -> NodeRow | None:
        """The node under the cursor."""
        return self.lines[self._at[0]].row if self.lines else None

    @property
    def selected(self) -> Gpu | None:
        """The GPU under the cursor."""
        if not self.lines:
            return None
        line = self.lines[self._at[0]]
        return line.gpus[min(self._at[1], len(line.gpus) - 1)]

    def show(self, lines: Sequence[MapLine], wide: Widths, mine: str, empty: str) -> None:
        """Put another map there.

        Args:
            lines: of the nodes.
            wide: their widths.
            mine: the sign of the person at the screen; empty for none.
            empty: said in place of lines when there are none.
        """
        node = self.node
        self.lines, self._mine, self._empty = lines, mine, empty
        self._wide = wide
        names = {line.row.name: at for at, line in enumerate(lines)}
        row = names.get(node.name, self._at[0]) if node else 0
        self._at = (max(0, min(row, len(lines) - 1)), self._at[1])
        self.virtual_size = Size(
            self._before + self._wide.most * (self._wide.mark + 1) + 40, len(lines) + 1
        )
        self._reveal()
        self.refresh()

    @property
    def _before(self) -> int:
        return self._wide.name + self._wide.type + 5

    def colour(self, sign: str) -> str:
        """The style of a holder's letters, as markup takes it."""
        return "$accent bold" if sign == self._mine else f"$holder-{_number(sign)}"

    # What is drawn

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw what is visible; the style below all is worked out once, not for every cell."""
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Draw one line of the screen."""
        left, top = self.scroll_offset
        strip = self._header() if y == 0 else self._line(top + y - 1)
        return strip.crop_extend(left, left + self.size.width, self._base)

    def _header(self) -> Strip:
        style = self.get_component_rich_style("grid--header")
        numbers = " ".join(str(at).rjust(self._wide.mark) for at in range(self._wide.most))
        names = f" {fit('NODE', self._wide.name)}  {fit('TYPE', self._wide.type)}  "
        return Strip([Segment((names + numbers).ljust(self.size.width), style)])

    def _line(self, at: int) -> Strip:
        if at >= len(self.lines):
            words = f"  {self._empty}" if at == 1 and not self.lines else ""
            return Strip([Segment(words, self.get_component_rich_style("grid--empty"))])
        line, here = self.lines[at], at == self._at[0]
        mark = "▸" if here else " "
        name = fit(printable(line.row.name), self._wide.name)
        segments = [Segment(f"{mark}{name}  {fit(line.types, self._wide.type)}  ", self._base)]
        for place, sign in enumerate(line.cells):
            segments += [self._cell(sign, cursor=here and place == self._column(line)),
                         Segment(" ", self._base)]  # fmt: skip
        gap = " " * ((self._wide.most - len(line.cells)) * (self._wide.mark + 1) + 1)
        note_style = self._base + self.get_component_rich_style("grid--note", partial=True)
        return Strip([*segments, Segment(gap + line.note, note_style)])

    def _column(self, line: MapLine) -> int:
        return min(self._at[1], len(line.cells) - 1)

    def _cell(self, sign: str, *, cursor: bool) -> Segment:
        name = "grid--mine" if sign == self._mine else _PLAIN.get(sign, f"holder--{_number(sign)}")
        style = self._base
        if name:
            style = style + self.get_component_rich_style(name, partial=True)
        if cursor:
            style = style + self.get_component_rich_style("grid--cursor", partial=True)
        return Segment(sign.rjust(self._wide.mark), style)

    # What moves

    def _reveal(self) -> None:
        room, top = max(1, self.scrollable_content_region.height - 1), round(self.scroll_y)
        row = self._at[0]
        self.scroll_to(y=max(0, row - room + 1, min(top, row)), animate=False)

    def action_go(self, down: int, right: int) -> None:
        """Move the cursor."""
        if not self.lines:
            return
        row = max(0, min(self._at[0] + down, len(self.lines) - 1))
        most = len(self.lines[row].cells) - 1
        column = self._at[1] if down else max(0, min(self._at[1] + right, most))
        self._at = (row, column)
        self._reveal()
        self.refresh()

    def action_page(self, by: int) -> None:
        """Move by screens."""
        self.action_go(by * max(1, self.scrollable_content_region.height - 1), 0)

    def action_edge(self, end: int) -> None:
        """Move to the first node (0) or the last one (1)."""
        self.action_go(len(self.lines) * (1 if end else -1), 0)

    def action_by(self) -> None:
        """Give the letters to users, accounts or jobs, in turn."""
        self.post_message(self.By())

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse is; twice opens the GPU."""
        row = self.scroll_offset.y + event.y - 1
        if event.y == 0 or row >= len(self.lines):
            return
        column = (event.x + self.scroll_offset.x - self._before) // (self._wide.mark + 1)
        self._at = (row, max(0, min(column, len(self.lines[row].cells) - 1)))
        self.refresh()
        if event.chain == 2:
            self.post_message(Opened())


def _number(sign: str) -> int:
    """Which colour a sign has: the same in every picture."""
    return sum(map(ord, sign)) % _COLOURS
