"""Keys do their work in the order in which they were pressed.

Textual hands a printable key to the field at once, but what is bound to another key runs only when
that key has gone all the way up to the app. Of `C-u 5`, or `1 Tab 2`, read together, as after a
pause of the line, the second would be done before the first.
"""

from __future__ import annotations

from collections import deque

from textual.app import App
from textual.events import Event, Key
from textual.message_pump import MessagePump
from textual.timer import Timer

_LONGEST = 3.0  # seconds a key may be on its way; then the next one goes all the same


class InOrder(App[None]):
    """Hands on one key after another."""

    _on_its_way: Key | None = None
    _overdue: Timer | None = None

    def __init__(self) -> None:
        super().__init__()
        self._held: deque[Key] = deque()

    async def on_event(self, event: Event) -> None:
        """See `App.on_event`."""
        if not isinstance(event, Key):
            await super().on_event(event)
        elif event.is_forwarded:  # nobody on its way took it
            await super().on_event(event)
            await self._arrived(event)
        elif self._on_its_way is not None:
            self._held.append(event)
        else:
            await self._hand_key_on(event)

    async def _hand_key_on(self, key: Key) -> None:
        self._on_its_way = key
        at = self.focused or self.screen
        await super().on_event(key)
        if not key.is_forwarded:  # done already
            await self._arrived(key)
            return
        self._overdue = self.set_timer(_LONGEST, lambda: self._arrived(key))
        self._follow(key, at)

    def _follow(self, key: Key, at: MessagePump | None) -> None:
        """Look after it wherever it has been handled: somebody may have stopped it."""
        if key._stop_propagation:  # noqa: SLF001 - there is no other way to know
            self.call_later(self._arrived, key)  # behind it, when it is in the queue of this app
        elif at is not None and at is not self:
            at.call_later(lambda: self._follow(key, at._parent))  # noqa: SLF001 - as it bubbles

    async def _arrived(self, key: Key) -> None:
        if key is not self._on_its_way:
            return
        if self._overdue is not None:
            self._overdue.stop()
            self._overdue = None
        self._on_its_way = None
        if self._held:
            await self._hand_key_on(self._held.popleft())
