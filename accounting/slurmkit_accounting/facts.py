"""Dated facts in memory: what was true of something at a time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Table, select

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")
Fact = tuple[int, int | None, ValueT]  # valid from, valid until, and what


class Facts(Generic[KeyT, ValueT]):
    """Facts by what they are about, from (key, valid_from, valid_to, value)."""

    def __init__(self, rows: Iterable[tuple[KeyT, int, int | None, ValueT]]) -> None:
        self._by_key: dict[KeyT, list[Fact[ValueT]]] = {}
        for key, since, until, value in rows:
            self._by_key.setdefault(key, []).append((since, until, value))

    def at(self, key: KeyT, when: int) -> list[ValueT]:
        """What was true of `key` at a time."""
        return [
            value
            for since, until, value in self._by_key.get(key, ())
            if since <= when and (until is None or when < until)
        ]

    def ever(self, key: KeyT) -> list[Fact[ValueT]]:
        """Everything that was ever true of `key`, the oldest first."""
        return sorted(self._by_key.get(key, ()), key=lambda fact: fact[0])

    def changes(self) -> Iterator[int]:
        """Times at which anything began or ended."""
        for facts in self._by_key.values():
            for since, until, _ in facts:
                yield since
                if until is not None:
                    yield until


def read_facts(connection: Connection, table: Table, key: str, value: str) -> Facts[Any, Any]:
    """Read a table with `valid_from` and `valid_to`, to look `value` up by `key`."""
    return Facts(dated_rows(connection, table, key, value))


def dated_rows(
    connection: Connection, table: Table, key: str, *values: str
) -> Iterator[tuple[Any, ...]]:
    """Rows of (key, valid_from, valid_to, values...)."""
    columns = (table.c[name] for name in (key, "valid_from", "valid_to", *values))
    return (tuple(row) for row in connection.execute(select(*columns)))
