"""Which rows of sacct are one run: those with one JobIDRaw and Submit, whatever their DBIndex."""

from __future__ import annotations

import io
import json
import re

import pytest
from fake_sacct import FakeSacct, job, lately
from slurmkit_accounting import read
from slurmkit_accounting.audit.status import load_ledger_status
from slurmkit_accounting.audit.verify import verify
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.ingest.file import IngestedFile, SacctFile, ingest_file
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import rejects, revisions, runs
from sqlalchemy import select

from slurmkit.cli.main import run_to_exit_code

NOW = lately()
DAY = 86400
FIELDS = ("DBIndex", "JobIDRaw", "User", "Submit", "Start", "End", "State", "AllocTRES")
T = 1_793_491_200


def stored(ledger: Ledger, table=runs) -> list:
    with ledger.transaction() as connection:
        return list(connection.execute(select(table).order_by(table.c.id)).mappings())


def gpu_hours(ledger: Ledger) -> dict[str, float]:
    report = read.usage(ledger, begin="2020-01-01", end="2040-01-01", by="user")
    return {row["user"]: row["gpu_hours"] for row in report.rows}


def of_alice_and_of_bob() -> tuple[list[dict], list[dict]]:
    """Five jobs of 20 GPU-hours of alice; then five short ones of bob with the same DBIndexes."""
    old = NOW - 12 * DAY
    alice = [job(n, old + n, old + 7, old + 7 + 36000) for n in range(1, 6)]
    bob = [job(70 + n, NOW - 900 + n, NOW - 800, NOW - 700, User="bob") for n in range(1, 6)]
    return alice, [row | {"DBIndex": one["DBIndex"]} for row, one in zip(bob, alice, strict=True)]


def dump(*rows: tuple[int, int, str, int], hours: int = 1) -> str:
    """Rows of a file: DBIndex, JobIDRaw, user and Submit, each with a run of two GPUs."""
    return "".join(
        f"{index}|{number}|{user}|{at}|{at + 60}|{at + 60 + hours * 3600}|COMPLETED|gres/gpu=2\n"
        for index, number, user, at in rows
    )


def load(ledger: Ledger, text: str, zone: str = "UTC", fields=FIELDS) -> IngestedFile:
    stream = io.BytesIO(text.encode())
    file = SacctFile("dump.txt", stream, "lab", fields, "|", find_zone(zone))
    return ingest_file(ledger, file)


def test_an_accounting_database_that_was_set_up_anew_overwrites_no_run(ledger):
    alice, bob = of_alice_and_of_bob()
    slurm = FakeSacct(*alice)
    assert ingest(ledger, slurm).entered.reused == 0
    assert gpu_hours(ledger) == {"alice": 100.0}
    slurm.jobs = bob
    done = ingest(ledger, slurm).entered
    assert (done.read, done.new, done.changed, done.reused) == (5, 5, 0, 5)
    used = gpu_hours(ledger)
    assert used["alice"] == 100.0
    assert used["bob"] == pytest.approx(5 * 2 * 100 / 3600, abs=0.01)
    assert stored(ledger, revisions) == []
    again = ingest(ledger, slurm).entered
    assert (again.new, again.changed, again.reused) == (0, 0, 0)
    (one,) = load_ledger_status(ledger).clusters
    assert (one.runs, one.reused) == (10, 5)
    with ledger.transaction() as connection:
        found = verify(connection)
    assert found.wrong == []
    (note,) = found.notes
    assert "of lab was re-created: 5 DBIndexes belong to several jobs; all are stored" in note


@pytest.mark.sql
def test_two_dumps_with_one_dbindex_are_two_runs(ledger):
    load(ledger, dump((1, 10, "alice", T), hours=48))
    done = load(ledger, dump((1, 10, "bob", T + 300 * DAY + 17)))
    assert (done.entered.new, done.entered.changed, done.entered.reused) == (1, 0, 1)
    assert gpu_hours(ledger) == {"alice": 96.0, "bob": 2.0}


def test_two_dumps_in_one_file_are_two_runs(ledger):
    text = dump((1, 10, "alice", T), (2, 11, "alice", T + 5), (1, 3, "bob", T + 300 * DAY))
    done = load(ledger, text)
    assert (done.entered.new, done.entered.reused) == (3, 1)
    again = load(ledger, text)
    assert (again.entered.new, again.entered.changed, again.entered.reused) == (0, 0, 0)
    assert [row["user"] for row in stored(ledger)] == ["alice", "alice", "bob"]


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_is_not_overwritten_by_one_of_another_user(ledger, ended):
    """A re-created database that gives the job's number, DBIndex and Submit once more."""
    at, end = NOW - 900, NOW - 60 if ended else None
    slurm = FakeSacct(job(7, at, at, end, UID=10011))
    ingest(ledger, slurm)
    slurm.jobs = [job(7, at, at, NOW - 30, User="bob", UID=10012)]
    done = ingest(ledger, slurm).entered
    assert (done.new, done.changed, done.rejected) == (0, 0, 1)
    assert done.why == "the ledger has this JobIDRaw and Submit as a run of alice, which stays"
    (run,) = stored(ledger)
    assert (run["user"], run["uid"], run["end"]) == ("alice", 10011, end)
    assert [row["read_since"] for row in stored(ledger, rejects)] == [None]


