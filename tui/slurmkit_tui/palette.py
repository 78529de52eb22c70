"""The command palette: what the screen below it can do, from the same declarations as its keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.actions import parse
from textual.app import SystemCommand
from textual.dom import DOMNode
from textual.screen import Screen

from slurmkit_tui.actions import ACTIONS, FOCUSED, Action
from slurmkit_tui.app import ANYWHERE
from slurmkit_tui.log.view import LogView
from slurmkit_tui.views import VIEWS

if TYPE_CHECKING:
    from slurmkit_tui.app import SlurmkitApp


def offered(app: SlurmkitApp, screen: Screen[object]) -> Iterator[SystemCommand]:
    """The commands for a screen: of what has a home there, then of the app where it is reached."""
    for node, home in _homes(screen):
        yield from _commands(app, node, [each for each in FOCUSED if each.home == home])
    if screen is app.main:
        yield from _commands(app, app, ACTIONS)
        for view in VIEWS:
            go = partial(app.run_action, f"view('{view.name}')")
            yield SystemCommand(f"View {view.title}", f"Go to {view.title}", go)
    elif not screen.is_modal:
        yield from _commands(app, app, [a for a in ACTIONS if parse(a.call)[1] in ANYWHERE])


def _homes(screen: Screen[object]) -> Iterator[tuple[DOMNode, str]]:
    """The parts of a screen that have keys of their own, but for those that only move."""
    from slurmkit_tui.jobscreen import JobScreen  # noqa: PLC0415 - the form is a screen, too

    if screen.id == "submit-form":
        yield screen, "form"
    if isinstance(screen, JobScreen):
        yield screen, "job"
        yield from ((log, "log") for log in screen.query(LogView) if log.display)


def _commands(app: SlurmkitApp, node: DOMNode, actions: list[Action] | tuple[Action, ...]
              ) -> Iterator[SystemCommand]:  # fmt: skip
    for action in actions:
        _, name, parameters = parse(action.call)
        if node.check_action(name, parameters):
            run = partial(app.run_action, action.call, node)
            yield SystemCommand(action.label, action.help, run)
