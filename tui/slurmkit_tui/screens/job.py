"""The screen of one job: facts, logs, why it waits or failed, steps, GPUs, and script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from slurmkit.diagnose.model import Explanation
from slurmkit.diagnose.render import explanation_lines
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.formats.display import format_percent, format_time, printable
from slurmkit.formats.durations import format_duration
from slurmkit.formats.job_states import state_kind
from slurmkit.formats.memory import format_bytes
from slurmkit.jobs.describe import Fact
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.run_history import RunRecord
from slurmkit.jobs.steps import StepsSnapshot, StepUse
from slurmkit.state.queue_rows import QueueRow
from slurmkit_tui.actions.registry import WIDGET_ACTIONS, key_bindings
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.screens.facts import merged_facts
from slurmkit_tui.screens.gpu_page import GpuPage
from slurmkit_tui.screens.status_lines import TabLine
from slurmkit_tui.widgets.dialogs import key_names
from slurmkit_tui.widgets.key_bar import KeyBar
from slurmkit_tui.widgets.log_view import LogView
from slurmkit_tui.widgets.messages import ScreenAnswered
from slurmkit_tui.widgets.wrapped_text import TextLines, WrappedText, plain_lines, two_columns

if TYPE_CHECKING:
    from slurmkit_tui.host import AppHost

TABS = {
    "facts": "Facts", "log": "Log", "errors": "Stderr", "why": "Why", "steps": "Steps",
    "gpus": "GPUs", "script": "Script",
}  # fmt: skip


_CHANGING_TABS = frozenset(("facts", "steps", "gpus"))

_QUESTIONS = {"facts": "job", "gpus": "gpus-of-job"}  # the others have the name of the tab
_HEADS = (
    "STEP", "NAME", "STATE", "ELAPSED", "CPU EFF", "MEM PEAK", "ASKED", "GPU", "EXIT", "TASKS",
    "NODES", "STARTED",
)  # fmt: skip
_RIGHT = frozenset(("ELAPSED", "TASKS", "NODES", "CPU EFF", "MEM PEAK", "ASKED", "GPU"))
_QUIET = frozenset(("ASKED", "STARTED"))
_NAME = 16  # cells of a name
_SHOWN = 200  # steps at most
_COLOURS = {"bad": "$error bold", "running": "$success", "done": "$quiet"}


class JobScreen(Screen[None]):
    """The screen of one job. The answer of a tab is fetched when the tab is first opened.

    Facts, steps and GPUs are fetched again and again until the job has ended.

    Attributes:
        job_id: id of the job.
    """

    app: AppHost
    BINDINGS: ClassVar[list[BindingType]] = key_bindings("job")

    def __init__(
        self,
        job_id: str,
        known: Sequence[Fact],
        tab: str = "facts",
        row: QueueRow | JobInfo | None = None,
    ) -> None:
        super().__init__()
        self.job_id = job_id
        self._known = known
        self._row = row
        self._tab = tab
        self._asked: set[str] = set()
        self._open: set[str] = set()  # tabs whose question has no answer yet
        self._why: Explanation | None = None
        self._info: JobInfo | None = None
        self._at = 0.0  # epoch seconds of `_info`
        self._runs: Sequence[RunRecord] = ()

    def compose(self) -> ComposeResult:
        """Stack the tabs and their contents."""
        yield JobTabs(self)
        with ContentSwitcher(initial=self._tab):
            for name in ("facts", "why", "steps", "script"):
                with VerticalScroll(id=name, can_focus=True):
                    yield WrappedText(plain_lines("asking…"), id=f"{name}-text")
            for name in ("log", "errors"):
                view = LogView(self.app.session.feed)
                view.id = name
                yield view
            yield GpuPage()
        yield KeyBar()

    def on_mount(self) -> None:
        """Show the facts of the row at once, and ask for more."""
        self._put("facts", two_columns([*self._known, ("Source", "loading more…")]))
        self.action_tab(self._tab)
        if self._tab != "facts":
            self._ask("facts")
        self.set_interval(self.app.session.interval, self._keep_up)

    @property
    def targets(self) -> Sequence[QueueRow | JobInfo]:
        """Return the job; before it is read, the row of the view."""
        job = self._info or self._row
        return () if job is None else (msgspec.structs.replace(job, job_id=self.job_id),)

    def _keep_up(self) -> None:
        """Fetch changing tabs again until the job has ended, one question at a time."""
        ended = self._info is not None and self._info.ended is not None
        visible = self._tab in _CHANGING_TABS and self.app.screen is self
        if visible and not (ended or self.app.paused or self._open):
            self._ask(self._tab)

    def action_tab(self, name: str) -> None:
        """Show a tab, and fetch its answer if that was not done yet."""
        self._tab = name
        self.refresh_bindings()
        self.query_one(ContentSwitcher).current = name
        self.query_one(JobTabs).show(name)
        shown = self.query_one(f"#{name}")
        (shown.lines if isinstance(shown, LogView) else shown).focus()
        if name not in self._asked:
            self._ask(name)

    @on(TabLine.Clicked)
    def _clicked(self, event: TabLine.Clicked) -> None:
        event.stop()
        self.action_tab(event.tab)

    async def action_dismiss(self, result: None = None) -> None:
        """Close the search line if it is open, else the screen."""
        if not any(log.leave_search() for log in self.query(LogView)):
            await super().action_dismiss(result)

    def action_again(self) -> None:
        """Fetch the answer of the current tab again."""
        self._ask(self._tab)

    def action_remedy(self) -> None:
        """Offer changes with which the job would start sooner, or say why there are none."""
        if self._why is None:
            return
        waiting = self._why.waiting
        if waiting is not None and waiting.alternatives:
            self.app.propose_remedies(self._why)
        else:
            why = waiting.no_alternatives if waiting else f"job {self.job_id} does not wait"
            self.app.tell(f"no change is offered: {why or 'none is known'}")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Return whether an action is available; `remedy` only with an answer on the tab Why."""
        del parameters
        return action != "remedy" or (self._tab == "why" and self._why is not None)

    def _ask(self, name: str) -> None:
        self._asked.add(name)
        self._open.add(name)
        self.app.ask_for(self._question(name))

    def _question(self, name: str) -> FeedQuestion:
        if name in ("log", "errors"):
            return FeedQuestion(
                "logpath", (self.job_id, "stderr" if name == "errors" else "stdout")
            )
        return FeedQuestion(_QUESTIONS.get(name, name), (self.job_id,))

    def take(self, message: ScreenAnswered, at: float) -> None:
        if message.ask == self._runs_question:
            self._take_runs(message.found)
        for name in TABS:
            if message.ask == self._question(name):
                self._open.discard(name)
                self._show(name, message.found, at)

    @property
    def _runs_question(self) -> FeedQuestion:
        return FeedQuestion("restarts", (self.job_id,))

    def _take_runs(self, answer: FeedAnswer | SlurmkitError) -> None:
        """Show the job's runs with the facts; an old recording has none."""
        if not isinstance(answer, SlurmkitError) and answer.value != self._runs:
            self._runs = answer.value
            self._put_facts()

    def _put_facts(self) -> None:
        if self._info is not None:
            self._put(
                "facts", two_columns(merged_facts(self._known, self._info, self._at, self._runs))
            )

    def _show(self, name: str, answer: FeedAnswer | SlurmkitError, at: float) -> None:
        if name in ("log", "errors"):
            view = self.query_one(f"#{name}", LogView)
            if isinstance(answer, SlurmkitError) or not answer.value:
                view.say(
                    str(answer) if isinstance(answer, SlurmkitError) else "its path is unknown"
                )
            else:
                view.open(answer.value)
            return
        if name == "gpus":
            self._show_gpus(answer)
        elif isinstance(answer, SlurmkitError):
            rows = [*(self._known if name == "facts" else []), ("Problem", str(answer))]
            self._put(name, two_columns(rows))
        elif isinstance(answer.value, JobInfo):
            self._info, self._at = answer.value, at
            self._put_facts()
            self.query_one(GpuPage).name_gpus(answer.value.tres, answer.value.gpu_indices)
            self.app.ask_for(self._runs_question)
        elif isinstance(answer.value, Explanation):
            self._why = answer.value
            self.refresh_bindings()
            answer_line = printable(f"{answer.value.answer}.")
            reasons = two_columns([*explanation_lines(answer.value)])
            self._put(name, [*plain_lines(f"{answer_line}\n"), *reasons])
        elif isinstance(answer.value, StepsSnapshot):
            self._put(name, plain_lines(steps_table(answer.value)))
        else:
            text = "\n".join(map(printable, str(answer.value).splitlines()))
            self._put(name, plain_lines(text))

    def _show_gpus(self, answer: FeedAnswer | SlurmkitError) -> None:
        page = self.query_one(GpuPage)
        if not isinstance(answer, SlurmkitError):
            page.show(answer.value, self.app.session.cluster)
        elif self._info is not None and self._info.started is None:
            page.say("the job has not begun: there is nothing to see of its GPUs yet")
        elif self._info is not None and self._info.ended is None and isinstance(answer, BadInput):
            page.say(f"unknown: {answer}; it knows a new job some minutes after the job began")
        else:
            page.say(f"unknown: {answer}")

    def _put(self, name: str, lines: TextLines) -> None:
        self.query_one(f"#{name}-text", WrappedText).show(lines)


