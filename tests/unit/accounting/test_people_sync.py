"""People with dates, and whose job it was then."""

from __future__ import annotations

import pytest
from entries import group, person
from fake_sacct import FakeSacct, job
from slurmkit_accounting.ingest import ingest
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.people import Directory, GroupEntry, PersonEntry
from slurmkit_accounting.people_sync import sync_people
from slurmkit_accounting.report import usage_report
from slurmkit_accounting.schema import (
    group_names,
    memberships,
    people,
    people_syncs,
    uids,
    usernames,
)
from slurmkit_accounting.zones import zone
from sqlalchemy import select

DAY = 86400
UTC = zone("UTC")
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
    changes = sync_people(ledger, found, now=day(on), dry_run=dry_run)
    return [f"{one.kind} {one.what}: {one.who}" for one in changes]


def dated(ledger: Ledger, table) -> list[tuple]:
    with ledger.transaction() as connection:
        rows = connection.execute(select(table).order_by(table.c.id)).all()
    return [tuple(row[2:]) for row in rows]


def run(number: int, on: int, user: str = "alice", account: str = "vision", **other):
    submitted = day(on) + 100
    return job(number, submitted, submitted, submitted + 10, User=user, Account=account, UID="") | {
        name: str(value) for name, value in other.items()
    }


def by_pi(ledger: Ledger, *runs) -> dict[str, int]:
    ingest(ledger, FakeSacct(*runs), since=NOVEMBER)
    found = usage_report(ledger, ("2026-11-01", "2026-12-01"), by="pi", zone=UTC, now=day(31))
    assert [row.mapped for row in found.rows] == sorted(
        (r.mapped for r in found.rows), reverse=True
    )
    return {row.key: row.jobs for row in found.rows}


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


def test_syncing_again_changes_nothing(ledger):
    sync(ledger, 5, *EVERYBODY, VISION, CLIMATE)
    before = [dated(ledger, table) for table in (people, usernames, uids, memberships)]
    assert sync(ledger, 6, *EVERYBODY, VISION, CLIMATE) == []
    assert [dated(ledger, table) for table in (people, usernames, uids, memberships)] == before


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


def test_who_is_gone_is_closed_and_kept_and_may_come_back(ledger):
    sync(ledger, 5, ALICE, VOGEL, VISION)
    sync(ledger, 10, VOGEL, VISION)
    assert dated(ledger, usernames)[0] == ("alice", 0, day(10))
    with ledger.transaction() as connection:
        row = connection.execute(select(people).where(people.c.directory_id == "id-alice")).one()
    assert (row.closed_at, row.active, row.display_name) == (day(10), False, "Alice")
    sync(ledger, 15, ALICE, VOGEL, VISION)
    assert dated(ledger, usernames)[2] == ("alice", day(15), None)
    assert by_pi(ledger, run(1, 3), run(2, 12), run(3, 20)) == {"vogel": 2, "unmapped": 1}


def test_a_user_name_used_again_is_the_new_persons_only_from_then(ledger):
    successor = person("alice", directory_id="id-2", dn="uid=alice2")
    sync(ledger, 5, ALICE, BOB, VOGEL, CHEN, VISION, CLIMATE)
    sync(ledger, 10, successor, *EVERYBODY[1:], group("vision", owners=("vogel",)), CLIMATE)
    assert [row for row in dated(ledger, usernames) if row[0] == "alice"] == [
        ("alice", 0, day(10)),
        ("alice", day(10), None),
    ]
    assert [row for row in dated(ledger, uids) if row[0] == ALICE.uid][1][1] == day(10)
    assert by_pi(ledger, run(1, 3), run(2, 12)) == {"vogel": 1, "unmapped": 1}


def test_last_weeks_job_stays_with_last_weeks_pi(ledger):
    sync(ledger, 1, *EVERYBODY, VISION, CLIMATE)
    moved = group("climate", "uid=bob", "uid=alice", owners=("chen",))
    sync(ledger, 10, *EVERYBODY, group("vision", owners=("vogel",)), moved)
    sync(ledger, 20, *EVERYBODY, group("vision", owners=("chen",)), moved)
    runs = [run(1, 5), run(2, 15, account="climate"), run(3, 5, account="none")]
    assert by_pi(ledger, *runs) == {"vogel": 2, "chen": 1}


def test_a_new_pi_gets_the_jobs_from_then_on(ledger):
    sync(ledger, 1, *EVERYBODY, VISION)
    sync(ledger, 10, *EVERYBODY, group("vision", "uid=alice", owners=("chen",)))
    assert by_pi(ledger, run(1, 5), run(2, 15), run(3, 16)) == {"vogel": 1, "chen": 2}


