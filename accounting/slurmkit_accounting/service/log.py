"""The service's log: one line for each thing that happens, `what key=value ...`, to stderr."""

from __future__ import annotations

import sys
from typing import Protocol

from slurmkit.text import printable

_LONGEST = 300


class Log(Protocol):
    """Writes one line. Facts that are None are left out."""

    def __call__(self, what: str, **facts: object) -> None:
        """Say what happened, and what there is to know about it; never a secret."""
        ...


def log(what: str, **facts: object) -> None:
    """Write one line; the system's journal adds the time."""
    said = [f"{name}={_value(fact)}" for name, fact in facts.items() if fact is not None]
    print(printable(what), *said, file=sys.stderr, flush=True)


def _value(fact: object) -> str:
    text = printable(str(fact))[:_LONGEST]
    if text and not any(char in text for char in ' "='):
        return text
    # Escaped, lest a text end its own quotes and go on as another fact.
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
