"""One poller for any number of jobs: few questions, patient, and never guessing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from jobs_lab import QUICK, FakeJobs
from waiting import PATIENCE, wait_until

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import ControllerDown, DatabaseDown, NoSuchJob, NotOver, Refused, SlurmMissing
from slurmkit.jobs.poller import PollPace

DOWN = ControllerDown("slurmctld does not answer")


def at_look(jobs: FakeJobs, steps: dict[int, Callable[[], None]]) -> None:
    """Let something happen at the nth look at squeue."""
    count = jobs.look

    def look() -> None:
        count()
        steps.get(jobs.looks, lambda: None)()

    jobs.look = look  # type: ignore[method-assign]


def test_a_job_is_waited_for(jobs: FakeJobs) -> None:
    jobs.runs_now("7")
    at_look(jobs, {3: lambda: jobs.ends("7", "FAILED", ExitCode="3:0")})
    info = jobs.cluster().job("7").wait(timeout=PATIENCE)
    assert (info.state, info.exit_code, jobs.looks) == ("FAILED", "3:0", 3)


def test_a_thousand_jobs_are_one_question(jobs: FakeJobs) -> None:
    cluster = jobs.cluster()
    ids = [str(number) for number in range(5000, 6000)]
    for job_id in ids:
        jobs.runs_now(job_id)

    def end_all() -> None:
        for job_id in ids:
            jobs.ends(job_id)

    at_look(jobs, {4: end_all})
    with cluster.poller.watch(ids) as watch:
        *_, known = watch.changes(timeout=PATIENCE)
    assert all(one.over for one in known.values())
    assert len(jobs.asked("squeue")) == 4
    assert len(jobs.asked("sacct")) == 1
    assert cluster.poller.calls == 5


def test_jobs_waited_for_in_threads_are_asked_about_together(jobs: FakeJobs) -> None:
    cluster = Cluster(jobs.slurm, pace=PollPace(first=0.1, longest=0.1, floor=0.1))
    for number in range(50):
        jobs.runs_now(str(number))
    ended: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: ended.append(cluster.job(str(n)).wait(PATIENCE).job_id))
        for n in range(50)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    wait_until(lambda: len(cluster.poller._known) == 50)
    asked, looked = len(jobs.asked("squeue")), time.monotonic()
    polling = [thread for thread in threading.enumerate() if thread is cluster.poller._thread]
    for number in range(50):
        jobs.ends(str(number))
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(map(int, ended)) == list(range(50))
    assert asked <= (looked - began) / 0.1 + 2
    assert len(polling) == 1


def test_the_thread_ends_with_the_last_watch(jobs: FakeJobs) -> None:
    """A program that makes many clusters keeps no thread for each."""
    poller = jobs.cluster().poller
    for _ in range(2):
        jobs.runs_now("7")
        with poller.watch(["7"]) as first:
            wait_until(lambda watch=first: watch.known["7"].info)
            with poller.watch(["7"]):
                pass
            thread = poller._thread
            assert thread is not None
            assert thread.is_alive()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_clusters_of_one_border_share_a_poller(jobs: FakeJobs) -> None:
    assert jobs.cluster().poller is Cluster(jobs.slurm).poller


def test_the_interval_grows_while_nothing_changes_and_is_short_again_after() -> None:
    pace = PollPace(first=2, longest=30, growth=1.5, floor=1)
    intervals = [2.0]
    for _ in range(9):
        intervals.append(pace.after(intervals[-1], changed=False))
    assert intervals == [2, 3, 4.5, 6.75, 10.125, 15.1875, 22.78125, 30, 30, 30]
    assert pace.after(30, changed=True) == 2
    assert PollPace(first=2, longest=30, floor=45).after(2, changed=True) == 45


def test_the_sites_floor_is_kept(
    jobs: FakeJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("[poll]\nfloor_seconds = 0.3\n")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(tmp_path / "config.toml"))
    poller = Cluster(jobs.slurm).poller
    assert poller._pace.floor == 0.3
    jobs.runs_now("7")
    began = time.monotonic()
    with poller.watch(["7"]) as watch, pytest.raises(NotOver):
        list(watch.changes(timeout=0.05))
    with poller.watch(["7"]) as watch:
        next(iter(watch.changes()))
        while poller.calls < 2:
            time.sleep(0.01)
    assert time.monotonic() - began >= 0.3


def test_an_outage_is_outlasted_and_told(jobs: FakeJobs) -> None:
    jobs.runs_now("7")

    def fails(error: ControllerDown | None) -> Callable[[], None]:
        return lambda: setattr(jobs, "squeue_fails", error)

    at_look(jobs, {2: fails(DOWN), 12: fails(None), 13: lambda: jobs.ends("7")})
    told: list[str] = []
    info = jobs.cluster().job("7").wait(timeout=PATIENCE, notice=told.append)
    assert info.state == "COMPLETED"
    assert told == ["slurmctld does not answer; asking again"]


def test_a_database_that_is_down_is_outlasted_for_a_job_that_left_the_queue(jobs: FakeJobs) -> None:
    jobs.runs_now("7")

    def leave() -> None:
        jobs.leaves("7")
        jobs.sacct_fails = DatabaseDown("slurmdbd does not answer")

    def back() -> None:
        jobs.sacct_fails = None
        jobs.runs.append({"JobID": "7", "State": "FAILED"})

    at_look(jobs, {2: leave, 8: back})
    told: list[str] = []
    assert jobs.cluster().job("7").wait(timeout=PATIENCE, notice=told.append).state == "FAILED"
    assert told == ["slurmdbd does not answer; asking again"]


def test_what_slurm_refuses_again_and_again_is_an_error(jobs: FakeJobs) -> None:
    jobs.runs_now("7")
    jobs.squeue_fails = Refused("Unexpected message received")
    with pytest.raises(Refused, match="Unexpected message"):
        jobs.cluster().job("7").wait(timeout=PATIENCE)
    assert jobs.looks == 5


def test_without_slurms_commands_there_is_nothing_to_wait_for(jobs: FakeJobs) -> None:
    jobs.squeue_fails = SlurmMissing("squeue is not on the PATH")
    with pytest.raises(SlurmMissing):
        jobs.cluster().job("7").wait(timeout=PATIENCE)
    assert jobs.looks == 1


@pytest.mark.parametrize("where", ["read_queue_rows", "update_watched"])
def test_a_defect_reaches_who_waits(
    jobs: FakeJobs, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A thread that died would let them wait for ever."""

    def broken(*args: object) -> None:
        raise ZeroDivisionError("oops")

    jobs.runs_now("7")
    monkeypatch.setattr(f"slurmkit.jobs.poller.{where}", broken)
    with pytest.raises(Exception, match="ZeroDivisionError: oops"):
        jobs.cluster().job("7").wait(timeout=PATIENCE)


