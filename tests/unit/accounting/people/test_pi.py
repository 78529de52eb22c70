"""Whose a run is: against an oracle that looks at every fact each time, and case by case."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import world
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slurmkit_accounting.ledger.schema.types import metadata
from slurmkit_accounting.people.dated import DatedFacts
from slurmkit_accounting.people.model import GroupNesting
from slurmkit_accounting.people.pi import NOBODY, Owner, People
from sqlalchemy import Connection, create_engine
from world import Fact, Oracle

EMPTY: world.World = {table.name: [] for table in world.TABLES}
KNOWN = {
    "usernames": [Fact((1, "ann"), 0, None), Fact((2, "ben"), 0, None), Fact((3, "cat"), 0, None)],
    "uids": [Fact((1, 7), 0, None), Fact((2, 8), 0, None)],
    "group_names": [Fact((1, "x"), 0, None), Fact((2, "y"), 0, None)],
}


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    with engine.connect() as opened:
        metadata.create_all(opened)
        yield opened
    engine.dispose()


def load(connection: Connection, **facts: list[Fact]) -> People:
    world.store(connection, EMPTY | KNOWN | facts)
    return People.load(connection)


def always(*what: object) -> Fact:
    return Fact(what, 0, None)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(given_world=world.worlds(), cluster=st.sampled_from(world.CLUSTERS))
def test_every_answer_is_the_oracles(connection, given_world, cluster):
    world.store(connection, given_world)
    found, oracle = People.load(connection), Oracle(given_world)
    for era in range(world.LAST + 2):
        for user, uid in ((user, uid) for user in world.NAMES for uid in (*world.NUMBERS, -1)):
            assert found.person(user, uid, era) == oracle.person(user, uid, era)
            for account in world.ACCOUNTS:
                owner = found.pi(cluster, account, user, uid, era)
                who = owner.name if owner.person_id is None else owner.person_id
                assert (who, owner.via) == oracle.pi(cluster, account, user, uid, era)
        for person in world.PEOPLE:
            names = {
                n for g, n in oracle.true("group_names", era) if g in oracle.groups(person, era)
            }
            named = {g for g, _ in oracle.true("group_names", era)}
            if len(named) == len(oracle.true("group_names", era)):  # one name at a time
                assert found.groups(person, era) == names


class TestPerson:
    def test_a_renamed_user_whose_old_jobs_sacct_shows_under_the_new_name(self, connection):
        swapped = [Fact((1, "ann"), 0, 5), Fact((2, "ben"), 0, 5),
                   Fact((1, "ben"), 5, None), Fact((2, "ann"), 5, None)]  # fmt: skip
        found = load(connection, usernames=swapped)
        assert found.person("ben", 7, 3) == 1
        assert found.person("ann", 7, 3) == 1

    def test_a_number_used_again_does_not_take_old_jobs_along(self, connection):
        passed_on = [Fact((1, 7), 0, 5), Fact((2, 7), 5, None)]
        found = load(connection, uids=passed_on)
        # Without an association sacct shows the name of whoever has the number today.
        assert found.person("ben", 7, 3) == 1
        assert found.person("ben", 7, 6) == 2

    def test_numbers_of_a_cluster_that_are_not_the_directorys(self, connection):
        assert load(connection).person("cat", 7, 3) == 3

    def test_the_number_tells_where_the_name_is_unknown(self, connection):
        found = load(connection)
        assert (found.person("new", 7, 3), found.person("", 8, 3)) == (1, 2)
        assert found.person("new", None, 3) is found.person("new", -1, 3) is None

    def test_case_does_not_tell_names_apart(self, connection):
        assert load(connection, usernames=[always(1, "Ann")]).person("aNN", -1, 0) == 1

    def test_nobody_is_known_before_they_were(self, connection):
        found = load(connection, usernames=[Fact((1, "ann"), 4, 6)])
        assert [found.person("ann", -1, era) for era in (3, 4, 5, 6)] == [None, 1, 1, None]


CLAIMED = {
    "memberships": [always(1, 1)],
    "group_owners": [always(1, 2)],
    "coordinators": [always(1, "x", "cat")],
}


class TestOrder:
    def test_an_override_goes_before_the_owner_of_the_group(self, connection):
        found = load(connection, **CLAIMED, pi_overrides=[always("x", "", "cat")])
        assert found.pi(1, "x", "ann", 7, 0) == Owner("cat", 3, "override")

    def test_the_more_particular_override_goes_first(self, connection):
        claims = [always("x", "", "ann"), always("", "ann", "ben"), always("x", "ann", "cat")]
        found = load(connection, pi_overrides=claims)
        assert found.pi(1, "X", "Ann", 7, 0).name == "cat"
        assert found.pi(1, "y", "ann", 7, 0).name == "ben"
        assert found.pi(1, "x", "stranger", -1, 0).name == "ann"

    def test_an_override_may_name_a_pi_whom_the_directory_does_not_know(self, connection):
        found = load(connection, pi_overrides=[always("x", "", "dean")])
        assert found.pi(1, "x", "ann", 7, 0) == Owner("dean", None, "override")

    def test_an_override_may_be_older_than_the_name_of_its_pi(self, connection):
        late = [*KNOWN["usernames"], Fact((3, "dean"), 5, None)]
        found = load(connection, pi_overrides=[always("x", "", "dean")], usernames=late)
        assert found.pi(1, "x", "ann", 7, 2).person_id == 3

    def test_an_override_holds_for_its_time_only(self, connection):
        found = load(connection, **CLAIMED, pi_overrides=[Fact(("x", "", "cat"), 2, 4)])
        told = [found.pi(1, "x", "ann", 7, era).via for era in (1, 2, 3, 4)]
        assert told == ["group", "override", "override", "group"]

    def test_the_owner_goes_before_the_coordinator(self, connection):
        found = load(connection, **CLAIMED)
        assert found.pi(1, "x", "ann", 7, 0) == Owner("ben", 2, "group")

    def test_a_stranger_to_the_group_is_the_coordinators(self, connection):
        found = load(connection, **CLAIMED)
        assert found.pi(1, "x", "cat", -1, 0) == Owner("cat", 3, "coordinator")
        assert found.pi(2, "x", "cat", -1, 0) == Owner("x", None, "account")

    def test_of_several_coordinators_the_first_who_is_known(self, connection):
        both = [always(1, "z", "aaron"), always(1, "z", "cat"), always(1, "z", "ben")]
        assert load(connection, coordinators=both).pi(1, "z", "ann", 7, 0).name == "ben"
        assert load(connection, coordinators=both[:1]).pi(1, "z", "ann", 7, 0) == Owner(
            "aaron", None, "coordinator"
        )

    def test_the_account_of_somebody_known_is_a_line_of_its_own(self, connection):
        assert load(connection).pi(1, "Z", "ann", 7, 0) == Owner("z", None, "account")

    @pytest.mark.parametrize(("account", "user"), [("z", "mallory"), ("", "ann"), ("", "")])
    def test_the_rest_is_unmapped(self, connection, account, user):
        assert load(connection).pi(1, account, user, -1, 0) == NOBODY


class TestInTime:
    def test_an_owner_who_changes_within_a_month(self, connection):
        found = load(
            connection,
            memberships=[always(1, 1)],
            group_owners=[Fact((1, 2), 0, 3), Fact((1, 3), 3, None)],
        )
        assert [found.pi(1, "x", "ann", 7, era).name for era in (2, 3)] == ["ben", "cat"]

    def test_a_group_that_was_renamed(self, connection):
        found = load(
            connection,
            memberships=[always(1, 1)],
            group_owners=[always(1, 2)],
            group_names=[Fact((1, "x"), 0, 3), Fact((1, "z"), 3, None), Fact((2, "x"), 3, None)],
        )
        assert [found.pi(1, "x", "ann", 7, era).via for era in (2, 3)] == ["group", "account"]
        assert found.pi(1, "z", "ann", 7, 3).name == "ben"
        assert (found.groups(1, 2), found.groups(1, 3)) == ({"x"}, {"z"})

    def test_who_was_deleted_keeps_their_pi(self, connection):
        found = load(
            connection,
            usernames=[Fact((1, "ann"), 0, 4), Fact((2, "ben"), 0, 4)],
            memberships=[Fact((1, 1), 0, 4)],
            group_owners=[Fact((1, 2), 0, 4)],
        )
        assert found.pi(1, "x", "ann", -1, 3) == Owner("ben", 2, "group")
        assert found.pi(1, "x", "ann", -1, 4) == NOBODY

    def test_groups_within_groups_in_a_circle_and_only_while_they_were(self, connection):
        found = load(
            connection,
            memberships=[always(1, 1)],
            nestings=[always(1, 3), always(3, 2), Fact((2, 1), 2, None)],
            group_owners=[always(2, 2)],
        )
        assert found.pi(1, "y", "ann", 7, 0).name == "ben"
        assert found.groups(1, 0) == found.groups(1, 5) == {"x", "y"}

    def test_a_chain_of_thousands_of_groups_is_followed(self):
        chain = GroupNesting(DatedFacts((n, 0, None, n + 1) for n in range(3000)))
        assert chain.around([0], 5) == frozenset(range(3001))
        assert chain.around([], 5) == frozenset()

    def test_departments(self, connection):
        found = load(connection, departments=[Fact((1, "Old"), 0, 3), Fact((1, "New"), 3, None)])
        assert [found.department(1, era) for era in (2, 3)] == ["Old", "New"]
        assert found.department(2, 3) == ""


def test_what_rows_are_summed_by():
    assert Owner("ann", 1, "group").key == Owner("ann", 1, "override").key
    assert Owner("x", None, "account").key != Owner("x", None, "override").key != NOBODY.key
