"""The app: its screen, and the actions of the keys."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from textual import on, work
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Vertical
from textual.driver import Driver
from textual.filter import LineFilter, Monochrome
from textual.notifications import SeverityLevel
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import Widget

from slurmkit.errors import SlurmkitError
from slurmkit.formats.display import printable
from slurmkit_tui import themes
from slurmkit_tui.actions.commands import Argv
from slurmkit_tui.actions.registry import ACTIONS_BY_NAME, ActionScope, is_available, key_bindings
from slurmkit_tui.app.polling import PollingApp
from slurmkit_tui.feed import Feed, FeedAnswer, FeedQuestion
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.options import AppOptions
from slurmkit_tui.screens.status_lines import ProblemLine, StatusLine, Summary, Tabs
from slurmkit_tui.session import ClusterSession
from slurmkit_tui.state_files import log_error
from slurmkit_tui.views import VIEWS
from slurmkit_tui.views.base import TableView
from slurmkit_tui.widgets.key_bar import KeyBar
from slurmkit_tui.widgets.keyboard import PasteSafeDriver
from slurmkit_tui.widgets.messages import (
    AskingScreen,
    CommandsRun,
    PreviewOutdated,
    RowOpened,
    ScreenAnswered,
)

if TYPE_CHECKING:
    from slurmkit.diagnose.model import Explanation
    from slurmkit_tui.app.dialogs import AppDialogs

__all__ = ["AppOptions", "SlurmkitApp"]

_PLAIN = Monochrome()


class MainScreen(Screen[None]):
    """The screen of the views. Another focus repaints the two widgets, not the whole screen."""

    focused: Reactive[Widget | None] = Reactive(None, repaint=False)

    def on_screen_resume(self) -> None:
        """Let the preview follow what came while another screen was over this one."""
        self.post_message(PreviewOutdated())


class SlurmkitApp(PollingApp):
    """The TUI: one cluster at a time, seen through views."""

    TITLE = "slurmkit"
    CSS_PATH = "app.tcss"
    BINDINGS = [  # noqa: RUF012 - declared by Textual
        *key_bindings("app", "view"),
        *(
            Binding(each.key, f"view('{each.name}')", f"Go to {each.title}", show=False)
            for each in VIEWS
        ),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (16, "-tall")]  # noqa: RUF012 - declared by Textual

    def __init__(self, feed: Feed, options: AppOptions | None = None) -> None:
        super().__init__(feed, options)
        for each in chain.from_iterable(themes.THEMES.values()):
            self.register_theme(each)
        # Set without watchers: setting the theme later would style everything a second time.
        first = self._choose_theme(dark=self.options.theme != "light")
        self.set_reactive(SlurmkitApp.theme, first)
        self.stylesheet.set_variables(self.get_css_variables())
        self.terminal_lent = False  # whether a shell has the terminal

    def get_default_screen(self) -> Screen[None]:
        """Return the screen of the views."""
        return MainScreen(id="_default")

    def compose(self) -> ComposeResult:
        """Stack the screen from top to bottom."""
        yield Tabs(self.view.NAME)
        yield Summary()
        yield Vertical(self.view, id="views")
        yield ProblemLine()
        yield StatusLine()
        yield KeyBar()

    @cached_property
    def _dialogs(self) -> AppDialogs:
        """The screens that keys open over a view."""
        from slurmkit_tui.app.dialogs import AppDialogs  # noqa: PLC0415 - after the first paint

        return AppDialogs(self)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return our theme variables, for the time before one of our themes is set."""
        return themes.THEMES[""][0].variables

    def get_driver_class(self) -> type[Driver]:
        """Return the driver; on Unix terminals one that keeps pasted text from pressing keys."""
        usual = super().get_driver_class()
        return PasteSafeDriver if usual is PasteSafeDriver.__base__ else usual

    def _handle_exception(self, error: Exception) -> None:
        """Log the error that ends the app, for a bug report."""
        log_error(error)
        super()._handle_exception(error)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Remove colours for the theme `no-colour`; Textual itself handles NO_COLOR."""
        plain = self.options.theme == "no-colour" and not self.no_color
        return [*super().get_line_filters(), *([_PLAIN] if plain else [])]

    def on_mount(self) -> None:
        """Draw the screen first, then ask Slurm."""
        if self.options.keys:
            self.set_keymap(dict(self.options.keys))
        self._catch_signals()
        self.call_after_refresh(self._start_asking)

    def _start_asking(self) -> None:
        self.view.focus_main()
        self._update_summary()
        self.set_interval(1, self._update_status_lines)
        if self.options.trouble:
            self.tell(self.options.trouble, "warning")
        self._ask_now()

    def _catch_signals(self) -> None:
        """Exit properly on SIGTERM, SIGHUP and SIGINT, so that the terminal is restored."""
        if not self.is_headless and self._loop is not None:
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._loop.add_signal_handler(number, self.exit)
            self._loop.add_signal_handler(signal.SIGINT, self._interrupted)

    def _interrupted(self) -> None:
        if not self.terminal_lent:  # else Ctrl-C was meant for the shell that has the terminal
            self.exit()

    def take_back(self) -> None:
        """Note that the terminal is no longer lent to a shell."""
        self.terminal_lent = False

    # Actions; the keys are declared in `actions`

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the commands that the screen under the command palette offers."""
        return self._dialogs.palette(screen)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Return whether an action makes sense in this view now."""
        scope = ActionScope(
            self.view,
            self._targets if action == "propose" else (),  # of 50,000 rows they take a while
            over_job=self._job_screen is not None,
            in_recording=self._replay is not None,
        )
        return is_available(action, parameters, scope)

    @property
    def _job_screen(self) -> AskingScreen | None:
        """The job's screen over the view; None if there is none."""
        # The first is the view's own. Python takes long to see whether a class fits a protocol.
        over = self.screen_stack[1:]
        return next((each for each in over if isinstance(each, AskingScreen)), None)

    @property
    def _targets(self) -> Sequence[Any]:
        """The targets of actions, which are on the screen: one job, or rows of the view."""
        if self._job_screen is not None:
            return self._job_screen.targets
        return self.view.rows if self.view.is_mounted else ()

    def action_filter(self) -> None:
        """Open the filter line."""
        self.view.open_filter()

    def action_clear(self) -> None:
        """Clear the filter, or else the chosen rows."""
        self.view.clear()

    def action_mine(self) -> None:
        """Toggle between my rows and all rows."""
        if isinstance(self.view, TableView):
            self.view.toggle_mine()

    def action_new_job(self) -> None:
        """Open the form for a new job."""
        self._open_form(again=False)

    def action_submit_again(self) -> None:
        """Open the form with the job shown, or with the job under the cursor."""
        self._open_form(again=True)

    def _open_form(self, *, again: bool) -> None:
        from slurmkit_tui.submit import opening  # noqa: PLC0415 - opened later, if ever

        if again:
            opening.open_old_job(self, self._job_screen, self.view.current)
        else:
            opening.open_new_job(self)

    def now(self) -> float:
        """Return epoch seconds: of a recording, its own time."""
        return self._clock()

    def action_refresh(self) -> None:
        """Ask Slurm now."""
        self._ask_now()
        self._ask_also(again=True)

    def action_pause(self) -> None:
        """Stop the poller, or start it again with a question now."""
        self.paused = not self.paused
        if self._replay:
            self._replay.pause(paused=self.paused)
        if self.paused:
            self._schedule(None)
        else:
            self._ask_now()

    def action_seek(self, seconds: int) -> None:
        """Go back or forward in a recording, by seconds."""
        if self._replay:
            self._replay.seek(self._clock() + seconds)
            self.action_refresh()

    async def action_back(self) -> None:
        """Copy the selection, or else do what Esc does, or else name the key that quits."""
        selected_on_focus = getattr(self.focused, "select_on_focus", False)
        in_field = "" if selected_on_focus else getattr(self.focused, "selected_text", "")
        if selected := in_field or self.screen.get_selected_text():
            self.copy_to_clipboard(selected)
            self.tell("copied the selected text")
        elif self.screen is self.main:
            quits = f"{self._dialogs.quit_keys()} quits"
            self.tell(f"Esc clears, {quits}" if self.view.clearable else quits)
        elif escape := self.screen.active_bindings.get("escape"):
            await self.run_action(escape.binding.action, escape.node)

    def action_shade(self) -> None:
        """Switch between dark and light."""
        self.theme = self._choose_theme(dark=not self.current_theme.dark)

    def _choose_theme(self, *, dark: bool) -> str:
        return themes.choose_theme(dark=dark, colours=self.console.color_system).name

    def action_help(self) -> None:
        """Show the keys."""
        self._dialogs.show_help()

    def action_palette(self) -> None:
        """Open the command palette, as Textual's own key does."""
        self.action_command_palette()

    def action_jump(self) -> None:
        """Show a letter over everything that can get the focus."""
        self._dialogs.jump()

    def action_sort(self) -> None:
        """Open the dialog for the sort column."""
        if isinstance(self.view, TableView):
            self._dialogs.sort(self.view)

    def action_columns(self) -> None:
        """Open the dialog for the columns."""
        if isinstance(self.view, TableView):
            self._dialogs.columns(self.view)

    def action_copy(self) -> None:
        """Copy the chosen rows."""
        if isinstance(self.view, TableView):
            self._dialogs.copy(self.view)

    def action_export(self) -> None:
        """Open the dialog that writes the shown rows to a file."""
        if isinstance(self.view, TableView):
            self._dialogs.export(self.view)

    @on(RowOpened)
    def action_detail(self) -> None:
        """Show the row under the cursor."""
        self.action_open_tab("facts")

    def action_open_tab(self, tab: str) -> None:
        """Show a tab of the job under the cursor."""
        if self.view.current is not None:
            self._dialogs.detail(tab)

    def ask_for(self, ask: FeedQuestion) -> None:
        """Fetch the answer that a screen over the view needs; it arrives as `ScreenAnswered`."""
        self._fetch_for_screen(self.session, ask)

    @work(group="find", description="find")
    async def _fetch_for_screen(self, session: ClusterSession, ask: FeedQuestion) -> None:
        try:
            result: FeedAnswer | SlurmkitError = await in_thread(partial(session.feed.fetch, ask))
        except SlurmkitError as error:
            result = error
        self.post_message(ScreenAnswered(ask, result))

    @on(ScreenAnswered)
    def _pass_to_screens(self, message: ScreenAnswered) -> None:
        if self._is_ending:
            return
        for screen in self.screen_stack:
            if isinstance(screen, AskingScreen):
                screen.take(message, self._clock())

    # Commands that change the cluster

    def action_propose(self, name: str) -> None:
        """Show the commands of an action, and run them once they are confirmed."""
        if self._can_act:
            self._dialogs.proposals.propose(ACTIONS_BY_NAME[name], self._targets)

    def propose_remedies(self, explanation: Explanation) -> None:
        """Offer changes with which a pending job would start sooner."""
        self._dialogs.proposals.remedy(explanation)

    def action_menu(self) -> None:
        """List the actions on the job on the screen, or on the chosen rows."""
        if self._can_act:
            self._dialogs.proposals.menu(self._targets)

    @property
    def _can_act(self) -> bool:
        """Whether the job on the screen is read; if not, a message says so."""
        job = self._job_screen
        if job is None or self._targets:
            return True
        self.tell(f"job {job.job_id} has not been read yet; try again in a moment", "warning")
        return False

    @work(group="command", description="command")
    async def run_commands(self, commands: Sequence[Argv], *, onward: bool = True) -> None:
        """Run confirmed commands one after another, to keep the load on slurmctld low.

        Args:
            commands: the commands.
            onward: whether to go on after a command that fails.
        """
        try:
            ran = await in_thread(
                partial(self._dialogs.run_and_log, self.session, commands, onward=onward)
            )
        except SlurmkitError as error:
            self.tell(str(error), "error")
        else:
            self.post_message(CommandsRun(ran))

    @on(CommandsRun)
    def _commands_done(self, message: CommandsRun) -> None:
        self._dialogs.proposals.done(message.ran)
        self._ask_now()
        self._dialogs.read_jobs_again()

    def tell(self, words: str, severity: SeverityLevel = "information") -> None:
        """Show a text for some seconds."""
        self.notify(printable(words), severity=severity, markup=False)
