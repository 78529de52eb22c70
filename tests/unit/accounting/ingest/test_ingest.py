from __future__ import annotations

import json
import time
from itertools import islice, pairwise

import pytest
from fake_sacct import TRES, FakeSacct, halted, job, lately, step
from slurmkit_accounting.audit.verify import verify
from slurmkit_accounting.ingest import ingest as module
from slurmkit_accounting.ingest.ingest import FIRST_DAYS, OVERLAP_SECONDS, begin_of_reread, ingest
from slurmkit_accounting.ingest.retry import retry_rejects
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.runs import (
    clusters,
    ingests,
    rejects,
    revisions,
    runs,
    spans,
    steps,
    suspensions,
)
from slurmkit_accounting.ledger.schema.usage import usage_keys, usage_months
from slurmkit_accounting.usage.query import SUM_INDEX, UsageQuery, query_usage
from sqlalchemy import func, select, text
from stored_runs import gpu_seconds

from slurmkit.errors import BadInput, ControllerDown, DatabaseDown, LedgerError, SlurmError
from slurmkit.testing import FakeSlurm

NOW = lately()
DAY = 86400


def everything(ledger: Ledger, table=runs) -> list:
    with ledger.transaction() as connection:
        return list(
            connection.execute(
                select(table).order_by(table.c.get("job_id_raw", table.c.id), table.c.id)
            ).mappings()
        )


def everything_of(ledger: Ledger, table) -> list:
    with ledger.transaction() as connection:
        return list(connection.execute(select(table).order_by(*table.primary_key)).mappings())


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
    asked = windows(slurm)
    assert (asked[0][0], asked[-1][1]) == done.window
    assert all(one[1] == other[0] and one[1] % DAY == 0 for one, other in pairwise(asked))


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


def windows(slurm: FakeSacct) -> list[tuple[int, int]]:
    """The windows in which rows were asked for."""
    asked = [argv for argv in slurm.asked if "-X" in argv and "-S" in argv and "-T" not in argv]
    return [tuple(int(argv[argv.index(f) + 1][3:]) for f in ("-S", "-E")) for argv in asked]


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


def test_more_can_be_read_again_as_far_back_as_the_books_go(ledger, monkeypatch):
    def since(moment: int) -> int | None:
        monkeypatch.setattr(module.time, "time", lambda: moment)
        return begin_of_reread(ledger, FakeSacct(), 40 * DAY)

    assert since(NOW) is None
    ingest(ledger, FakeSacct(), since=NOW - 30 * DAY)
    assert since(NOW + 5 * DAY) == NOW - 30 * DAY
    assert since(NOW + 15 * DAY) == NOW - 25 * DAY
    assert since(NOW + 50 * DAY) == NOW  # what was not read at all, too


def test_a_first_ingest_says_where_the_books_begin(ledger):
    done = ingest(ledger, FakeSacct(), since=NOW - 60)
    assert (done.first, done.books_begin) == (True, NOW - 60)
    assert ingest(ledger, FakeSacct(), since=NOW - 90).books_begin == NOW - 90


def test_an_ingest_that_was_cut_off_is_gone_on_with(ledger, monkeypatch):
    slurm, seen = FakeSacct(), []
    whole = slurm.stream

    def broken(argv, *, timeout=None):
        seen.append(argv)
        if len(seen) > 10:  # rows and steps of five windows
            raise ControllerDown("slurmctld does not answer")
        yield from whole(argv)

    monkeypatch.setattr(slurm, "stream", broken)
    with pytest.raises(ControllerDown):
        ingest(ledger, slurm)
    fifth = windows(slurm)[4][1]
    assert covered(ledger)[1] == fifth
    assert everything(ledger, ingests)[0]["done_to"] == fifth
    monkeypatch.undo()
    done = ingest(ledger, slurm)
    assert done.first
    assert done.window[0] == fifth - OVERLAP_SECONDS


