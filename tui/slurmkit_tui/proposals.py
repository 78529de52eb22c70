"""From a key to a command: what it is done to, a value where one is due, a yes, and a log line."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from slurmkit.errors import SlurmkitError
from slurmkit_tui.actions import CHANGES, Action
from slurmkit_tui.commands import Argv, Change, Wanted
from slurmkit_tui.logs import actions, note_command
from slurmkit_tui.messages import Ran

if TYPE_CHECKING:
    from slurmkit.why.model import Explanation
    from slurmkit_tui.app import SlurmkitApp
    from slurmkit_tui.remedies import Remedy
    from slurmkit_tui.session import Session

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
        elif action.name == "shell":
            self._shell(rows)
        elif change.wanted is None:
            self._confirm(change, rows, "")
        else:
            self._prompt(change, change.wanted, rows)

    @property
    def _barred(self) -> str:
        """Why nothing at all can be changed; empty when it can."""
        if self._app.options.read_only:
            return "read-only"
        return "" if self._app.session.feed.writable else "this is a recording"

    def _refused(self, change: Change | None, rows: Sequence[Any]) -> str:
        if change is None:
            return "nothing to do"
        if why := self._barred:
            return why
        rights = self._app.session.rights
        refusals = (change.refusal(row) or rights.refusal(row, change.needs) for row in rows)
        return next(filter(None, refusals), "")

    def _shell(self, rows: Sequence[Any]) -> None:
        """Offer the commands that open a shell in a job; the one chosen gets the terminal."""
        from slurmkit_tui.dialogs import Choose, Option  # noqa: PLC0415 - opened later, if ever
        from slurmkit_tui.shells import lend, refusal, shells, words  # noqa: PLC0415

        job = rows[0]
        why = "choose one job" if len(rows) > 1 else refusal(job, self._app.session.feed.me)
        if why:
            self._app.tell(f"shell is refused: {why}", "warning")
            return
        ways = {f"way-{at}": argv for at, argv in enumerate(shells(job))}
        options = [Option(name, shlex.join(argv), words(argv)) for name, argv in ways.items()]

        def chosen(name: str | None) -> None:
            if name:
                lend(self._app, ways[name])

        self._app.push_screen(Choose(f"A shell in {what(rows)}; exit comes back", options), chosen)

    def _prompt(self, change: Change, wanted: Wanted, rows: Sequence[Any]) -> None:
        from slurmkit_tui.dialogs import Prompt  # noqa: PLC0415 - opened later, if ever

        def typed(value: str | None) -> None:
            if value is not None:
                self._confirm(change, rows, value)

        self._app.push_screen(Prompt(wanted, wanted.start(rows[0])), typed)

    def _confirm(self, change: Change, rows: Sequence[Any], value: str) -> None:
        commands = change.commands(rows, value)
        run = partial(self._app.run_commands, commands)
        self._ask(change.question.format(what=what(rows)), commands, run)

    def _ask(self, question: str, commands: Sequence[Argv], run: Callable[[], object]) -> None:
        from slurmkit_tui.dialogs import Confirm  # noqa: PLC0415 - opened later, if ever

        def answered(yes: bool | None) -> None:  # noqa: FBT001 - called by Textual
            if yes:
                run()

        self._app.push_screen(Confirm(question, commands), answered)

    def remedy(self, told: Explanation) -> None:
        """Offer what `why` proposes for a job; what is chosen is confirmed like any change."""
        from slurmkit_tui.dialogs import Choose, Option  # noqa: PLC0415 - opened later, if ever
        from slurmkit_tui.remedies import remedies  # noqa: PLC0415

        found = {f"remedy-{at}": each for at, each in enumerate(remedies(told))}
        refused = self._barred or self._app.session.rights.refusal(told, "none")
        options = [Option(n, each.label, each.when, refused) for n, each in found.items()]

        def chosen(name: str | None) -> None:
            if name:
                self._do(told, found[name])

        self._app.push_screen(Choose(f"What would start job {told.job_id} sooner", options), chosen)

    def _do(self, told: Explanation, remedy: Remedy) -> None:
        if not remedy.commands:  # redirections and pipes are a shell's work
            self._app.copy_to_clipboard(remedy.line)
            self._app.tell(f"copied, for a shell: {remedy.line}")
            return
        question = f"Change job {told.job_id} of {told.user}: {remedy.label}?"
        run = partial(self._app.run_commands, remedy.commands, onward=False)
        self._ask(question, remedy.commands, run)

    def done(self, ran: Sequence[Ran]) -> None:
        """Say what became of commands; of many, how many worked and why others did not."""
        failed = [each for each in ran if each.error is not None]
        for argv, error in failed[:_NAMED]:
            self._app.tell(f"{shlex.join(argv)}: {error}", "error")
        if len(ran) > 1:
            words = f"; {len(failed)} failed, see {actions()}" if failed else ""
            self._app.tell(f"done: {len(ran) - len(failed)} of {len(ran)} commands{words}")
        elif not failed:
            self._app.tell(f"done: {shlex.join(ran[0].argv)}")


def run_noted(session: Session, commands: Sequence[Argv], *, onward: bool) -> list[Ran]:
    """Run commands one after another and write each down. Blocks."""
    ran: list[Ran] = []
    for argv in commands:
        error: SlurmkitError | None = None
        try:
            session.feed.run(argv)
        except SlurmkitError as refused:
            error = refused
        note_command(session.cluster, argv, error)
        ran.append(Ran(argv, error))
        if error is not None and not onward:
            break
    return ran


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
