"""Pasted text stays text: what looks like a key in it presses none.

Textual reads escape sequences inside a bracketed paste as keys, and what follows them too, so that
text copied from anywhere could press Enter, or `y` in a question. Some terminals, tmux among them,
hand such text on as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.message import Message

_BEGIN, _END = "\x1b[200~", "\x1b[201~"
_SHOWN = "␛"  # stands where an escape was


class Pasting:
    """Takes the escapes out of pasted text, however it arrives in pieces."""

    def __init__(self) -> None:
        self._inside = False
        self._last = ""  # outside: what was handed on last; a marker may begin there
        self._held = ""  # inside: what may be the begin of the end

    def clean(self, data: str) -> str:
        """Input as it may be read for keys."""
        done = ""
        while data:
            part, data = self._paste(data) if self._inside else self._keys(data)
            done += part
        return done

    def _keys(self, data: str) -> tuple[str, str]:
        """What comes up to a paste, and the rest."""
        text = self._last + data
        at = text.find(_BEGIN)
        if at < 0:
            self._last = text[-len(_BEGIN) + 1 :]
            return data, ""
        end = at + len(_BEGIN) - len(self._last)
        self._inside, self._last = True, ""
        return data[:end], data[end:]

    def _paste(self, data: str) -> tuple[str, str]:
        """What is pasted, and what comes after it."""
        text, self._held = self._held + data, ""
        pasted, end, rest = text.partition(_END)
        if end:
            self._inside = False
            more, rest = _still_pasted(rest)
            pasted += more
            return pasted.replace("\x1b", _SHOWN) + end, rest
        cut = next((n for n in range(len(_END) - 1, 0, -1) if text.endswith(_END[:n])), 0)
        self._held = text[len(text) - cut :]
        return text[: len(text) - cut].replace("\x1b", _SHOWN), ""


def _still_pasted(rest: str) -> tuple[str, str]:
    """An end within pasted text, told by the other one that comes with it, and what is no paste.

    It can only be told where both arrive together.
    """
    at = rest.partition(_BEGIN)[0].rfind(_END)
    return (_END + rest[:at], rest[at + len(_END) :]) if at >= 0 else ("", rest)


class Parser(XTermParser):
    """Textual's, behind `Pasting`."""

    def __init__(self, debug: bool = False) -> None:  # noqa: FBT001, FBT002 - as Textual has it
        super().__init__(debug)
        self._pasting = Pasting()

    def feed(self, data: str) -> Iterable[Message]:
        """See `XTermParser.feed`; nothing at all means that the input has ended."""
        cleaned = self._pasting.clean(data)
        return super().feed(cleaned) if cleaned or not data else ()


class PastingDriver(linux_driver.LinuxDriver):
    """The terminal, with pasted text that presses no keys."""

    def run_input_thread(self) -> None:
        """See `LinuxDriver.run_input_thread`."""
        linux_driver.XTermParser = Parser  # type: ignore[attr-defined]
        super().run_input_thread()
