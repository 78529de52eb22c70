"""The site's own file of PIs, and Slurm's coordinators."""

from __future__ import annotations

from pathlib import Path

import pytest
from entries import group, person
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.people import coordinators, eras
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.people.coordinators import (
    Coordinator,
    parse_coordinators,
    read_coordinators,
)
from slurmkit_accounting.people.model import Directory
from slurmkit_accounting.people.pi import People
from slurmkit_accounting.people.sync import PeopleData, PiOverride, load_overrides, sync_people
from sqlalchemy import insert, select

from slurmkit.errors import BadConfig, SlurmError
from slurmkit.testing import FakeSlurm

BERLIN = find_zone("Europe/Berlin")
KNOWN = Directory(
    (person("alice"), person("vogel"), person("chen")),
    (group("vision", "uid=alice", owners=("vogel",)),),
)
EVE = '[[override]]\nuser = "eve"\npi = "chen"\n'
ONE = frozenset([Coordinator("lab", "chen")])
TWO = frozenset([Coordinator("lab", "vogel")])


@pytest.fixture
def read(tmp_path: Path):
    def read_text(text: str) -> tuple[PiOverride, ...]:
        path = tmp_path / "overrides.toml"
        path.write_text(text, "utf-8")
        return load_overrides(path, BERLIN)

    return read_text


def said(ledger: Ledger, at: int, *overrides: PiOverride, **told) -> list[str]:
    synced = sync_people(ledger, PeopleData(KNOWN, overrides, **told), now=at)
    return [f"{one.kind} {one.what}: {one.who}" for one in synced.changes if one.kind != "person"]


def pi(ledger: Ledger, at: int, account: str = "vision", user: str = "alice") -> str:
    with ledger.transaction() as connection:
        return People.load(connection).pi(1, account, user, None, at).name


class TestReading:
    def test_entries(self, read):
        assert read(
            """
            [[override]]
            account = "Climate"
            user = "bob"
            pi = "chen"
            valid_from = 2026-07-01
            valid_to = 2026-12-01T12:00:00Z
            [[override]]
            user = "eve"
            pi = "vogel"
            """
        ) == (
            PiOverride(
                account="climate",
                user="bob",
                pi="chen",
                valid_from=BERLIN.epoch("2026-07-01"),
                valid_to=find_zone("UTC").epoch("2026-12-01T12:00"),
            ),
            PiOverride(user="eve", pi="vogel"),
        )

    def test_a_file_without_entries(self, read):
        assert read("# none yet\n") == ()

    def test_dates_that_touch_do_not_overlap(self, read):
        entry = '[[override]]\nuser = "eve"\npi = "{}"\n{} = 2026-01-01\n'
        assert len(read(entry.format("a", "valid_to") + entry.format("b", "valid_from"))) == 2

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("[[override]", "is not TOML"),
            ('[override]\npi = "x"', r"only entries, each under a line \[\[override\]\]"),
            ('[[overrides]]\npi = "x"', r"only entries, each under a line \[\[override\]\]"),
            ('[[override]]\npi = "x"', "entry 1 needs pi, and also account or user \\(or both\\)"),
            ('[[override]]\nuser = "x"', "entry 1 needs pi"),
            ('[[override]]\nuser = "x"\npi = 7', "pi must be text; put it in quotes"),
            ('[[override]]\nusr = "x"\npi = "y"', "no key 'usr'; did you mean 'user'?"),
            (
                '[[override]]\nuser = "x"\npi = "y"\nvalid_to = "2026-01-01"',
                "valid_to must be a date; write it without quotes",
            ),
            (
                EVE + "valid_from = 2026-01-02\nvalid_to = 2026-01-02",
                "valid_to must be later than valid_from",
            ),
            (
                EVE + EVE + "valid_from = 2026-01-02",
                "entries 1 and 2 name a PI of eve for the same time",
            ),
        ],
    )
    def test_what_cannot_be_meant(self, read, text, words):
        with pytest.raises(BadConfig, match=words):
            read(text)

    def test_a_file_that_is_not_there(self):
        with pytest.raises(BadConfig, match="cannot read /nowhere: No such file"):
            load_overrides(Path("/nowhere"))


