from __future__ import annotations

import io
import json
import time

import pytest
from fake_sacct import FakeSacct, halted, job, runs_of_every_kind
from slurmkit_accounting.audit.backup import copy_ledger
from slurmkit_accounting.audit.status import load_ledger_status
from slurmkit_accounting.audit.verify import checksum, verify
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.ingest import ingest as module
from slurmkit_accounting.ingest.file import SacctFile, ingest_file
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ingest.rejects import load_rejects
from slurmkit_accounting.ingest.retract import retract
from slurmkit_accounting.ingest.retry import retry_rejects
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.people import eras
from slurmkit_accounting.ledger.schema.runs import runs, suspensions
from slurmkit_accounting.ledger.schema.usage import (
    usage_days,
    usage_hours,
    usage_keys,
    usage_months,
)
from slurmkit_accounting.usage.query import SUM_INDEX, UsageQuery, query_usage
from slurmkit_accounting.usage.tables import rebuild_usage, rekey_usage
from sqlalchemy import delete, func, insert, select, update
from stored_runs import checked

from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import BadInput, LedgerError

NOW = int(time.time())
DAY = 86400


def sum_of(ledger: Ledger, what: str) -> int:
    with ledger.transaction() as connection:
        return int(connection.scalar(select(func.sum(usage_months.c[what]))) or 0)


def test_good_books_verify_and_have_one_checksum_however_often_they_were_read(ledger):
    slurm = runs_of_every_kind(NOW)
    ingest(ledger, slurm)
    once = checked(ledger)
    ingest(ledger, slurm, since=NOW - 9 * DAY)
    assert checked(ledger) == once
    slurm.jobs[0]["ExitCode"] = "1:0"
    ingest(ledger, slurm)
    assert checked(ledger) != once


@pytest.mark.sql
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            update(usage_hours).values(cpu_seconds=usage_hours.c.cpu_seconds + 1),
            "but from the runs",
        ),
        (delete(usage_days), "is missing"),
        (update(runs).values(gpus=3, alloc_tres="cpu=1,gres/gpu=3"), "belongs to no run"),
        (update(runs).values(redone=True), "redone"),
        (insert(suspensions).values(run_id=1, begin=5, length=9, seconds=9), "suspended time"),
    ],
)
def test_books_that_were_spoilt_do_not_verify(ledger, spoil, words):
    ingest(ledger, runs_of_every_kind(NOW))
    with ledger.transaction() as connection:
        connection.execute(spoil)
    with ledger.transaction() as connection:
        assert any(words in line for line in verify(connection).wrong)


def test_a_row_that_speaks_of_none_does_not_verify_where_none_looked(file_ledger):
    ingest(file_ledger, runs_of_every_kind(NOW))
    astray = update(runs).values(first_ingest_id=77)
    with pytest.raises(LedgerError, match="FOREIGN KEY"), file_ledger.transaction() as connection:
        connection.execute(astray)
    with file_ledger.without_foreign_keys().transaction() as connection:
        connection.execute(astray)
    with file_ledger.transaction() as connection:
        (wrong,) = verify(connection).wrong
    assert wrong == "6 rows of runs refer to ingests that do not exist"


@pytest.mark.sql
def test_usage_can_be_worked_out_anew(ledger):
    ingest(ledger, runs_of_every_kind(NOW))
    good = checked(ledger)
    with ledger.transaction() as connection:
        connection.execute(update(usage_hours).values(cpu_seconds=5))
        connection.execute(update(runs).values(redone=False))
        connection.execute(delete(usage_days))
        rebuild_usage(connection)
    assert checked(ledger) == good


@pytest.mark.sql
def test_a_new_era_moves_the_usage_of_runs_submitted_since(ledger):
    ingest(ledger, runs_of_every_kind(NOW))
    before = sum_of(ledger, "gpu_seconds")
    for at in (NOW - 600, NOW - 3 * DAY):  # in any order
        with ledger.transaction() as connection:
            connection.execute(insert(eras).values(at=at))
            rekey_usage(connection, at)
        checked(ledger)
    assert sum_of(ledger, "gpu_seconds") == before
    with ledger.transaction() as connection:
        used = select(usage_keys.c.era).join(usage_hours).distinct()
        assert set(connection.scalars(used)) == {NOW - 600, NOW - 3 * DAY}


