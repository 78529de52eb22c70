"""The keys of what is on the screen, of what has the focus first: just those that work now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from textual.binding import ActiveBinding
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import Screen

from slurmkit_tui.actions import ACTIONS
from slurmkit_tui.dialogs import Panel, keys, pairs
from slurmkit_tui.view import View

if TYPE_CHECKING:
    from slurmkit_tui.app import SlurmkitApp

Rows = list[tuple[str, str]]
_OF_VIEWS = frozenset(action.call for action in ACTIONS if action.home == "view")
_FOCUS, _VIEW, _APP = "What has the focus", "This view", "Everywhere"
_NAMES = {"Table": "The table", "GpuGrid": "The map", "LogView": "The log", "Input": "The line",
          "VerticalScroll": "The text"}  # fmt: skip
_FILTER = [
    ("llama", "rows with that text anywhere"),
    ("user:me part:gpu,mig", "whose field holds the text, or one of several"),
    ("gpus>=8 >8gpu time>2h", "a number or a time compared; user=alice is exactly that"),
    ("/res.*50/ name:/^ll/", "a regular expression"),
    ("-state:pd !/test/", "rows that do not pass"),
]


class Help(Panel):
    """What the keys do now."""

    def __init__(self, app: SlurmkitApp) -> None:
        parts = [
            Content("\n").join([Content.styled(title, "$primary bold"), pairs(rows)])
            for title, rows in [*sections(app.screen), *_filter(app)]
        ]
        super().__init__("Keys", Content("\n\n").join(parts))


def sections(screen: Screen[object]) -> list[tuple[str, Rows]]:
    """The keys that work on a screen, by whose they are, each group once with all its keys."""
    found: dict[str, dict[str, list[str]]] = {}
    for key, active in screen.active_bindings.items():
        if active.enabled:
            words = active.binding.tooltip or active.binding.description or active.binding.action
            found.setdefault(_title(active, screen), {}).setdefault(words, []).append(key)
    order = sorted(found, key=lambda title: (title == _APP, title == _VIEW))
    return [(t, [(keys(",".join(k)), words) for words, k in found[t].items()]) for t in order]


def _title(active: ActiveBinding, screen: Screen[object]) -> str:
    node: DOMNode = active.node
    if node is screen.app:
        return _VIEW if active.binding.action in _OF_VIEWS else _APP
    if node is screen and type(node) is Screen:
        return _APP
    if isinstance(node, View | Screen):
        return _VIEW
    kinds = (each.__name__ for each in type(node).__mro__)
    return next((_NAMES[name] for name in kinds if name in _NAMES), _FOCUS)


def _filter(app: SlurmkitApp) -> Iterator[tuple[str, Rows]]:
    """The filter language, where there is something to filter."""
    if app.screen is app.main and app.view.filters_rows:
        yield "Filter: terms that all have to pass", _FILTER
