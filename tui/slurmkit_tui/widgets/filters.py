"""The filter language: `user:me gpu:a100 state:pd >8gpu -/test.*/ "two words"`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from slurmkit.formats.durations import parse_elapsed
from slurmkit_tui.widgets.listing import Listing, RowContext, RowFilter, RowTest, TableColumn, Value

# A term: an optional - or !, then /regex/, "words", or text up to the next space.
_TERM = re.compile(
    r"""(?P<not>[-!])?
    (?:(?P<field>[A-Za-z_]+)(?P<op>>=|<=|!=|>|<|=|:))?
    (?:/(?P<regex>(?:[^/\\]|\\.)*)/|"(?P<quoted>[^"]*)"?|(?P<text>\S+))?""",
    re.VERBOSE,
)
_COUNTED = re.compile(r"(?P<op>>=|<=|>|<|=)(?P<number>\d+(?:\.\d+)?)(?P<field>[A-Za-z_]+)")
# A single character that is no term is searched literally.
_BARE = re.compile(r"(?P<not>)(?P<field>)(?P<op>)(?P<regex>)?(?P<quoted>)(?P<text>\S+)")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">": gt, ">=": ge, "<": lt, "<=": le, "=": eq, "!=": ne,
}  # fmt: skip
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
ME = "me"


class FilterError(ValueError):
    """A text that is no filter; the message says what is allowed."""


def parse_filter(text: str, listing: Listing) -> RowFilter:
    """Parse a filter.

    Raises:
        FilterError: for an unknown field, a missing number, or a wrong regular expression.
    """
    needles: list[str] = []
    tests: list[RowTest] = []
    for term in _terms(text):
        if (word := _plain_word(term)) is not None:
            needles.append(word)
        else:
            tests.append(_term_test(term, listing))
    return RowFilter(text, tuple(needles), tuple(tests))


def _terms(text: str) -> Iterable[re.Match[str]]:
    """Split a filter into terms."""
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        term = _COUNTED.match(text, at) or _TERM.match(text, at)
        if term is None or term.end() == at:
            term = _BARE.match(text, at)
        if term is None:
            return
        yield term
        at = term.end()


def _plain_word(term: re.Match[str]) -> str | None:
    """Return the word of a plain term, which is searched anywhere; None for all other terms."""
    parts = term.groupdict()
    if "number" in parts or parts["not"] or parts["field"] or parts["regex"] is not None:
        return None
    return (parts["quoted"] or parts["text"] or "").lower()


def _term_test(term: re.Match[str], listing: Listing) -> RowTest:
    parts = term.groupdict()
    if "number" in parts:
        column = _column(parts["field"], listing)
        return _compared(column, parts["op"], float(parts["number"]))
    test = _test_without_not(parts, listing)
    if not parts["not"]:
        return test
    return lambda row, text, context: not test(row, text, context)


def _test_without_not(parts: dict[str, str | None], listing: Listing) -> RowTest:
    value = parts["quoted"] or parts["text"] or ""
    if not parts["field"]:
        if parts["regex"] is not None:
            pattern = _regex(parts["regex"])
            return lambda _row, text, _context: pattern.search(text) is not None
        word = value.lower()
        return lambda _row, text, _context: word in text
    column = _column(parts["field"], listing)
    if parts["op"] in _COMPARE and parts["regex"] is None:
        return _by_operator(column, parts["op"] or "", value)
    if parts["regex"] is not None:
        pattern = _regex(parts["regex"])
        return lambda row, _text, _context: pattern.search(_searched(column, row)) is not None
    return _contains(column, value)


def _contains(column: TableColumn, value: str) -> RowTest:
    """Test for any of `a,b`; `user:me` is the person at the screen. An empty value passes all."""
    words = [word for word in value.lower().split(",") if word]
    if not words:
        return lambda _row, _text, _context: True

    def test(row: Any, _text: str, context: RowContext) -> bool:
        searched = _searched(column, row).lower()
        return any(
            searched == context.me.lower()
            if word == ME and column.name == "user"
            else word in searched
            for word in words
        )

    return test


def _by_operator(column: TableColumn, op: str, value: str) -> RowTest:
    if not value:
        return lambda _row, _text, _context: True
    number = _number(value)
    if op in ("=", "!="):
        return _equals(column, value, number, same=op == "=")
    if number is None:
        raise FilterError(
            f"{column.name}{op}{value}: write a number, for example {column.name}{op}8"
        )
    return _compared(column, op, number)


def _equals(column: TableColumn, text: str, number: float | None, *, same: bool) -> RowTest:
    """Compare as numbers if the row has a number, else as texts."""
    wanted = text.lower()

    def test(row: Any, _text: str, _context: RowContext) -> bool:
        value = _as_number(column.value(row))
        if value is not None and number is not None:
            return (value == number) == same
        return (_searched(column, row).lower() == wanted) == same

    return test


def _compared(column: TableColumn, op: str, number: float) -> RowTest:
    compare, get = _COMPARE[op], column.value

    def test(row: Any, _text: str, _context: RowContext) -> bool:
        value = _as_number(get(row))
        return value is not None and compare(value, number)

    return test


def _as_number(value: Value) -> float | None:
    return None if value is None or isinstance(value, str) else value


def _number(text: str) -> float | None:
    """Parse `8`, `1.5`, or a time such as `90m`, `2h` or `1-00:00:00`; None for anything else."""
    if text[-1:].lower() in _UNITS and _is_number(text[:-1]):
        return float(text[:-1]) * _UNITS[text[-1].lower()]
    if _is_number(text):
        return float(text)
    return parse_elapsed(text) if ":" in text else None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None


def _searched(column: TableColumn, row: Any) -> str:
    if column.match is not None:
        return column.match(row)
    value = column.value(row)
    return "" if value is None else str(value)


def _column(name: str | None, listing: Listing) -> TableColumn:
    column = listing.column(name or "")
    if column is None:
        names = [column.name for column in listing.columns]
        near = get_close_matches(name or "", names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(names)}"
        raise FilterError(f"there is no field {name!r}; {hint}")
    return column


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise FilterError(f"/{text}/ is no regular expression: {error}") from error
