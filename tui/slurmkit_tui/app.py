"""The app: it owns what changes, plans the questions and hands answers to the views."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from textual import on, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Vertical
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer

from slurmkit.errors import SlurmkitError
from slurmkit.facts import clock
from slurmkit.text import printable
from slurmkit_tui import themes
from slurmkit_tui.actions import ACTIONS, BY_NAME, bindings
from slurmkit_tui.details import open_detail
from slurmkit_tui.dialogs import Help
from slurmkit_tui.feed import Answer, Ask, Feed
from slurmkit_tui.feed.kinds import KINDS
from slurmkit_tui.feed.recording import ReplayFeed
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.gpugrid import GpuGrid
from slurmkit_tui.jobscreen import JobScreen
from slurmkit_tui.listview import ListView
from slurmkit_tui.messages import Answered, CommandRun, Found, Unanswered
from slurmkit_tui.proposals import Proposals
from slurmkit_tui.session import Picture, Session
from slurmkit_tui.status import Problem, Source, Status, Summary, Tabs
from slurmkit_tui.table import Table
from slurmkit_tui.tables import copied, open_columns, open_export, open_sort
from slurmkit_tui.view import View
from slurmkit_tui.views import VIEWS

_ANYWHERE = frozenset("propose menu help shade quit pop_screen".split())  # also over a job


@dataclass(frozen=True)
class Options:
    """How the app starts.

    Attributes:
        interval: seconds between two questions.
        view: the one shown first.
        mine: start with only my jobs.
        read_only: refuse everything that changes the cluster.
        clock: tells epoch seconds.
    """

    interval: float = 10.0
    view: str = "queue"
    mine: bool = False
    read_only: bool = False
    clock: Callable[[], float] = time.time


class SlurmkitApp(App[None]):
    """One cluster at a time, seen through views."""

    TITLE = "slurmkit"
    CSS_PATH = "app.tcss"
    BINDINGS = [  # noqa: RUF012 - declared by Textual
        *bindings("app"),
        *(Binding(view.KEY, f"view('{view.NAME}')", view.TITLE, show=False) for view in VIEWS),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (16, "-tall")]  # noqa: RUF012 - declared by Textual

    def __init__(self, feed: Feed, options: Options | None = None) -> None:
        super().__init__()
        self.options = options or Options()
        self.session = Session(feed, self.options.interval)
        self._replay = feed if isinstance(feed, ReplayFeed) else None
        self._clock = self._replay.clock if self._replay else self.options.clock
        self.view: View = self._new_view(self.options.view)
        self.paused = False
        self._timer: Timer | None = None
        self._offered: tuple[object, ...] = ()
        self._proposals = Proposals(self)

    def compose(self) -> ComposeResult:
        """Stack the screen from top to bottom."""
        yield Tabs()
        yield Summary()
        yield Vertical(self.view, id="views")
        yield Problem()
        yield Status()
        yield Footer(show_command_palette=False)

    def _new_view(self, name: str) -> View:
        kind = next(view for view in VIEWS if name == view.NAME)
        return kind(mine=self.options.mine) if issubclass(kind, ListView) else kind(id=name)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours of ours, until one of our themes says otherwise."""
        return themes.DARK.variables

    def on_mount(self) -> None:
        """Paint first, then ask."""
        self.register_theme(themes.DARK)
        self.register_theme(themes.LIGHT)
        self.theme = themes.DARK.name
        self._catch_signals()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.view.focus_main()
        self._count()
        self.set_interval(1, self._say)
        self._ask()

    def _catch_signals(self) -> None:
        """Leave the terminal clean when ended from outside."""
        if not self.is_headless and self._loop is not None:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._loop.add_signal_handler(number, self.exit)

    # The views

    @property
    def main(self) -> Screen[object]:
        """The screen under all dialogs."""
        return self.screen_stack[0]

    async def action_view(self, name: str) -> None:
        """Switch to a view; what it knows is shown at once, however old, and then asked anew."""
        views = {str(view.NAME): view for view in self.main.query(View)}
        if name not in views:
            views[name] = self._new_view(name)
            await self.main.query_one("#views").mount(views[name])
        self.view = views[name]
        for view in views.values():
            view.display = view is self.view
        self.view.focus_main()
        picture = self.session.picture(self.view.ask, self.view.EVERY)
        if picture.prepared is not None:
            self.view.take(picture.prepared)
        self._count()
        if not self.paused:
            self._ask_when_due()

    @on(View.Asks)
    def _ask_anew(self) -> None:
        self._ask()

    # The one poller: only what is on the screen is asked for

    def _ask_when_due(self) -> None:
        answer = self._picture.answer
        due = 0.0 if answer is None else answer.taken + self._picture.pace.delay
        if due <= self._clock():
            self._ask()
        else:
            self._plan(due - self._clock())

    @property
    def _picture(self) -> Picture:
        return self.session.picture(self.view.ask, self.view.EVERY)

    def _ask(self) -> None:
        if not self._picture.pace.asking:
            self._picture.pace.asking = True
            self._plan(None)
            self._look(self.session, self.view)
        self._say()

    # Each worker is described, since Textual would else write its arguments out: all jobs.
    @work(group="look", description="look")
    async def _look(self, session: Session, view: View) -> None:
        ask, began = view.ask, time.perf_counter()
        try:
            answer, prepared = await in_thread(partial(session.look, ask, view.make))
        except SlurmkitError as error:
            self.post_message(Unanswered(session, ask, error, time.perf_counter() - began))
        else:
            self.post_message(Answered(session, ask, answer, prepared))

    @on(Answered)
    def _take(self, message: Answered) -> None:
        picture = message.session.picture(message.ask)
        picture.answer, picture.prepared, picture.problem = message.answer, message.prepared, ""
        picture.pace.answered(message.answer.seconds)
        if self._shows(message):
            self.view.take(message.prepared)
            self._plan(picture.pace.delay)

    @on(Unanswered)
    def _keep(self, message: Unanswered) -> None:
        picture = message.session.picture(message.ask)
        picture.problem = str(message.error)
        picture.pace.failed(message.took)
        if self._shows(message):
            if picture.answer is None:
                self.view.say(f"{KINDS[message.ask.what].source} has not answered yet")
            self._plan(picture.pace.delay)

    def _shows(self, message: Answered | Unanswered) -> bool:
        return message.session is self.session and message.ask == self.view.ask

    def _plan(self, delay: float | None) -> None:
        """Set the time of the next question; None for none."""
        if self._timer is not None:
            self._timer.stop()
        waits = delay is not None and not self.paused
        self._timer = self.set_timer(delay or 0, self._ask) if waits else None
        self._picture.pace.next_at = self._clock() + (delay or 0) if waits else None
        self._say()

    # What the screen says

    @on(View.Changed)
    def _count(self) -> None:
        """Bring the lines above the view up to date; at 50,000 jobs not for every second."""
        self.main.query_one(Tabs).show(VIEWS, self.view.NAME)
        self.main.query_one(Summary).show(self.session, self.view)
        offered = self.view.NAME, bool(self.view.rows), self.view.clearable
        if offered != self._offered:
            self._offered = offered
            self.refresh_bindings()

    def _say(self) -> None:
        """Bring the lines below the view up to date."""
        if not self.main.query(Status):  # the app is ending, its widgets are gone
            return
        now, picture = self._clock(), self._picture
        asked = KINDS[self.view.ask.what].source
        source = Source(self.session, picture, asked, self._marks)
        self.main.query_one(Status).show(source, now=now)
        self.main.query_one(Problem).show(picture.problem, picture.pace, now=now)

    @property
    def _marks(self) -> list[str]:
        """What is not as usual, for the line below."""
        marks = {"PAUSED": self.paused, "READ-ONLY": self.options.read_only}
        found = [mark for mark, on in marks.items() if on]
        return [f"RECORDED {clock(int(self._clock()))}", *found] if self._replay else found

    # What the keys do; `actions` says which

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Offer the actions and the views in the command palette."""
        del screen
        for action in ACTIONS:
            if action.home == "app":
                run = partial(self.run_action, action.call)
                yield SystemCommand(action.label, action.help, run)
        for view in VIEWS:
            go = partial(self.run_action, f"view('{view.NAME}')")
            yield SystemCommand(f"View {view.TITLE}", f"Go to {view.TITLE}", go)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Offer only what makes sense in this view now."""
        view = self.view
        if isinstance(self.screen, JobScreen) and action not in _ANYWHERE:
            return False
        if action == "propose":
            return view.is_mounted and self._proposals.concern(str(parameters[0]), view.rows)
        listed = isinstance(view, ListView)
        offered = {
            "seek": self._replay is not None,
            "open_tab": view.OF_JOBS,
            "filter": view.filters_rows,
            "clear": view.is_mounted and view.clearable,
            "mine": isinstance(view, ListView) and view.LISTING.mine is not None,
            **dict.fromkeys(("sort", "columns", "copy", "export"), listed),
        }
        return offered.get(action, True)

    def action_filter(self) -> None:
        """Type a filter."""
        self.view.open_filter()

    def action_clear(self) -> None:
        """Clear the filter, or else what was chosen."""
        self.view.clear()

    def action_mine(self) -> None:
        """Toggle my rows and all."""
        if isinstance(self.view, ListView):
            self.view.toggle_mine()

    def action_refresh(self) -> None:
        """Ask now."""
        self._ask()

    def action_pause(self) -> None:
        """Stop the poller, or start it with a question."""
        self.paused = not self.paused
        if self._replay:
            self._replay.pause(paused=self.paused)
        if self.paused:
            self._plan(None)
        else:
            self._ask()

    def action_seek(self, seconds: int) -> None:
        """Go back or on in a recording."""
        if self._replay:
            self._replay.seek(self._clock() + seconds)
            self._ask()

    def action_shade(self) -> None:
        """Switch between dark and light."""
        dark = self.theme == themes.DARK.name
        self.theme = themes.LIGHT.name if dark else themes.DARK.name

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help())

    def action_sort(self) -> None:
        """Choose the column to sort by."""
        if isinstance(self.view, ListView):
            open_sort(self, self.view)

    def action_columns(self) -> None:
        """Choose the columns."""
        if isinstance(self.view, ListView):
            open_columns(self, self.view)

    def action_copy(self) -> None:
        """Copy the rows chosen."""
        if isinstance(self.view, ListView) and (rows := self.view.table.rows_chosen):
            self.copy_to_clipboard(copied(self.view))
            self.tell(f"copied {self.view.LISTING.counted(len(rows))}")

    def action_export(self) -> None:
        """Write the rows shown to a file."""
        if isinstance(self.view, ListView):
            open_export(self, self.view)

    @on(Table.Opened)
    @on(GpuGrid.Opened)
    def action_detail(self) -> None:
        """Show the row under the cursor."""
        if self.view.current is not None:
            open_detail(self, self.view)

    def action_open_tab(self, tab: str) -> None:
        """Show a tab of the job under the cursor."""
        if self.view.current is not None:
            open_detail(self, self.view, tab)

    def ask_for(self, ask: Ask) -> None:
        """Ask for what a dialog shows; it comes as `Found`."""
        self._find(self.session, ask)

    @work(group="find", description="find")
    async def _find(self, session: Session, ask: Ask) -> None:
        try:
            found: Answer | SlurmkitError = await in_thread(partial(session.feed.fetch, ask))
        except SlurmkitError as error:
            found = error
        self.post_message(Found(ask, found))

    @on(Found)
    def _hand_on(self, message: Found) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, JobScreen):
                screen.take(message, self._clock())

    # Commands that change the cluster

    def action_propose(self, name: str) -> None:
        """Show the commands of an action and run them only when that is wanted."""
        self._proposals.propose(BY_NAME[name], self.view.rows)

    def action_menu(self) -> None:
        """List what can be done to the rows chosen."""
        self._proposals.menu(self.view.rows)

    @work(group="command", description="command")
    async def run_command(self, argv: list[str]) -> None:
        """Run what was confirmed."""
        error: SlurmkitError | None = None
        try:
            await in_thread(partial(self.session.feed.run, argv))
        except SlurmkitError as refused:
            error = refused
        self.post_message(CommandRun(argv, error))

    @on(CommandRun)
    def _command_done(self, message: CommandRun) -> None:
        self._proposals.done(message)
        self._ask()

    def tell(self, words: str, severity: SeverityLevel = "information") -> None:
        """Say something for some seconds."""
        self.notify(printable(words), severity=severity, markup=False)
