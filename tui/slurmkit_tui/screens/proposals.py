"""From a key to a command: check rights, ask for a value, confirm, run, and log."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from slurmkit.errors import SlurmkitError
from slurmkit_tui.actions.commands import Argv, ClusterChange, ValuePrompt
from slurmkit_tui.actions.registry import CHANGE_ACTIONS, Action
from slurmkit_tui.actions.remedies import Remedy, remedies_for
from slurmkit_tui.screens.shells import (
    describe_shell,
    lend_terminal,
    shell_commands,
    shell_refusal,
)
from slurmkit_tui.state_files import action_log_path, log_command
from slurmkit_tui.widgets.dialogs import ChoiceDialog, ChoiceOption, ConfirmDialog, ValueDialog
from slurmkit_tui.widgets.messages import CommandResult

if TYPE_CHECKING:
    from slurmkit.diagnose.model import Explanation
    from slurmkit_tui.host import AppHost
    from slurmkit_tui.session import ClusterSession

NOTHING_TO_CHANGE = "nothing here can be changed"
_NAMED = 3


class ChangeDialogs:
    """The dialogs that propose changes, and run them once they are confirmed."""

    def __init__(self, app: AppHost) -> None:
        self._app = app

    def menu(self, rows: Sequence[Any]) -> None:
        """List the changes of these rows; those not allowed are listed with the reason."""
        if why := self._app.change_refusal:
            self._app.tell(f"actions are refused: {why}", "warning")
            return
        actions = [each for each in CHANGE_ACTIONS if each.applies_to(rows)]
        if not actions:
            self._app.tell(NOTHING_TO_CHANGE, "warning")
            return
        options = [
            ChoiceOption(each.name, each.label, each.help, self._refused(each.change, rows))
            for each in actions
            if each.change
        ]

        def chosen(name: str | None) -> None:
            for action in actions:
                if action.name == name:
                    self.propose(action, rows)

        self._app.push_screen(ChoiceDialog(f"Actions on {name_rows(rows)}", options), chosen)

    def propose(self, action: Action, rows: Sequence[Any]) -> None:
        """Show the commands of an action, and run them once they are confirmed."""
        change = action.change
        if change is None or not action.applies_to(rows):
            return
        if why := self._refused(change, rows):
            self._app.tell(f"{action.label.lower()} is refused: {why}", "warning")
        elif action.name == "shell":
            self._shell(rows)
        elif change.wanted is None:
            self._confirm(change, rows, "")
        else:
            self._prompt(change, change.wanted, rows)

    def _refused(self, change: ClusterChange | None, rows: Sequence[Any]) -> str:
        if change is None:
            return "nothing to do"
        if why := self._app.change_refusal:
            return why
        rights = self._app.session.rights
        refusals = (change.refusal(row) or rights.refusal(row, change.needs) for row in rows)
        return next(filter(None, refusals), "")

    def _shell(self, rows: Sequence[Any]) -> None:
        """Offer the commands that open a shell in a job; the chosen one gets the terminal."""
        job = rows[0]
        why = "choose one job" if len(rows) > 1 else shell_refusal(job, self._app.session.feed.me)
        if why:
            self._app.tell(f"shell is refused: {why}", "warning")
            return
        commands = {f"way-{at}": argv for at, argv in enumerate(shell_commands(job))}
        options = [
            ChoiceOption(name, shlex.join(argv), describe_shell(argv))
            for name, argv in commands.items()
        ]

        def chosen(name: str | None) -> None:
            if name:
                lend_terminal(self._app, commands[name])

        self._app.push_screen(
            ChoiceDialog(f"A shell in {name_rows(rows)}; exit returns here", options), chosen
        )

    def _prompt(self, change: ClusterChange, wanted: ValuePrompt, rows: Sequence[Any]) -> None:
        def typed(value: str | None) -> None:
            if value is not None:
                self._confirm(change, rows, value)

        self._app.push_screen(ValueDialog(wanted, wanted.start(rows[0])), typed)

    def _confirm(self, change: ClusterChange, rows: Sequence[Any], value: str) -> None:
        commands = change.commands(rows, value)
        run = partial(self._app.run_commands, commands)
        self._ask(change.question.format(what=name_rows(rows)), commands, run)

    def _ask(self, question: str, commands: Sequence[Argv], run: Callable[[], object]) -> None:
        def answered(yes: bool | None) -> None:  # noqa: FBT001 - called by Textual
            if yes:
                run()

        self._app.push_screen(ConfirmDialog(question, commands), answered)

    def remedy(self, explanation: Explanation) -> None:
        """Offer the alternatives of `why` for a job; the chosen one is confirmed as any change."""
        offered = {f"remedy-{at}": each for at, each in enumerate(remedies_for(explanation))}
        refused = self._app.change_refusal or self._app.session.rights.refusal(explanation, "none")
        options = [ChoiceOption(n, each.label, each.when, refused) for n, each in offered.items()]

        def chosen(name: str | None) -> None:
            if name:
                self._apply(explanation, offered[name])

        title = f"Changes that would start job {explanation.job_id} sooner"
        self._app.push_screen(ChoiceDialog(title, options), chosen)

    def _apply(self, explanation: Explanation, remedy: Remedy) -> None:
        """Confirm and run a remedy; copy its line if only a shell can run it."""
        if not remedy.commands:  # redirections and pipes need a shell
            self._app.copy_to_clipboard(remedy.line)
            self._app.tell(f"copied; paste this into a shell: {remedy.line}")
            return
        question = f"Change job {explanation.job_id} of {explanation.user}: {remedy.label}?"
        run = partial(self._app.run_commands, remedy.commands, onward=False)
        self._ask(question, remedy.commands, run)

    def done(self, ran: Sequence[CommandResult]) -> None:
        """Report the results of commands; of many, how many succeeded and why others failed."""
        failed = [each for each in ran if each.error is not None]
        for argv, error in failed[:_NAMED]:
            self._app.tell(f"{shlex.join(argv)}: {error}", "error")
        if len(ran) > 1:
            words = f"; {len(failed)} failed, see {action_log_path()}" if failed else ""
            self._app.tell(f"done: {len(ran) - len(failed)} of {len(ran)} commands{words}")
        elif not failed:
            self._app.tell(f"done: {shlex.join(ran[0].argv)}")


def run_and_log(
    session: ClusterSession, commands: Sequence[Argv], *, onward: bool
) -> list[CommandResult]:
    """Run commands one after another and log each. Blocks.

    Args:
        session: the cluster.
        commands: the commands.
        onward: whether to go on after a command that fails.
    """
    ran: list[CommandResult] = []
    for argv in commands:
        error: SlurmkitError | None = None
        try:
            session.feed.run(argv)
        except SlurmkitError as refused:
            error = refused
        log_command(session.cluster, argv, error)
        ran.append(CommandResult(argv, error))
        if error is not None and not onward:
            break
    return ran


def name_rows(rows: Sequence[Any]) -> str:
    """Name rows in a question: `job 12 of alice`, `3 jobs: 12, 13, 14`."""
    if hasattr(rows[0], "job_id"):
        noun, names = "job", [row.job_id for row in rows]
        if len(rows) == 1:
            return f"job {rows[0].job_id} of {rows[0].user}"
    else:
        noun, names = "node", [row.name for row in rows]
    if len(rows) == 1:
        return f"{noun} {names[0]}"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(rows)} {noun}s: {', '.join(names[:_NAMED])}{more}"
