"""The last line: keys that matter here; where it is narrow, those that matter most."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding
from textual.screen import Screen
from textual.widget import Widget

from slurmkit_tui.actions import ACTIONS, FOCUSED

_RANKS = {action.call: action.footer for action in (*FOCUSED, *ACTIONS) if action.footer}


class _Key(NamedTuple):
    """What is on the line of one action; its rank tells how soon it gives way."""

    key: str
    cap: str
    words: str
    rank: int
    enabled: bool

    @property
    def width(self) -> int:
        return cell_len(self.cap) + cell_len(self.words) + 3


class Foot(Widget, can_focus=False):
    """One widget for all keys; Textual's Footer makes one for each, anew with every change."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"foot--key", "foot--words"}
    DEFAULT_CSS = """
    Foot {
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
        self._keys: tuple[_Key, ...] = ()

    def on_mount(self) -> None:
        """Hear of keys that begin to work, or stop."""
        self.screen.bindings_updated_signal.subscribe(self, self._changed)
        self._changed(self.screen)

    def on_resize(self) -> None:
        """Choose anew on a screen of another width."""
        self._changed(self.screen)

    def _changed(self, screen: Screen[object]) -> None:
        if self.app.app_focus and screen is self.screen and (keys := self._chosen()) != self._keys:
            self._keys = keys
            self.refresh()

    def _chosen(self) -> tuple[_Key, ...]:
        """As many keys as there is room for; those that give way are in the help."""
        by_action: dict[str, _Key] = {}
        for _, binding, enabled, _ in self.screen.active_bindings.values():
            if binding.show:
                by_action.setdefault(binding.action, self._key(binding, enabled=enabled))
        shown = [*by_action.values()]
        while sum(key.width for key in shown) > self.app.size.width:
            rank, at = max((key.rank, at) for at, key in enumerate(shown))
            if rank <= 1:
                break
            shown.pop(at)
        return tuple(shown)

    def _key(self, binding: Binding, *, enabled: bool) -> _Key:
        cap, rank = self.app.get_key_display(binding), _RANKS.get(binding.action, 1)
        return _Key(binding.key, cap, binding.description, rank, enabled)

    def render(self) -> Text:
        """The keys, each before its words."""
        cap, words = map(self.get_component_rich_style, ("foot--key", "foot--words"))
        line = Text(no_wrap=True, end="")
        for key in self._keys:
            faint = Style(dim=not key.enabled)
            line.append(f" {key.cap} ", cap + faint)
            line.append(f"{key.words} ", words + faint)
        return line

    def on_click(self, event: events.Click) -> None:
        """Press the key that is under the mouse."""
        right = 0
        for key in self._keys:
            right += key.width
            if event.x < right:
                if key.enabled:
                    self.app.simulate_key(key.key)
                else:
                    self.app.bell()
                return
