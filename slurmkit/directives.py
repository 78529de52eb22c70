"""A line of options in a batch script, taken apart as sbatch does it."""

from __future__ import annotations

from collections.abc import Iterable

from slurmkit.errors import BadInput
from slurmkit.options import is_flag, long_name, needs_value

_BLANK = " \t\n\v\f\r"


def directive(line: str) -> list[tuple[str, str]]:
    """Options of one `#SBATCH` line: `--name=value`, `--name value`, `-N2` or `-N 2`.

    Args:
        line: what follows `#SBATCH`.

    Raises:
        BadInput: for what is no option, an open quote, and a value that is missing.
    """
    return options_in(split(line))


def options_in(given_words: Iterable[str]) -> list[tuple[str, str]]:
    """Options in words that are split already; see `directive`.

    Raises:
        BadInput: for what is no option, and a value that is missing.
    """
    words = list(given_words)
    pairs: list[tuple[str, str]] = []
    while words:
        word = words.pop(0)
        name, given, value = _option(word)
        if not given and words and not words[0].startswith("-") and not is_flag(name):
            value, given = words.pop(0), True
        if not given and needs_value(name):
            raise BadInput(f"--{name} needs a value")
        pairs.append((name, value))
    return pairs


def split(line: str) -> list[str]:
    """Words of a line, by src/sbatch/opt.c, get_argument, which is not as a shell reads it.

    A backslash takes the next sign as it is, in either kind of quotes, too; `#` outside quotes
    begins a comment even within a word.

    Raises:
        BadInput: for a quote that is not closed.
    """
    words: list[str] = []
    word: str | None = None
    quote = ""
    signs = iter(line)
    for sign in signs:
        if sign == "\\":
            word = (word or "") + next(signs, "")
        elif quote:
            word, quote = ((word or ""), "") if sign == quote else ((word or "") + sign, quote)
        elif sign in "\"'":
            word, quote = word or "", sign
        elif sign == "#":
            break
        elif sign in _BLANK:
            words += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + sign
    if quote:
        raise BadInput(f"a quote {quote} is not closed")
    return words if word is None else [*words, word]


def _option(word: str) -> tuple[str, bool, str]:
    """Its long name, whether a value stands in the same word, and that value."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return name, bool(equals), value
    if word.lower() in ("hetjob", "packjob"):
        raise BadInput("heterogeneous jobs are not understood here; submit this script with sbatch")
    if not word.startswith("-") or len(word) < 2:
        raise BadInput(f"{word!r} is not an option")
    value = word[2:].removeprefix("=")
    return long_name(word[1]), bool(value), value