def test_a_file_without_uids_overwrites_no_run_of_another_user(ledger):
    load(ledger, dump((1, 10, "alice", T), hours=48))
    done = load(ledger, dump((1, 10, "bob", T)))
    assert (done.entered.new, done.entered.changed, done.entered.rejected) == (0, 0, 1)
    assert gpu_hours(ledger) == {"alice": 96.0}


def test_a_user_with_a_new_name_is_the_same(ledger):
    at = NOW - 3600
    slurm = FakeSacct(job(7, at, at, None, UID=10011))
    ingest(ledger, slurm)
    slurm.jobs = [job(7, at, at, NOW - 60, User="alicia", UID=10011)]
    assert ingest(ledger, slurm).entered.changed == 1
    assert [row["user"] for row in stored(ledger)] == ["alicia"]


def test_a_running_job_that_is_sent_to_a_new_database_is_one_run(ledger):
    """It keeps its JobIDRaw and Submit, by which slurmdbd itself finds it; its DBIndex is new."""
    slurm = FakeSacct(job(7, NOW - 3600, NOW - 3600, None))
    ingest(ledger, slurm)
    slurm.jobs = [job(7, NOW - 3600, NOW - 3600, NOW - 60, DBIndex=1)]
    done = ingest(ledger, slurm)
    assert (done.entered.new, done.entered.changed, done.gone) == (0, 1, 0)
    (run,) = stored(ledger)
    assert (run["db_index"], run["end"], run["gone_since"]) == (1, NOW - 60, None)
    assert len(stored(ledger, revisions)) == 1


def test_two_jobs_of_sacct_itself_never_differ_by_a_time_zone(ledger):
    """A cluster that began anew, its job 1 submitted some quarters of an hour after the old one."""
    old = job(1, NOW - 40000, NOW - 40000, NOW - 4000)
    ingest(ledger, FakeSacct(old))
    new = job(1, NOW - 40000 + 36 * 900, NOW - 3000, NOW - 2400, User="bob", DBIndex=1001)
    assert ingest(ledger, FakeSacct(new)).entered.new == 1
    assert gpu_hours(ledger) == {"alice": 20.0, "bob": pytest.approx(600 * 2 / 3600)}


@pytest.mark.sql
@pytest.mark.parametrize("turned", [False, True])
def test_an_earlier_state_of_a_run_in_the_same_file_changes_nothing(ledger, turned):
    """As of two dumps that were joined in the wrong order."""
    ended = dump((1, 7, "alice", T))
    running = f"1|7|alice|{T}|{T + 60}|Unknown|RUNNING|gres/gpu=2\n"
    load(ledger, running + ended if turned else ended + running)
    (row,) = stored(ledger)
    assert (row["state"], row["end"]) == ("COMPLETED", T + 3660)
    assert gpu_hours(ledger) == {"alice": 2.0}


@pytest.mark.parametrize("first", [True, False])
def test_a_row_without_its_dbindex_is_the_run_with_it(ledger, first):
    plain = FIELDS[1:]
    texts = [(dump((4, 10, "alice", T)), FIELDS)]
    texts.append((re.sub("^4[|]", "", texts[0][0]), plain))
    for text, fields in texts if first else reversed(texts):
        load(ledger, text, fields=fields)
    assert [row["db_index"] for row in stored(ledger)] == [4]


@pytest.mark.parametrize("wrong", ["Asia/Kathmandu", "America/New_York", "Pacific/Kiritimati"])
def test_a_file_that_was_read_in_a_wrong_time_zone_is_put_right_by_reading_it_again(ledger, wrong):
    """The DBIndex and JobIDRaw are the same, and Submit differs by as much as two zones do."""
    text = "1|10|alice|2026-11-01T10:00:07|2026-11-01T11:00:00|2026-11-01T12:00:00|COMPLETED|\n"
    load(ledger, text, wrong)
    done = load(ledger, text)
    assert (done.entered.new, done.entered.changed, done.entered.reused) == (0, 1, 0)
    (run,) = stored(ledger)
    assert run["submit"] == T + 10 * 3600 + 7


@pytest.mark.sql
def test_sacct_finds_a_run_whose_file_was_read_in_a_wrong_time_zone(ledger):
    """It is neither stored twice nor taken for gone."""
    at = NOW - 7200
    load(ledger, dump((1010, 10, "alice", at - 3600)))
    slurm = FakeSacct(job(10, at, at + 60, at + 660))
    done = ingest(ledger, slurm)
    assert (done.entered.new, done.entered.changed, done.gone) == (0, 1, 0)
    (run,) = stored(ledger)
    assert (run["submit"], run["gone_since"]) == (at, None)


# Half past two of 2025-10-26 in Berlin, before and after the clock was set back.
FIRST, SECOND = 1_761_438_600, 1_761_442_200
TWICE = (
    "10|alice|2025-10-26T02:30:00|2025-10-26T02:31:00|2025-10-26T02:41:00|00:10:00|COMPLETED|"
    "gres/gpu=2\n"
)
TWICE_FIELDS = ("JobIDRaw", "User", "Submit", "Start", "End", "Elapsed", "State", "AllocTRES")


