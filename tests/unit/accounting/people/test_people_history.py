"""Whatever a directory says later, what it said at a time stays true of that time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from entries import group, person
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.ledger.schema.people import eras
from slurmkit_accounting.ledger.schema.people import people as people_table
from slurmkit_accounting.ledger.schema.types import metadata
from slurmkit_accounting.people.model import Directory, PersonEntry
from slurmkit_accounting.people.pi import People
from slurmkit_accounting.people.sync import PeopleData, sync_people
from slurmkit_accounting.usage.bins import Eras
from sqlalchemy import delete, select

PEOPLE, GROUPS = range(4), range(3)
NAMES, NUMBERS = ("ann", "ben", "cat", "dan", "eve"), (7, 8, 9, 10, 11)
ACCOUNTS = ("x", "y", "z", "none")
DAY = 86400


@st.composite
def directories(draw: st.DrawFn) -> Directory:
    """A few people and groups with names and numbers that go from one to another between two."""
    there = draw(st.sets(st.sampled_from(PEOPLE), min_size=1))
    names = draw(st.permutations(NAMES))
    numbers = draw(st.permutations(NUMBERS))
    staff = tuple(
        person(f"d{n}", username=names[n], uid=draw(st.sampled_from((None, numbers[n]))))
        for n in sorted(there)
    )
    called = draw(st.permutations(ACCOUNTS[:3]))
    formed = draw(st.sets(st.sampled_from(GROUPS)))
    members = [f"uid=d{n}" for n in PEOPLE] + [f"cn=g{n}" for n in GROUPS]
    some = st.lists(st.sampled_from(members), max_size=4, unique=True)
    owners = st.sampled_from([(), *((f"d{n}",) for n in PEOPLE)])
    groups = tuple(
        structs.replace(group(f"g{n}", *draw(some), owners=draw(owners)), name=called[n])
        for n in sorted(formed)
    )
    return Directory(staff, groups)


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    folder: Path = tmp_path_factory.mktemp("books")
    with open_for_writing(f"sqlite:///{folder}/ledger.db") as ledger:
        yield ledger


def empty(ledger: Ledger) -> None:
    with ledger.transaction() as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(delete(table))


def expected(said: Directory, one: PersonEntry, account: str) -> str:
    """Directory id of the PI, or the account, by nothing but what the directory said then."""
    people = {each.dn: each for each in said.people}
    inside = {each.dn for each in said.groups if one.dn in (*each.members, *each.owners)}
    for _ in said.groups:
        inside |= {each.dn for each in said.groups if inside & {*each.members}}
    mine = [each for each in said.groups if each.dn in inside]
    owner = {each.dn: people[each.owners[0]].directory_id
             for each in said.groups if each.owners and each.owners[0] in people}  # fmt: skip
    named = [each for each in said.groups if each.name == account]
    if named:
        return owner.get(named[0].dn, account) if named[0] in mine else account
    owners = {owner[each.dn] for each in mine if each.dn in owner}
    return owners.pop() if len(owners) == 1 else account


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(said=st.lists(directories(), min_size=1, max_size=4))
def test_nothing_that_is_said_later_changes_whose_a_job_was(books, said):
    empty(books)
    for day, directory in enumerate(said, start=1):
        sync_people(books, PeopleData(directory), now=day * DAY)
    with books.transaction() as connection:
        known, starts = People.load(connection), Eras(connection.scalars(select(eras.c.at)))
        query = select(people_table.c.id, people_table.c.directory_id)
        ids = {row[0]: row[1] for row in connection.execute(query)}
    for day, directory in enumerate(said, start=1):
        era = starts.of(day * DAY + 100)
        for one in directory.people:
            for account in ACCOUNTS:
                owner = known.pi(1, account, one.username, one.uid, era)
                found = owner.name if owner.person_id is None else ids[owner.person_id]
                assert found == expected(directory, one, account)
