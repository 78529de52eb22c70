"""The app: it owns what changes; what the keys do."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Vertical
from textual.driver import Driver
from textual.filter import LineFilter, Monochrome
from textual.notifications import SeverityLevel
from textual.screen import Screen

from slurmkit.errors import SlurmkitError
from slurmkit.text import printable
from slurmkit_tui import themes
from slurmkit_tui.actions import BY_NAME, bindings
from slurmkit_tui.commands import Argv
from slurmkit_tui.feed import Answer, Ask, Feed
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.foot import Foot
from slurmkit_tui.listview import ListView
from slurmkit_tui.logs import note_mistake
from slurmkit_tui.messages import AskingScreen, CommandsRun, Found, Opened
from slurmkit_tui.options import Options
from slurmkit_tui.poller import PollingApp
from slurmkit_tui.proposals import Proposals, run_noted
from slurmkit_tui.session import Session
from slurmkit_tui.status import Problem, Status, Summary, Tabs
from slurmkit_tui.views import VIEWS

if TYPE_CHECKING:
    from slurmkit.why.model import Explanation

__all__ = ["Options", "SlurmkitApp"]
_PLAIN = Monochrome()
ANYWHERE = frozenset(
    "propose menu new_job submit_again jump help shade back quit pop_screen".split()
)  # also over a job


class SlurmkitApp(PollingApp):
    """One cluster at a time, seen through views."""

    TITLE = "slurmkit"
    CSS_PATH = "app.tcss"
    BINDINGS = [  # noqa: RUF012 - declared by Textual
        *bindings("app", "view"),
        *(
            Binding(each.key, f"view('{each.name}')", f"Go to {each.title}", show=False)
            for each in VIEWS
        ),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (16, "-tall")]  # noqa: RUF012 - declared by Textual

    def __init__(self, feed: Feed, options: Options | None = None) -> None:
        super().__init__(feed, options)
        self.register_theme(themes.DARK)
        self.register_theme(themes.LIGHT)
        # A theme that is set later, or watched now, would style everything a second time.
        first = themes.LIGHT if self.options.theme == "light" else themes.DARK
        self.set_reactive(SlurmkitApp.theme, first.name)
        self.stylesheet.set_variables(self.get_css_variables())
        self._proposals = Proposals(self)
        self.lent = False  # the terminal, to a shell

    def compose(self) -> ComposeResult:
        """Stack the screen from top to bottom."""
        yield Tabs(self.view.NAME)
        yield Summary()
        yield Vertical(self.view, id="views")
        yield Problem()
        yield Status()
        yield Foot()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours of ours, until one of our themes says otherwise."""
        return themes.DARK.variables

    def get_driver_class(self) -> type[Driver]:
        """Take care of what is pasted, where the terminal is a Unix one."""
        from slurmkit_tui.pasting import PastingDriver  # noqa: PLC0415 - Textual loads it here too

        usual = super().get_driver_class()
        return PastingDriver if usual is PastingDriver.__base__ else usual

    def _handle_exception(self, error: Exception) -> None:
        """Write down, for a bug report, what ends the app."""
        note_mistake(error)
        super()._handle_exception(error)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Take the colours away where none are wanted; NO_COLOR is Textual's own matter."""
        plain = self.options.theme == "no-colour" and not self.no_color
        return [*super().get_line_filters(), *([_PLAIN] if plain else [])]

    def on_mount(self) -> None:
        """Paint first, then ask."""
        if self.options.keys:
            self.set_keymap(dict(self.options.keys))
        self._catch_signals()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.view.focus_main()
        self._count()
        self.set_interval(1, self._say)
        if self.options.trouble:
            self.tell(self.options.trouble, "warning")
        self._ask()

    def _catch_signals(self) -> None:
        """Leave the terminal clean when ended from outside."""
        if not self.is_headless and self._loop is not None:
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._loop.add_signal_handler(number, self.exit)
            self._loop.add_signal_handler(signal.SIGINT, self._interrupted)

    def _interrupted(self) -> None:
        if not self.lent:  # else Ctrl-C was for what has the terminal
            self.exit()

    def take_back(self) -> None:
        """The terminal is not lent any more."""
        self.lent = False

    # What the keys do; `actions` says which

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Offer what the screen under the command palette can do."""
        from slurmkit_tui.palette import offered  # noqa: PLC0415 - when it is first opened

        return offered(self, screen)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Offer only what makes sense in this view now."""
        view = self.view
        over_job = any(isinstance(screen, AskingScreen) for screen in self.screen_stack)
        if over_job and action not in ANYWHERE:
            return False
        if action == "propose":
            return view.is_mounted and self._proposals.concern(str(parameters[0]), view.rows)
        listed = isinstance(view, ListView)
        offered = {
            "seek": self._replay is not None,
            "open_tab": view.OF_JOBS,
            "submit_again": view.OF_JOBS or over_job,
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

    def action_new_job(self) -> None:
        """Open the form."""
        from slurmkit_tui.submit.opening import open_new  # noqa: PLC0415 - opened later, if ever

        open_new(self)

    def action_submit_again(self) -> None:
        """Open the form with the job that is shown, or the one under the cursor."""
        from slurmkit_tui.submit.opening import open_again  # noqa: PLC0415 - as above

        open_again(self, self.screen, self.view.current)

    def now(self) -> float:
        """Epoch seconds, as the screen counts them."""
        return self._clock()

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

    async def action_back(self) -> None:
        """Copy what is selected, or do what Esc does; where that is nothing, say what quits."""
        by_itself = getattr(self.focused, "select_on_focus", False)
        typed = "" if by_itself else getattr(self.focused, "selected_text", "")
        if selected := typed or self.screen.get_selected_text():
            self.copy_to_clipboard(selected)
            self.tell("copied what is selected")
        elif self.screen is self.main:
            from slurmkit_tui.dialogs import keys  # noqa: PLC0415 - when it is first wanted

            quits = f"{keys(self.options.keys.get('quit', 'q'))} quits"
            self.tell(f"Esc clears, {quits}" if self.view.clearable else quits)
        elif escape := self.screen.active_bindings.get("escape"):
            await self.run_action(escape.binding.action, escape.node)

    def action_shade(self) -> None:
        """Switch between dark and light."""
        dark = self.theme == themes.DARK.name
        self.theme = themes.LIGHT.name if dark else themes.DARK.name

    def action_help(self) -> None:
        """Show the keys."""
        from slurmkit_tui.help import Help  # noqa: PLC0415 - when it is first opened

        self.push_screen(Help(self))

    def action_jump(self) -> None:
        """Show letters over what the keys can be taken to."""
        from slurmkit_tui.jump import Jump, targets  # noqa: PLC0415 - when it is first wanted

        self.push_screen(Jump(targets(self)))

    def action_sort(self) -> None:
        """Choose the column to sort by."""
        from slurmkit_tui.tables import open_sort  # noqa: PLC0415 - when it is first opened

        if isinstance(self.view, ListView):
            open_sort(self, self.view)

    def action_columns(self) -> None:
        """Choose the columns."""
        from slurmkit_tui.tables import open_columns  # noqa: PLC0415 - when it is first opened

        if isinstance(self.view, ListView):
            open_columns(self, self.view)

    def action_copy(self) -> None:
        """Copy the rows chosen."""
        from slurmkit_tui.tables import copied  # noqa: PLC0415 - when it is first wanted

        if isinstance(self.view, ListView) and (rows := self.view.table.rows_chosen):
            self.copy_to_clipboard(copied(self.view))
            self.tell(f"copied {self.view.LISTING.counted(len(rows))}")

    def action_export(self) -> None:
        """Write the rows shown to a file."""
        from slurmkit_tui.tables import open_export  # noqa: PLC0415 - when it is first opened

        if isinstance(self.view, ListView):
            open_export(self, self.view)

    @on(Opened)
    def action_detail(self) -> None:
        """Show the row under the cursor."""
        self.action_open_tab("facts")

    def action_open_tab(self, tab: str) -> None:
        """Show a tab of the job under the cursor."""
        from slurmkit_tui.details import open_detail  # noqa: PLC0415 - when it is first opened

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
            if isinstance(screen, AskingScreen):
                screen.take(message, self._clock())

    # Commands that change the cluster

    def action_propose(self, name: str) -> None:
        """Show the commands of an action and run them only when that is wanted."""
        self._proposals.propose(BY_NAME[name], self.view.rows)

    def propose_remedies(self, told: Explanation) -> None:
        """Offer what would start a job sooner."""
        self._proposals.remedy(told)

    def action_menu(self) -> None:
        """List what can be done to the rows chosen."""
        self._proposals.menu(self.view.rows)

    @work(group="command", description="command")
    async def run_commands(self, commands: Sequence[Argv], *, onward: bool = True) -> None:
        """Run what was confirmed, one after another: Slurm's controller has others to serve.

        Args:
            commands: to run.
            onward: whether one that fails leaves the others to be run.
        """
        try:
            ran = await in_thread(partial(run_noted, self.session, commands, onward=onward))
        except SlurmkitError as error:
            self.tell(str(error), "error")
        else:
            self.post_message(CommandsRun(ran))

    @on(CommandsRun)
    def _commands_done(self, message: CommandsRun) -> None:
        self._proposals.done(message.ran)
        self._ask()
        from slurmkit_tui.jobscreen import JobScreen  # noqa: PLC0415 - when it is first wanted

        for screen in self.screen_stack:
            if isinstance(screen, JobScreen):
                screen.action_again()

    def tell(self, words: str, severity: SeverityLevel = "information") -> None:
        """Say something for some seconds."""
        self.notify(printable(words), severity=severity, markup=False)
