"""The app as its screens and the submit form see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.notifications import SeverityLevel
from textual.screen import Screen

from slurmkit_tui.widgets.keyboard import OrderedKeysApp

if TYPE_CHECKING:
    from slurmkit.diagnose.model import Explanation
    from slurmkit_tui.actions.commands import Argv
    from slurmkit_tui.feed import FeedQuestion
    from slurmkit_tui.options import AppOptions
    from slurmkit_tui.session import ClusterSession
    from slurmkit_tui.views.base import View


class AppHost(OrderedKeysApp):
    """Base of the app: the state and the methods that screens use.

    Attributes:
        options: how the app was started.
        session: answers of the cluster that is shown.
        view: the view on the screen.
        paused: whether Slurm is asked on request only.
        terminal_lent: whether a shell has the terminal.
    """

    options: AppOptions
    session: ClusterSession
    view: View
    paused: bool
    terminal_lent: bool

    @property
    def main(self) -> Screen[object]:
        """The screen under all dialogs."""
        return self.screen_stack[0]

    @property
    def change_refusal(self) -> str:
        """Why nothing can be changed or submitted here; empty when it can."""
        if self.options.read_only:
            return "read-only"
        return "" if self.session.feed.writable else "this is a recording"

    def now(self) -> float:
        """Return epoch seconds; in a recording, the recording's time."""
        raise NotImplementedError

    def tell(self, words: str, severity: SeverityLevel = "information") -> None:
        """Show a message for some seconds."""
        raise NotImplementedError

    def ask_for(self, ask: FeedQuestion) -> None:
        """Fetch the answer to a screen's question; it arrives as a `ScreenAnswered` message."""
        raise NotImplementedError

    def take_back(self) -> None:
        """Note that the terminal is no longer lent to a shell."""
        raise NotImplementedError

    def propose_remedies(self, explanation: Explanation) -> None:
        """Offer the changes with which a pending job would start sooner."""
        raise NotImplementedError

    def run_commands(self, commands: Sequence[Argv], *, onward: bool = True) -> object:
        """Run confirmed commands one after another.

        Args:
            commands: argv of each.
            onward: go on after one that fails.
        """
        raise NotImplementedError

    def action_refresh(self) -> None:
        """Ask Slurm now."""
        raise NotImplementedError

    def action_filter(self) -> None:
        """Open the filter line."""
        raise NotImplementedError

    async def action_view(self, name: str) -> None:
        """Switch to a view."""
        raise NotImplementedError
