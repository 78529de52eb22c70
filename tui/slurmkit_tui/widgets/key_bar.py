"""The key bar: the keys that work now; on a narrow screen the most important ones."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol, cast

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import events
from textual.screen import Screen
from textual.widget import Widget

from slurmkit_tui.actions.registry import ACTIONS, WIDGET_ACTIONS

_REFUSED = frozenset(action.call for action in ACTIONS if action.is_refused_in_recordings)
_RANKS = {action.call: action.footer for action in (*WIDGET_ACTIONS, *ACTIONS) if action.footer}


class _RefusingApp(Protocol):
    """The app, as far as the bar asks it."""

    @property
    def change_refusal(self) -> str:
        """Why nothing can be changed or submitted here; empty when it can."""


class _KeyLabel(NamedTuple):
    """One key on the bar.

    Attributes:
        key: the key in Textual's name.
        cap: the key as shown.
        rank: `Action.footer`; on a narrow screen the highest ranks are left out first.
    """

    key: str
    cap: str
    words: str
    rank: int
    enabled: bool

    @property
    def width(self) -> int:
        return cell_len(self.cap) + cell_len(self.words) + 3


class KeyBar(Widget, can_focus=False):
    """The key bar as one widget; Textual's Footer makes one widget per key at every change."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"foot--key", "foot--words"}
    DEFAULT_CSS = """
    KeyBar {
        dock: bottom;
        width: 100%;
        height: 1;
        text-wrap: nowrap;
        color: $footer-foreground;
        background: $footer-background;
        .foot--key {
            color: $footer-key-foreground;
            background: $footer-key-background;
            text-style: bold;
        }
        .foot--words {
            color: $footer-description-foreground;
            background: $footer-description-background;
        }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: tuple[_KeyLabel, ...] = ()

    def on_mount(self) -> None:
        """Subscribe to changes of the active keys."""
        self.screen.bindings_updated_signal.subscribe(self, self._changed)
        self._changed(self.screen)

    def on_resize(self) -> None:
        """Choose the keys for the new width."""
        self._changed(self.screen)

    def _changed(self, screen: Screen[object]) -> None:
        if self.app.app_focus and screen is self.screen and (keys := self._chosen()) != self._keys:
            self._keys = keys
            self.refresh()

    def _chosen(self) -> tuple[_KeyLabel, ...]:
        """Return as many keys as there is room for; the help lists all."""
        by_action: dict[str, _KeyLabel] = {}
        refused = _REFUSED if cast("_RefusingApp", self.app).change_refusal else ()
        for _, binding, enabled, _ in self.screen.active_bindings.values():
            if binding.show and binding.action not in refused:
                cap, rank = self.app.get_key_display(binding), _RANKS.get(binding.action, 1)
                key = _KeyLabel(binding.key, cap, binding.description, rank, enabled)
                by_action.setdefault(binding.action, key)
        shown = [*by_action.values()]
        while sum(key.width for key in shown) > self.app.size.width:
            rank, at = max((key.rank, at) for at, key in enumerate(shown))
            if rank <= 1:
                break
            shown.pop(at)
        return tuple(shown)

    def render(self) -> Text:
        """Draw each key, followed by its label."""
        cap, words = map(self.get_component_rich_style, ("foot--key", "foot--words"))
        line = Text(no_wrap=True, end="")
        for key in self._keys:
            faint = Style(dim=not key.enabled)
            line.append(f" {key.cap} ", cap + faint)
            line.append(f"{key.words} ", words + faint)
        return line

    def on_click(self, event: events.Click) -> None:
        """Press the key under the mouse."""
        right = 0
        for key in self._keys:
            right += key.width
            if event.x < right:
                if key.enabled:
                    self.app.simulate_key(key.key)
                else:
                    self.app.bell()
                return
