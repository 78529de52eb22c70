"""View of the GPU map: every node, every GPU index, and who uses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

from rich.cells import cell_len
from textual import on, work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from slurmkit.errors import SlurmkitError
from slurmkit.formats.display import printable, spark_signs
from slurmkit.state.gpumap import (
    UNKNOWN,
    GroupGpusBy,
    choose_letters,
    count_by_holder,
    format_gpu_types,
    gpu_mark,
    holder_names,
    mark_meanings,
    node_note,
)
from slurmkit.state.gpumap_model import Gpu, GpuMap, describe_free_gpus, free_gpus
from slurmkit.state.nodes import NodeRow
from slurmkit_tui import themes
from slurmkit_tui.feed import GPUS_NOW, FeedAnswer, FeedQuestion, RecordedFeed
from slurmkit_tui.feed.threads import NewestOnly
from slurmkit_tui.jobform.gpu_use import GpuActivity
from slurmkit_tui.session import ClusterSession
from slurmkit_tui.views.base import AT_ONCE, FurtherQuestion, SummaryPart, View
from slurmkit_tui.widgets.filter_line import FilterLine
from slurmkit_tui.widgets.filters import FilterError, parse_filter
from slurmkit_tui.widgets.gpu_grid import (
    IDLE,
    GpuGrid,
    GpuMapLine,
    GpuMapWidths,
    LegendEntry,
    measure_lines,
)
from slurmkit_tui.widgets.listing import NO_FILTER, Listing, RowContext, RowFilter, TableColumn
from slurmkit_tui.widgets.table import fit_text

GpuColours = GroupGpusBy | Literal["use"]
COLOURINGS: tuple[GpuColours, ...] = ("user", "account", "job", "use")
ActivityByGpu = Mapping[tuple[str, int], GpuActivity]
_UNHELD = ("free", "drained", "down")
USE_MEANINGS = {
    IDLE: "held and idle for 15 minutes or more",
    UNKNOWN: "held, use unknown",
}
_LEAST_ENTRY = 8  # cells of an entry of the legend: its sign, a name of one cell, and a number
_LEAST_LINES = 2  # of holders, on any screen
_LEGEND_WIDTH = 40  # cells of a legend next to the map
_LABEL = 14  # cells of the name of a holder on the map
_PERCENT = 4  # cells of a use on the map
_LEGEND = 24  # lines of holders that it wants at most
_MORE = 14  # cells of `and 1234 more`, and a blank


def _text(attribute: str) -> TableColumn:
    get = attrgetter(attribute)
    title = attribute.upper()
    return TableColumn(attribute, title, lambda gpu, _: str(get(gpu)), get)


def _people(gpu: Gpu) -> str:
    return " ".join([gpu.user or "", *(share.user for share in gpu.sharers)])


def _accounts(gpu: Gpu) -> str:
    return " ".join([gpu.account or "", *(share.account for share in gpu.sharers)])


def _jobs(gpu: Gpu) -> str:
    return " ".join([gpu.job_id or "", *(share.job_id for share in gpu.sharers)])


def _haystack(gpu: Gpu) -> str:
    who = (_people(gpu), _accounts(gpu), _jobs(gpu))
    return "\n".join((gpu.node, gpu.type or "", gpu.state, *who))


GPUS = Listing(
    "GPU",
    (
        _text("node"),
        _text("index"),
        _text("type"),
        _text("state"),
        _text("mig"),
        TableColumn("user", "USER", lambda g, _: _people(g), attrgetter("user"), match=_people),
        TableColumn("account", "ACCOUNT", lambda g, _: _accounts(g), attrgetter("account"),
               match=_accounts),
        TableColumn("job", "JOB", lambda g, _: _jobs(g), attrgetter("job_id"), match=_jobs),
    ),
    key=lambda gpu: f"{gpu.node} {gpu.index}",
    haystack=_haystack,
    mine=lambda gpu, context: context.me in _people(gpu).split(),
)  # fmt: skip


class DrawnGpuMap(NamedTuple):
    """The map, prepared for the screen.

    Attributes:
        lines: the nodes that have GPUs.
        legend: holders with their numbers of GPUs, the largest first.
        marks: the other signs on the map, with their meanings.
        free: the free GPUs as text.
        by: how holders are grouped, or `use`.
        total: number of GPUs on the cluster.
        idle: number of GPUs that are held, and idle for 15 minutes, as far as that is known.
    """

    lines: tuple[GpuMapLine, ...]
    widths: GpuMapWidths
    legend: tuple[LegendEntry, ...]
    marks: tuple[tuple[str, str], ...]
    free: str
    warnings: tuple[str, ...]
    by: GpuColours
    total: int
    idle: int = 0


class GpuMapAnswer(NamedTuple):
    """An answer, with all that is needed to draw the map again.

    Attributes:
        texts: searchable text of each GPU; empty until a filter needs it.
        use: what GPUs do, as far as it is known.
        problem: why it is unknown; empty if it is not.
    """

    map: GpuMap
    context: RowContext
    texts: list[str]
    use: ActivityByGpu = MappingProxyType({})
    problem: str = ""


def draw_map(found: GpuMapAnswer, by: GpuColours, wanted: RowFilter) -> DrawnGpuMap:
    """Draw the map: a cell for each GPU that passes the filter, with a letter or its use.

    Letters are assigned over the whole map, so that a filter does not change them.
    """
    whole = found.map
    gpus_of = Counter[str]() if by == "use" else count_by_holder(whole.gpus, by)
    letter = choose_letters(tuple(gpus_of))

    def mark(gpu: Gpu) -> str:
        return use_mark(gpu, found.use) if by == "use" else gpu_mark(gpu, by, letter)

    if wanted.text.strip() and not found.texts:
        found.texts[:] = [GPUS.haystack(gpu).lower() for gpu in whole.gpus]
    indices = wanted.passing(whole.gpus, found.texts, range(len(whole.gpus)), found.context)
    rows = {row.name: row for row in whole.nodes}
    by_node = groupby((whole.gpus[at] for at in indices), key=attrgetter("node"))
    lines = tuple(_line(rows[name], tuple(gpus), mark) for name, gpus in by_node if name in rows)
    cells = Counter(cell for line in lines for cell in line.cells)
    idle = sum(1 for gpu in whole.gpus if use_mark(gpu, found.use) == IDLE) if found.use else 0
    return DrawnGpuMap(
        lines,
        widths=measure_lines(lines)._replace(label=label_width(by, gpus_of)),
        legend=tuple(LegendEntry(sign, name, gpus_of[name]) for name, sign in letter.items()),
        marks=use_meanings(cells) if by == "use" else tuple(mark_meanings(cells)),
        free=describe_free_gpus(free_gpus(whole.nodes)),
        warnings=whole.warnings,
        by=by,
        total=len(whole.gpus),
        idle=idle,
    )


def label_width(by: GpuColours, names: Iterable[str]) -> int:
    """Return the width of the labels of the GPUs: uses, ids of jobs, or names.

    It is 0 where only their signs tell apart names that are long.
    """
    if by == "use":
        return _PERCENT
    labels = [printable(_short_name(name)) for name in names]
    width = min(_LABEL, max(map(cell_len, labels), default=0))
    return width if len({fit_text(each, width) for each in labels}) == len(labels) else 0


def _short_name(name: str) -> str:
    """Return the id of a job, without its user; other names are whole."""
    return name.partition(" ")[0]


def gpu_label(gpu: Gpu, by: GpuColours, use: ActivityByGpu) -> str:
    """Return the use of a GPU, the id of its job, or its holder; empty where a sign says all."""
    if by != "use":
        names = holder_names(gpu, by)
        return _short_name(next(iter(names))) if len(names) == 1 else ""
    activity = None if gpu.index is None else use.get((gpu.node, gpu.index))
    is_known = gpu.state not in _UNHELD and activity is not None and activity.percent is not None
    if not activity or not is_known:
        return ""
    return f"{IDLE if activity.is_idle else ''}{activity.percent:.0f}%"


def use_mark(gpu: Gpu, use: ActivityByGpu) -> str:
    """Return the sign of what a GPU does now; one that no job holds has its usual sign."""
    if gpu.state in _UNHELD:
        return gpu_mark(gpu, "user", {})
    activity = None if gpu.index is None else use.get((gpu.node, gpu.index))
    if activity is None or activity.percent is None:
        return UNKNOWN
    if activity.is_idle:
        return IDLE
    return spark_signs([activity.percent], plain=themes.has_plain_signs())


def use_meanings(cells: Counter[str]) -> tuple[tuple[str, str], ...]:
    """Return the scale and the other signs of a map by use, with their meanings and numbers."""
    levels = spark_signs([at * 12.5 for at in range(8)], plain=themes.has_plain_signs())
    special = [(sign, f"{words}: {cells[sign]}") for sign, words in USE_MEANINGS.items()
               if cells[sign]]  # fmt: skip
    others = [(sign, words) for sign, words in mark_meanings(cells) if sign not in USE_MEANINGS]
    return ((levels, "used 0% to 100% now"), *special, *others)


def _line(row: NodeRow, gpus: tuple[Gpu, ...], mark: Callable[[Gpu], str]) -> GpuMapLine:
    cells = tuple(map(mark, gpus))
    return GpuMapLine(
        row, printable(format_gpu_types(row)), gpus, cells, printable(node_note(row, cells))
    )


class GpusView(View):
    """The map, its legend, and the number of GPUs that are really usable."""

    NAME = "gpus"
    OF_JOBS = True
    ASK = FeedQuestion("gpus")
    EVERY = 2.0  # three RPCs, one of them with every job's details
    also = (FurtherQuestion(GPUS_NOW, 3.0),)
    filters_rows: ClassVar[bool] = True

    def __init__(self, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._by: GpuColours = "user"
        self._filter = NO_FILTER
        self._found: GpuMapAnswer | None = None
        self._map: DrawnGpuMap | None = None
        self._legend_lines = 0  # that it wants
        self._latest = NewestOnly()

    def compose(self) -> ComposeResult:
        """Stack the map, the legend, and the filter."""
        yield GpuGrid("asking scontrol…")
        yield Static(id="legend", markup=False)
        yield FilterLine()

    @property
    def grid(self) -> GpuGrid:
        """The map."""
        return self.query_one(GpuGrid)

    def make(self, answer: FeedAnswer, session: ClusterSession) -> tuple[GpuMapAnswer, DrawnGpuMap]:
        context = RowContext(session.feed.me, answer.taken, cluster=session.cluster)
        last = session.last_answer(GPUS_NOW)
        now = last.answer.value if last.answer else None
        use = now.by_gpu(session.cluster, answer.value.gpus, answer.taken) if now else {}
        # A recording may lack this question; each `?` says enough.
        problem = "" if isinstance(session.feed, RecordedFeed) else last.problem
        found = GpuMapAnswer(answer.value, context, [], use, problem)
        return found, draw_map(found, self._by, self._filter)

    def take(self, prepared: tuple[GpuMapAnswer, DrawnGpuMap]) -> None:
        self._found, drawn = prepared
        if drawn.by == self._by and not self._filter.text.strip():
            self._put(drawn, self._found.context)
        else:
            self._draw()

    def say(self, words: str) -> None:
        self.grid.show((), GpuMapWidths(), "", words)

    def summary(self) -> Iterable[SummaryPart]:
        if self._map is None:
            return
        yield f"{self._map.total:,} GPUs by {self._by}"
        if text := self._filter.text.strip():
            shown = sum(len(line.gpus) for line in self._map.lines)
            yield f"{shown:,} match {printable(text)}"
        if self._map.idle:
            yield (f"{IDLE} {self._map.idle:,} held, idle for 15 min", "$warning bold")
        yield (self._map.free, "$success")
        if self._map.by == "use" and self._found and self._found.problem:
            yield (f"use unknown: {printable(self._found.problem)}", "$warning")
        if self._map.warnings:
            yield (printable(self._map.warnings[0]), "$warning")

    @property
    def current(self) -> Gpu | None:
        return self.grid.selected

    @property
    def rows(self) -> Sequence[NodeRow]:
        """The node under the cursor, for example to drain it."""
        row = self.grid.node
        return () if row is None else (row,)

    @property
    def lines_wanted(self) -> int | None:
        """Lines of the header, the nodes, the legend, and the filter line."""
        nodes, legend = 1 + len(self.grid.lines), self._legend_lines
        return (max(nodes, legend) if self._legend_is_right else nodes + legend) + self.clearable

    @property
    def _legend_is_right(self) -> bool:
        """Whether the legend is to the right of the map."""
        return self.has_class("-legend-right")

    @property
    def clearable(self) -> bool:
        return bool(self.query_one(FilterLine).display)

    def focus_main(self) -> None:
        self.grid.focus()

    def open_filter(self) -> None:
        self.query_one(FilterLine).open()

    def clear(self) -> None:
        self.query_one(FilterLine).clear()

    @on(GpuGrid.By)
    def _group_by_next(self, event: GpuGrid.By) -> None:
        event.stop()
        self._by = COLOURINGS[(COLOURINGS.index(self._by) + 1) % len(COLOURINGS)]
        self._draw()

    @on(FilterLine.FilterTyped)
    def _typed(self, event: FilterLine.FilterTyped) -> None:
        event.stop()
        wrong = ""
        try:
            self._filter = parse_filter(event.text, GPUS)
        except FilterError as error:
            wrong = str(error)
        self.query_one(FilterLine).show_error(wrong)
        self._draw()

    @on(FilterLine.Left)
    def _left(self, event: FilterLine.Left) -> None:
        event.stop()
        self.grid.focus()

    def _draw(self) -> None:
        if self._found is None:
            return
        if len(self._found.map.gpus) <= AT_ONCE:
            self._put(draw_map(self._found, self._by, self._filter), self._found.context)
        else:
            self._draw_in_thread(self._found, self._by, self._filter)

    @work(description="draw")
    async def _draw_in_thread(self, found: GpuMapAnswer, by: GpuColours, wanted: RowFilter) -> None:
        try:
            drawn = await self._latest.run(partial(draw_map, found, by, wanted))
        except SlurmkitError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        if drawn and self._found is found and (by, wanted) == (self._by, self._filter):
            self._put(drawn, found.context)

    def _put(self, drawn: DrawnGpuMap, context: RowContext) -> None:
        self._map = drawn
        mine = {holder.sign for holder in drawn.legend if holder.name.split()[-1:] == [context.me]}
        text = self._filter.text.strip()
        empty = (
            f"no GPU matches {text}; Esc clears the filter" if text else "this cluster has no GPUs"
        )
        use = self._found.use if self._found else {}
        label = partial(gpu_label, by=drawn.by, use=use)
        self.grid.show(drawn.lines, drawn.widths, next(iter(mine), ""), empty, label)
        self._update_legend()
        self.post_message(self.Changed())

    def on_resize(self) -> None:
        """Fit the legend to the new size; before the first size it cannot be known."""
        self._update_legend()

    def _update_legend(self) -> None:
        if self._map is not None:
            room = self.size.width - self.grid.virtual_size.width
            self.set_class(room >= _LEGEND_WIDTH, "-legend-right")
            self.query_one("#legend", Static).update(self._make_legend(self._map))

    def _make_legend(self, drawn: DrawnGpuMap) -> Content:
        """Return the holders to the right of the map, or below it, then the marks."""
        width = max(20, (_LEGEND_WIDTH if self._legend_is_right else self.size.width) - 2)
        shown = drawn.marks[drawn.by == "use" and self.grid.has_labels :]  # less the scale
        meanings = [Content.styled(f"{mark} {words}   ", "$quiet") for mark, words in shown]
        marks = pack_entries(meanings, width, len(meanings))
        taken = len(marks) + self.clearable
        if not self._legend_is_right:
            taken += 1 + len(drawn.lines)  # its header and its nodes
        free = max(_LEAST_LINES, self.size.height - taken)
        # With 8,000 jobs, making all of their entries would take longer than drawing the map.
        most = max(free, _LEGEND) * (width // _LEAST_ENTRY + 1)
        holders = [
            Content.assemble(
                (each.sign, self.grid.colour(each.sign)), f" {printable(each.name)}: {each.gpus}   "
            )
            for each in drawn.legend[:most]
        ]
        further = max(len(drawn.legend) - most, 0)
        wanted = pack_entries(holders, width, _LEGEND, further)
        self._legend_lines = len(wanted) + len(marks)
        return Content("\n").join([*pack_entries(holders, width, free, further), *marks])


def pack_entries(
    entries: Sequence[Content], width: int, most: int, further: int = 0
) -> list[Content]:
    """Put as many entries as fit on lines; the last line counts the entries left out.

    Args:
        entries: texts that are not broken.
        width: cells of a line.
        most: largest number of lines.
        further: number of entries that are not given, since no line has room for them.
    """
    lines: list[list[Content]] = [[]]
    used = 0  # cells of the last line
    for entry in entries:
        if used and used + len(entry.rstrip()) > width:
            lines.append([])
            used = 0
        lines[-1].append(entry)
        used += len(entry)
    shown = lines[:most]
    left_out = sum(map(len, lines[most:])) + further
    while left_out and len(shown[-1]) > 1 and sum(map(len, shown[-1])) + _MORE > width:
        shown[-1].pop()
        left_out += 1
    if left_out:
        shown[-1].append(Content(f"and {left_out} more"))
    return [Content("").join(line) for line in shown if line]
