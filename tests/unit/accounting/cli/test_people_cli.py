"""`slurmkit ledger people` as a person sees it: words on stdout and stderr, exit codes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from entries import group, person
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.people.model import Directory
from stored_runs import ran, store_runs

from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import DatabaseDown
from slurmkit.testing import FakeSlurm

LDAP = '[ldap]\nuri = "ldap://ldap"\npeople_base = "ou=p"\ngroups_base = "ou=g"\n'
TENTH = find_zone("UTC").epoch("2026-11-10")


@pytest.fixture
def coordinators(monkeypatch):
    """What sacctmgr shows, by account; an error in place of it is raised."""
    found: dict[str, str | Exception] = {}

    def sacctmgr(argv: Sequence[str], _: str | None) -> str:
        if "cluster" in argv:
            return "lab\n"
        for users in found.values():
            if isinstance(users, Exception):
                raise users
        return "".join(f"{account}|{users}\n" for account, users in found.items())

    monkeypatch.setattr(
        "slurmkit.slurm.commands.LocalSlurmCommands", lambda: FakeSlurm({"sacctmgr": sacctmgr})
    )
    return found


@pytest.fixture
def directory(monkeypatch, configure, coordinators):
    """What the LDAP server holds."""
    configure(LDAP)
    entries = {"people": (person("alice"), person("vogel")), "groups": ()}
    entries["groups"] = (group("vision", "uid=alice", owners=("vogel",)),)
    monkeypatch.setattr(
        "slurmkit_accounting.people.ldap.read_directory",
        lambda section, password: Directory(**entries),
    )
    return entries


def people(*words: str) -> int:
    return run_to_exit_code(ledger_group, ["people", *words])


def keep(*runs: dict[str, object]) -> None:
    with open_for_writing() as ledger:
        store_runs(ledger, *runs)


def hours(count: int, **other: object) -> dict[str, object]:
    return ran(TENTH, count * 3600, **other)


def test_sync_says_what_changed_on_stdout(directory, capsys):
    assert run_to_exit_code(ledger_group, ["people", "sync"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "person added: alice",
        "person added: vogel",
        "group added: vision",
        "membership added: alice in vision",
        "membership added: vogel in vision",
        "people: 2 added, 0 changed, 0 closed",
        "groups: 1 added, 0 changed, 0 closed",
        "memberships: 2 added, 0 closed",
    ]
    assert said.err == "2 people and 1 group in ldap://ldap; 0 coordinators\n"


def test_sync_shows_the_first_changes_of_many_and_counts_all(directory, capsys):
    directory["people"] = tuple(person(f"p{n}", uid=n) for n in range(60))
    directory["groups"] = (group("all", "uid=p1"),)
    assert run_to_exit_code(ledger_group, ["people", "sync", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert said.out.count("person added") == 50
    assert "and 12 more\npeople: 60 added" in said.out
    assert "dry run, nothing was changed" in said.err
    assert "group all has no owner" in said.err


def test_names_from_the_directory_cannot_paint_the_screen(directory, capsys):
    directory["people"] = (person("eve", username="eve\x1b[2J\nperson added: root"),)
    directory["groups"] = ()
    run_to_exit_code(ledger_group, ["people", "sync"])
    assert capsys.readouterr().out.startswith(
        "person added: eve\\x1b[2J\\nperson added: root\npeople: 1 added"
    )


def test_coordinators_come_from_slurm(directory, coordinators, capsys):
    coordinators |= {"climate": "vogel,alice", "root": ""}
    assert people("sync") == 0
    said = capsys.readouterr()
    assert "coordinator added: alice of climate in lab\n" in said.out
    assert "coordinators: 2 added, 0 closed\n" in said.out
    assert "2 coordinators" in said.err


def test_without_slurm_people_are_synced_all_the_same(directory, coordinators, capsys):
    coordinators["lab"] = DatabaseDown("slurmdbd does not answer")
    assert people("sync") == 0
    said = capsys.readouterr()
    words = "coordinators could not be read, the known ones stay: slurmdbd does not answer"
    assert words in said.err
    assert "people: 2 added" in said.out


def test_too_many_gone_is_refused_until_it_is_forced(directory, capsys):
    assert people("sync") == 0
    directory["people"] = (person("vogel"),)
    capsys.readouterr()
    assert people("sync", "--dry-run") == 0
    assert (
        "without --dry-run, this would be refused: 1 of 2 known people" in capsys.readouterr().err
    )
    assert people("sync") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("slurmkit: 1 of 2 known people would be gone (alice), more than")
    assert line.endswith("run once: slurmkit ledger people sync --force")
    assert people("sync", "--force") == 0
    assert "person closed: alice" in capsys.readouterr().out


def test_the_share_that_may_be_gone_is_configured(directory, configure, capsys):
    configure(f"{LDAP}max_vanish = 0.5\n")
    assert people("sync") == 0
    directory["people"] = (person("vogel"),)
    assert people("sync") == 0


def test_a_dry_run_says_how_many_gpu_hours_would_move(directory, configure, tmp_path, capsys):
    directory["people"] += (person("bob"),)
    assert people("sync") == 0
    keep(hours(3), hours(1, user="bob", account="climate"))
    overrides = tmp_path / "overrides.toml"
    overrides.write_text('[[override]]\naccount = "climate"\npi = "vogel"\n', "utf-8")
    configure(f'{LDAP}[ledger]\noverrides = "{overrides}"\n')
    capsys.readouterr()
    assert people("sync", "--dry-run") == 0
    said = capsys.readouterr()
    assert "override added: vogel for climate\n" in said.out
    assert "GPU-hours that would move: 2.00 from climate to vogel\n" in said.out
    assert "1 override" in said.err
    assert people("sync") == 0
    assert "would move" not in capsys.readouterr().out
    assert people("sync", "--dry-run") == 0
    assert "no GPU-hours would move to another PI" in capsys.readouterr().out


def test_overrides_alone_need_no_directory(coordinators, configure, tmp_path, capsys):
    overrides = tmp_path / "overrides.toml"
    overrides.write_text('[[override]]\nuser = "eve"\npi = "dean"\n', "utf-8")
    configure(f'[ledger]\noverrides = "{overrides}"\n')
    assert people("sync") == 0
    assert "override added: dean for eve" in capsys.readouterr().out


class TestUnmapped:
    @pytest.fixture(autouse=True)
    def _books(self, directory, capsys):
        directory["people"] += (person("bob"),)
        people("sync")
        keep(
            hours(1),
            hours(2, user="bob", account="climate"),
            hours(3, user="mallory"),
            hours(1, user="mallory"),
            hours(5, user="bob", account="staff", gpus=0, alloc_tres="cpu=4,gres/shard=2"),
        )
        capsys.readouterr()

    def test_each_with_its_hours_and_what_to_do(self, capsys):
        assert people("unmapped") == 0
        said = capsys.readouterr()
        header, *rows = said.out.splitlines()
        assert header.split() == [
            "CLUSTER", "ACCOUNT", "USER", "COUNTED_AS", "RUNS", "GPU_HOURS", "FIX"
        ]  # fmt: skip
        assert [row.split()[:6] for row in rows] == [
            ["lab", "vision", "mallory", "unmapped", "2", "8.00"],
            ["lab", "climate", "bob", "climate", "1", "4.00"],
            ["lab", "staff", "bob", "staff", "1", "0.00"],
        ]
        assert "mallory is not in the directory: add them, or write an override" in rows[0]
        assert "no group is named climate: create one with an owner" in rows[1]
        assert '[[override]] with account = "vision" and pi = "NAME"' in said.err

    def test_as_json(self, capsys):
        assert people("unmapped", "--json") == 0
        first = json.loads(capsys.readouterr().out)["rows"][0]
        assert (first["user"], first["gap"], first["gpu_hours"]) == ("mallory", "stranger", 8.0)
        assert (first["runs"], first["cpu_hours"]) == (2, 16.0)

    def test_why_a_group_does_not_tell(self, directory, capsys):
        directory["groups"] += (group("climate", "uid=vogel", owners=("vogel",)),)
        directory["groups"] += (group("staff", "uid=bob"),)
        directory["people"] += (person("mallory"),)
        # Of new people and new groups all of it always was so; of others it is from now on.
        people("sync")
        capsys.readouterr()
        assert people("unmapped") == 0
        rows = capsys.readouterr().out.splitlines()[1:]
        assert "mallory is not in the group vision: add them" in rows[0]
        assert "bob is not in the group climate: add them" in rows[1]

    def test_nothing_is_said_so(self, directory, configure, tmp_path, capsys):
        overrides = tmp_path / "overrides.toml"
        entries = ('account = "climate"', 'account = "staff"', 'user = "mallory"')
        lines = (f'[[override]]\n{entry}\npi = "vogel"\n' for entry in entries)
        overrides.write_text("".join(lines), "utf-8")
        configure(f'{LDAP}[ledger]\noverrides = "{overrides}"\n')
        people("sync")
        capsys.readouterr()
        assert people("unmapped") == 0
        said = capsys.readouterr()
        assert len(said.out.splitlines()) == 1
        assert said.err == "all usage of ended runs in the ledger has a PI\n"


def test_before_a_directory_was_read_that_is_what_to_do(coordinators, capsys):
    keep(hours(1))
    assert people("unmapped") == 0
    said = capsys.readouterr()
    assert "no directory was read yet: slurmkit setup, slurmkit ledger people sync" in said.out
    assert "only ended runs are listed" in said.err


def test_coordinators_alone_are_enough(coordinators, capsys):
    keep(hours(1), hours(2, user="bob", account="climate"))
    coordinators["vision"] = "vogel"
    assert people("sync") == 0
    said = capsys.readouterr()
    assert "coordinator added: vogel of vision in lab" in said.out
    assert "only coordinators of Slurm's accounts were read" in said.err
    assert people("unmapped") == 0
    _, row = capsys.readouterr().out.splitlines()
    assert "climate" in row
    assert "add a coordinator of climate (sacctmgr add coordinator), or write an over" in row
    coordinators["vision"] = DatabaseDown("slurmdbd does not answer")
    assert people("sync") == 1


class TestShow:
    @pytest.fixture(autouse=True)
    def _books(self, directory, coordinators, capsys):
        inner = group("inner", "uid=bob")
        outer = group("Vision", "uid=alice", "cn=inner", owners=("vogel",))
        directory["people"] += (person("bob", department="Physics"),)
        directory["groups"] = (inner, outer)
        coordinators["climate"] = "vogel"
        people("sync")
        directory["people"] = (person("alice"), person("vogel"), person("bob", username="rob"))
        people("sync")
        capsys.readouterr()

    def lines(self, capsys, name: str) -> list[list[str]]:
        assert people("show", name) == 0
        out = capsys.readouterr().out.splitlines()
        start = next(n for n, line in enumerate(out) if line.startswith("WHAT"))
        return [line.split(maxsplit=1) for line in out[start + 1 :]]

    def test_a_person_by_a_name_they_had(self, capsys):
        assert people("show", "BOB") == 0
        out = capsys.readouterr().out
        assert out.startswith("person            Bob\ndirectory id      id-bob\n")
        assert "account           active\n" in out
        words = [line.split() for line in out.splitlines()]
        assert ["user", "name", "bob", "always"] in [line[:4] for line in words]
        assert ["user", "name", "rob"] in [line[:3] for line in words]
        assert ["uid", str(person("bob").uid), "always", "still"] in words
        assert ["group", "Vision", "always", "still"] in words
        assert ["group", "inner", "always", "still"] in words
        assert ["PI", "vogel", "(group)", "in", "Vision", "always", "still"] in words
        assert ["department", "Physics", "always"] in [line[:3] for line in words]

    def test_a_pi(self, capsys):
        assert people("show", "vogel") == 0
        words = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["owner", "of", "Vision", "always", "still"] in words
        assert ["coordinator", "of", "climate", "always", "still"] in words

    def test_a_group(self, capsys):
        assert people("show", "vision", "--json") == 0
        (found,) = json.loads(capsys.readouterr().out)["rows"]
        assert (found["kind"], found["display_name"], found["mail"]) == ("group", "Vision", None)
        told = {(line["what"], line["value"]) for line in found["lines"]}
        assert told == {
            ("name", "vision"),
            ("owner", "vogel"),
            ("contains", "inner"),
            ("member", "alice"),
            ("member", "vogel"),
        }

    def test_nobody(self, capsys):
        assert people("show", "nobody") == 2
        assert "has no person or group named 'nobody'" in capsys.readouterr().err


class TestOverridesCheck:
    def test_shows_what_is_in_the_file(self, configure, tmp_path, capsys):
        path = tmp_path / "overrides.toml"
        path.write_text(
            '[[override]]\naccount = "climate"\npi = "chen"\nvalid_from = 2026-07-01\n', "utf-8"
        )
        configure(f'[ledger]\noverrides = "{path}"\n')
        assert people("overrides", "check") == 0
        row = capsys.readouterr().out.splitlines()[1].split()
        assert row == ["climate", "anybody", "chen", "2026-07-01", "00:00:00+00:00", "still"]

    def test_says_where_to_name_one(self, capsys):
        assert people("overrides", "check") == 2
        assert "name one in [ledger] overrides" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["sync", "unmapped", "show", "overrides check"])
def test_every_command_has_help_with_examples(capsys, words):
    assert people(*words.split(), "--help") == 0
    assert "Examples:\n" in capsys.readouterr().out
