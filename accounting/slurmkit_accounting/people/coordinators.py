"""Coordinators of Slurm accounts: read from sacctmgr and stored with dates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, insert, select, update

from slurmkit.errors import SlurmError
from slurmkit.slurm.commands import SlurmCommands
from slurmkit_accounting.ledger.schema.people import coordinators
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.people.dated import PeopleChange

_SHOW = ("sacctmgr", "--noheader", "--parsable2", "show")  # only names are printed, so `|` is safe


class Coordinator(NamedTuple):
    """A user who coordinates an account."""

    account: str
    user: str


def read_coordinators(slurm: SlurmCommands) -> dict[str, frozenset[Coordinator]]:
    """Read the coordinators of all accounts from Slurm, for every cluster of its database.

    Raises:
        SlurmError: when Slurm does not answer, or a line cannot be parsed.
    """
    names = slurm.run([*_SHOW, "cluster", "format=cluster"]).split()
    lines = slurm.run([*_SHOW, "account", "withcoord", "format=account,coordinators"])
    found = parse_coordinators(lines)
    return dict.fromkeys(names, found)


def parse_coordinators(lines: str) -> frozenset[Coordinator]:
    """Parse lines of `ACCOUNT|USER,USER`.

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


def store_coordinators(
    connection: Connection, by_cluster: Mapping[str, frozenset[Coordinator]], at: int
) -> Iterator[PeopleChange]:
    """Store the coordinators valid from `at` (epoch seconds), and yield the changes.

    The first coordinators stored for a cluster are valid from 0 (always).
    """
    for name, wanted in sorted(by_cluster.items()):
        cluster = _number(connection, name, alone=len(by_cluster) == 1)
        if cluster is None:
            continue
        stored = _current(connection, cluster)
        closed = stored.keys() - wanted
        opened = sorted(wanted - stored.keys())
        _close(connection, [stored[one] for one in closed], at)
        _open(connection, cluster, opened, at)
        for what, some in (("added", opened), ("closed", sorted(closed))):
            yield from (PeopleChange("coordinator", what, f"{u} of {a} in {name}") for a, u in some)


def _number(connection: Connection, name: str, *, alone: bool) -> int | None:
    """Return the row id of a cluster; insert it if people are synced before the first ingest."""
    query = select(clusters.c.id).where(clusters.c.name == name)
    # slurmdbd may have several clusters, and this ledger only some of them.
    if alone and connection.scalar(query) is None:
        connection.execute(insert(clusters), {"name": name})
    return connection.scalar(query)


def _current(connection: Connection, cluster: int) -> dict[Coordinator, int]:
    """Load the current coordinators, with their row ids."""
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