def test_an_unknown_job_is_told_at_once_and_the_others_are_waited_for(jobs: FakeJobs) -> None:
    jobs.runs_now("7")
    with jobs.cluster().poller.watch(["7", "8"]) as watch:
        for known in watch.changes(timeout=PATIENCE):
            if isinstance(known["8"].error, NoSuchJob):
                break
        assert not known["7"].over
        jobs.ends("7")
        *_, known = watch.changes(timeout=PATIENCE)
    assert known["7"].over
    assert isinstance(known["8"].error, NoSuchJob)


def test_time_is_up(jobs: FakeJobs) -> None:
    jobs.runs_now("7")
    with pytest.raises(NotOver, match=r"not over after 0\.1 s: job 7"):
        jobs.cluster().job("7").wait(timeout=0.1)


def test_no_job_is_said_not_to_be_over_before_a_look(jobs: FakeJobs) -> None:
    """`--timeout 0` asks whether it is."""
    jobs.ends("7")
    assert jobs.cluster().job("7").wait(timeout=0).state == "COMPLETED"
    jobs.runs_now("8")
    with pytest.raises(NotOver, match="not over after 0 s: job 8"):
        jobs.cluster().job("8").wait(timeout=0)
    jobs.squeue_fails = DOWN
    with pytest.raises(NotOver, match="still no answer from Slurm after 0 s: job 9"):
        jobs.cluster().job("9").wait(timeout=0)


def test_nothing_is_asked_when_nobody_waits(jobs: FakeJobs) -> None:
    jobs.runs_now("7")
    with pytest.raises(NotOver):
        jobs.cluster().job("7").wait(timeout=0.1)
    time.sleep(0.1)
    looks = jobs.looks
    time.sleep(0.3)
    assert jobs.looks <= looks + 1  # one may have been under way; watched, there were 15 more


def test_only_the_owners_jobs_are_loaded_once_it_is_known(jobs: FakeJobs) -> None:
    jobs.runs_now("7")
    at_look(jobs, {3: lambda: jobs.ends("7")})
    jobs.cluster().job("7").wait(timeout=PATIENCE)
    users = [[word for word in argv if word.startswith("--user")] for argv in jobs.asked("squeue")]
    assert users == [[], ["--user=alice"], ["--user=alice"]]
    assert QUICK.floor < 0.1


def test_a_user_the_login_node_cannot_look_up_does_not_end_a_watch(jobs: FakeJobs) -> None:
    """LDAP may be away for a moment: the jobs are then asked for without their owner."""
    real = jobs.slurm._answers["squeue"]

    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        if any(word.startswith("--user") for word in argv):
            raise Refused("squeue: error: Invalid user: alice")
        return real(argv, stdin)

    jobs.slurm._answers["squeue"] = squeue
    jobs.runs_now("7")
    at_look(jobs, {8: lambda: jobs.ends("7")})
    assert jobs.cluster().job("7").wait(timeout=PATIENCE).state == "COMPLETED"
