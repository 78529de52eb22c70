"""Runs that the ledger does not have yet, column by column."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress
from operator import not_
from typing import Any

from sqlalchemy import Connection

from slurmkit_accounting.bins import Eras, Held
from slurmkit_accounting.bulk import insert_columns
from slurmkit_accounting.rows import Columns, Key, Run, identify
from slurmkit_accounting.schema import runs

# The columns of a run that its usage depends on, in the order of `Held`; no line says the others.
_COUNTED = Run._fields[Run._fields.index("user") : Run._fields.index("energy_joules") + 1]
_OURS = ("cluster_id", "first_ingest_id")


def part(columns: Columns, known: Collection[Key]) -> tuple[Columns, list[Run]]:
    """Runs that are not known, and those that are."""
    identity = (columns[name] for name in ("db_index", "job_id_raw", "submit"))
    old = [key in known for key in map(identify, *identity)] if known else []
    if not any(old):
        return columns, []
    fresh = list(map(not_, old))
    new: Columns = {name: list(compress(values, fresh)) for name, values in columns.items()}
    return new, [Run._make(row) for row in compress(zip(*columns.values(), strict=True), old)]


def insert_new(
    connection: Connection, ours: tuple[int, int], seen: int | None, columns: Columns
) -> None:
    """Write runs.

    Args:
        connection: to the ledger.
        ours: numbers of their cluster and of the ingest.
        seen: epoch seconds at which those were there that have no end.
        columns: what is said of them.
    """
    same = dict(zip(_OURS, ours, strict=True))
    if seen is not None:
        last = [seen if end is None else None for end in columns["end"]]
        columns = {**columns, "last_seen": last}
    insert_columns(connection, runs, columns, same)


def held_columns(cluster: int, columns: Columns, known: Eras) -> list[Sequence[Any]]:
    """What usage is made of, by the fields of `Held`: not redone, and nothing measured."""
    count = len(columns["submit"])
    never = [None] * count
    found = {name: columns[name] for name in _COUNTED}
    found |= {"cluster_id": [cluster] * count, "redone": [False] * count}
    found["era"] = known.each(columns["submit"])
    return [found.get(name, never) for name in Held._fields]
