"""The usage keys of a ledger, with their ids."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import ColumnElement, Connection, select

from slurmkit_accounting.ledger.database import once
from slurmkit_accounting.ledger.schema.usage import usage_keys, usage_months
from slurmkit_accounting.usage.bins import UsageKey


def load_keys(
    connection: Connection, *where: ColumnElement[bool]
) -> Iterator[tuple[int, UsageKey]]:
    """Load ids and keys."""
    query = select(usage_keys.c.id, *(usage_keys.c[name] for name in UsageKey._fields))
    for number, *fields in connection.execute(query.where(*where)):
        yield number, UsageKey(*fields)


def load_owning_keys(connection: Connection) -> Iterator[UsageKey]:
    """Load one key for all that differ in partition, QOS, state and type of GPUs only."""
    columns = (usage_keys.c[name] for name in ("cluster_id", "user", "uid", "account", "era"))
    for cluster, user, uid, account, era in connection.execute(select(*columns).distinct()):
        yield UsageKey(cluster, user, uid, account, "", "", "", redone=False, gpu_type="", era=era)


def load_used_keys(connection: Connection, first: int, last: int) -> list[tuple[int, UsageKey]]:
    """Load the ids and keys of what has usage in some months; nobody may change them.

    Args:
        connection: to the ledger.
        first: begin of the first UTC month, epoch seconds.
        last: a time in the last month.
    """
    used = select(usage_months.c.key_id).where(usage_months.c.bin.between(first, last))
    return once(
        connection,
        ("used keys", first, last),
        lambda: list(load_keys(connection, usage_keys.c.id.in_(used))),
    )