class TestKeeping:
    EVE = PiOverride(account="vision", pi="chen", valid_from=100, valid_to=200)

    def test_they_hold_for_their_dates_also_in_the_past(self, ledger):
        said(ledger, 1000)
        assert said(ledger, 2000, self.EVE) == ["override added: chen for vision"]
        assert [pi(ledger, at) for at in (99, 100, 199, 200)] == ["vogel", "chen", "chen", "vogel"]
        with ledger.transaction() as connection:
            assert sorted(connection.scalars(select(eras.c.at))) == [100, 200]

    @pytest.mark.sql
    def test_what_the_file_does_not_say_any_more_never_was(self, ledger):
        said(ledger, 1000, self.EVE)
        assert said(ledger, 2000, self.EVE) == []
        assert said(ledger, 3000) == ["override closed: chen for vision"]
        assert pi(ledger, 150) == "vogel"

    def test_without_a_file_those_known_stay(self, ledger):
        said(ledger, 1000, self.EVE)
        assert sync_people(ledger, PeopleData(KNOWN), now=2000).changes == ()
        assert pi(ledger, 150) == "chen"


class TestCoordinators:
    @pytest.fixture(autouse=True)
    def _cluster(self, ledger):
        with ledger.transaction() as connection:
            connection.execute(insert(clusters), {"name": "here"})

    def test_lines_of_sacctmgr(self):
        assert parse_coordinators("lab|chen,vogel\nroot|\n") == ONE | TWO
        assert parse_coordinators("") == frozenset()
        with pytest.raises(SlurmError, match="cannot be read: 'oops'"):
            parse_coordinators("oops\n")

    def test_asked_for_all_clusters_of_the_database(self):
        def sacctmgr(argv, _):
            assert argv[:3] == ["sacctmgr", "--noheader", "--parsable2"]
            return "here\nthere\n" if "cluster" in argv else "lab|chen\n"

        assert read_coordinators(FakeSlurm({"sacctmgr": sacctmgr})) == {"here": ONE, "there": ONE}

    @pytest.mark.sql
    def test_those_heard_of_first_always_were_it_and_the_next_one_is_from_then_on(self, ledger):
        assert said(ledger, 1000, coordinators={"here": ONE})[-1] == (
            "coordinator added: chen of lab in here"
        )
        assert said(ledger, 2000, coordinators={"here": TWO}) == [
            "coordinator added: vogel of lab in here",
            "coordinator closed: chen of lab in here",
        ]
        assert [pi(ledger, at, "lab") for at in (5, 1999, 2000)] == ["chen", "chen", "vogel"]

    @pytest.mark.sql
    def test_a_coordinator_of_another_account_is_from_then_on(self, ledger):
        said(ledger, 1000, coordinators={"here": ONE})
        said(ledger, 2000, coordinators={"here": ONE | {Coordinator("new", "vogel")}})
        assert [pi(ledger, at, "new", "chen") for at in (1999, 2000)] == ["new", "vogel"]

    def test_where_slurm_did_not_answer_those_known_stay(self, ledger):
        said(ledger, 1000, coordinators={"here": ONE})
        assert said(ledger, 2000) == []
        assert pi(ledger, 3000, "lab") == "chen"

    @pytest.mark.sql
    def test_the_only_cluster_may_be_new(self, ledger):
        said(ledger, 1000, coordinators={"new": ONE})
        with ledger.transaction() as connection:
            rows = connection.execute(select(clusters.c.name).join(coordinators)).all()
        assert rows == [("new",)]

    def test_clusters_that_the_ledger_is_not_about_are_left_out(self, ledger):
        said(ledger, 1000, coordinators={"here": ONE, "there": ONE})
        with ledger.transaction() as connection:
            assert list(connection.scalars(select(clusters.c.name))) == ["here"]
