"""Ask the person at the terminal for a passphrase, password or one-time code."""

from __future__ import annotations

import getpass
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from slurmkit.errors import SshError
from slurmkit.text import printable

Ask = Callable[[str], str]
"""Takes what to ask for and returns the answer; raises `SshError` where nobody can be asked."""


def at_terminal(words: str) -> str:
    """Ask without showing the answer.

    Raises:
        SshError: where there is no terminal.
    """
    try:
        with open("/dev/tty", "rb"):  # noqa: PTH123 - a Path says no more
            pass
    except OSError:
        raise SshError(f"it asks {printable(words)!r}, and here is no terminal to answer") from None
    with suppress(ValueError):
        sys.stdout.flush()
    try:
        return getpass.getpass(f"{printable(words).rstrip()} ")
    except EOFError:
        raise SshError(f"it asks {printable(words)!r}, and was given no answer") from None


def in_main_thread(ask: Ask) -> Ask:
    """Ask only there: whoever is asked from beside it, types something else just now."""

    def asked(words: str) -> str:
        here = threading.current_thread() is threading.main_thread()
        return (ask if here else nobody)(words)

    return asked


def nobody(words: str) -> str:
    """Stands where a screen is drawn, which a question would spoil.

    Raises:
        SshError: always.
    """
    raise SshError(f"it asks {printable(words)!r}; log in anew")
