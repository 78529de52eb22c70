"""A small ledger for tests of reports: people, their groups and PIs, and runs."""

from __future__ import annotations

from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.people import (
    departments,
    group_names,
    group_owners,
    groups,
    memberships,
    people,
    uids,
    usernames,
)
from slurmkit_accounting.ledger.schema.runs import clusters, ingests, spans
from sqlalchemy import Table, insert
from usage_oracle import Job, fill

DAY = 86400
BEGIN = 1_793_491_200  # 2026-11-01 UTC
PEOPLE = ("alice", "bob", "vogel", "garcia")
GROUPS = {"vision": ("vogel", ("alice", "vogel")), "genomics": ("garcia", ("bob", "garcia"))}


def write_books(ledger: Ledger, jobs: list[Job], *, read_to: int = BEGIN + 40 * DAY) -> None:
    """Fill an empty ledger; alice is vogel's, bob is garcia's."""
    with ledger.transaction() as connection:
        connection.execute(
            insert(clusters),
            [
                {"id": 1, "name": "lab", "tracks_gpus": True},
                {"id": 2, "name": "big", "tracks_gpus": False},
            ],
        )
        fill(connection, jobs, eras_at=(1,))
        window = {"window_from": 0, "window_to": read_to, "started": read_to, "ended": read_to}
        connection.execute(insert(ingests), [{"cluster_id": n, **window} for n in (1, 2)])
        connection.execute(
            insert(spans), [{"cluster_id": n, "begin": 5, "finish": read_to} for n in (1, 2)]
        )
        _people(connection)


def _people(connection) -> None:
    def dated(table: Table, **values) -> None:
        connection.execute(insert(table).values(valid_from=1, valid_to=None, **values))

    for number, name in enumerate(PEOPLE, 1):
        facts = {"display_name": name.title(), "mail": f"{name}@example.org", "active": True}
        connection.execute(
            insert(people).values(id=number, directory_id=name, first_seen=1, **facts)
        )
        dated(usernames, person_id=number, username=name)
        dated(uids, person_id=number, uid=2000 + number)
        dated(departments, person_id=number, department="Physics" if number % 2 else "Biology")
    for number, (name, (owner, members)) in enumerate(GROUPS.items(), 1):
        shown = {"directory_id": name, "display_name": name, "first_seen": 1}
        connection.execute(insert(groups).values(id=number, **shown))
        dated(group_names, group_id=number, name=name)
        dated(group_owners, group_id=number, person_id=PEOPLE.index(owner) + 1)
        for member in members:
            dated(memberships, group_id=number, person_id=PEOPLE.index(member) + 1)


def run(user: str, start: int, end: int | None, **other) -> Job:
    """A run of somebody, under the account of their group."""
    numbers = {name: 2000 + number for number, name in enumerate(PEOPLE, 1)}
    account = next((name for name, (_, of) in GROUPS.items() if user in of), "nobody")
    columns = {"uid": numbers.get(user, 9999), "account": account} | other.pop("other", {})
    submit = other.pop("submit", start - 60)
    return Job(submit, start, end, user=user, other=columns, **other)
