"""The grid widget of the GPU map: one line per node, one cell per GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import msgspec
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from slurmkit.formats.display import PLAIN_SPARKS, SPARKS, printable
from slurmkit.state.gpumap import CLOSED, FREE, SEVERAL, UNKNOWN
from slurmkit.state.gpumap_model import Gpu
from slurmkit.state.nodes import NodeRow
from slurmkit_tui.actions.registry import key_bindings
from slurmkit_tui.widgets.messages import PreviewOutdated, RowOpened
from slurmkit_tui.widgets.table import fit_text

_COLOURS = 10  # holder--0 … in app.tcss
_NAME, _TYPE = 16, 30  # cells at most
IDLE = "!"  # on the map by use: held, and idle for 15 minutes
_ROOM = 80  # cells for notes and for a legend, next to a map whose cells have names
_LOW, _HIGH = 2, 6  # levels of use, of eight
_PLAIN = {
    FREE: "grid--free", CLOSED: "grid--closed", UNKNOWN: "grid--unknown", SEVERAL: "",
    IDLE: "grid--idle",
    **{
        sign: "grid--low" if at < _LOW else "grid--high" if at >= _HIGH else "grid--middle"
        for signs in (SPARKS, PLAIN_SPARKS) for at, sign in enumerate(signs)
    },
}  # fmt: skip


class LegendEntry(NamedTuple):
    """A user, account or job that holds GPUs.

    Attributes:
        sign: its letter, or letters, on the map.
    """

    sign: str
    name: str
    gpus: int


class GpuMapLine(msgspec.Struct, frozen=True, gc=False):
    """A node on the map. `gc=False`: there are thousands, and none is part of a cycle."""

    row: NodeRow
    types: str
    gpus: tuple[Gpu, ...]
    cells: tuple[str, ...]
    note: str


class GpuMapWidths(NamedTuple):
    """Widths of the map in cells.

    Attributes:
        name: width of a node name.
        type: width of the GPU types.
        mark: width of the sign of one GPU.
        most: largest number of GPUs on a line.
        label: width of the label of one GPU, which a wide screen has room for.
    """

    name: int = 4
    type: int = 4
    mark: int = 1
    most: int = 0
    label: int = 0


def measure_lines(lines: Sequence[GpuMapLine]) -> GpuMapWidths:
    """Measure all lines; for 10,000 nodes this takes longer than one frame."""
    most = max((len(line.cells) for line in lines), default=0)
    return GpuMapWidths(
        min(_NAME, max(4, *(len(line.row.name) for line in lines), 4)),
        min(_TYPE, max((len(line.types) for line in lines), default=4)),
        max((len(sign) for line in lines for sign in (*line.cells, str(most - 1))), default=1),
        most,
    )


class GpuGrid(ScrollView, can_focus=True):
    """The GPU map, with a cursor that follows its GPU. Only visible lines are drawn."""

    BINDINGS = key_bindings("map")
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "grid--header", "grid--cursor", "grid--free", "grid--closed", "grid--unknown",
        "grid--mine", "grid--note", "grid--empty", "grid--idle", "grid--low", "grid--middle",
        "grid--high",
        *(f"holder--{number}" for number in range(_COLOURS)),
    }  # fmt: skip

    class By(Message):
        """The next colouring is wanted: by user, account, job or use, in turn."""

    def __init__(self, empty: str) -> None:
        super().__init__()
        self.lines: Sequence[GpuMapLine] = ()
        self._mine = ""
        self._empty = empty
        self._row = 0  # of the cursor, among the lines
        self._gpu = 0  # of the cursor, among the line's GPUs; it may exceed a short line
        self._wide = GpuMapWidths()
        self._label: Callable[[Gpu], str] = lambda _gpu: ""
        self._base = Style()

    @property
    def node(self) -> NodeRow | None:
        """The node under the cursor."""
        return self.lines[self._row].row if self.lines else None

    @property
    def selected(self) -> Gpu | None:
        """The GPU under the cursor."""
        if not self.lines:
            return None
        line = self.lines[self._row]
        return line.gpus[min(self._gpu, len(line.gpus) - 1)]

    def show(
        self,
        lines: Sequence[GpuMapLine],
        wide: GpuMapWidths,
        mine: str,
        empty: str,
        label: Callable[[Gpu], str] = lambda _gpu: "",
    ) -> None:
        """Show another map.

        Args:
            lines: the nodes.
            wide: widths of these lines.
            mine: sign of the person at the screen; empty for none.
            empty: text shown when there are no lines.
            label: returns what a GPU shows in place of its sign where there is room; empty for
                the sign.
        """
        node = self.node
        self.lines, self._mine, self._empty = lines, mine, empty
        self._wide, self._label = wide, label
        names = {line.row.name: at for at, line in enumerate(lines)}
        row = names.get(node.name, self._row) if node else 0
        self._row = max(0, min(row, len(lines) - 1))
        self._measure()
        self._reveal()
        self.refresh()

    def on_resize(self) -> None:
        """Fit the cells to the new size."""
        self._measure()
        self._reveal()
        self.refresh()

    def _measure(self) -> None:
        width = self._before + self._wide.most * (self._cell_width + 1) + 40
        self.virtual_size = Size(width, len(self.lines) + 1)

    @property
    def has_labels(self) -> bool:
        """Whether there is room for the label of each GPU."""
        width = max(self._wide.label, self._wide.mark)
        labels = self._wide.most * (width + 1)
        return self._wide.label > 0 and self._before + labels + _ROOM <= self.app.size.width

    @property
    def _cell_width(self) -> int:
        return max(self._wide.mark, self._wide.label if self.has_labels else 0)

    @property
    def _before(self) -> int:
        return self._wide.name + self._wide.type + 5

    def colour(self, sign: str) -> str:
        """Return the markup style of a holder's sign."""
        return "$accent bold" if sign == self._mine else f"$holder-{_colour_number(sign)}"

    # Drawing

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw the visible lines; the base style is computed once, not for every cell."""
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """Draw one line of the screen."""
        left, top = self.scroll_offset
        strip = self._header() if y == 0 else self._line(top + y - 1)
        return strip.crop_extend(left, left + self.size.width, self._base)

    def _header(self) -> Strip:
        style = self.get_component_rich_style("grid--header")
        width = self._cell_width
        fit = str.ljust if self.has_labels else str.rjust
        numbers = " ".join(fit(str(at), width) for at in range(self._wide.most))
        names = f" {fit_text('NODE', self._wide.name)}  {fit_text('TYPE', self._wide.type)}  "
        return Strip([Segment((names + numbers).ljust(self.size.width), style)])

    def _line(self, at: int) -> Strip:
        if at >= len(self.lines):
            words = f"  {self._empty}" if at == 1 and not self.lines else ""
            return Strip([Segment(words, self.get_component_rich_style("grid--empty"))])
        line, here = self.lines[at], at == self._row
        mark = "▸" if here else " "
        name = fit_text(printable(line.row.name), self._wide.name)
        segments = [Segment(f"{mark}{name}  {fit_text(line.types, self._wide.type)}  ", self._base)]
        column = min(self._gpu, len(line.cells) - 1)
        width, has_labels = self._cell_width, self.has_labels
        for place, (gpu, sign) in enumerate(zip(line.gpus, line.cells, strict=True)):
            style = self._style(sign, cursor=here and place == column)
            text = sign.rjust(width)
            if has_labels:
                text = fit_text(printable(self._label(gpu)) or sign, width)
            segments += [Segment(text, style), Segment(" ", self._base)]
        gap = " " * ((self._wide.most - len(line.cells)) * (width + 1) + 1)
        note_style = self._base + self.get_component_rich_style("grid--note", partial=True)
        return Strip([*segments, Segment(gap + line.note, note_style)])

    def _style(self, sign: str, *, cursor: bool) -> Style:
        name = _PLAIN.get(sign, f"holder--{_colour_number(sign)}")
        if sign == self._mine:
            name = "grid--mine"
        style = self._base
        if name:
            style = style + self.get_component_rich_style(name, partial=True)
        if cursor:
            style = style + self.get_component_rich_style("grid--cursor", partial=True)
        return style

    # Keys and mouse

    def _reveal(self) -> None:
        room, top = max(1, self.scrollable_content_region.height - 1), round(self.scroll_y)
        lowest = max(0, self._row - room + 1)
        self.scroll_to(y=max(lowest, min(top, self._row)), animate=False)

    def action_go(self, down: int, right: int) -> None:
        """Move the cursor."""
        if not self.lines:
            return
        self._row = max(0, min(self._row + down, len(self.lines) - 1))
        if not down:
            last = len(self.lines[self._row].cells) - 1
            self._gpu = max(0, min(self._gpu + right, last))
        self._reveal()
        self.refresh()
        self.post_message(PreviewOutdated())

    def action_page(self, by: int) -> None:
        """Move by screens."""
        self.action_go(by * max(1, self.scrollable_content_region.height - 1), 0)

    def action_edge(self, end: int) -> None:
        """Move to the first node (0) or the last one (1)."""
        self.action_go(len(self.lines) * (1 if end else -1), 0)

    def action_by(self) -> None:
        """Show users, accounts, jobs or use, in turn."""
        self.post_message(self.By())

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the mouse; a double click opens the GPU."""
        row = self.scroll_offset.y + event.y - 1
        if event.y == 0 or row >= len(self.lines):
            return
        column = (event.x + self.scroll_offset.x - self._before) // (self._cell_width + 1)
        self._row = row
        self._gpu = max(0, min(column, len(self.lines[row].cells) - 1))
        self.refresh()
        self.post_message(PreviewOutdated())
        if event.chain == 2:
            self.post_message(RowOpened())


def _colour_number(sign: str) -> int:
    """Return the colour number of a sign; it depends on the letters alone."""
    return sum(map(ord, sign)) % _COLOURS
