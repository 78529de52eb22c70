"""Many jobs at once, as `concurrent.futures` waits for futures."""

from __future__ import annotations

import concurrent.futures
import inspect
import io

import pytest
from jobs_lab import FakeJobs
from waiting import PATIENCE

import slurmkit
from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import BadInput, NoSuchJob, NotOver
from slurmkit.jobs.job import Job
from slurmkit.jobs.waiting import as_completed, wait


def handles(jobs: FakeJobs, *ids: str) -> list[Job]:
    cluster = jobs.cluster()
    return [cluster.job(each) for each in ids]


def test_they_take_what_the_standard_librarys_do() -> None:
    for own, theirs in (
        (wait, concurrent.futures.wait),
        (as_completed, concurrent.futures.as_completed),
    ):
        taken = [*inspect.signature(own).parameters][1:]
        assert taken == [*inspect.signature(theirs).parameters][1:]
    assert (slurmkit.wait, slurmkit.as_completed) == (wait, as_completed)


def test_jobs_are_yielded_as_they_end(jobs: FakeJobs) -> None:
    for each in ("7", "8", "9"):
        jobs.runs_now(each)
    jobs.ends("8")
    seen: list[str] = []
    for job in as_completed(handles(jobs, "7", "8", "9"), PATIENCE):
        seen.append(job.id)
        if job.id == "8":
            jobs.ends("9", "FAILED")
        elif job.id == "9":
            jobs.ends("7")
    assert seen == ["8", "9", "7"]


def test_one_query_asks_about_all(jobs: FakeJobs) -> None:
    ids = [str(number) for number in range(7, 57)]
    for each in ids:
        jobs.ends(each)
    assert len(wait(handles(jobs, *ids)).done) == 50
    assert (len(jobs.asked("squeue")), len(jobs.asked("sacct"))) == (1, 1)


def test_time_that_is_over_is_a_timeout_error_or_not_done(jobs: FakeJobs) -> None:
    jobs.runs_now("7")
    jobs.ends("8")
    running, ended = handles(jobs, "7", "8")
    found = wait([running, ended], timeout=0.05)
    assert found == ({ended}, {running})
    assert (found.done, found.not_done) == ({ended}, {running})
    seen = as_completed([running, ended], timeout=0.05)
    assert next(seen) is ended
    with pytest.raises(NotOver, match=r"not over after 0\.05 s: job 7") as caught:
        next(seen)
    assert isinstance(caught.value, TimeoutError)


def test_a_timeout_of_0_asks_once(jobs: FakeJobs) -> None:
    jobs.runs_now("7")
    jobs.ends("8")
    running, ended = handles(jobs, "7", "8")
    assert wait([running, ended], timeout=0) == ({ended}, {running})


def test_the_first_that_ends_or_fails(jobs: FakeJobs) -> None:
    for each in ("7", "8", "9"):
        jobs.runs_now(each)
    jobs.ends("8")
    one, two, three = handles(jobs, "7", "8", "9")
    first = wait([one, two, three], PATIENCE, concurrent.futures.FIRST_COMPLETED)
    assert first == ({two}, {one, three})
    jobs.ends("9", "FAILED")
    failed = wait([one, two, three], PATIENCE, return_when="FIRST_EXCEPTION")
    assert failed == ({two, three}, {one})
    jobs.ends("7")
    assert wait([one, two], PATIENCE, "FIRST_EXCEPTION").not_done == set()


def test_a_job_that_nobody_knows_is_done_and_raises(jobs: FakeJobs) -> None:
    jobs.ends("7")
    known, unknown = handles(jobs, "7", "8")
    assert wait([known, unknown], PATIENCE).done == {known, unknown}
    with pytest.raises(NoSuchJob):
        unknown.wait()


def test_an_array_and_a_plan_count_as_one_job_each(jobs: FakeJobs) -> None:
    cluster = jobs.cluster()
    parts = cluster.job("8"), cluster.job("9")
    plan = Job("8,9", cluster, parts)
    array = cluster.job("7")
    jobs.ends("7_1")
    jobs.runs_now("7_2")
    jobs.ends("8")
    jobs.runs_now("9")
    assert wait([plan, array], 0.05).done == set()
    jobs.ends("9")
    jobs.ends("7_2")
    assert wait([plan, array], PATIENCE).not_done == set()


def test_no_jobs_are_done_at_once() -> None:
    assert wait([]) == (set(), set())
    assert list(as_completed([])) == []


def test_what_cannot_be_waited_for_is_refused(jobs: FakeJobs) -> None:
    others = FakeJobs()
    with pytest.raises(BadInput, match="several clusters"):
        wait([*handles(jobs, "7"), *handles(others, "7")])
    with pytest.raises(BadInput, match="return_when is one of ALL_COMPLETED"):
        wait(handles(jobs, "7"), return_when="EVER")  # type: ignore[arg-type]


def test_a_watch_that_is_left_early_is_closed(jobs: FakeJobs) -> None:
    jobs.runs_now("7")
    jobs.ends("8")
    cluster: Cluster = jobs.cluster()
    for _ in as_completed([cluster.job("7"), cluster.job("8")], PATIENCE):
        break
    assert cluster.poller._watchers == {}


class Terminal(io.StringIO):
    """Standard error, which is a terminal or not."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("progress", "is_terminal", "shown"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_a_long_wait_says_what_it_waits_for_where_a_terminal_is(
    jobs: FakeJobs,
    monkeypatch: pytest.MonkeyPatch,
    progress: bool | None,
    is_terminal: bool,
    shown: bool,
) -> None:
    monkeypatch.setattr("slurmkit.jobs.job._QUIET_SECONDS", 0.01)
    errors = Terminal(is_terminal=is_terminal)
    monkeypatch.setattr("sys.stderr", errors)
    jobs.waits("7", Reason="Resources")

    def look() -> None:
        """Go on once the state was said."""
        said = errors.getvalue()
        if "RUNNING" in said or not shown:
            jobs.ends("7")
        elif "PENDING" in said:
            jobs.runs_now("7")

    jobs.look = look  # type: ignore[method-assign]
    jobs.cluster().job("7").wait(PATIENCE, progress=progress)
    lines = "job 7: PENDING (Resources)\njob 7: RUNNING\n"
    assert errors.getvalue() == (lines if shown else "")
