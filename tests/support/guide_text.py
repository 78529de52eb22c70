"""Parts of the pages of docs/ that tests run."""

from __future__ import annotations

import re


def code_blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a page in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
