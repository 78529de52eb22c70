"""The app: it owns what changes, plans the questions to Slurm and hands answers to the views."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from textual import on, work
from textual.app import App, ComposeResult, SystemCommand
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer

from slurmkit.cluster import Cluster
from slurmkit.errors import SlurmkitError
from slurmkit.jobs.info import JobInfo
from slurmkit.text import printable
from slurmkit_tui import themes
from slurmkit_tui.actions import ACTIONS, BY_NAME, bindings, job_argument
from slurmkit_tui.dialogs import Confirm, Detail, Help
from slurmkit_tui.feed import Feed, in_thread
from slurmkit_tui.messages import CommandRun, JobRead, QueueRead, QueueUnread
from slurmkit_tui.pace import Pace
from slurmkit_tui.queue_view import QueueView
from slurmkit_tui.snapshot import Snapshot
from slurmkit_tui.status import Problem, Source, Status, Summary
from slurmkit_tui.table import Table


@dataclass(frozen=True)
class Options:
    """How the app starts.

    Attributes:
        interval: seconds between two questions to squeue.
        mine: start with only my jobs.
        read_only: refuse everything that changes the cluster.
        me: whose jobs are mine; None for the login name.
        clock: tells epoch seconds.
    """

    interval: float = 10.0
    mine: bool = False
    read_only: bool = False
    me: str | None = None
    clock: Callable[[], float] = time.time


class SlurmkitApp(App[None]):
    """The live queue of one cluster."""

    TITLE = "slurmkit"
    CSS_PATH = "app.tcss"
    BINDINGS = bindings("app")
    VERTICAL_BREAKPOINTS = [(0, "-short"), (16, "-tall")]  # noqa: RUF012 - declared by Textual

    def __init__(self, cluster: Cluster, options: Options | None = None) -> None:
        super().__init__()
        self._options = options or Options()
        self._feed = Feed(cluster, self._options.me)
        self._pace = Pace(self._options.interval)
        self._problem = ""
        self._snapshot: Snapshot | None = None
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Stack the screen from top to bottom."""
        yield Summary()
        yield QueueView(mine=self._options.mine)
        yield Problem()
        yield Status()
        yield Footer(show_command_palette=False)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours of ours, until one of our themes says otherwise."""
        return themes.DARK.variables

    def on_mount(self) -> None:
        """Paint first, then ask."""
        self.register_theme(themes.DARK)
        self.register_theme(themes.LIGHT)
        self.theme = themes.DARK.name
        self._catch_signals()
        self._count()
        self._say()
        self.set_interval(1, self._say)
        self.call_after_refresh(self._ask)

    def _catch_signals(self) -> None:
        """Leave the terminal clean when ended from outside."""
        if not self.is_headless and self._loop is not None:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._loop.add_signal_handler(number, self.exit)

    # The one poller

    def _ask(self) -> None:
        if not self._pace.asking:
            self._pace.asking = True
            self._plan(None)
            self._read_queue()
        self._say()

    @work(exclusive=True, group="queue")
    async def _read_queue(self) -> None:
        began = time.perf_counter()
        try:
            snapshot = await in_thread(self._feed.snapshot)
        except SlurmkitError as error:
            self.post_message(QueueUnread(error, time.perf_counter() - began))
        else:
            self.post_message(QueueRead(snapshot))

    @on(QueueRead)
    def _take_queue(self, message: QueueRead) -> None:
        self._snapshot, self._problem = message.snapshot, ""
        self._pace.answered(message.snapshot.seconds)
        self._main.query_one(QueueView).take(message.snapshot)
        self._plan(self._pace.delay)

    @on(QueueUnread)
    def _keep_queue(self, message: QueueUnread) -> None:
        self._problem = str(message.error)
        if self._snapshot is None:
            self._main.query_one(QueueView).say("squeue has not answered yet")
        self._pace.failed(message.took)
        self._plan(self._pace.delay)

    def _plan(self, delay: float | None) -> None:
        """Set the time of the next question; None for none."""
        if self._timer is not None:
            self._timer.stop()
        waits = delay is not None and not self._pace.paused
        self._timer = self.set_timer(delay or 0, self._ask) if waits else None
        self._pace.next_at = self._options.clock() + (delay or 0) if waits else None
        self._say()

    # What the screen says

    @property
    def _main(self) -> Screen[object]:
        return self.screen_stack[0]

    @on(QueueView.Changed)
    def _count(self) -> None:
        """Bring the line above the table up to date; at 50,000 jobs not for every second."""
        view = self._main.query_one(QueueView)
        self._main.query_one(Summary).show(self._snapshot, view.lines, view.filters)

    def _say(self) -> None:
        """Bring the lines below the table up to date."""
        if not self._main.query(Status):  # the app is ending, its widgets are gone
            return
        now = self._options.clock()
        status = Source(self._snapshot, self._pace, self._feed.calls, self._options.read_only)
        self._main.query_one(Status).show(status, now=now)
        self._main.query_one(Problem).show(self._problem, self._pace, now=now)

    # What the keys do; `actions` says which

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Offer the actions in the command palette."""
        del screen
        for action in ACTIONS:
            if action.home == "app":
                run = partial(self.run_action, action.call)
                yield SystemCommand(action.label, action.help, run)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Offer to clear a filter only while there is one."""
        del parameters
        return action != "clear" or self._main.query_one(QueueView).filtering

    def action_filter(self) -> None:
        """Type a filter."""
        self._main.query_one(QueueView).open_filter()

    def action_clear(self) -> None:
        """Clear the filter."""
        self._main.query_one(QueueView).clear_filter()

    def action_mine(self) -> None:
        """Toggle my jobs and all."""
        self._main.query_one(QueueView).toggle_mine()

    def action_refresh_queue(self) -> None:
        """Ask squeue now."""
        self._ask()

    def action_pause(self) -> None:
        """Stop the poller, or start it with a question."""
        self._pace.paused = not self._pace.paused
        if self._pace.paused:
            self._plan(None)
        else:
            self._ask()

    def action_shade(self) -> None:
        """Switch between dark and light."""
        dark = self.theme == themes.DARK.name
        self.theme = themes.LIGHT.name if dark else themes.DARK.name

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help())

    # One job

    @on(Table.Opened)
    def action_detail(self) -> None:
        """Show the job under the cursor."""
        if line := self._main.query_one(QueueView).selected:
            self.push_screen(Detail(line))
            self._read_job(line.key, job_argument(line.row.job_id))

    @work(exclusive=True, group="job")
    async def _read_job(self, key: str, job_id: str) -> None:
        try:
            found: JobInfo | SlurmkitError = await in_thread(partial(self._feed.job, job_id))
        except SlurmkitError as error:
            found = error
        self.post_message(JobRead(key, found))

    @on(JobRead)
    def _show_job(self, message: JobRead) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, Detail) and screen.key == message.key:
                screen.show(message.found, self._options.clock())

    # Commands that change the cluster

    def action_propose(self, name: str) -> None:
        """Show the command of an action and run it only when that is wanted."""
        action, line = BY_NAME[name], self._main.query_one(QueueView).selected
        if action.command is None or line is None:
            return
        if self._options.read_only:
            self._tell(f"read-only: {action.label.lower()} is refused", "warning")
            return
        argv = action.command(line.row)
        question = action.question.format(job_id=line.row.job_id, user=line.row.user)

        def answered(yes: bool | None) -> None:  # noqa: FBT001 - called by Textual
            if yes:
                self._run(argv)

        self.push_screen(Confirm(question, argv), answered)

    @work(group="command")
    async def _run(self, argv: list[str]) -> None:
        error: SlurmkitError | None = None
        try:
            await in_thread(partial(self._feed.run, argv))
        except SlurmkitError as refused:
            error = refused
        self.post_message(CommandRun(argv, error))

    @on(CommandRun)
    def _command_done(self, message: CommandRun) -> None:
        command = shlex.join(message.argv)
        if message.error is None:
            self._tell(f"done: {command}", "information")
        else:
            self._tell(f"{command}: {message.error}", "error")
        self._ask()

    def _tell(self, words: str, severity: SeverityLevel) -> None:
        self.notify(printable(words), severity=severity, markup=False)
