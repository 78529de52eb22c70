"""Safe keys: pasted text presses none, and each key is handled before the next.

Textual reads escape sequences inside a bracketed paste, and the text after them, as keys. So text
copied from anywhere could press Enter, or `y` in a question. Some terminals, for example tmux, pass
such text on unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers import linux_driver
from textual.events import Event, Key
from textual.message import Message
from textual.message_pump import MessagePump
from textual.timer import Timer

_BEGIN, _END = "\x1b[200~", "\x1b[201~"
_SHOWN = "␛"  # replaces an escape
_LONGEST = 3.0  # seconds; after that the next key is passed on even if this one is not handled


class PasteCleaner:
    """A filter that removes escapes from pasted text, in whatever pieces the text arrives."""

    def __init__(self) -> None:
        self._inside = False
        self._last = ""  # outside a paste: end of the last input; a marker may begin there
        self._held = ""  # inside a paste: text held back because the end marker may begin there

    def clean(self, data: str) -> str:
        """Return input without escapes in pasted text."""
        done = ""
        while data:
            part, data = self._paste(data) if self._inside else self._keys(data)
            done += part
        return done

    def _keys(self, data: str) -> tuple[str, str]:
        """Return the input up to the begin of a paste, and the rest."""
        text = self._last + data
        at = text.find(_BEGIN)
        if at < 0:
            self._last = text[-len(_BEGIN) + 1 :]
            return data, ""
        end = at + len(_BEGIN) - len(self._last)
        self._inside, self._last = True, ""
        return data[:end], data[end:]

    def _paste(self, data: str) -> tuple[str, str]:
        """Return the cleaned pasted text, and the rest."""
        text, self._held = self._held + data, ""
        pasted, end, rest = text.partition(_END)
        if end:
            self._inside = False
            more, rest = _split_after_end(rest)
            pasted += more
            return pasted.replace("\x1b", _SHOWN) + end, rest
        cut = next((n for n in range(len(_END) - 1, 0, -1) if text.endswith(_END[:n])), 0)
        self._held = text[len(text) - cut :]
        return text[: len(text) - cut].replace("\x1b", _SHOWN), ""


def _split_after_end(rest: str) -> tuple[str, str]:
    """Split the text after an end marker into what is still pasted, and the rest.

    A second end marker shows that the first one was part of the pasted text. That is only visible
    if both arrive together.
    """
    at = rest.partition(_BEGIN)[0].rfind(_END)
    return (_END + rest[:at], rest[at + len(_END) :]) if at >= 0 else ("", rest)


class PasteSafeParser(XTermParser):
    """Textual's parser, with input cleaned by `PasteCleaner`."""

    def __init__(self, debug: bool = False) -> None:  # noqa: FBT001, FBT002 - as Textual has it
        super().__init__(debug)
        self._pasting = PasteCleaner()

    def feed(self, data: str) -> Iterable[Message]:
        """Parse input without what a paste must not contain; empty `data` ends the input."""
        cleaned = self._pasting.clean(data)
        return super().feed(cleaned) if cleaned or not data else ()


class PasteSafeDriver(linux_driver.LinuxDriver):
    """Textual's terminal driver, with `PasteSafeParser` as its parser."""

    def run_input_thread(self) -> None:
        linux_driver.XTermParser = PasteSafeParser  # type: ignore[attr-defined]
        super().run_input_thread()


class OrderedKeysApp(App[None]):
    """An app that passes a key on only after the one before has been handled."""

    _on_its_way: Key | None = None
    _overdue: Timer | None = None

    def __init__(self) -> None:
        super().__init__()
        self._held: deque[Key] = deque()

    async def on_event(self, event: Event) -> None:
        if not isinstance(event, Key):
            await super().on_event(event)
        elif event.is_forwarded:  # no widget took it
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
        if not key.is_forwarded:  # handled already
            await self._arrived(key)
            return
        self._overdue = self.set_timer(_LONGEST, lambda: self._arrived(key))
        self._follow(key, at)

    def _follow(self, key: Key, at: MessagePump | None) -> None:
        """Follow a key as it bubbles up: a widget on the way may stop it."""
        if key._stop_propagation:  # noqa: SLF001 - no public attribute says so
            self.call_later(self._arrived, key)  # after the key, if it is in this app's queue
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
