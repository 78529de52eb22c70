"""The last line: keys that matter here; where it is narrow, those that matter most."""

from __future__ import annotations

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.widget import Widget
from textual.widgets import Footer

from slurmkit_tui.actions import ACTIONS, FOCUSED

_RANKS = {action.call: action.footer for action in (*FOCUSED, *ACTIONS) if action.footer}
_BLANKS = 3  # around a key and its word


class Foot(Footer):
    """Textual's footer, with nothing cut off."""

    def __init__(self) -> None:
        super().__init__(show_command_palette=False)
        self._across = 0

    def compose(self) -> ComposeResult:
        """As many keys as there is room for; those that give way are in the help."""
        self.mutate_reactive(Footer.compact)  # else it keeps all keys it has ever had
        shown = [*super().compose()]
        self._across = self.app.size.width
        while sum(map(_width, shown)) > self._across:
            rank, at = max((_rank(key), at) for at, key in enumerate(shown))
            if rank <= 1:
                break
            shown.pop(at)
        yield from shown

    def on_resize(self) -> None:
        """Choose anew on a screen of another width."""
        if self._across != self.app.size.width:
            self.refresh(recompose=True)


def _rank(key: Widget) -> int:
    return _RANKS.get(str(getattr(key, "action", "")), 1)


def _width(key: Widget) -> int:
    words = f"{getattr(key, 'key_display', '')}{getattr(key, 'description', '')}"
    return cell_len(words) + _BLANKS
