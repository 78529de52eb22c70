"""The screens that keys open over a view. The app imports them after the first paint."""

from __future__ import annotations

from collections.abc import Iterable

from textual.app import SystemCommand
from textual.screen import Screen

from slurmkit_tui.host import AppHost
from slurmkit_tui.screens.details import open_detail
from slurmkit_tui.screens.help import HelpDialog, Jump, jump_targets, palette_commands
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.screens.proposals import ChangeDialogs, run_and_log
from slurmkit_tui.screens.tables import open_columns, open_export, open_sort, rows_as_text
from slurmkit_tui.views.base import TableView
from slurmkit_tui.widgets.dialogs import key_names


class AppDialogs:
    """The screens over the views of one app.

    Attributes:
        proposals: the dialogs that change the cluster.
    """

    run_and_log = staticmethod(run_and_log)

    def __init__(self, app: AppHost) -> None:
        self._app = app
        self.proposals = ChangeDialogs(app)

    def palette(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the commands that a screen under the command palette offers."""
        return palette_commands(self._app, screen)

    def show_help(self) -> None:
        """Show the keys."""
        self._app.push_screen(HelpDialog(self._app))

    def jump(self) -> None:
        """Show a letter over everything that can get the focus."""
        self._app.push_screen(Jump(jump_targets(self._app)))

    def sort(self, view: TableView) -> None:
        """Open the dialog for the sort column."""
        open_sort(self._app, view)

    def columns(self, view: TableView) -> None:
        """Open the dialog for the columns."""
        open_columns(self._app, view)

    def copy(self, view: TableView) -> None:
        """Copy the chosen rows."""
        if rows := view.table.chosen_rows:
            self._app.copy_to_clipboard(rows_as_text(view))
            self._app.tell(f"copied {view.LISTING.counted(len(rows))}")

    def export(self, view: TableView) -> None:
        """Open the dialog that writes the shown rows to a file."""
        open_export(self._app, view)

    def detail(self, tab: str) -> None:
        """Show a tab of the row under the cursor."""
        open_detail(self._app, tab)

    def quit_keys(self) -> str:
        """Return the names of the keys that quit."""
        return key_names(self._app.options.keys.get("quit", "q"))

    def read_jobs_again(self) -> None:
        """Make open screens of jobs ask again."""
        for screen in self._app.screen_stack:
            if isinstance(screen, JobScreen):
                screen.action_again()
