"""People with dates, and whose job it was then."""

from __future__ import annotations

from collections import Counter

import pytest
from entries import group, person
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.people import (
    eras,
    group_names,
    memberships,
    people,
    people_syncs,
    uids,
    usernames,
)
from slurmkit_accounting.ledger.schema.usage import usage_keys, usage_months
from slurmkit_accounting.people.model import Directory, GroupEntry, PersonEntry
from slurmkit_accounting.people.pi import People
from slurmkit_accounting.people.sync import PeopleData, sync_people
from slurmkit_accounting.usage.bins import Eras
from sqlalchemy import select
from stored_runs import ran, store_runs

from slurmkit.errors import DirectoryError

DAY = 86400
UTC = find_zone("UTC")
NOVEMBER = UTC.epoch("2026-11-01")
ALICE, BOB, VOGEL, CHEN = (person(name) for name in ("alice", "bob", "vogel", "chen"))
VISION = group("vision", "uid=alice", owners=("vogel",))
CLIMATE = group("climate", "uid=bob", owners=("chen",))
EVERYBODY = (ALICE, BOB, VOGEL, CHEN)


def day(number: int) -> int:
    return NOVEMBER + (number - 1) * DAY


def sync(ledger: Ledger, on: int, *entries: PersonEntry | GroupEntry, dry_run: bool = False):
    found = Directory(
        tuple(one for one in entries if isinstance(one, PersonEntry)),
        tuple(one for one in entries if isinstance(one, GroupEntry)),
    )
    synced = sync_people(ledger, PeopleData(found), now=day(on), dry_run=dry_run)
    return [f"{one.kind} {one.what}: {one.who}" for one in synced.changes]


def dated(ledger: Ledger, table) -> list[tuple]:
    with ledger.transaction() as connection:
        rows = connection.execute(select(table).order_by(table.c.id)).all()
    return [tuple(row[2:]) for row in rows]


def run(on: int, user: str = "alice", account: str = "vision", uid: int | None = None) -> tuple:
    """A run that was submitted on that day."""
    return account, user, uid, day(on) + 100


def by_pi(ledger: Ledger, *runs: tuple) -> dict[str, int]:
    """How many of the runs are whose."""
    with ledger.transaction() as connection:
        known, starts = People.load(connection), Eras(connection.scalars(select(eras.c.at)))
    owners = [known.pi(1, *who, starts.of(submit)) for *who, submit in runs]
    return dict(Counter(owner.name for owner in owners))


def test_the_first_sync_is_true_from_the_beginning(ledger):
    assert sync(ledger, 5, ALICE, VOGEL, VISION) == [
        "person added: alice",
        "person added: vogel",
        "group added: vision",
        "membership added: alice in vision",
        "membership added: vogel in vision",
    ]
    assert dated(ledger, usernames) == [("alice", 0, None), ("vogel", 0, None)]
    assert [row[1:] for row in dated(ledger, memberships)] == [(0, None), (0, None)]


@pytest.mark.sql
def test_syncing_again_changes_nothing(ledger):
    sync(ledger, 5, *EVERYBODY, VISION, CLIMATE)
    before = [dated(ledger, table) for table in (people, usernames, uids, memberships)]
    assert sync(ledger, 6, *EVERYBODY, VISION, CLIMATE) == []
    assert [dated(ledger, table) for table in (people, usernames, uids, memberships)] == before


@pytest.mark.sql
def test_a_dry_run_says_the_same_and_changes_nothing(ledger):
    told = sync(ledger, 5, ALICE, VOGEL, VISION, dry_run=True)
    assert dated(ledger, people) == []
    assert dated(ledger, people_syncs) == []
    assert sync(ledger, 5, ALICE, VOGEL, VISION) == told


def test_changes_are_named(ledger):
    sync(ledger, 5, ALICE, VOGEL, VISION)
    renamed = person("alice", username="amoreau")
    left = person("vogel", active=False)
    assert sync(ledger, 6, renamed, left, VISION) == [
        "person changed: amoreau",
        "person changed: vogel",
    ]
    assert sync(ledger, 7, left, group("sight", owners=("vogel",), directory_id="id-vision")) == [
        "person closed: amoreau",
        "group changed: sight",
        "membership closed: amoreau in sight",
    ]