@pytest.mark.sql
def test_a_window_that_is_too_much_is_halved(ledger, monkeypatch):
    slurm = FakeSacct(job(1, NOW - 9, NOW - 9, NOW))
    whole = slurm.stream

    def picky(argv, *, timeout=None):
        begin, end = (int(argv[argv.index(flag) + 1][3:]) for flag in ("-S", "-E"))
        if end - begin > 20_000:
            raise DatabaseDown("result too large")
        yield from whole(argv)

    monkeypatch.setattr(slurm, "stream", picky)
    assert counts(ingest(ledger, slurm, since=NOW - 3 * DAY))[1] == 1
    assert covered(ledger) == (NOW - 3 * DAY, everything(ledger, ingests)[0]["window_to"])


@pytest.mark.sql
def test_the_future_cannot_be_read(ledger):
    with pytest.raises(BadInput, match="--since is in the future"):
        ingest(ledger, FakeSacct(), since=int(time.time()) + 3600)
    assert everything(ledger, ingests) == []


def test_since_begins_where_it_says(ledger, at):
    at(ledger, NOW)
    assert at(ledger, NOW, since=NOW - 50 * DAY)[0] == NOW - 50 * DAY
    assert at(ledger, 2_000_000, since=-5) == (1_000_000, 2_000_000)  # the least `uts` takes


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


@pytest.mark.sql
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


@pytest.mark.sql
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


@pytest.mark.sql
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
    ingest(ledger, slurm, progress=lambda entered, _: seen.append(entered.read))
    assert seen == [3, 6, 8]
    assert len(everything(ledger)) == 8


@pytest.mark.parametrize("end", [DatabaseDown("slurmdbd does not answer"), KeyboardInterrupt()])
def test_what_was_committed_stays_and_the_next_ingest_reads_the_whole_window(
    ledger, monkeypatch, end
):
    monkeypatch.setattr(module, "_BATCH", 2)
    monkeypatch.setattr("slurmkit_accounting.sacct.query._LINES", 2)
    slurm = FakeSacct(*(job(n, NOW - 9, NOW - 9, NOW) for n in range(1, 6)))
    whole = slurm.stream

    def broken(argv, *, timeout=None):
        some = list(islice(whole(argv), 3))
        yield from some
        if some:
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
        hold_ledger_lock(ledger, "ingest"),
        pytest.raises(LedgerError, match="another ingest is writing"),
        hold_ledger_lock(ledger, "ingest"),
    ):
        pass
    assert counts(ingest(ledger, FakeSacct())) == (0, 0, 0, 0)


@pytest.mark.sql
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


@pytest.mark.sql
def test_a_name_with_quotes_and_control_characters_is_stored_as_it_is(ledger):
    name = "'; DROP TABLE runs; --\n\x1b[2J\u202e"
    ingest(ledger, FakeSacct(job(1, NOW - 9, NOW - 9, NOW, JobName=name)))
    with ledger.transaction() as connection:
        assert connection.scalar(select(func.max(runs.c.name))) == name
        assert connection.scalar(text("SELECT count(*) FROM runs")) == 1


@pytest.mark.sql
def test_a_run_that_sacct_shows_no_more_is_kept_as_gone_and_comes_back(ledger):
    ended, still = job(1, NOW - 90, NOW - 90, NOW - 50), job(2, NOW - 90, NOW - 90, None)
    slurm = FakeSacct(ended, still)
    ingest(ledger, slurm)
    slurm.jobs = []
    done = ingest(ledger, slurm)
    assert done.gone == 2
    assert slurm.asked[-1][-1] == "--jobs=1,2"
    assert [row["gone_since"] is None for row in everything(ledger)] == [False, False]
    assert ingest(ledger, slurm).gone == 0
    slurm.jobs = [ended]
    ingest(ledger, slurm)
    assert [row["gone_since"] is None for row in everything(ledger)] == [True, False]


@pytest.mark.sql
def test_the_row_of_a_pending_array_retires_when_its_tasks_appear(ledger):
    meta = job(5, NOW - 90, None, None, JobID="5_[1-2]", State="PENDING", AllocTRES="")
    slurm = FakeSacct(meta)
    ingest(ledger, slurm)
    slurm.jobs = [
        job(6, NOW - 90, NOW - 80, NOW - 70, JobID="5_1"),
        job(7, NOW - 90, NOW - 80, NOW - 70, JobID="5_2"),
    ]
    ingest(ledger, slurm)
    rows = {row["job_id"]: row for row in everything(ledger)}
    assert rows["5_[1-2]"]["gone_since"] is not None
    assert rows["5_1"]["gone_since"] is rows["5_2"]["gone_since"] is None


