from __future__ import annotations

import json
import time

import pytest
from fake_sacct import FakeSacct, job
from slurmkit_accounting import ingest as module
from slurmkit_accounting.ingest import FIRST_DAYS, OVERLAP_SECONDS, ingest
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.locks import alone
from slurmkit_accounting.schema import clusters, ingests, rejects, revisions, runs, spans
from sqlalchemy import func, select, text

from slurmkit.errors import BadInput, DatabaseDown, LedgerError, SlurmError
from slurmkit.testing import FakeSlurm

NOW = int(time.time())
DAY = 86400


def everything(ledger: Ledger, table=runs) -> list:
    with ledger.transaction() as connection:
        return list(connection.execute(select(table).order_by(table.c.id)).mappings())


def counts(done) -> tuple[int, int, int, int]:
    entered = done.entered
    return entered.read, entered.new, entered.changed, entered.rejected


def test_the_first_ingest_begins_thirty_days_ago_and_says_so(ledger):
    slurm = FakeSacct(job(1, NOW - 100, NOW - 90, NOW - 50))
    done = ingest(ledger, slurm)
    assert counts(done) == (1, 1, 0, 0)
    assert done.first
    assert done.cluster == "lab"
    assert done.window[1] - done.window[0] == FIRST_DAYS * 86400
    assert ["-S", f"uts{done.window[0]}", "-E", f"uts{done.window[1]}"] == slurm.asked[1][-4:]


def test_ingesting_twice_leaves_the_same_rows(ledger):
    slurm = FakeSacct(*(job(n, NOW - 100, NOW - 90, NOW - 50) for n in range(1, 6)))
    ingest(ledger, slurm)
    before = everything(ledger)
    done = ingest(ledger, slurm)
    assert counts(done) == (5, 0, 0, 0)
    assert not done.first
    assert everything(ledger) == before
    assert everything(ledger, revisions) == []


def test_the_next_ingest_overlaps_the_last_one_by_48_hours(ledger):
    slurm = FakeSacct()
    first, second = ingest(ledger, slurm), ingest(ledger, slurm)
    assert second.window[0] == first.window[1] - OVERLAP_SECONDS


def covered(ledger: Ledger) -> tuple[int, int]:
    one = everything(ledger, spans)[0]
    return one["begin"], one["finish"]


@pytest.fixture
def at(monkeypatch):
    """Ingests with `since`, at a moment of one's choice; returns the window."""

    def ingest_at(ledger: Ledger, moment: int, since: int | None = None) -> tuple[int, int]:
        monkeypatch.setattr(module.time, "time", lambda: moment)
        return ingest(ledger, FakeSacct(), since=since).window

    return ingest_at


def test_an_ingest_that_begins_later_than_the_books_end_leaves_no_hole(ledger, at):
    first, later = NOW - 90 * DAY, NOW - 10 * DAY
    at(ledger, first)
    assert at(ledger, later, since=later - DAY) == (later - DAY, later)
    assert covered(ledger) == (first - FIRST_DAYS * DAY, first)
    assert at(ledger, NOW) == (first - OVERLAP_SECONDS, NOW)
    assert covered(ledger) == (first - FIRST_DAYS * DAY, NOW)


def test_an_ingest_of_older_jobs_moves_where_the_books_begin(ledger, at):
    at(ledger, NOW - DAY)
    at(ledger, NOW, since=NOW - 400 * DAY)
    assert covered(ledger) == (NOW - 400 * DAY, NOW)
    assert at(ledger, NOW + 9)[0] == NOW - OVERLAP_SECONDS


def test_an_ingest_that_meets_the_end_of_the_books_moves_it(ledger, at):
    at(ledger, NOW - 9 * DAY)
    at(ledger, NOW, since=NOW - 9 * DAY)
    assert covered(ledger)[1] == NOW


def test_a_clock_that_was_put_back_does_not_move_the_end_of_the_books_back(ledger, at):
    at(ledger, NOW)
    early = NOW - 5 * DAY
    assert at(ledger, early) == (early, early)
    assert covered(ledger)[1] == NOW


def test_the_books_begin_where_the_first_ingest_was_told_to(ledger, at):
    at(ledger, NOW - 5, since=NOW - 60)
    assert at(ledger, NOW) == (NOW - 5 - OVERLAP_SECONDS, NOW)
    assert covered(ledger) == (NOW - 5 - OVERLAP_SECONDS, NOW)


def test_a_first_ingest_says_where_the_books_begin(ledger):
    done = ingest(ledger, FakeSacct(), since=NOW - 60)
    assert (done.first, done.books_begin) == (True, NOW - 60)
    assert ingest(ledger, FakeSacct(), since=NOW - 90).books_begin == NOW - 90