@pytest.mark.sql
def test_who_is_gone_is_closed_and_kept_and_may_come_back(ledger):
    sync(ledger, 5, ALICE, VOGEL, VISION)
    sync(ledger, 10, VOGEL, VISION)
    assert dated(ledger, usernames)[0] == ("alice", 0, day(10))
    with ledger.transaction() as connection:
        row = connection.execute(select(people).where(people.c.directory_id == "id-alice")).one()
    assert (row.closed_at, row.active, row.display_name) == (day(10), False, "Alice")
    sync(ledger, 15, ALICE, VOGEL, VISION)
    assert dated(ledger, usernames)[2] == ("alice", day(15), None)
    assert by_pi(ledger, run(3), run(12), run(20)) == {"vogel": 2, "unmapped": 1}


def test_a_user_name_used_again_is_the_new_persons_only_from_then(ledger):
    successor = person("alice", directory_id="id-2", dn="uid=alice2")
    sync(ledger, 5, ALICE, BOB, VOGEL, CHEN, VISION, CLIMATE)
    sync(ledger, 10, successor, *EVERYBODY[1:], group("vision", owners=("vogel",)), CLIMATE)
    assert [row for row in dated(ledger, usernames) if row[0] == "alice"] == [
        ("alice", 0, day(10)),
        ("alice", day(10), None),
    ]
    assert [row for row in dated(ledger, uids) if row[0] == ALICE.uid][1][1] == day(10)
    assert by_pi(ledger, run(3), run(12)) == {"vogel": 1, "vision": 1}


def test_last_weeks_job_stays_with_last_weeks_pi(ledger):
    sync(ledger, 1, *EVERYBODY, VISION, CLIMATE)
    moved = group("climate", "uid=bob", "uid=alice", owners=("chen",))
    sync(ledger, 10, *EVERYBODY, group("vision", owners=("vogel",)), moved)
    sync(ledger, 20, *EVERYBODY, group("vision", owners=("chen",)), moved)
    runs = [run(5), run(15, account="climate"), run(5, account="none")]
    assert by_pi(ledger, *runs) == {"vogel": 2, "chen": 1}


def test_a_new_pi_gets_the_jobs_from_then_on(ledger):
    sync(ledger, 1, *EVERYBODY, VISION)
    sync(ledger, 10, *EVERYBODY, group("vision", "uid=alice", owners=("chen",)))
    assert by_pi(ledger, run(5), run(15), run(16)) == {"vogel": 1, "chen": 2}


def test_a_renamed_user_is_still_the_same_person(ledger):
    sync(ledger, 1, *EVERYBODY, VISION)
    renamed = person("alice", username="amoreau", uid=ALICE.uid)
    sync(ledger, 10, renamed, *EVERYBODY[1:], VISION)
    assert by_pi(ledger, run(5), run(15, user="amoreau")) == {"vogel": 2}


def test_slurm_may_show_the_new_name_for_an_old_job_then_the_uid_tells(ledger):
    sync(ledger, 1, *EVERYBODY, VISION)
    sync(ledger, 10, person("alice", username="amoreau", uid=ALICE.uid), *EVERYBODY[1:], VISION)
    assert by_pi(ledger, run(5, user="amoreau", uid=ALICE.uid)) == {"vogel": 1}


def test_the_account_decides_for_who_is_in_two_groups(ledger):
    both = group("climate", "uid=alice", owners=("chen",))
    sync(ledger, 1, *EVERYBODY, VISION, both)
    runs = [run(5), run(5, account="climate"), run(5, account="elsewhere")]
    assert by_pi(ledger, *runs) == {"vogel": 1, "chen": 1, "elsewhere": 1}


def test_a_job_under_the_account_of_others_is_not_their_pis(ledger):
    sync(ledger, 1, *EVERYBODY, VISION, CLIMATE)
    runs = [run(5, account=name) for n, name in enumerate(("climate", "Climate", "elsewhere"))]
    assert by_pi(ledger, *runs) == {"climate": 2, "vogel": 1}


def test_an_account_that_named_no_group_then_does_not_decide(ledger):
    sync(ledger, 1, *EVERYBODY, VISION, group("field", "uid=bob", owners=("chen",)))
    renamed = group("climate", "uid=bob", owners=("chen",), directory_id="id-field")
    sync(ledger, 10, *EVERYBODY, VISION, renamed)
    early, late = run(5, account="climate"), run(15, account="climate")
    assert by_pi(ledger, early, late) == {"vogel": 1, "climate": 1}


def test_a_groups_account_without_a_pi_does_not_fall_back_on_another_group(ledger):
    sync(
        ledger,
        1,
        *EVERYBODY,
        group("vision", "uid=alice"),
        group("x", "uid=alice", owners=("chen",)),
    )
    assert by_pi(ledger, run(5), run(5, account="none")) == {"vision": 1, "chen": 1}