@pytest.mark.parametrize("index", [1005, 2000])
def test_the_row_of_a_pending_array_becomes_its_last_task(ledger, index):
    """slurmdbd has one row for a JobIDRaw and a Submit; since 24.11 its DBIndex may change."""
    slurm = FakeSacct(job(5, NOW - 90, None, None, JobID="5_[1-2]", State="PENDING", AllocTRES=""))
    ingest(ledger, slurm)
    slurm.jobs = [
        job(6, NOW - 90, NOW - 80, NOW - 70, JobID="5_1"),
        job(5, NOW - 90, NOW - 80, NOW - 70, JobID="5_2", DBIndex=index),
    ]
    assert counts(ingest(ledger, slurm)) == (2, 1, 1, 0)
    assert [(row["job_id"], row["db_index"], row["gone_since"]) for row in everything(ledger)] == [
        ("5_2", index, None),
        ("5_1", 1006, None),
    ]


def test_suspended_time_is_placed_to_the_quarter_of_an_hour(ledger):
    day = (NOW - 3 * DAY) // DAY * DAY
    run = job(1, day, day, day + 2 * DAY)
    slurm = FakeSacct(halted(run, (day + DAY - 900, day + DAY + 1200), (day + 7200, day + 7230)))
    ingest(ledger, slurm)
    placed = [tuple(row.values())[1:] for row in everything_of(ledger, suspensions)]
    assert placed == [
        (day + 7200, 900, 30),
        (day + DAY - 900, 900, 900),
        (day + DAY, 900, 900),
        (day + DAY + 900, 900, 300),
    ]
    asked = len(slurm.asked)
    ingest(ledger, slurm)
    assert not any("-T" in argv for argv in slurm.asked[asked:])