class JobTabs(TabLine):
    """The first line of a job's screen: its id, and the tabs with their keys."""

    app: AppHost

    def __init__(self, screen: JobScreen) -> None:
        heading = f" Job {printable(screen.job_id)}  "
        super().__init__("", heading=heading, id="job-tabs")

    def tab_texts(self, room: int) -> dict[str, str]:
        del room
        return {name: f" {self._key(title)} {title} " for name, title in TABS.items()}

    def _key(self, title: str) -> str:
        """Return the key of a tab, which may be configured."""
        action = next(each for each in WIDGET_ACTIONS if each.home == "job" and each.label == title)
        return key_names(self.app.options.keys.get(action.id, action.keys)).partition(" ")[0]


def steps_table(answer: StepsSnapshot) -> Content:
    """Return the table of steps, one per line, with notes and the source below."""
    steps = [row for row in answer.rows if not row.is_allocation]
    asked = {row.step_id: row.mem_asked for row in answer.rows if row.is_allocation}
    lines = [_cells(step, asked.get(step.step_id.partition(".")[0])) for step in steps[:_SHOWN]]
    shown = [_HEADS, *lines]
    widths = [max(len(line[at]) for line in shown) for at in range(len(_HEADS))]
    rows = [_line(line, widths, "") for line in lines]
    notes = Content("\n").join(
        Content.styled(printable(line), "$quiet") for line in _notes(answer, len(steps))
    )
    head = [_line(_HEADS, widths, "$quiet")] if steps else [Content("the job has no steps yet")]
    return Content("\n").join([*head, *rows, Content(""), notes])