@pytest.mark.parametrize("account", ["vision", "Vision", "VISION"])
def test_case_does_not_tell_accounts_and_groups_apart(ledger, account):
    both = group("climate", "uid=alice", owners=("chen",))
    sync(ledger, 1, *EVERYBODY, group("Vision", "uid=alice", owners=("vogel",)), both)
    assert by_pi(ledger, run(5, account=account)) == {"vogel": 1}


@pytest.mark.sql
def test_a_group_is_shown_as_the_directory_spells_it(ledger):
    upper = group("Vision", "uid=alice", owners=("vogel",), directory_id="id-vision")
    assert "group added: Vision" in sync(ledger, 1, ALICE, VOGEL, upper)
    assert dated(ledger, group_names) == [("vision", 0, None)]
    assert sync(ledger, 5, ALICE, VOGEL, upper) == []
    assert sync(ledger, 9, ALICE, VOGEL, VISION) == ["group changed: vision"]
    assert dated(ledger, group_names) == [("vision", 0, None)]
    assert sync(ledger, 12, VOGEL, upper) == [
        "person closed: alice",
        "group changed: Vision",
        "membership closed: alice in Vision",
    ]


def test_two_groups_of_one_pi_leave_no_doubt(ledger):
    inner = group("inner", "uid=bob", owners=("vogel",))
    outer = group("outer", "uid=alice", "cn=inner", owners=("vogel",))
    sync(ledger, 1, *EVERYBODY, inner, outer)
    assert by_pi(ledger, run(5, user="bob", account="elsewhere")) == {"vogel": 1}


def test_a_pis_own_jobs_are_their_own(ledger):
    guest = group("climate", "uid=bob", "uid=vogel", owners=("chen",))
    sync(ledger, 1, *EVERYBODY, VISION, guest)
    assert by_pi(ledger, run(5, user="vogel"), run(5, user="vogel", account="climate")) == {
        "vogel": 1,
        "chen": 1,
    }


@pytest.mark.parametrize("user", ["mallory", ""])
def test_a_stranger_is_unmapped(ledger, user):
    sync(ledger, 1, *EVERYBODY, VISION)
    assert by_pi(ledger, run(5), run(5, user=user)) == {"vogel": 1, "unmapped": 1}


@pytest.mark.sql
def test_a_group_without_a_pi_leaves_the_account(ledger):
    sync(ledger, 1, *EVERYBODY, group("vision", "uid=alice"))
    assert by_pi(ledger, run(5)) == {"vision": 1}


def test_two_pis_who_had_one_user_name_are_two_rows(ledger):
    sync(ledger, 1, *EVERYBODY, VISION)
    other = person("vogel", directory_id="id-9", dn="uid=v2", display_name="Vera", uid=9)
    owned = group("vision", "uid=alice", owners=("v2",))
    sync(ledger, 10, ALICE, BOB, CHEN, other, owned)
    assert by_pi(ledger, run(5), run(15)) == {"vogel (Vogel)": 1, "vogel (Vera)": 1}


def test_a_clock_that_was_put_back_does_not_end_facts_before_they_began(ledger):
    sync(ledger, 10, ALICE, VOGEL, VISION)
    sync(ledger, 12, person("alice", username="al"), VOGEL, VISION)
    sync(ledger, 3, VOGEL, VISION)
    assert all(end is None or begin <= end for _, begin, end in dated(ledger, usernames))


def test_nothing_is_kept_of_a_sync_that_fails(ledger, monkeypatch):
    sync(ledger, 5, ALICE, VOGEL, VISION)
    before = [dated(ledger, table) for table in (people, usernames, memberships, people_syncs)]

    def fails(directory):
        raise RuntimeError

    monkeypatch.setattr("slurmkit_accounting.people.directory_sync.memberships_of_people", fails)
    with pytest.raises(RuntimeError):
        sync(ledger, 6, BOB, CLIMATE)
    after = [dated(ledger, table) for table in (people, usernames, memberships, people_syncs)]
    assert after == before


def stored_eras(ledger: Ledger) -> list[int]:
    with ledger.transaction() as connection:
        return sorted(connection.scalars(select(eras.c.at)))


