"""Text that came from outside, made safe to show on a terminal."""

from __future__ import annotations

import unicodedata

# Joiners that names in Persian, Hindi and others need, and that move nothing on a screen.
_HARMLESS = "\u200c\u200d"
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    r"""Return `text` with control, format and lone surrogate characters escaped.

    Job names, comments and directory entries reach every reader's terminal raw, so a newline
    could forge a row and an escape sequence could repaint the screen.

    >>> printable("evil\n\x1b[2J")
    'evil\\n\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(map(_escape, text))


def _escape(char: str) -> str:
    if unicodedata.category(char) not in _UNSAFE or char in _HARMLESS:
        return char
    return char.encode("unicode_escape").decode("ascii")
