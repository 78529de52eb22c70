"""The map of GPUs: every node, every index, and who is on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from slurmkit.errors import SlurmkitError
from slurmkit.gpumap.drawing import By, cell, count, letters, meanings, note_on, types_of
from slurmkit.gpumap.free import free_gpus, in_words
from slurmkit.gpumap.model import Gpu, GpuMap
from slurmkit.nodes.read import NodeRow
from slurmkit.text import printable
from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.feed.threads import Latest
from slurmkit_tui.filterline import FilterLine
from slurmkit_tui.filters import FilterError, parse_filter
from slurmkit_tui.gpugrid import GpuGrid, Holder, MapLine, Widths, widths_of
from slurmkit_tui.listing import Column, Context, Listing
from slurmkit_tui.session import Session
from slurmkit_tui.sheet import EVERYTHING, Filter
from slurmkit_tui.view import AT_ONCE, Part, View

BYS: tuple[By, ...] = ("user", "account", "job")


def _text(attribute: str) -> Column:
    get = attrgetter(attribute)
    title = attribute.upper()
    return Column(attribute, title, lambda gpu, _: str(get(gpu)), get)


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
        Column("user", "USER", lambda g, _: _people(g), attrgetter("user"), match=_people),
        Column("account", "ACCOUNT", lambda g, _: _accounts(g), attrgetter("account"),
               match=_accounts),
        Column("job", "JOB", lambda g, _: _jobs(g), attrgetter("job_id"), match=_jobs),
    ),
    key=lambda gpu: f"{gpu.node} {gpu.index}",
    haystack=_haystack,
    mine=lambda gpu, context: context.me in _people(gpu).split(),
)  # fmt: skip


class Map(NamedTuple):
    """The map made ready for the screen.

    Attributes:
        lines: of the nodes that have GPUs.
        legend: who holds how many, those with the most first.
        free: what is free, in words.
    """

    lines: tuple[MapLine, ...]
    widths: Widths
    legend: tuple[Holder, ...]
    marks: tuple[tuple[str, str], ...]
    free: str
    warnings: tuple[str, ...]
    by: By
    total: int


class Found(NamedTuple):
    """An answer.

    Attributes:
        texts: what is searched of each GPU; made when a filter first needs it.
    """

    map: GpuMap
    context: Context
    texts: list[str]


def draw(of: Found, by: By, passed: Filter) -> Map:
    """Give every holder a letter and every GPU its cell; what does not pass the filter is left out.

    Letters are given over the whole map, so that a filter does not change them.
    """
    found = of.map
    counted = count(found.gpus, by)
    letter = letters(tuple(counted))
    if passed.text.strip() and not of.texts:
        of.texts[:] = [GPUS.haystack(gpu).lower() for gpu in found.gpus]
    places = passed.passed(found.gpus, of.texts, range(len(found.gpus)), of.context)
    rows = {row.name: row for row in found.nodes}
    kept = groupby((found.gpus[at] for at in places), key=attrgetter("node"))
    lines = tuple(_line(rows[name], tuple(gpus), by, letter) for name, gpus in kept if name in rows)
    marks = {mark for line in lines for mark in line.cells}
    return Map(
        lines,
        widths_of(lines),
        tuple(Holder(sign, name, counted[name]) for name, sign in letter.items()),
        tuple(meanings(marks)),
        in_words(free_gpus(found.nodes)),
        found.warnings,
        by,
        len(found.gpus),
    )


def _line(row: NodeRow, gpus: tuple[Gpu, ...], by: By, letter: dict[str, str]) -> MapLine:
    cells = tuple(cell(gpu, by, letter) for gpu in gpus)
    return MapLine(row, printable(types_of(row)), gpus, cells, printable(note_on(row, cells)))


class GpusView(View):
    """The map, its legend, and what is free as it can really be used."""

    NAME = "gpus"
    OF_JOBS = True
    ASK = Ask("gpus")
    EVERY = 2.0  # three RPCs, one of them with every job's details
    filters_rows: ClassVar[bool] = True

    def __init__(self, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._by: By = "user"
        self._filter = EVERYTHING
        self._found: Found | None = None
        self._map: Map | None = None
        self._latest = Latest()

    def compose(self) -> ComposeResult:
        """Stack the map, what its letters mean, and the filter."""
        yield GpuGrid("asking scontrol…")
        yield Static(id="legend")
        yield FilterLine()

    @property
    def grid(self) -> GpuGrid:
        """The map."""
        return self.query_one(GpuGrid)

    def make(self, answer: Answer, session: Session) -> tuple[Found, Map]:
        """See `View.make`."""
        context = Context(session.feed.me, answer.taken, cluster=session.cluster)
        found = Found(answer.value, context, [])
        return found, draw(found, self._by, self._filter)

    def take(self, prepared: tuple[Found, Map]) -> None:
        """See `View.take`."""
        self._found, drawn = prepared
        if drawn.by == self._by and not self._filter.text.strip():
            self._put(drawn, self._found.context)
        else:
            self._draw()

    def say(self, words: str) -> None:
        """See `View.say`."""
        self.grid.show((), Widths(), "", words)

    def summary(self) -> Iterable[Part]:
        """See `View.summary`."""
        if self._map is None:
            return
        yield f"{self._map.total:,} GPUs by {self._by}"
        if text := self._filter.text.strip():
            shown = sum(len(line.gpus) for line in self._map.lines)
            yield f"{shown:,} pass {printable(text)}"
        yield (self._map.free, "$success")
        if self._map.warnings:
            yield (printable(self._map.warnings[0]), "$warning")

    @property
    def current(self) -> Gpu | None:
        """See `View.current`."""
        return self.grid.selected

    @property
    def rows(self) -> Sequence[NodeRow]:
        """See `View.rows`: the node under the cursor, which can be drained."""
        row = self.grid.node
        return () if row is None else (row,)

    @property
    def clearable(self) -> bool:
        """See `View.clearable`."""
        return bool(self.query_one(FilterLine).display)

    def focus_main(self) -> None:
        """See `View.focus_main`."""
        self.grid.focus()

    def open_filter(self) -> None:
        """See `View.open_filter`."""
        self.query_one(FilterLine).open()

    def clear(self) -> None:
        """See `View.clear`."""
        self.query_one(FilterLine).clear()

    @on(GpuGrid.By)
    def _by_next(self, event: GpuGrid.By) -> None:
        event.stop()
        self._by = BYS[(BYS.index(self._by) + 1) % len(BYS)]
        self._draw()

    @on(FilterLine.Typed)
    def _typed(self, event: FilterLine.Typed) -> None:
        event.stop()
        wrong = ""
        try:
            self._filter = parse_filter(event.text, GPUS)
        except FilterError as error:
            wrong = str(error)
        self.query_one(FilterLine).object_to(wrong)
        self._draw()

    @on(FilterLine.Left)
    def _left(self, event: FilterLine.Left) -> None:
        event.stop()
        self.grid.focus()

    def _draw(self) -> None:
        if self._found is None:
            return
        if len(self._found.map.gpus) <= AT_ONCE:
            self._put(draw(self._found, self._by, self._filter), self._found.context)
        else:
            self._draw_beside(self._found, self._by, self._filter)

    @work(description="draw")
    async def _draw_beside(self, of: Found, by: By, wanted: Filter) -> None:
        try:
            drawn = await self._latest.run(partial(draw, of, by, wanted))
        except SlurmkitError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        if drawn and self._found is of and (by, wanted) == (self._by, self._filter):
            self._put(drawn, of.context)

    def _put(self, drawn: Map, context: Context) -> None:
        self._map = drawn
        mine = {holder.sign for holder in drawn.legend if holder.name.split()[-1:] == [context.me]}
        text = self._filter.text.strip()
        empty = f"no GPU passes {text}; Esc clears" if text else "this cluster has no GPUs"
        self.grid.show(drawn.lines, drawn.widths, next(iter(mine), ""), empty)
        self.query_one("#legend", Static).update(self._legend(drawn))
        self.post_message(self.Changed())

    def _legend(self, drawn: Map) -> Content:
        """As many holders as two lines take, then the marks."""
        held: list[Content] = []
        room = max(20, self.size.width - 2) * 2
        for at, holder in enumerate(drawn.legend):
            said = f" {printable(holder.name)}: {holder.gpus}   "
            words = Content.assemble((holder.sign, self.grid.colour(holder.sign)), said)
            if sum(map(len, held)) + len(words) > room - 20:
                held.append(Content(f"and {len(drawn.legend) - at} more"))
                break
            held.append(words)
        marks = "   ".join(f"{mark} {meaning}" for mark, meaning in drawn.marks)
        return Content("\n").join([Content("").join(held), Content.styled(marks, "$quiet")])