@pytest.mark.sql
def test_what_is_gone_can_be_retracted_and_put_back(ledger):
    slurm = runs_of_every_kind(NOW)
    ingest(ledger, slurm)
    before, hours = checked(ledger), sum_of(ledger, "gpu_seconds")
    with pytest.raises(BadInput, match="sacct still shows job 1"):
        retract(ledger, ["1"], None, undo=False, dry_run=False)
    lost = slurm.jobs.pop(2)  # what job 2 was redone by
    ingest(ledger, slurm)
    assert sum_of(ledger, "gpu_seconds") == hours
    for dry in (True, False):
        (run,) = retract(ledger, ["2"], "lab", undo=False, dry_run=dry)
        assert str(run.submit) == lost["Submit"]
        assert sum_of(ledger, "gpu_seconds") == hours - (0 if dry else 200)
    assert checked(ledger) != before
    ingest(ledger, slurm)
    assert len(retract(ledger, ["2"], None, undo=True, dry_run=False)) == 1
    assert sum_of(ledger, "gpu_seconds") == hours
    assert checked(ledger) == before


@pytest.mark.parametrize(
    ("jobs", "cluster", "words"),
    [
        (["77"], None, "job 77 has no run"),
        (["1"], "none", "name a cluster of the ledger with --cluster: lab"),
    ],
)
def test_what_cannot_be_retracted(ledger, jobs, cluster, words):
    ingest(ledger, runs_of_every_kind(NOW))
    with pytest.raises(BadInput, match=words):
        retract(ledger, jobs, cluster, undo=False, dry_run=False)


@pytest.mark.sql
def test_rejects_are_listed_and_read_again(ledger, monkeypatch):
    slurm = runs_of_every_kind(NOW)
    with monkeypatch.context() as patch:
        patch.setattr("slurmkit_accounting.sacct.values._MOST", 3)
        ingest(ledger, slurm)
    with ledger.transaction() as connection:
        found = load_rejects(connection)
    assert len(found) == 7
    assert {one.reason for one in found} >= {"Start 'soon' cannot be read"}
    entered = retry_rejects(ledger)
    assert (entered.read, entered.new, entered.rejected) == (7, 6, 1)
    with ledger.transaction() as connection:
        assert [one.reason for one in load_rejects(connection)] == ["Start 'soon' cannot be read"]
        assert len(load_rejects(connection, all_=True)) == 7
    checked(ledger)


@pytest.mark.sql
def test_status_says_how_the_books_stand(ledger, monkeypatch):
    slurm = runs_of_every_kind(NOW)
    ingest(ledger, slurm)
    found = load_ledger_status(ledger, NOW + 5 * DAY)
    (one,) = found.clusters
    assert (one.name, one.runs, one.open, one.rejects, one.gone) == ("lab", 6, 1, 1, 0)
    assert one.runaways == [3]
    assert one.gaps == []
    assert one.last is not None
    assert (one.last.source, one.last.rows_new) == ("sacct", 6)
    assert one.lag == NOW + 5 * DAY - one.covers[-1][1]
    assert found.size
    monkeypatch.setattr(module.time, "time", lambda: NOW + 9 * DAY)
    ingest(ledger, slurm, since=NOW + 8 * DAY)
    (one,) = load_ledger_status(ledger).clusters
    assert [end - begin for begin, end in one.gaps] == [NOW + 8 * DAY - one.covers[0][1]]


def test_a_ledger_moves_with_an_equal_checksum_and_goes_on_there(ledger, tmp_path):
    slurm = runs_of_every_kind(NOW)
    ingest(ledger, slurm)
    before = checked(ledger)
    with open_for_writing(f"sqlite:///{tmp_path}/copy.db") as other:
        assert copy_ledger(ledger, other) == before == checked(other)
        with pytest.raises(LedgerError, match="already has rows in clusters"):
            copy_ledger(ledger, other)
        with hold_ledger_lock(other, "ingest"), pytest.raises(LedgerError, match="another ingest"):
            copy_ledger(ledger, other)
        slurm.jobs.append(job(8, NOW - 9, NOW - 9, NOW))
        ingest(other, slurm)
        ingest(ledger, slurm)
        assert checked(other) == checked(ledger) != before


