"""What one look teaches about a watched job: a job that left the queue is never guessed."""

from __future__ import annotations

import pytest

from slurmkit.errors import DatabaseDown, NoSuchJob, Refused, SlurmTimeout
from slurmkit.jobs.accounting_records import read_runs
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.poller import GRACE_SECONDS, LAG_SECONDS, PollResult, WatchedJob, update_watched
from slurmkit.state.queue_rows import QueueRow, parse_queue, squeue_format
from slurmkit.testing import FakeSlurm, sacct_text, squeue_text

MARK = "|"
DOWN = DatabaseDown("slurmdbd does not answer")


def row(state: str, **fields: str) -> QueueRow:
    job = {"JobArrayID": "7", "State": state, **fields}
    text = squeue_text(["-O", squeue_format(MARK)], [job])
    return parse_queue([text], MARK)[0]


def run(state: str, **fields: str) -> JobInfo:
    end = {} if state in {"RUNNING", "PENDING"} else {"End": "1700000500"}
    job = {"JobID": "7", "State": state, **end, **fields}
    return read_runs(FakeSlurm({"sacct": lambda argv, stdin: sacct_text(argv, [job])}), ["7"])[0]


def look(
    before: WatchedJob, *rows: QueueRow, runs: tuple[JobInfo, ...] = (), **more: object
) -> WatchedJob:
    seen = {"silent": None, "now": 0.0, **more}
    return update_watched("7", before, PollResult(rows, runs, **seen))  # type: ignore[arg-type]


RUNNING = look(WatchedJob(), row("RUNNING"))


def test_what_is_live_in_the_queue_is_not_over_whatever_the_database_says() -> None:
    known = look(WatchedJob(), row("PENDING", NodeList=""), runs=(run("PREEMPTED"),))
    assert known.info is not None
    assert (known.info.state, known.settled) == ("PENDING", False)


def test_an_end_both_know_is_the_databases() -> None:
    known = look(RUNNING, row("FAILED"), runs=(run("FAILED", ExitCode="3:0"),))
    assert known.info is not None
    assert (known.over, known.info.exit_code, known.info.source) == (True, "3:0", "sacct")


@pytest.mark.parametrize("silent", [DOWN, Refused("Slurm accounting storage is disabled")])
def test_slurmctlds_word_is_taken_when_the_database_is_silent(silent: Refused) -> None:
    known = look(RUNNING, row("FAILED"), silent=silent)
    assert known.info is not None
    assert (known.over, known.info.state, known.info.source) == (True, "FAILED", "squeue")


def test_a_database_that_lags_is_given_some_seconds() -> None:
    ended, still = row("COMPLETED"), run("RUNNING")
    first = look(RUNNING, ended, runs=(still,), now=100.0)
    assert not first.settled
    early = look(first, ended, runs=(still,), now=100.0 + LAG_SECONDS - 1)
    assert not early.settled
    late = look(early, ended, runs=(still,), now=100.0 + LAG_SECONDS)
    assert late.info is not None
    assert (late.over, late.info.state) == (True, "COMPLETED")


def test_a_job_that_left_the_queue_is_looked_up() -> None:
    known = look(RUNNING, runs=(run("TIMEOUT"),))
    assert known.info is not None
    assert (known.over, known.info.state) == (True, "TIMEOUT")


def test_the_run_before_a_requeue_is_not_its_end() -> None:
    """Last seen in its second run; slurmdbd has heard of the first only."""
    second = look(WatchedJob(), row("RUNNING", SubmitTime="1700000600"))
    known = look(second, runs=(run("NODE_FAIL"),), now=5.0)
    assert not known.settled
    again = look(known, runs=(run("NODE_FAIL"), run("COMPLETED", Submit="1700000600")), now=9.0)
    assert again.info is not None
    assert (again.over, again.info.state) == (True, "COMPLETED")


@pytest.mark.parametrize("silent", [DOWN, SlurmTimeout("sacct gave no answer")])
def test_nothing_is_learnt_from_silence(silent: DatabaseDown) -> None:
    known = RUNNING
    for now in (0.0, 1e3, 1e6):
        known = look(known, silent=silent, now=now)
        assert not known.settled
    assert known.info is not None
    assert known.info.state == "RUNNING"


@pytest.mark.parametrize("runs", [(), (run("RUNNING"),)])
def test_a_job_nobody_knows_any_more_is_unknown_after_a_while(runs: tuple[JobInfo, ...]) -> None:
    first = look(RUNNING, runs=runs, now=50.0)
    early = look(first, runs=runs, now=50.0 + GRACE_SECONDS - 1)
    assert not early.settled
    late = look(early, runs=runs, now=50.0 + GRACE_SECONDS)
    assert late.info is not None
    assert (late.over, late.info.state, late.info.is_over) == (True, "UNKNOWN", True)


def test_the_while_begins_anew_after_silence_and_after_a_return() -> None:
    gone = look(RUNNING, now=0.0)
    silent = look(gone, silent=DOWN, now=GRACE_SECONDS)
    assert not look(silent, now=GRACE_SECONDS + 1).settled
    back = look(gone, row("RUNNING"), now=GRACE_SECONDS)
    assert not look(back, now=GRACE_SECONDS + 1).settled


def test_a_job_nobody_ever_knew_is_an_error_at_once() -> None:
    known = look(WatchedJob())
    assert isinstance(known.error, NoSuchJob)
    assert known.settled


def test_what_counts_as_a_change() -> None:
    same = look(RUNNING, row("RUNNING", TimeUsed="9:59"), now=5.0)
    assert not same.differs(RUNNING)
    assert look(RUNNING, row("RUNNING", NodeList="c2")).differs(RUNNING)
    assert look(RUNNING, runs=(run("COMPLETED"),)).differs(RUNNING)
