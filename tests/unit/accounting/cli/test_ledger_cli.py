"""The commands as a person sees them: words on stdout and stderr, exit codes."""

from __future__ import annotations

import os
import time

import pytest
from fake_sacct import FakeSacct, job
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.cli.reclaim import reclaim_group
from slurmkit_accounting.cli.report import report_group

from slurmkit.cli.main import run_to_exit_code

NOW = int(time.time())
FIELDS = "JobIDRaw,User,Submit,Start,End,State"
LDAP = '[ldap]\nuri = "ldap://ldap"\npeople_base = "ou=p"\ngroups_base = "ou=g"\n'
WINDOW = ["--from", "2026-11-10", "--to", "2026-11-11", "--by", "pi"]


@pytest.fixture
def slurm(monkeypatch):
    fake = FakeSacct(job(1, NOW - 100, NOW - 90, NOW - 50))
    monkeypatch.setattr("slurmkit.slurm.commands.LocalSlurmCommands", lambda: fake)
    return fake


def test_ingest_says_what_it_read(slurm, capsys):
    assert run_to_exit_code(ledger_group, ["ingest"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("cluster lab: 1 row read, 1 new, 0 changed, 0 rejected; window ")
    assert said.out.rstrip().endswith(" s")
    begin = said.out.partition("window ")[2].partition(" to ")[0]
    assert f"the ledger begins at {begin}; for older jobs" in said.err
    assert run_to_exit_code(ledger_group, ["ingest"]) == 0
    assert "the ledger begins" not in capsys.readouterr().err


def test_a_first_ingest_says_where_the_books_begin_also_when_it_was_told(slurm, capsys):
    assert run_to_exit_code(ledger_group, ["ingest", "--since", "2026-01-01"]) == 0
    assert "the ledger begins at 2026-01-01 00:00:00+00:00;" in capsys.readouterr().err


def test_an_ingest_never_fails_because_of_the_hosts_zone(slurm, capsys, monkeypatch):
    monkeypatch.setenv("TZ", "EST5EDT,M3.2.0,M11.1.0")
    assert run_to_exit_code(ledger_group, ["ingest", "--since", "2026-01-01"]) == 0
    assert "window 2026-01-01 00:00:00+00:00 to " in capsys.readouterr().out
    assert run_to_exit_code(report_group, ["usage", *WINDOW]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "TZ 'EST5EDT,M3.2.0,M11.1.0' is not in the time zone database" in line
    assert "--timezone" in line
    assert run_to_exit_code(report_group, ["usage", *WINDOW, "--timezone", "UTC"]) == 0


def test_books_of_ones_own_are_not_the_sites(slurm, capsys, configure, tmp_path, monkeypatch):
    def told() -> list[str]:
        assert run_to_exit_code(ledger_group, ["ingest"]) == 0
        return [line for line in capsys.readouterr().err.splitlines() if "the site's" in line]

    assert told() == []
    site = '[ledger.service]\nurl = "http://ledger:6830"\nuser = "{}"\n'
    configure(site.format("slurmkit-keeper"))
    path = f"{tmp_path}/data/slurmkit/ledger.db"
    (line,) = told()
    assert line == (
        f"this ledger, {path}, is not the site's: reports use the site's service at"
        f" http://ledger:6830; to use this ledger, add: --db sqlite:///{path}"
    )
    configure(site.format(os.geteuid()))  # the service's own account keeps the site's
    assert told() == []
    configure(site.format("slurmkit-keeper"))
    monkeypatch.setenv("SLURMKIT_DB", f"sqlite:///{path}")  # so reports read them too
    assert told() == []


@pytest.mark.parametrize(
    "argv",
    [
        ["ledger", "status"],
        ["ledger", "people", "unmapped"],
        ["ledger", "people", "show", "alice"],
        ["reclaim", "check", "--month", "2026-10"],
    ],
    ids=" ".join,
)
def test_beside_a_sites_ledger_each_command_says_whose_it_reads(
    slurm, capsys, configure, tmp_path, argv
):
    groups = {"ledger": ledger_group, "reclaim": reclaim_group}
    policy = "[reclaim.idle]\nminutes = 60\n"
    configure(f'{policy}[ledger.service]\nurl = "http://ledger:6830"\nuser = "54321"\n')
    assert run_to_exit_code(groups[argv[0]], argv[1:]) == 1
    assert "run it on the host of the service" in (said := capsys.readouterr().err)
    assert "create it with" not in said
    assert f"(there is no ledger at {tmp_path}/data/slurmkit/ledger.db yet)" in said
    assert run_to_exit_code(ledger_group, ["ingest"]) == 0
    capsys.readouterr()
    run_to_exit_code(groups[argv[0]], argv[1:])
    assert "is not the site's: reports use the site's service" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "private", "words"),
    [
        (["--since", "2090-01-01"], "none", "--since is in the future"),
        (["--db", "sqlite:///{}/own.db"], "jobs", "PrivateData=jobs hides"),
        (["--file", "{}/old.txt", "--cluster", "lab", "--header", "--fields", FIELDS], "none",
         "the header is 'JobID'"),
    ],
)  # fmt: skip
def test_an_ingest_that_cannot_begin_leaves_no_empty_ledger_behind(
    slurm, capsys, tmp_path, monkeypatch, option, private, words
):
    slurm.private = private
    monkeypatch.setattr("slurmkit_accounting.sacct.query.os.geteuid", lambda: 54321)
    (tmp_path / "old.txt").write_text("JobID\n")
    argv = ["ingest", *(text.replace("{}", str(tmp_path)) for text in option)]
    assert run_to_exit_code(ledger_group, argv) != 0
    assert words in capsys.readouterr().err
    assert list(tmp_path.rglob("*.db")) == []


def test_an_export_makes_no_folder(slurm, capsys, tmp_path):
    assert run_to_exit_code(ledger_group, ["ingest"]) == 0
    url = f"sqlite:///{tmp_path}/nosuch/backup.db"
    assert run_to_exit_code(ledger_group, ["export", url]) == 1
    assert "make its folder" in capsys.readouterr().err
    assert not (tmp_path / "nosuch").exists()


def test_ingest_names_the_first_reject(slurm, capsys):
    slurm.jobs[0]["Start"] = "soon\x07"
    assert run_to_exit_code(ledger_group, ["ingest", "--since", "2026-01-01"]) == 0
    said = capsys.readouterr()
    assert "1 rejected; window 2026-01-01 00:00:00+00:00" in said.out
    assert "ledger rejects; the first: Start 'soon\\x07' cannot be read" in said.err


@pytest.mark.parametrize(
    ("group", "words", "code", "message"),
    [
        (report_group, ["usage", *WINDOW], 1, "create it with: slurmkit ledger ingest"),
        (report_group, ["usage", *WINDOW, "--by", "colour"], 2, "is not one of 'pi'"),
        (report_group, ["usage", *WINDOW, "--format", "pdf"], 2, "no plugin 'pdf' of slurmkit."),
        (report_group, ["usage", *WINDOW, "--db", "x"], 2, "the ledger's URL is not valid"),
        (ledger_group, ["ingest", "--since", "x"], 2, "'x' is not a date"),
        (ledger_group, ["ingest", "--since", ""], 2, "'' is not a date"),
        (ledger_group, ["people", "sync"], 1, "Slurm's sacctmgr is not on the PATH"),
    ],
)
def test_what_cannot_be_is_one_line(capsys, group, words, code, message):
    assert run_to_exit_code(group, words) == code
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("slurmkit: ")
    assert message in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from", "2026-11-11", "--to", "2026-11-11"], "must be after --from 2026-11-11"),
        (["--from", "11.11.2026", "--to", "2026-11-11"], "'11.11.2026' is not a date"),
        (
            ["--from", "2026-11-10", "--to", "2026-11-11", "--timezone", "UCT+1"],
            "time zone 'UCT+1'",
        ),
        (["--from", "2026-11-10", "--to", "2026-11-11", "--timezone", ""], "time zone ''"),
        (["--from", "2026-11-10", "--to", "2026-11-11", "--job", "abc"], "'abc' is not a job id"),
        (["--from", "2026-11-10", "--to", "2026-11-11", "--job", "foo bar"], "is not a job id"),
        (["--from", "2026-11-10", "--to", "2026-11-11", "--job", ""], "'' is not a job id"),
        (
            ["--from", "0001-01-01", "--to", "2026-11-11", "--timezone", "Asia/Tokyo"],
            "'0001-01-01' is outside the years 1 to 9999 in Asia/Tokyo",
        ),
    ],
)
def test_a_window_that_cannot_be_is_one_line(slurm, capsys, options, message):
    run_to_exit_code(ledger_group, ["ingest"])
    capsys.readouterr()
    assert run_to_exit_code(report_group, ["usage", "--by", "user", *options]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_key_in_the_configuration_names_the_nearest(configure, capsys):
    configure('[ldap]\npeople_bse = "ou=p"\n')
    assert run_to_exit_code(ledger_group, ["people", "sync"]) == 2
    assert "did you mean 'people_base'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("timeout = -1", "timeout"),
        ("timeout = 0", "timeout"),
        ("timeout = 1000000000000", "timeout"),
        ("page_size = 0", "page_size"),
        ("page_size = 2147483648", "page_size"),
    ],
)
def test_a_number_that_cannot_be_meant_names_its_key(configure, capsys, setting, words):
    configure(f"{LDAP}{setting}\n")
    assert run_to_exit_code(ledger_group, ["people", "sync"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"$.{words}" in line


def test_a_password_in_the_urls_query_is_never_shown(capsys):
    url = "postgresql://me@127.0.0.1:1/books?password=hunter2"
    for command, words in ((report_group, ["usage", *WINDOW]), (ledger_group, ["ingest"])):
        assert run_to_exit_code(command, [*words, "--db", url]) == 2
        said = capsys.readouterr()
        assert "~/.pgpass" in said.err
        assert "hunter2" not in said.out + said.err


def test_every_command_has_help_with_examples(capsys):
    for command, words in (
        (ledger_group, ["people", "sync"]),
        (ledger_group, ["ingest"]),
        (report_group, ["usage"]),
    ):
        assert run_to_exit_code(command, [*words, "--help"]) == 0
        assert "Examples:\n" in capsys.readouterr().out