def test_an_ingest_that_did_not_end_moves_nothing(ledger, at, monkeypatch):
    at(ledger, NOW - 9 * DAY)
    monkeypatch.setattr(module, "_finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        at(ledger, NOW - DAY)
    monkeypatch.undo()
    assert ingest(ledger, FakeSacct()).window[0] == NOW - 9 * DAY - OVERLAP_SECONDS


def test_the_future_cannot_be_read(ledger):
    with pytest.raises(BadInput, match="--since is in the future"):
        ingest(ledger, FakeSacct(), since=int(time.time()) + 3600)
    assert everything(ledger, ingests) == []


def test_since_begins_where_it_says(ledger):
    slurm = FakeSacct()
    ingest(ledger, slurm)
    assert ingest(ledger, slurm, since=1_700_000_000).window[0] == 1_700_000_000
    assert ingest(ledger, slurm, since=-5).window[0] == 1_000_000  # the least `uts` takes


def test_a_change_is_kept_as_a_revision(ledger):
    slurm = FakeSacct(job(1, NOW - 100, NOW - 90, None, State="RUNNING"))
    ingest(ledger, slurm)
    slurm.jobs[0] |= {"End": str(NOW - 10), "State": "FAILED"}
    assert counts(ingest(ledger, slurm)) == (1, 0, 1, 0)
    (row,) = everything(ledger)
    assert (row["end"], row["state"]) == (NOW - 10, "FAILED")
    (revision,) = everything(ledger, revisions)
    assert json.loads(revision["old"]) == {"end": None, "state": "RUNNING"}
    assert revision["run_id"] == row["id"]
    assert revision["ingest_id"] == 2


def test_an_open_row_that_ended_before_the_window_is_read_again_by_id(ledger):
    old = NOW - 20 * 86400
    slurm = FakeSacct(job(1, old, old, None, State="RUNNING"))
    ingest(ledger, slurm)
    slurm.jobs[0] |= {"End": str(old + 60), "State": "COMPLETED"}  # a runaway job put right
    assert counts(ingest(ledger, slurm)) == (1, 0, 1, 0)
    assert everything(ledger)[0]["end"] == old + 60
    assert slurm.asked[-1][-1] == "--jobs=1"


def test_an_open_row_in_the_window_is_not_asked_for_again(ledger):
    slurm = FakeSacct(job(1, NOW - 9, NOW - 9, None))
    ingest(ledger, slurm)
    ingest(ledger, slurm)
    assert not any(word.startswith("--jobs") for argv in slurm.asked for word in argv)


def test_an_open_run_is_asked_for_by_id_also_when_another_run_of_its_job_is_in_the_window(ledger):
    old = NOW - 20 * DAY
    slurm = FakeSacct(
        job(1, old, old, None, DBIndex=50), job(1, NOW - 9, NOW - 9, None, DBIndex=51)
    )
    ingest(ledger, slurm)
    slurm.jobs[0]["End"] = str(old + 60)
    assert counts(ingest(ledger, slurm))[2] == 1
    assert [row["end"] for row in everything(ledger)] == [old + 60, None]


def test_only_open_runs_are_marked_as_seen_and_that_is_no_change(ledger, at, monkeypatch):
    slurm = FakeSacct(job(1, NOW - 9, NOW - 9, None), job(2, NOW - 9, NOW - 9, NOW))
    for moment in (NOW, NOW + 60):
        monkeypatch.setattr(module.time, "time", lambda at=moment: at)
        done = ingest(ledger, slurm)
        assert [row["last_seen"] for row in everything(ledger)] == [moment, None]
    assert counts(done) == (2, 0, 0, 0)
    assert everything(ledger, revisions) == []


def test_each_run_of_a_requeued_job_is_a_row(ledger):
    runs_of_one = [job(1, NOW - 100 + n, NOW - 90, NOW - 80, DBIndex=50 + n) for n in range(3)]
    ingest(ledger, FakeSacct(*runs_of_one))
    assert [row["db_index"] for row in everything(ledger)] == [50, 51, 52]


def test_without_dbindex_a_run_is_its_job_and_submit_time(ledger):
    slurm = FakeSacct(
        job(1, NOW - 100, NOW - 90, NOW - 80, DBIndex=""),
        job(1, NOW - 70, NOW - 60, None, DBIndex="0"),
    )
    ingest(ledger, slurm)
    slurm.jobs[1]["End"] = str(NOW)
    assert counts(ingest(ledger, slurm)) == (2, 0, 1, 0)
    assert [(row["db_index"], row["end"]) for row in everything(ledger)] == [
        (None, NOW - 80),
        (None, NOW),
    ]


def test_a_dbindex_of_64_bits_comes_back_as_it_was(ledger):
    big = 2**64 - 2
    slurm = FakeSacct(job(1, NOW - 9, NOW - 9, NOW, DBIndex=big))
    ingest(ledger, slurm)
    assert counts(ingest(ledger, slurm)) == (1, 0, 0, 0)
    assert everything(ledger)[0]["db_index"] == big


def test_rejects_are_kept_once_with_their_reason(ledger):
    slurm = FakeSacct(job(1, NOW - 9, NOW - 9, NOW), job(2, NOW - 9, "soon", NOW))
    slurm.junk = "sacct: a warning\n"
    assert counts(ingest(ledger, slurm)) == (3, 1, 0, 2)
    done = ingest(ledger, slurm)
    assert counts(done) == (3, 0, 0, 2)
    assert done.entered.why == "not part of a row"
    stray, row = everything(ledger, rejects)
    assert stray["line"] == "sacct: a warning"
    assert "soon" in row["line"]
    assert row["reason"] == "Start 'soon' cannot be read"


def test_many_batches_and_progress(ledger, monkeypatch):
    monkeypatch.setattr(module, "_BATCH", 3)
    seen = []
    slurm = FakeSacct(*(job(n, NOW - 9, NOW - 9, NOW) for n in range(1, 9)))
    ingest(ledger, slurm, progress=lambda entered: seen.append(entered.read))
    assert seen == [3, 6, 8]
    assert len(everything(ledger)) == 8


@pytest.mark.parametrize("end", [DatabaseDown("slurmdbd does not answer"), KeyboardInterrupt()])
def test_what_was_committed_stays_and_the_next_ingest_reads_the_whole_window(
    ledger, monkeypatch, end
):
    monkeypatch.setattr(module, "_BATCH", 2)
    slurm = FakeSacct(*(job(n, NOW - 9, NOW - 9, NOW) for n in range(1, 6)))
    whole = slurm.stream

    def broken(argv):
        lines = whole(argv)
        yield from (next(lines) for _ in range(3))
        raise end

    monkeypatch.setattr(slurm, "stream", broken)
    with pytest.raises(type(end)):
        ingest(ledger, slurm)
    assert len(everything(ledger)) == 2
    monkeypatch.undo()
    done = ingest(ledger, slurm)
    assert counts(done) == (5, 3, 0, 0)
    assert done.first
    assert [one["ended"] is None for one in everything(ledger, ingests)] == [True, False]


def test_one_ingest_at_a_time(ledger):
    with (
        alone(ledger, "ingest"),
        pytest.raises(LedgerError, match="another ingest is writing"),
        alone(ledger, "ingest"),
    ):
        pass
    assert counts(ingest(ledger, FakeSacct())) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("tracked", "tracks"),
    [
        ("cpu,mem,gres/gpu", True),
        ("cpu,gres/gpu:a100", True),
        ("cpu,gres/gpumem", False),
        ("", False),
    ],
)
def test_whether_gpus_are_tracked_is_remembered(ledger, tracked, tracks):
    slurm = FakeSacct()
    slurm.tracked = tracked
    ingest(ledger, slurm)
    assert everything(ledger, clusters)[0]["tracks_gpus"] is tracks


def test_a_cluster_without_a_name_is_refused(ledger):
    slurm = FakeSlurm({"scontrol": lambda argv, stdin: "nothing of the kind"})
    with pytest.raises(SlurmError, match="ClusterName"):
        ingest(ledger, slurm)


def test_the_counts_are_kept_with_the_ingest(ledger):
    ingest(ledger, FakeSacct(job(1, NOW - 9, NOW - 9, NOW), job(2, NOW - 9, "soon", NOW)))
    (one,) = everything(ledger, ingests)
    assert [one[f"rows_{name}"] for name in ("read", "new", "changed", "rejected")] == [2, 1, 0, 1]


def test_a_name_with_quotes_and_control_characters_is_stored_as_it_is(ledger):
    name = "'; DROP TABLE runs; --\n\x1b[2J\u202e"
    ingest(ledger, FakeSacct(job(1, NOW - 9, NOW - 9, NOW, JobName=name)))
    with ledger.transaction() as connection:
        assert connection.scalar(select(func.max(runs.c.name))) == name
        assert connection.scalar(text("SELECT count(*) FROM runs")) == 1
