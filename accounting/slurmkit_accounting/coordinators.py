"""Coordinators of Slurm accounts, as sacctmgr shows them, with dates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, insert, select, update

from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm
from slurmkit_accounting.dated import Change
from slurmkit_accounting.schema.people import coordinators
from slurmkit_accounting.schema.runs import clusters

_SHOW = ("sacctmgr", "--noheader", "--parsable2", "show")  # names only, so `|` is safe


class Coordinator(NamedTuple):
    """A user who coordinates an account."""

    account: str
    user: str


def read_coordinators(slurm: Slurm) -> dict[str, frozenset[Coordinator]]:
    """Ask Slurm for the coordinators of all accounts, for every cluster of its database.

    Raises:
        SlurmError: when it does not answer, or a line cannot be read.
    """
    names = slurm.run([*_SHOW, "cluster", "format=cluster"]).split()
    lines = slurm.run([*_SHOW, "account", "withcoord", "format=account,coordinators"])
    found = parse_coordinators(lines)
    return dict.fromkeys(names, found)


def parse_coordinators(lines: str) -> frozenset[Coordinator]:
    """Read lines of `ACCOUNT|USER,USER`.

    Raises:
        SlurmError: for a line of another form.
    """
    found: set[Coordinator] = set()
    for line in lines.splitlines():
        account, mark, users = line.partition("|")
        if not (account and mark):
            raise SlurmError(f"sacctmgr printed a line that cannot be read: {line!r}")
        found |= {Coordinator(account, user) for user in users.split(",") if user}
    return frozenset(found)


def keep_coordinators(
    connection: Connection, told: Mapping[str, frozenset[Coordinator]], at: int
) -> Iterator[Change]:
    """Store who coordinates what from `at` on, and say what changed.

    Those that are heard of first in a cluster always were it.
    """
    for name, wanted in sorted(told.items()):
        cluster = _number(connection, name, alone=len(told) == 1)
        if cluster is None:
            continue
        stored = _current(connection, cluster)
        closed = stored.keys() - wanted
        opened = sorted(wanted - stored.keys())
        _close(connection, [stored[one] for one in closed], at)
        _open(connection, cluster, opened, at)
        for what, some in (("added", opened), ("closed", sorted(closed))):
            yield from (Change("coordinator", what, f"{u} of {a} in {name}") for a, u in some)


def _number(connection: Connection, name: str, *, alone: bool) -> int | None:
    """A cluster's number; a new one where people are synced before the first ingest."""
    query = select(clusters.c.id).where(clusters.c.name == name)
    # A database of several clusters may have some that this ledger is not about.
    if alone and connection.scalar(query) is None:
        connection.execute(insert(clusters), {"name": name})
    return connection.scalar(query)


def _current(connection: Connection, cluster: int) -> dict[Coordinator, int]:
    table = coordinators.c
    query = select(table.account, table.user, table.id)
    here = (table.cluster_id == cluster, table.valid_to.is_(None))
    return {Coordinator(row[0], row[1]): row[2] for row in connection.execute(query.where(*here))}


def _close(connection: Connection, numbers: list[int], at: int) -> None:
    one = update(coordinators).where(coordinators.c.id == bindparam("number")).values(valid_to=at)
    if numbers:
        connection.execute(one, [{"number": number} for number in numbers])


def _open(connection: Connection, cluster: int, opened: list[Coordinator], at: int) -> None:
    query = select(coordinators.c.id).where(coordinators.c.cluster_id == cluster)
    first = connection.scalar(query.limit(1)) is None
    facts = {"cluster_id": cluster, "valid_from": 0 if first else at}
    rows = [one._asdict() | facts for one in opened]
    if rows:
        connection.execute(insert(coordinators), rows)