def _cells(step: StepUse, allocated: float | None) -> tuple[str, ...]:
    name = printable(step.name) or "?"
    asked = allocated if step.mem_asked is None else step.mem_asked
    return (
        printable(step.step_id),
        name if len(name) <= _NAME else f"{name[: _NAME - 1]}…",
        printable(step.state),
        "?" if step.elapsed is None else format_duration(step.elapsed),
        format_percent(step.cpu_efficiency),
        _size(step.use.mem_peak),
        _size(asked),
        "?" if step.use.gpu_percent is None else f"{step.use.gpu_percent}%",
        step.exit_code or ("-" if step.runs else "?"),
        _number(step.use.tasks),
        _number(step.nodes),
        format_time(step.started)[5:19] if step.started else "?",
    )


def _line(cells: Sequence[str], widths: Sequence[int], style: str) -> Content:
    padded = [
        cell.rjust(width) if head in _RIGHT else cell.ljust(width)
        for cell, width, head in zip(cells, widths, _HEADS, strict=True)
    ]
    parts = [(f"{text}  ", style or _style(at, cells[at])) for at, text in enumerate(padded)]
    return Content.assemble(*parts)


def _style(at: int, cell: str) -> str:
    if _HEADS[at] == "STATE":
        return _COLOURS.get(state_kind(cell), "")
    return "$quiet" if _HEADS[at] in _QUIET else ""


def _notes(answer: StepsSnapshot, count: int) -> list[str]:
    more = [f"the first {_SHOWN} of {count:,} steps"] if count > _SHOWN else []
    missing = [f"some values are unknown: {answer.missing}"] if answer.missing else []
    meant = [
        "CPU EFF: CPU time used / (CPUs x elapsed). MEM PEAK: highest memory use.",
        "ASKED: requested memory. GPU: utilization, averaged over its tasks.",
        "?: Slurm does not report it.",
    ]
    return [*more, *missing, *meant, f"Source  {answer.source} at {format_time(int(answer.taken))}"]


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _size(value: float | None) -> str:
    return "?" if value is None else format_bytes(value)
