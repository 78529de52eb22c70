"""The letters of the TUI's jump mode."""

from __future__ import annotations

import re


def letters(screen: str) -> list[str]:
    return re.findall(r"\[([a-z])\]", screen)
