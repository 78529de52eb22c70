"""From a key to a command: what it is done to, a value where one is due, a yes, and a log line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slurmkit_tui.actions import CHANGES, Action
from slurmkit_tui.commands import Change, Wanted
from slurmkit_tui.logs import note_command
from slurmkit_tui.messages import CommandRun

if TYPE_CHECKING:
    from slurmkit_tui.app import SlurmkitApp

_NAMED = 3


class Proposals:
    """Proposes changes to the person, and runs what was confirmed."""

    def __init__(self, app: SlurmkitApp) -> None:
        self._app = app

    def concern(self, name: str, rows: Sequence[Any]) -> bool:
        """Whether an action is about this kind of row at all."""
        change = next((each.change for each in CHANGES if each.name == name), None)
        return change is not None and bool(rows) and type(rows[0]).__name__ == change.of

    def menu(self, rows: Sequence[Any]) -> None:
        """List the changes that these rows allow, the others with the reason."""
        from slurmkit_tui.dialogs import Choose, Option  # noqa: PLC0415 - opened later, if ever

        actions = [each for each in CHANGES if self.concern(each.name, rows)]
        if not actions:
            return
        options = [
            Option(each.name, each.label, each.help, self._refused(each.change, rows))
            for each in actions
            if each.change
        ]

        def chosen(name: str | None) -> None:
            for action in actions:
                if action.name == name:
                    self.propose(action, rows)

        self._app.push_screen(Choose(f"Actions on {what(rows)}", options), chosen)

    def propose(self, action: Action, rows: Sequence[Any]) -> None:
        """Show the commands of an action and run them only when that is wanted."""
        change = action.change
        if change is None or not self.concern(action.name, rows):
            return
        if why := self._refused(change, rows):
            self._app.tell(f"{action.label.lower()} is refused: {why}", "warning")
        elif change.wanted is None:
            self._confirm(change, rows, "")
        else:
            self._prompt(change, change.wanted, rows)

    def _refused(self, change: Change | None, rows: Sequence[Any]) -> str:
        if change is None:
            return "nothing to do"
        if self._app.options.read_only:
            return "read-only"
        if not self._app.session.feed.writable:
            return "this is a recording"
        rights = self._app.session.rights
        refusals = (change.refusal(row) or rights.refusal(row, change.needs) for row in rows)
        return next(filter(None, refusals), "")

    def _prompt(self, change: Change, wanted: Wanted, rows: Sequence[Any]) -> None:
        from slurmkit_tui.dialogs import Prompt  # noqa: PLC0415 - opened later, if ever

        def typed(value: str | None) -> None:
            if value is not None:
                self._confirm(change, rows, value)

        self._app.push_screen(Prompt(wanted, wanted.start(rows[0])), typed)

    def _confirm(self, change: Change, rows: Sequence[Any], value: str) -> None:
        from slurmkit_tui.dialogs import Confirm  # noqa: PLC0415 - opened later, if ever

        commands = change.commands(rows, value)

        def answered(yes: bool | None) -> None:  # noqa: FBT001 - called by Textual
            for argv in commands if yes else ():
                self._app.run_command(argv)

        question = change.question.format(what=what(rows))
        self._app.push_screen(Confirm(question, commands), answered)

    def done(self, message: CommandRun) -> None:
        """Say what became of a command, and write it down."""
        command = shlex.join(message.argv)
        note_command(self._app.session.cluster, message.argv, message.error)
        if message.error is None:
            self._app.tell(f"done: {command}")
        else:
            self._app.tell(f"{command}: {message.error}", "error")


def what(rows: Sequence[Any]) -> str:
    """What a question is about: `job 12 of alice`, `3 jobs: 12, 13, 14`."""
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