def test_a_renamed_user_is_still_the_same_person(ledger):
    sync(ledger, 1, *EVERYBODY, VISION)
    renamed = person("alice", username="amoreau", uid=ALICE.uid)
    sync(ledger, 10, renamed, *EVERYBODY[1:], VISION)
    assert by_pi(ledger, run(1, 5), run(2, 15, user="amoreau")) == {"vogel": 2}


def test_slurm_may_show_the_new_name_for_an_old_job_then_the_uid_tells(ledger):
    sync(ledger, 1, *EVERYBODY, VISION)
    sync(ledger, 10, person("alice", username="amoreau", uid=ALICE.uid), *EVERYBODY[1:], VISION)
    assert by_pi(ledger, run(1, 5, user="amoreau", UID=ALICE.uid)) == {"vogel": 1}


def test_the_account_decides_for_who_is_in_two_groups(ledger):
    both = group("climate", "uid=alice", owners=("chen",))
    sync(ledger, 1, *EVERYBODY, VISION, both)
    runs = [run(1, 5), run(2, 5, account="climate"), run(3, 5, account="elsewhere")]
    assert by_pi(ledger, *runs) == {"vogel": 1, "chen": 1, "unmapped": 1}


def test_a_job_under_the_account_of_others_is_nobodys(ledger):
    sync(ledger, 1, *EVERYBODY, VISION, CLIMATE)
    runs = [run(n, 5, account=name) for n, name in enumerate(("climate", "Climate", "elsewhere"))]
    assert by_pi(ledger, *runs) == {"unmapped": 2, "vogel": 1}


def test_an_account_that_named_no_group_then_does_not_decide(ledger):
    sync(ledger, 1, *EVERYBODY, VISION, group("field", "uid=bob", owners=("chen",)))
    renamed = group("climate", "uid=bob", owners=("chen",), directory_id="id-field")
    sync(ledger, 10, *EVERYBODY, VISION, renamed)
    early, late = run(1, 5, account="climate"), run(2, 15, account="climate")
    assert by_pi(ledger, early, late) == {"vogel": 1, "unmapped": 1}


def test_a_groups_account_without_a_pi_does_not_fall_back_on_another_group(ledger):
    sync(
        ledger,
        1,
        *EVERYBODY,
        group("vision", "uid=alice"),
        group("x", "uid=alice", owners=("chen",)),
    )
    assert by_pi(ledger, run(1, 5), run(2, 5, account="none")) == {"unmapped": 1, "chen": 1}


@pytest.mark.parametrize("account", ["vision", "Vision", "VISION"])
def test_case_does_not_tell_accounts_and_groups_apart(ledger, account):
    both = group("climate", "uid=alice", owners=("chen",))
    sync(ledger, 1, *EVERYBODY, group("Vision", "uid=alice", owners=("vogel",)), both)
    assert by_pi(ledger, run(1, 5, account=account)) == {"vogel": 1}


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
    assert by_pi(ledger, run(1, 5, user="bob", account="elsewhere")) == {"vogel": 1}


def test_a_pis_own_jobs_are_their_own(ledger):
    guest = group("climate", "uid=bob", "uid=vogel", owners=("chen",))
    sync(ledger, 1, *EVERYBODY, VISION, guest)
    assert by_pi(ledger, run(1, 5, user="vogel"), run(2, 5, user="vogel", account="climate")) == {
        "vogel": 1,
        "chen": 1,
    }


@pytest.mark.parametrize("user", ["mallory", ""])
def test_a_stranger_is_unmapped_and_comes_last(ledger, user):
    sync(ledger, 1, *EVERYBODY, VISION)
    strangers = [run(n, 5, user=user) for n in range(2, 9)]
    assert list(by_pi(ledger, run(1, 5), *strangers).items()) == [("vogel", 1), ("unmapped", 7)]


def test_a_group_without_a_pi_is_unmapped(ledger):
    sync(ledger, 1, *EVERYBODY, group("vision", "uid=alice"))
    assert by_pi(ledger, run(1, 5)) == {"unmapped": 1}


def test_two_pis_who_had_one_user_name_are_two_rows(ledger):
    sync(ledger, 1, *EVERYBODY, VISION)
    other = person("vogel", directory_id="id-9", dn="uid=v2", display_name="Vera", uid=9)
    owned = group("vision", "uid=alice", owners=("v2",))
    sync(ledger, 10, ALICE, BOB, CHEN, other, owned)
    assert by_pi(ledger, run(1, 5), run(2, 15)) == {"vogel (Vogel)": 1, "vogel (Vera)": 1}


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

    monkeypatch.setattr("slurmkit_accounting.people_sync.people_of_groups", fails)
    with pytest.raises(RuntimeError):
        sync(ledger, 6, BOB, CLIMATE)
    after = [dated(ledger, table) for table in (people, usernames, memberships, people_syncs)]
    assert after == before