def test_a_ledger_moves_to_postgresql_and_back(file_ledger, postgres, tmp_path):
    slurm = runs_of_every_kind(NOW)
    ingest(file_ledger, slurm)
    before = checked(file_ledger)
    with (
        open_for_writing(postgres) as there,
        open_for_writing(f"sqlite:///{tmp_path}/b.db") as back,
    ):
        assert copy_ledger(file_ledger, there) == before == checked(there)
        slurm.jobs.append(job(8, NOW - 9, NOW - 9, NOW))
        ingest(there, slurm)
        ingest(file_ledger, slurm)
        assert checked(there) == checked(file_ledger) == copy_ledger(there, back)


def test_the_commands_show_it(monkeypatch, capsys, tmp_path):
    slurm = "slurmkit.slurm.commands.LocalSlurmCommands"
    monkeypatch.setattr(slurm, lambda: runs_of_every_kind(NOW))
    assert run_to_exit_code(ledger_group, ["ingest"]) == 0
    for words, expected in (
        (["status"], "6, 1 of them without an end"),
        (["verify"], "6 runs"),
        (["rejects"], "Start 'soon' cannot be read"),
        (["export", f"sqlite:///{tmp_path}/copy.db"], "copy.db"),
        (["retract", "1", "--dry-run"], None),
        (["rebuild"], ""),
    ):
        code = run_to_exit_code(ledger_group, words)
        said = capsys.readouterr()
        assert code == (2 if expected is None else 0), said.err
        assert (expected or "") in said.out
    assert run_to_exit_code(ledger_group, ["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["runs"] == 6
    assert run_to_exit_code(ledger_group, ["rejects", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["cluster"] == "lab"


@pytest.mark.sql
def test_a_checksum_tells_any_fact_of_a_run(ledger):
    ingest(ledger, runs_of_every_kind(NOW))
    with ledger.transaction() as connection:
        seen = {checksum(connection)}
        for column, value in (("name", "other"), ("suspended", 5), ("uid", 7), ("redone", True)):
            connection.execute(update(runs).where(runs.c.id == 1).values({column: value}))
            seen.add(checksum(connection))
        for column in ("last_seen", "fingerprint", "first_ingest_id"):
            connection.execute(update(runs).values({column: None}))
            seen.add(checksum(connection))
    assert len(seen) == 5


@pytest.mark.sql
def test_no_run_was_suspended_for_longer_than_it_lasted(ledger):
    """A runaway that was put right ends where it began, whatever it was suspended for."""
    day = (NOW - 3 * DAY) // DAY * DAY
    slurm = FakeSacct(
        halted(job(1, day, day, day), (day + 5, day + 900)),
        halted(job(2, day, day, day + 60), (day + 50, day + 900)),
    )
    ingest(ledger, slurm)
    with ledger.transaction() as connection:
        columns = (suspensions.c.length, suspensions.c.seconds)
        assert connection.execute(select(*columns)).all() == [(60, 60)]
        skipped = query_usage(connection, UsageQuery((day, day + DAY), NOW, skip_suspended=True))
    assert sum(sums[SUM_INDEX["gpu_seconds"]] for sums in skipped.values()) == 0
    asked = len(slurm.asked)
    ingest(ledger, slurm)
    assert not any("-T" in argv for argv in slurm.asked[asked:])


def test_suspended_time_of_a_file_lies_somewhere_in_the_run(ledger):
    day = NOW // DAY * DAY - 9 * DAY
    row = f"1|{day}|{day}|{day + 1000}|00:05:00|cpu=1,gres/gpu=2|1\n"
    fields = ("JobIDRaw", "Submit", "Start", "End", "Suspended", "AllocTRES", "AllocNodes")
    ingest_file(
        ledger, SacctFile("f", io.BytesIO(row.encode()), "old", fields, "|", find_zone("UTC"))
    )
    with ledger.transaction() as connection:
        cells = query_usage(
            connection, UsageQuery((day, day + 500, day + DAY), NOW, skip_suspended=True)
        )
    assert sorted(sums[SUM_INDEX["gpu_seconds"]] for sums in cells.values()) == [700, 700]


@pytest.mark.sql
def test_verify_tells_the_checksum_also_of_a_ledger_with_errors(ledger):
    ingest(ledger, runs_of_every_kind(NOW))
    with ledger.transaction() as connection:
        right = checksum(connection)
        assert verify(connection).checksum == right
        connection.execute(update(usage_days).values(started=usage_days.c.started + 1))
        found = verify(connection)
        assert found.checksum == checksum(connection) != right
        assert len(found.wrong) == connection.scalar(select(func.count()).select_from(usage_days))
