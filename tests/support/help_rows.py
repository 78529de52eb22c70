"""The rows of the TUI's help, and what is missing in them."""

from __future__ import annotations

from slurmkit_tui.actions.registry import ACTIONS, WIDGET_ACTIONS, Action
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.screens.help import key_sections
from slurmkit_tui.widgets.dialogs import key_names
from textual.actions import parse


def told(app: SlurmkitApp) -> dict[str, dict[str, str]]:
    """What help says, by whose keys they are: the words by their keys."""
    return {title: dict(rows) for title, rows in key_sections(app.screen)}


def works(app: SlurmkitApp) -> set[str]:
    return {key for key, active in app.screen.active_bindings.items() if active.enabled}


def missing(app: SlurmkitApp, *homes: str) -> list[str]:
    """Declared keys of homes that help leaves out, though they would do something."""
    said = {words for rows in told(app).values() for words in rows.values()}
    return [
        each.help
        for each in (*ACTIONS, *WIDGET_ACTIONS)
        if each.home in homes and each.keys and each.help not in said
        and offered(app, each)
    ]  # fmt: skip


def offered(app: SlurmkitApp, action: Action) -> bool:
    node = app if action.home in ("app", "view") else app.screen
    return bool(node.check_action(*parse(action.call)[1:]))


def check(app: SlurmkitApp) -> None:
    """Every key that works is in help, every key in help works, and something carries it out."""
    shown = {key for rows in told(app).values() for keys_ in rows for key in keys_.split()}
    assert shown == {part for key in works(app) for part in key_names(key).split()}
    for active in app.screen.active_bindings.values():
        space, name, _ = parse(active.binding.action)
        node = {"app": app, "screen": app.screen}.get(space, active.node)
        assert hasattr(node, f"action_{name}") or hasattr(node, f"_action_{name}"), active
