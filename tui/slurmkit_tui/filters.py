"""The filter language: `user:me gpu:a100 state:pd >8gpu -/test.*/ "two words"`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from slurmkit.durations import parse_elapsed
from slurmkit_tui.listing import Column, Context, Listing, Value
from slurmkit_tui.sheet import Filter, Test

# A term: an optional - or !, then /regex/, "words", or text up to the next space.
_TERM = re.compile(
    r"""(?P<not>[-!])?
    (?:(?P<field>[A-Za-z_]+)(?P<op>>=|<=|!=|>|<|=|:))?
    (?:/(?P<regex>(?:[^/\\]|\\.)*)/|"(?P<quoted>[^"]*)"?|(?P<text>\S+))?""",
    re.VERBOSE,
)
_COUNTED = re.compile(r"(?P<op>>=|<=|>|<|=)(?P<number>\d+(?:\.\d+)?)(?P<field>[A-Za-z_]+)")
# One sign alone is looked for as it is.
_BARE = re.compile(r"(?P<not>)(?P<field>)(?P<op>)(?P<regex>)?(?P<quoted>)(?P<text>\S+)")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">": gt, ">=": ge, "<": lt, "<=": le, "=": eq, "!=": ne,
}  # fmt: skip
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
ME = "me"


class FilterError(ValueError):
    """What was typed is no filter; says what is allowed."""


def parse_filter(text: str, listing: Listing) -> Filter:
    """Understand a filter.

    Raises:
        FilterError: for a field that does not exist, no number where one is due, or a bad regex.
    """
    needles: list[str] = []
    tests: list[Test] = []
    for term in _terms(text):
        if (word := _word(term)) is not None:
            needles.append(word)
        else:
            tests.append(_test(term, listing))
    return Filter(text, tuple(needles), tuple(tests))


def _terms(text: str) -> Iterable[re.Match[str]]:
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        found = _COUNTED.match(text, at) or _TERM.match(text, at)
        if found is None or found.end() == at:
            found = _BARE.match(text, at)
        if found is None:
            return
        yield found
        at = found.end()


def _word(term: re.Match[str]) -> str | None:
    """A word to be found anywhere, as most filters are; None for every other term."""
    found = term.groupdict()
    if "number" in found or found["not"] or found["field"] or found["regex"] is not None:
        return None
    return (found["quoted"] or found["text"] or "").lower()


def _test(term: re.Match[str], listing: Listing) -> Test:
    found = term.groupdict()
    if "number" in found:
        column = _column(found["field"], listing)
        return _compared(column, found["op"], float(found["number"]))
    test = _positive(found, listing)
    if not found["not"]:
        return test
    return lambda row, text, context: not test(row, text, context)


def _positive(found: dict[str, str | None], listing: Listing) -> Test:
    value = found["quoted"] or found["text"] or ""
    if not found["field"]:
        if found["regex"] is not None:
            pattern = _regex(found["regex"])
            return lambda _row, text, _context: pattern.search(text) is not None
        word = value.lower()
        return lambda _row, text, _context: word in text
    column = _column(found["field"], listing)
    if found["op"] in _COMPARE and found["regex"] is None:
        return _by_operator(column, found["op"] or "", value)
    if found["regex"] is not None:
        pattern = _regex(found["regex"])
        return lambda row, _text, _context: pattern.search(_searched(column, row)) is not None
    return _contains(column, value)


def _contains(column: Column, value: str) -> Test:
    """Any of `a,b`, where `me` is the person at the screen; a value not typed yet excludes none."""
    words = [word for word in value.lower().split(",") if word]
    if not words:
        return lambda _row, _text, _context: True

    def test(row: Any, _text: str, context: Context) -> bool:
        searched = _searched(column, row).lower()
        return any(
            searched == context.me.lower()
            if word == ME and column.name == "user"
            else word in searched
            for word in words
        )

    return test


def _by_operator(column: Column, op: str, value: str) -> Test:
    if not value:
        return lambda _row, _text, _context: True
    number = _number(value)
    if op in ("=", "!="):
        return _equals(column, value, number, same=op == "=")
    if number is None:
        raise FilterError(f"{column.name}{op}{value}: a number is due, e.g. {column.name}{op}8")
    return _compared(column, op, number)


def _equals(column: Column, text: str, number: float | None, *, same: bool) -> Test:
    """As numbers where the row has one, else as texts."""
    wanted = text.lower()

    def test(row: Any, _text: str, _context: Context) -> bool:
        value = _as_number(column.value(row))
        if value is not None and number is not None:
            return (value == number) == same
        return (_searched(column, row).lower() == wanted) == same

    return test


def _compared(column: Column, op: str, number: float) -> Test:
    compare, get = _COMPARE[op], column.value

    def test(row: Any, _text: str, _context: Context) -> bool:
        value = _as_number(get(row))
        return value is not None and compare(value, number)

    return test


def _as_number(value: Value) -> float | None:
    return None if value is None or isinstance(value, str) else value


def _number(text: str) -> float | None:
    """`8`, `1.5`, a time such as `90m`, `2h` or `1-00:00:00`; None for what is no number."""
    if text[-1:].lower() in _UNITS and _is_number(text[:-1]):
        return float(text[:-1]) * _UNITS[text[-1].lower()]
    if _is_number(text):
        return float(text)
    return parse_elapsed(text) if ":" in text else None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None


def _searched(column: Column, row: Any) -> str:
    if column.match is not None:
        return column.match(row)
    value = column.value(row)
    return "" if value is None else str(value)


def _column(name: str | None, listing: Listing) -> Column:
    column = listing.column(name or "")
    if column is None:
        names = [column.name for column in listing.columns]
        near = get_close_matches(name or "", names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise FilterError(f"there is no field {name!r}; {hint}")
    return column


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise FilterError(f"/{text}/ is no regular expression: {error}") from error