class TestEras:
    def test_what_always_was_begins_no_era(self, ledger):
        sync(ledger, 5, *EVERYBODY, VISION)
        sync(ledger, 6, *EVERYBODY, VISION)
        assert stored_eras(ledger) == []

    def test_a_sync_that_changes_something_does(self, ledger):
        sync(ledger, 5, *EVERYBODY, VISION)
        sync(ledger, 8, *EVERYBODY, group("vision", "uid=alice", owners=("chen",)))
        sync(ledger, 9, *EVERYBODY, group("vision", "uid=alice", owners=("chen",)))
        assert stored_eras(ledger) == [day(8)]

    def test_a_new_mail_address_does_not(self, ledger):
        sync(ledger, 5, ALICE, VOGEL, VISION)
        assert sync(ledger, 8, person("alice", mail="a@new.example"), VOGEL, VISION)
        assert stored_eras(ledger) == []

    @pytest.mark.sql
    def test_usage_of_jobs_submitted_since_is_counted_under_it(self, ledger):
        sync(ledger, 1, *EVERYBODY, VISION)
        store_runs(ledger, *(ran(day(on) + 100, 3600) for on in (5, 15)))
        sync(ledger, 10, *EVERYBODY, group("vision", "uid=alice", owners=("chen",)))
        with ledger.transaction() as connection:
            kept = select(usage_keys.c.era, usage_months.c.gpu_seconds)
            kept = kept.join(usage_months, usage_months.c.key_id == usage_keys.c.id)
            assert sorted(map(tuple, connection.execute(kept))) == [(0, 7200), (day(10), 7200)]


class TestNestedGroups:
    INNER = group("inner", "uid=bob")

    def outer(self, *members: str) -> GroupEntry:
        return group("outer", *members, owners=("vogel",))

    @pytest.mark.sql
    def test_a_group_that_is_put_into_another_one_is_one_change(self, ledger):
        sync(ledger, 1, *EVERYBODY, self.INNER, self.outer())
        changes = sync(ledger, 10, *EVERYBODY, self.INNER, self.outer("cn=inner"))
        assert changes == ["membership added: inner in outer"]
        runs = [run(on, user="bob", account="outer") for on in (5, 15)]
        assert by_pi(ledger, *runs) == {"outer": 1, "vogel": 1}
        changes = sync(ledger, 20, *EVERYBODY, self.INNER, self.outer())
        assert changes == ["membership closed: inner in outer"]
        assert by_pi(ledger, *runs, run(25, user="bob", account="outer"))["outer"] == 2

    def test_of_new_people_in_a_new_group_it_is_true_from_the_beginning(self, ledger):
        sync(ledger, 5, VOGEL, self.outer())
        sync(ledger, 10, VOGEL, BOB, self.INNER, self.outer("cn=inner"))
        assert by_pi(ledger, run(3, user="bob", account="outer")) == {"vogel": 1}

    @pytest.mark.sql
    def test_many_groups_in_a_circle_keep_few_rows(self, ledger):
        staff = [person(f"p{n}", uid=n) for n in range(100)]
        ring = [group(f"g{n}", f"uid=p{n}", f"cn=g{(n + 1) % 100}") for n in range(99)]
        last = group("g99", "uid=p99", "cn=g0", owners=("p0",))
        sync(ledger, 1, *staff, *ring, last)
        assert len(dated(ledger, memberships)) == 101
        assert by_pi(ledger, run(5, user="p50", account="g99")) == {"p0": 1}


class TestDepartments:
    def of_alice(self, ledger: Ledger, *days: int) -> list[str]:
        with ledger.transaction() as connection:
            known = People.load(connection)
        return [known.department(known.person("alice", None, day(on)), day(on)) for on in days]

    def test_the_first_one_heard_of_was_always_theirs(self, ledger):
        sync(ledger, 5, ALICE, VOGEL, VISION)
        sync(ledger, 10, person("alice", department="Physics"), VOGEL, VISION)
        assert self.of_alice(ledger, 1, 12) == ["Physics", "Physics"]

    @pytest.mark.sql
    def test_later_ones_are_from_then_on(self, ledger):
        sync(ledger, 5, person("alice", department="Physics"), VOGEL, VISION)
        moved = person("alice", department="Biology")
        assert sync(ledger, 10, moved, VOGEL, VISION) == ["person changed: alice"]
        assert self.of_alice(ledger, 9, 10) == ["Physics", "Biology"]


