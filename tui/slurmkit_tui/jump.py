"""Jump mode: a letter over everything that the keys can be taken to; the letter goes there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from slurmkit_tui.status import Summary, Tabs

if TYPE_CHECKING:
    from slurmkit_tui.app import SlurmkitApp

_LETTERS = "asdfghjklqwertyuiopzxcvbnm"


class Target(NamedTuple):
    """Something to go to.

    Attributes:
        x: column of the screen at which its letter stands; `y` is the line.
        go: takes the keys there.
    """

    x: int
    y: int
    go: Callable[[], object]


class Jump(ModalScreen[None]):
    """The letters, over the screen as it is; any other key takes them away."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close")]

    DEFAULT_CSS = """
    Jump { background: $background 30%; layout: vertical; }
    Jump > Static { position: absolute; width: 3; height: 1; color: $background;
                    background: $warning; text-style: bold; }
    """

    def __init__(self, targets: list[Target]) -> None:
        super().__init__()
        self._targets = dict(zip(_LETTERS, targets, strict=False))

    def compose(self) -> ComposeResult:
        """Put each letter where its target begins."""
        for letter, target in self._targets.items():
            sign = Static(Content(f"[{letter}]"), id=f"jump-{letter}", markup=False)
            sign.styles.offset = (target.x, target.y)
            yield sign

    def on_key(self, event: events.Key) -> None:
        """Go, or stay."""
        event.stop()
        event.prevent_default()
        self.dismiss()
        if target := self._targets.get(event.character or ""):
            self.app.call_next(target.go)


def targets(app: SlurmkitApp) -> list[Target]:
    """What can be gone to on the screen as it is."""
    screen = app.screen
    return [*(_tabs(app) if screen is app.main else ()), *_fields(app, screen)]


def _tabs(app: SlurmkitApp) -> Iterator[Target]:
    tabs, x = app.main.query_one(Tabs), 0
    line = tabs.region
    for name, word in tabs.words(line.width).items():
        yield Target(line.x + x, line.y, partial(app.action_view, name))
        x += len(word)
    if app.view.filters_rows:
        summary = app.main.query_one(Summary).region
        yield Target(summary.x, summary.y, app.action_filter)


def _fields(app: SlurmkitApp, screen: Screen[object]) -> Iterator[Target]:
    for widget in screen.focus_chain:
        region = widget.region.intersection(screen.region)
        if region.area:
            go = partial(screen.set_focus, widget)
            yield Target(min(region.x, app.size.width - 3), region.y, go)