def test_no_suspended_time_lies_where_the_run_was_not(ledger):
    """Of half a day it had only the last ten minutes, in which it was suspended all the time."""
    noon = (NOW - 3 * DAY) // DAY * DAY + DAY // 2
    row = job(1, noon - 600, noon - 600, noon + 4000)
    ingest(ledger, FakeSacct(halted(row, (noon - 600, noon + 1200))))
    placed = [tuple(row.values())[1:] for row in everything_of(ledger, suspensions)]
    assert placed == [(noon - 600, 600, 600), (noon, 900, 900), (noon + 900, 900, 300)]
    with ledger.transaction() as connection:
        for window in ((noon - DAY // 2, noon - 600), (noon + 1800, noon + 4000)):
            asked = UsageQuery(window, NOW, skip_suspended=True)
            for sums in query_usage(connection, asked).values():
                assert sums[SUM_INDEX["wall_seconds"]] == (window[1] - window[0]) * (
                    window[0] > noon
                )


@pytest.mark.sql
def test_suspended_time_that_sacct_does_not_place_lies_somewhere_in_the_run(ledger):
    slurm = FakeSacct(job(1, NOW - 90, NOW - 90, NOW - 20) | {"Suspended": "00:00:16"})
    ingest(ledger, slurm)
    (row,) = everything_of(ledger, suspensions)
    assert tuple(row.values())[1:] == (NOW - 90, 70, 16)


def test_the_suspended_time_of_a_run_without_an_end_is_placed_without_asking(ledger, monkeypatch):
    """sreport takes it off the CPUs in the hours in which it lay."""
    begin = (NOW - 3 * DAY) // DAY * DAY
    row, halts = job(1, begin, begin, None), [(begin + 900, begin + 971)]
    slurm = FakeSacct()
    slurm.jobs = [halted(row, *halts)]

    def placed_at(moment: int) -> list[tuple[int, ...]]:
        monkeypatch.setattr("slurmkit_accounting.ingest.ingest.time.time", lambda: moment)
        ingest(ledger, slurm)
        return [tuple(one.values())[1:] for one in everything_of(ledger, suspensions)]

    first = begin + DAY
    # Nobody has looked before: it lies somewhere in the run.
    somewhere = (begin, DAY, 71)
    assert placed_at(first) == [somewhere]
    # From then on it lies between two ingests, with one row for an hour.
    halts.append((first + 7300, first + 7400))
    slurm.jobs = [halted(row, *halts)]
    assert placed_at(first + 7500) == [somewhere, (first, 7500, 100)]
    assert placed_at(first + 9000) == [somewhere, (first, 7500, 100)]
    halts.append((first + 9000, first + 9030))
    slurm.jobs = [halted(row, *halts)]
    assert placed_at(first + 9100) == [somewhere, (first, 7500, 100), (first + 9000, 100, 30)]
    halts.append((first + 9150, first + 9160))
    slurm.jobs = [halted(row, *halts)]
    assert placed_at(first + 9200)[2:] == [(first + 9000, 200, 40)]
    # Of a suspension longer than the time since the last ingest, the end is known.
    halts.append((first + 9300, first + 30000))
    slurm.jobs = [row | {"Suspended": halted(row, *halts[:-1])["Suspended"]}]
    assert placed_at(first + 29990)[2:] == [(first + 9000, 200, 40)]
    slurm.jobs = [halted(row, *halts)]
    assert placed_at(first + 30000)[3:] == [(first + 9300, 20700, 20700)]
    assert not any("-T" in argv for argv in slurm.asked)
    # When the run has ended, sacct is asked.
    slurm.jobs = [halted(row | {"End": str(first + 30100)}, *halts)]
    assert placed_at(first + 30200)[0] == (begin + 900, 900, 71)
    with ledger.transaction() as connection:
        assert verify(connection).wrong == []


def test_a_run_that_was_suspended_for_less_than_was_said_keeps_no_old_interval(ledger):
    slurm = FakeSacct(job(1, NOW - 90, NOW - 90, NOW - 20) | {"Suspended": "00:00:16"})
    ingest(ledger, slurm)
    slurm.jobs[0]["Suspended"] = "00:00:00"
    ingest(ledger, slurm)
    assert everything_of(ledger, suspensions) == []
    with ledger.transaction() as connection:
        assert verify(connection).wrong == []


def test_a_suspension_that_cannot_be_read_stops_no_ingest(ledger, monkeypatch):
    slurm = FakeSacct(job(1, NOW - 90, NOW - 90, NOW - 20) | {"Suspended": "00:00:16"})
    monkeypatch.setattr("fake_sacct.clock", lambda _: "INVALID")
    ingest(ledger, slurm)
    (row,) = everything_of(ledger, suspensions)
    assert tuple(row.values())[1:] == (NOW - 90, 70, 16)


@pytest.mark.sql
def test_steps_say_what_was_used(ledger):
    run = job(1, NOW - 90, NOW - 90, NOW - 50)
    slurm = FakeSacct(run)
    usage = "mem=3221225472,gres/gpumem=1073741824,gres/gpuutil=150"
    slurm.steps["1001"] = [
        step(run, "batch", TotalCPU="00:02.000"),
        step(run, "0", TotalCPU="1-00:00:01", TRESUsageInTot=usage),
        step(run, "1", TotalCPU="213503982334-14:25:51", TRESUsageInTot=""),
    ]
    ingest(ledger, slurm)
    (row,) = everything(ledger)
    assert row["cpu_used_ms"] == 86403_000
    assert row["mem_peak_mib"] == 3072
    assert row["gpu_used_permille"] == 750  # 150 % of two GPUs
    assert row["gpu_mem_peak_mib"] == 1024
    with ledger.transaction() as connection:
        columns = ("cpu_used_ms", "cpu_measured_ms", "mem_used_mib_seconds", "gpu_used_ms")
        sums = [func.sum(usage_months.c[name]) for name in columns]
        found = connection.execute(select(*sums)).one()
    assert tuple(map(int, found)) == (86403_000, 4 * 40_000, 3072 * 40, 750 * 2 * 40)
    assert len(everything_of(ledger, steps)) == 3
    ingest(ledger, slurm)
    assert len(everything_of(ledger, steps)) == 3


@pytest.mark.sql
def test_a_run_cut_short_whose_job_completed_later_was_redone(ledger):
    first = job(1, NOW - 900, NOW - 890, NOW - 500, DBIndex=1, State="NODE_FAIL")
    second = job(1, NOW - 499, NOW - 400, NOW - 300, DBIndex=2, State="PREEMPTED")
    third = job(1, NOW - 300, NOW - 200, None, DBIndex=3, State="RUNNING")
    slurm = FakeSacct(first, second, third)
    ingest(ledger, slurm)
    assert not any(row["redone"] for row in everything(ledger))
    third |= {"State": "COMPLETED", "End": str(NOW - 100)}
    ingest(ledger, slurm)
    rows = {row["db_index"]: row["redone"] for row in everything(ledger)}
    assert rows == {1: True, 2: True, 3: False}
    with ledger.transaction() as connection:
        lost = select(func.sum(usage_months.c.gpu_seconds)).join(usage_keys)
        assert connection.scalar(lost.where(~usage_keys.c.redone)) == 2 * 100
        assert connection.scalar(lost.where(usage_keys.c.redone)) == 2 * (390 + 100)
    third["State"] = "FAILED"
    ingest(ledger, slurm)
    assert not any(row["redone"] for row in everything(ledger))


@pytest.mark.sql
def test_a_row_that_cannot_be_counted_keeps_no_other_row_out(ledger, monkeypatch):
    odd = TRES.replace("a100=2", "a100=1.5")
    rows = [job(n, NOW - 100, NOW - 90, NOW - 50) for n in range(1, 8)]
    rows[2] = job(3, NOW - 100, NOW - 90, NOW - 50, AllocTRES=odd, ReqTRES=odd)
    slurm = FakeSacct(*rows)
    slurm.junk = "sacct: a warning\n"
    with monkeypatch.context() as patch:
        # What the checks of a row miss is noticed when it is counted.
        patch.setattr("slurmkit_accounting.sacct.values.parse_tres", lambda _: {})
        done = ingest(ledger, slurm)
        assert counts(done) == (8, 6, 0, 2)
        assert [one["job_id_raw"] for one in everything(ledger)] == [1, 2, 4, 5, 6, 7]
        stray, row = everything(ledger, rejects)
        assert stray["reason"] == "not part of a row"
        assert row["reason"].startswith("the row cannot be entered: invalid literal")
        assert row["identity"] == f"3@{NOW - 100}"
        assert gpu_seconds(ledger) == 6 * 2 * 40
        assert counts(ingest(ledger, slurm)) == (8, 0, 0, 2)
        assert retry_rejects(ledger).rejected == 1
        assert [one["read_since"] for one in everything(ledger, rejects)] == [None, None]
    slurm.jobs[2] = job(3, NOW - 100, NOW - 90, NOW - 50)
    assert counts(ingest(ledger, slurm)) == (8, 1, 0, 1)
    assert gpu_seconds(ledger) == 7 * 2 * 40
    with ledger.transaction() as connection:
        assert verify(connection).wrong == []


def test_a_row_that_the_database_cannot_store_is_rejected_alone(ledger, monkeypatch):
    monkeypatch.setattr("slurmkit_accounting.sacct.values._MOST", 2**70)
    slurm = FakeSacct(*(job(n, NOW - 100, NOW - 90, NOW - 50) for n in range(1, 4)))
    slurm.jobs[1]["AllocNodes"] = str(2**69)
    assert counts(ingest(ledger, slurm)) == (3, 2, 0, 1)
    slurm.jobs[0]["AllocNodes"] = str(2**69)  # of a run that the ledger has
    assert counts(ingest(ledger, slurm)) == (3, 0, 0, 2)
    assert [(one["job_id_raw"], one["nodes"]) for one in everything(ledger)] == [(1, 1), (3, 1)]
    with ledger.transaction() as connection:
        assert verify(connection).wrong == []
