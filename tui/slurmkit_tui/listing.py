"""What a table lists: its columns, told once, and how they are shown, sorted and searched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from slurmkit.text import printable

Value = str | float | None


@dataclass(frozen=True)
class Context:
    """What a text may depend on beside its row.

    Attributes:
        me: login name of the person at the screen.
        now: epoch seconds at which the rows were read.
        gpus_known: whether the cluster counts GPUs at all.
        clusters: name of the cluster; None while unknown.
    """

    me: str = ""
    now: float = 0.0
    gpus_known: bool = True
    cluster: str | None = None


def plain(_row: Any, _context: Context) -> str:
    """The style of an ordinary cell."""
    return ""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: by which it is filtered, sorted and chosen: `user:alice`.
        title: its header.
        text: what its cell says; made only for rows on screen. It may be foreign text.
        value: what it is sorted and compared by; a number where `>` and `<` make sense; None is
            unknown, and comes last.
        size: cells it takes, or what finds that out from all rows quickly.
        match: what `name:text` looks in, where that is not the value.
        aliases: other names for it.
        short: its header on a narrow screen.
        limit: cells it may take; a longer text is cut there, and shown in full by Enter.
        narrow: the same on a narrow screen.
        wide: left out on a narrow screen.
        right: aligned right.
        brief: how a text is shortened on a narrow screen.
        style: the style class of a cell, empty for the plain one.
        shown: whether it is there before the person chooses columns.
    """

    name: str
    title: str
    text: Callable[[Any, Context], str]
    value: Callable[[Any], Value]
    size: int | Callable[[Sequence[Any]], int] = 8
    match: Callable[[Any], str] | None = None
    aliases: tuple[str, ...] = ()
    short: str = ""
    limit: int = 16
    narrow: int = 14
    wide: bool = False
    right: bool = False
    brief: Callable[[str], str] = str
    style: Callable[[Any, Context], str] = plain
    shown: bool = True

    def width(self, rows: Sequence[Any]) -> int:
        """Cells that its widest text takes, or about that."""
        return self.size if isinstance(self.size, int) else self.size(rows)


@dataclass(frozen=True)
class Listing:
    """One kind of row and all that can be shown of it.

    Attributes:
        noun: what a row is, in the singular: `job`.
        key: the same for a row in the next answer.
        haystack: what a word without a field is looked for in.
        empty: said where there are no rows at all.
        mine: whether a row is the person's own; None where that means nothing.
    """

    noun: str
    columns: tuple[Column, ...]
    key: Callable[[Any], str]
    haystack: Callable[[Any], str]
    mine: Callable[[Any, Context], bool] | None = None
    empty: str = ""

    def column(self, name: str) -> Column | None:
        """The column of a name, an alias, or the begin of just one name."""
        word = name.lower()
        for column in self.columns:
            if word in (column.name, *column.aliases):
                return column
        begun = [column for column in self.columns if word and column.name.startswith(word)]
        return begun[0] if len(begun) == 1 else None

    def counted(self, number: int) -> str:
        """A number of rows in words."""
        return f"{number:,} {self.noun}{'' if number == 1 else 's'}"


def longest(attribute: str) -> Callable[[Sequence[Any]], int]:
    """The width of a column whose text is an attribute, measured in C: rows are many."""
    get = attrgetter(attribute)

    def width(rows: Sequence[Any]) -> int:
        texts = list(map(get, rows))
        shown = texts if "".join(texts).isprintable() else map(printable, texts)
        return max(map(len, shown), default=0)

    return width