@pytest.mark.parametrize("in_file_first", [True, False])
@pytest.mark.parametrize("submit", [FIRST, SECOND])
def test_a_run_of_the_hour_that_the_clock_shows_twice_is_one(ledger, submit, in_file_first):
    """Without a DBIndex, by the second time of Submit too."""
    exact = dump((10, 10, "alice", submit)).replace(f"|{submit + 3660}|", f"|{submit + 660}|")
    texts = [(TWICE, "Europe/Berlin", TWICE_FIELDS), (exact, "UTC", FIELDS)]
    done = [load(ledger, *one) for one in (texts if in_file_first else reversed(texts))]
    assert [one.entered.new for one in done] == [1, 0]
    (run,) = stored(ledger)
    assert (run["submit"], run["start"], run["end"]) == (submit, submit + 60, submit + 660)
    assert gpu_hours(ledger) == {"alice": pytest.approx(1 / 3)}
    for one in texts:
        again = load(ledger, *one).entered
        assert (again.new, again.changed) == (0, 0)


@pytest.mark.sql
def test_two_runs_of_the_hour_that_the_clock_shows_twice_stay_two(ledger):
    """The job was requeued to the second an hour later."""
    load(ledger, dump((1, 10, "alice", FIRST), (2, 10, "alice", SECOND)))
    assert load(ledger, TWICE, "Europe/Berlin", TWICE_FIELDS).entered.new == 0
    assert [row["submit"] for row in stored(ledger)] == [FIRST, SECOND]


@pytest.mark.sql
def test_sacct_says_which_of_two_times_a_file_meant(ledger):
    load(ledger, TWICE, "Europe/Berlin", TWICE_FIELDS)
    row = job(10, SECOND, SECOND + 60, SECOND + 660)
    done = ingest(ledger, FakeSacct(row), since=SECOND - DAY)
    assert (done.entered.new, done.entered.changed, done.gone) == (0, 1, 0)
    (run,) = stored(ledger)
    assert (run["submit"], run["db_index"]) == (SECOND, 1010)


@pytest.mark.parametrize("field", ["Submit", "JobIDRaw"])
def test_a_reject_with_nothing_but_a_dbindex_is_settled_by_the_run_with_it(ledger, field):
    good = job(1, NOW - 100, NOW - 90, NOW - 50)
    slurm = FakeSacct(good | {field: "soon"})
    assert ingest(ledger, slurm).entered.rejected == 1
    assert [row["identity"] for row in stored(ledger, rejects)] == ["1001"]
    slurm.jobs = [good]
    assert ingest(ledger, slurm).entered.new == 1
    assert [row["read_since"] for row in stored(ledger, rejects)] == [2]


def test_a_reject_is_not_settled_by_a_run_that_was_submitted_after_it(ledger, monkeypatch):
    """The DBIndex is then that of a database that was re-created."""
    slurm = FakeSacct(job(1, NOW - 100, NOW - 90, NOW - 50, JobIDRaw="soon"))
    ingest(ledger, slurm)
    monkeypatch.setattr("slurmkit_accounting.ingest.ingest.time.time", lambda: NOW + DAY)
    slurm.jobs = [job(1, NOW + DAY - 60, NOW + DAY - 50, NOW + DAY - 5)]
    assert ingest(ledger, slurm).entered.new == 1
    assert [row["read_since"] for row in stored(ledger, rejects)] == [None]


@pytest.mark.sql
def test_a_run_whose_submit_cannot_be_read_any_more_is_not_gone(ledger):
    good = job(1, NOW - 100, NOW - 90, None)
    slurm = FakeSacct(good)
    ingest(ledger, slurm)
    slurm.jobs = [good | {"Submit": "soon"}]
    assert ingest(ledger, slurm).gone == 0
    assert [row["gone_since"] for row in stored(ledger)] == [None]


def test_ingest_status_and_verify_say_that_a_database_was_set_up_anew(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("SLURMKIT_DB", f"sqlite:///{tmp_path}/ledger.db")
    options = ("--cluster", "lab", "--fields", ",".join(FIELDS), "--timezone", "UTC")

    def shown(*argv: str) -> tuple[str, str]:
        assert run_to_exit_code(ledger_group, list(argv)) == 0
        return capsys.readouterr()

    path = tmp_path / "dump.txt"
    for user, at in (("alice", T), ("bob", T + 300 * DAY)):
        path.write_text(dump((1, 10, user, at)))
        _, said = shown("ingest", "--file", str(path), *options)
    assert (
        "the accounting database of lab was re-created: 1 DBIndexes belong to other jobs now; both"
        " are stored\n"
    ) in said
    assert "1 belong to several jobs; slurmdbd's database was re-created" in shown("status")[0]
    assert "1 DBIndexes belong to several jobs; all are stored" in shown("verify")[1]
    (one,) = json.loads(shown("status", "--json")[0])["rows"]
    assert one["reused"] == 1