class TestVanishing:
    STAFF = tuple(person(f"p{n}", uid=n) for n in range(20))

    def apply(self, ledger: Ledger, on: int, *left: PersonEntry, **options):
        found = Directory(left, (VISION, CLIMATE))
        return sync_people(ledger, PeopleData(found), now=day(on), **options)

    def test_more_than_the_share_is_refused_and_nothing_is_changed(self, ledger):
        self.apply(ledger, 5, *self.STAFF)
        words = (
            r"3 of 20 known people would be gone \(p0, p1, p2\),"
            r" more than \[ldap\] max_vanish = 0.1 allows"
        )
        with pytest.raises(DirectoryError, match=words):
            self.apply(ledger, 6, *self.STAFF[3:], max_vanish=0.1)
        assert {row[2] for row in dated(ledger, usernames)} == {None}
        assert stored_eras(ledger) == []

    def test_the_share_itself_may_go(self, ledger):
        self.apply(ledger, 5, *self.STAFF)
        assert len(self.apply(ledger, 6, *self.STAFF[2:], max_vanish=0.1).changes) == 2

    @pytest.mark.sql
    def test_of_many_the_first_are_named(self, ledger):
        self.apply(ledger, 5, *self.STAFF)
        with pytest.raises(DirectoryError, match=r"\(p0, p1, p10, p11, p12, ...\)"):
            self.apply(ledger, 6, self.STAFF[9], max_vanish=0.5)

    def test_newcomers_do_not_make_up_for_it(self, ledger):
        self.apply(ledger, 5, *self.STAFF[:10])
        with pytest.raises(DirectoryError, match="10 of 10 known people"):
            self.apply(ledger, 6, *self.STAFF[10:], max_vanish=0.9)

    def test_groups_too(self, ledger):
        self.apply(ledger, 5, *self.STAFF)
        with pytest.raises(DirectoryError, match=r"1 of 2 known groups would be gone \(climate\)"):
            sync_people(ledger, PeopleData(Directory(self.STAFF, (VISION,))), max_vanish=0.1)

    @pytest.mark.parametrize(
        ("everybody", "groups", "words"),
        [
            (STAFF, (group("a"), group("b")), r"3 of 3 people would be in no group any more"),
            (STAFF, (group("a", "uid=p0", "uid=p1", "uid=p2"), group("b", "uid=p1")),
             r"2 of 2 groups would have no owner any more \(a, b\)"),
            ([person(f"p{n}", uid=None) for n in range(20)], None,
             r"20 of 20 people would have no uid any more \(p0,"),
        ],
    )  # fmt: skip
    def test_what_may_not_be_read_any_more_is_not_taken_for_gone(
        self, ledger, everybody, groups, words
    ):
        known = (group("a", "uid=p0", "uid=p1", owners=("p2",)), group("b", owners=("p1",)))
        sync_people(ledger, PeopleData(Directory(self.STAFF, known)), now=day(5))
        told = PeopleData(Directory(tuple(everybody), groups or known))
        with pytest.raises(DirectoryError, match=words):
            sync_people(ledger, told, now=day(6), max_vanish=0.1)
        assert {row[2] for table in (uids, memberships) for row in dated(ledger, table)} == {None}
        assert sync_people(ledger, told, now=day(6), dry_run=True).refusal == ""  # forced

    def test_half_of_the_groups_may_lose_their_owner(self, ledger):
        known = (group("a", owners=("p2",)), group("b", owners=("p1",)))
        sync_people(ledger, PeopleData(Directory(self.STAFF, known)), now=day(5))
        told = PeopleData(Directory(self.STAFF, (known[0], group("b", "uid=p1"))))
        assert sync_people(ledger, told, now=day(6), max_vanish=0.1).changes

    def test_a_dry_run_says_so_and_shows_who(self, ledger):
        self.apply(ledger, 5, *self.STAFF)
        synced = self.apply(ledger, 6, *self.STAFF[3:], max_vanish=0.1, dry_run=True)
        assert "would be gone" in synced.refusal
        assert [one.who for one in synced.changes] == ["p0", "p1", "p2"]

    def test_who_is_gone_already_does_not_count(self, ledger):
        self.apply(ledger, 5, *self.STAFF)
        self.apply(ledger, 6, *self.STAFF[10:])
        with pytest.raises(DirectoryError, match="2 of 10 known"):
            self.apply(ledger, 7, *self.STAFF[12:], max_vanish=0.1)


class TestMoves:
    def test_a_dry_run_says_how_much_usage_would_change_hands(self, ledger):
        sync(ledger, 1, *EVERYBODY, VISION)
        store_runs(ledger, *(ran(day(on) + 100, 3600) for on in (5, 15)))
        owned = group("vision", "uid=alice", owners=("chen",))
        told = PeopleData(Directory(EVERYBODY, (owned,)))
        (move,) = sync_people(ledger, told, now=day(10), dry_run=True).moves
        assert (move.giver.name, move.taker.name) == ("vogel", "chen")
        assert move.gpu_seconds == 2 * 3600
        assert sync_people(ledger, told, now=day(20), dry_run=True).moves == ()
        assert stored_eras(ledger) == []
