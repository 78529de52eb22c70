"""Calls that keep where they stand, in tasks that the shell of jobs that survive requeues."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from executor_lab import RunningSlurm
from survive_lab import Slurmctld
from waiting import PATIENCE, wait_until

import slurmkit
from slurmkit.errors import BadInput
from slurmkit.executor import resultfiles, runs, store, worker
from slurmkit.executor.local import LocalExecutor
from slurmkit.executor.payload import write_program
from slurmkit.executor.runs import CallRun, divide_calls
from slurmkit.executor.slurm import Executor
from slurmkit.executor.store import LocalStore
from slurmkit.resumable import Resumable
from slurmkit.spec.containers import Container
from slurmkit.spec.jobspec import Launch
from slurmkit.spec.survival import Survive

POLICY = Survive(on_timeout="requeue", on_node_fail="requeue", grace=20, restart_delay=0)


def counter(marks: Path, *, often: bool = False) -> Callable[[int], Any]:
    """What counts to ten from zero, and waits at five in its first run for what the test does.

    Args:
        marks: it writes there in which run it came to which number, and the first time waits.
        often: whether it says at each number where it stands, without being asked.
    """
    import slurmkit  # noqa: PLC0415 - the function is pickled by value

    def count(call: int, at: int = 0) -> Any:
        run = os.environ.get("SLURMKIT_RESTART", "-")
        while at < 10:
            while at == 5 and run == "0" and call == 1 and not slurmkit.checkpoint_wanted():
                (marks / "waits").touch()
                time.sleep(0.01)
            if slurmkit.checkpoint_wanted():
                return slurmkit.Resumable(count, call, at=at)
            at += 1
            with (marks / f"call{call}").open("a") as file:
                print(f"{run}:{at}", end=" ", file=file)
            if often:
                return slurmkit.Resumable(count, call, at)
        return call, at, run

    return count


def said(marks: Path, call: int) -> list[str]:
    path = marks / f"call{call}"
    return path.read_text().split() if path.exists() else []


def task_of(
    folder: Path, function: Callable[..., Any], calls: int = 3
) -> tuple[Slurmctld, CallRun]:
    """A job that survives, which makes some calls, and its run."""
    store = LocalStore(folder)
    run = runs.write_run(
        store, function, [((x,), {}) for x in range(calls)], divide_calls(calls, 1)
    )
    lab = folder / "lab"
    lab.mkdir()
    slurm = Slurmctld(lab, POLICY, "plain")
    own = (
        f"PYTHONPATH={':'.join(sys.path)}"  # as of this process: this tree before an installed one
    )
    slurm.work = ("env", own, sys.executable, write_program(store), run.folder, "0")
    return slurm, run


def results(run: CallRun) -> dict[int, resultfiles.StoredResult]:
    folder = Path(run.folder) / worker.RESULTS
    # One that begins with a dot is not whole yet, and gone when it is.
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    read = [resultfiles.read_private(str(folder / name)) for name in names]
    return {result.call: result for data in read for result in resultfiles.results_in(data)}


def value(result: resultfiles.StoredResult) -> Any:
    return pickle.loads(result.payload)  # noqa: S301 - our own


def wait_for(path: Path, slurm: Slurmctld) -> None:
    def is_there() -> bool:
        assert slurm.process
        assert slurm.process.poll() is None, slurm.log
        return path.exists()

    try:
        wait_until(is_there, lambda: slurm.log)
    except AssertionError:
        slurm.kill()
        raise


def test_a_call_that_is_asked_goes_on_in_the_next_run(tmp_path: Path) -> None:
    """Those before it are not made again, and those after it are begun in the next run only."""
    slurm, run = task_of(tmp_path, counter(tmp_path))
    slurm.start()
    wait_for(tmp_path / "waits", slurm)
    slurm.warn()
    assert slurm.finish() == "requeued"
    assert slurm.codes == [75]
    assert set(results(run)) == {0}
    (state,) = (Path(run.folder) / worker.STATES).iterdir()
    assert state.stat().st_mode & 0o777 == 0o600
    slurm.start()
    assert slurm.finish() == "done", slurm.log
    assert [value(results(run)[x]) for x in range(3)] == [(0, 10, "0"), (1, 10, "1"), (2, 10, "1")]
    ten = range(1, 11)
    assert said(tmp_path, 0) == [f"0:{at}" for at in ten]
    assert said(tmp_path, 1) == [f"{int(at > 5)}:{at}" for at in ten]
    assert said(tmp_path, 2) == [f"1:{at}" for at in ten]
    assert list((Path(run.folder) / worker.STATES).iterdir()) == []


def test_a_node_that_is_lost_takes_only_what_came_after_the_last_state(tmp_path: Path) -> None:
    slurm, run = task_of(tmp_path, counter(tmp_path, often=True))
    slurm.start()
    wait_for(tmp_path / "waits", slurm)
    slurm.kill()
    slurm.requeue()
    slurm.finish()
    slurm.start()
    assert slurm.finish() == "done", slurm.log
    assert [value(results(run)[x])[:2] for x in range(3)] == [(x, 10) for x in range(3)]
    assert said(tmp_path, 0) == [f"0:{at}" for at in range(1, 11)]
    assert said(tmp_path, 1) == [f"{int(at > 5)}:{at}" for at in range(1, 11)]


def test_a_call_that_knows_of_nothing_begins_anew(tmp_path: Path) -> None:
    """It is not asked for anything; what has its result is not made again."""
    marks = tmp_path

    def deaf(call: int) -> int:
        with (marks / f"call{call}").open("a") as file:
            print(os.environ["SLURMKIT_RESTART"], end=" ", file=file)
        while call == 1 and os.environ["SLURMKIT_RESTART"] == "0":
            (marks / "waits").touch()
            time.sleep(0.01)
        if call == 0:
            raise KeyError(call)
        return call

    slurm, run = task_of(tmp_path, deaf)
    slurm.start()
    wait_for(marks / "waits", slurm)
    # Results are written a moment later, together: a lost node takes the last ones.
    wait_until(lambda: 0 in results(run), lambda: slurm.log)
    slurm.kill()
    slurm.requeue()
    slurm.finish()
    slurm.start()
    assert slurm.finish() == "failed"  # call 0 failed in the run before: it is not forgotten
    assert slurm.codes[-1] == 1
    assert [said(marks, call) for call in range(3)] == [["0"], ["0", "1"], ["1"]]
    assert [results(run)[x].kind for x in range(3)] == ["error", "value", "value"]


def test_without_a_policy_it_goes_on_at_once(tmp_path: Path) -> None:
    with LocalExecutor(2, folder=tmp_path) as made:
        futures = made.submit_all(counter(tmp_path, often=True), range(4))
        assert [future.result(PATIENCE) for future in futures] == [(x, 10, "-") for x in range(4)]
    states = futures[0].log.parent / worker.STATES
    wait_until(lambda: not list(states.iterdir()))  # its tasks end after their last results


def test_what_a_kill_left_of_a_state_goes_with_the_others(tmp_path: Path) -> None:
    """A process killed while it saves one leaves a file with another name."""

    def leave(call: int) -> int:
        (states,) = tmp_path.rglob("states")
        (states / f".{call}-c1-4443").touch()
        return call

    with LocalExecutor(1, folder=tmp_path) as made:
        futures = made.submit_all(leave, range(12))
        assert [future.result(PATIENCE) for future in futures] == list(range(12))
    states = futures[0].log.parent / worker.STATES
    wait_until(lambda: not list(states.iterdir()))


def test_calls_of_this_machine_are_not_asked_with_the_job_around_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "7" / "checkpoint"
    asked.parent.mkdir()
    asked.touch()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv(worker.ASKED, str(asked))
    assert slurmkit.checkpoint_wanted()
    with LocalExecutor(1, folder=tmp_path) as made:
        assert made.submit(slurmkit.checkpoint_wanted).result(PATIENCE) is False
    assert asked.exists()


@pytest.mark.parametrize(
    ("job", "array", "task", "asked"),
    [
        ("7", None, None, True),
        ("8", None, None, False),
        ("8", "7", "3", False),
        ("8", "7", "7", False),
    ],
)
def test_a_job_that_another_sent_is_not_asked_with_it(
    monkeypatch: pytest.MonkeyPatch, job: str, array: str | None, task: str | None, *, asked: bool
) -> None:
    """It has the variables of that one, too."""
    monkeypatch.setenv(worker.ASKED, "/home/alice/.local/state/slurmkit/runs/lab/7/checkpoint")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    for name, number in (("SLURM_ARRAY_JOB_ID", array), ("SLURM_ARRAY_TASK_ID", task)):
        if number is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, number)
    assert worker.is_asked_here() is asked


class Ended:
    """A task of a job with a policy, to which Slurm sends the SIGTERM of a step."""

    def __init__(self, folder: Path, function: Callable[..., Any]) -> None:
        store = LocalStore(folder)
        self.run = runs.write_run(store, function, [((), {})], divide_calls(1, 1))
        self.program = write_program(store)
        self.asked = folder / "7" / "checkpoint"
        self.asked.parent.mkdir()

    def start(self, run: int = 0) -> subprocess.Popen[bytes]:
        own = {"SLURM_JOB_ID": "7", worker.ASKED: str(self.asked), "SLURMKIT_RESTART": str(run)}
        (self.asked.parent / f"lease.{run}").touch()
        argv = [sys.executable, self.program, self.run.folder, "0"]
        return subprocess.Popen(argv, env={**os.environ, **own}, start_new_session=True)

    def end(self, mark: Path) -> int:
        """Start it, end it once it has made a mark, and give its exit code."""
        process = self.start()
        wait_until(lambda: mark.exists() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGTERM)
        return process.wait(PATIENCE)


def test_a_step_that_slurm_ends_keeps_where_its_calls_stand(tmp_path: Path) -> None:
    """The grace of a preemption begins with a SIGTERM to all processes of its steps."""
    mark = tmp_path / "mark"

    def count(at: int = 0) -> Any:
        with multiprocessing.get_context("fork").Pool(1) as pool:  # it ends that by SIGTERM
            pool.map(abs, [1])
        mark.touch()
        while not at and not slurmkit.checkpoint_wanted():
            time.sleep(0.01)
        return at or Resumable(count, 5)

    task = Ended(tmp_path, count)
    assert task.end(mark) == 75
    assert task.asked.exists()
    assert len(list((Path(task.run.folder) / worker.STATES).iterdir())) == 1
    task.asked.unlink()
    assert task.start(1).wait(PATIENCE) == 0
    assert value(results(task.run)[0]) == 5
    assert not task.asked.exists()


def test_a_call_that_ends_in_its_grace_is_done(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def slow() -> str:
        mark.touch()
        time.sleep(1)
        return "done"

    task = Ended(tmp_path, slow)
    assert task.end(mark) == 0
    assert value(results(task.run)[0]) == "done"
    assert not task.asked.exists()


def test_what_a_call_raises_for_processes_that_slurm_ended_is_no_result(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def helped() -> None:
        with subprocess.Popen(["sleep", "20"]) as helper:
            mark.touch()
            helper.wait()
        raise ChildProcessError(helper.returncode)

    task = Ended(tmp_path, helped)
    assert task.end(mark) == 75
    assert results(task.run) == {}


def test_a_stale_run_ends_at_once_and_asks_nobody(tmp_path: Path) -> None:
    """It and the run after it have the same file."""
    mark = tmp_path / "mark"

    def slow() -> None:
        mark.touch()
        time.sleep(20)

    task = Ended(tmp_path, slow)
    (task.asked.parent / "lease.1").touch()
    assert task.end(mark) == 128 + signal.SIGTERM
    assert not task.asked.exists()


def test_a_state_that_others_may_change_is_refused(tmp_path: Path) -> None:
    slurm, run = task_of(tmp_path, counter(tmp_path), calls=1)
    forged = Path(run.folder) / worker.STATES / "0"
    forged.write_bytes(pickle.dumps((print, ("evil",), {})))
    forged.chmod(0o644)
    slurm.start()
    assert slurm.finish() == "failed"
    (result,) = results(run).values()
    assert isinstance(value(result), PermissionError)
    assert "others may read or change it (mode 644)" in str(value(result))
    assert "evil" not in slurm.log


def full(*, disk: bool) -> None:
    """Have this process write nothing that is longer than a line or two, as with a quota."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000 if disk else most, most))


def test_a_state_that_there_is_no_room_for_is_no_end(tmp_path: Path) -> None:
    def count(at: int, ballast: bytes = b"") -> Any:
        full(disk=at == 1)
        return Resumable(count, at + 1, bytes(9000)) if at < 3 else at

    with LocalExecutor(1, folder=tmp_path) as made:
        future = made.submit(count, 0)
        assert future.result(PATIENCE) == 3
    words = "the state of call 0 is not saved: [Errno 27] File too large"
    assert words in future.log.read_text()
    assert future.log.read_text().count("is not saved") == 1


def test_what_is_asked_and_has_no_room_goes_on_from_its_last_state(tmp_path: Path) -> None:
    """Nor is there any in the log."""
    marks = tmp_path

    def count(at: int, ballast: bytes = b"") -> Any:
        run = os.environ["SLURMKIT_RESTART"]
        with (marks / "call0").open("a") as file:
            print(f"{run}:{at}", end=" ", file=file)
        while at == 2 and run == "0" and not slurmkit.checkpoint_wanted():
            (marks / "waits").touch()
            time.sleep(0.01)
        if at == 2 and run == "0":
            print("x" * 8000)
            sys.stdout.flush()
            full(disk=True)
        return Resumable(count, at + 1, bytes(9000)) if at < 4 else at

    slurm, run = task_of(tmp_path, count, calls=1)
    slurm.start()
    wait_for(marks / "waits", slurm)
    slurm.warn()
    assert slurm.finish() == "requeued", slurm.log
    assert slurm.codes == [75]
    assert len(list((Path(run.folder) / worker.STATES).iterdir())) == 1
    slurm.start()
    assert slurm.finish() == "done", slurm.log
    assert said(marks, 0) == ["0:0", "0:1", "0:2", "1:2", "1:3", "1:4"]
    assert value(results(run)[0]) == 4


def test_what_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    def bad() -> Resumable:
        return Resumable(print, threading.Lock())

    with LocalExecutor(1, folder=tmp_path) as made, pytest.raises(TypeError, match="pickle"):
        made.submit(bad).result(PATIENCE)


def test_a_job_without_slurmkit_has_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container: nothing of ours but what lies beside the worker."""
    head = {**runs._head(LocalStore(None)), "path": [], "prefix": "/elsewhere"}
    monkeypatch.setattr(runs, "_head", lambda _: head)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def where(at: int) -> Any:
        if at:
            return Resumable(where, at - 1)
        return sys.modules["slurmkit"].__file__, slurmkit.checkpoint_wanted()

    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with LocalExecutor(1, folder=tmp_path, python=str(bare)) as made:
        found, wanted = made.submit(where, 2).result(PATIENCE)
    assert str(tmp_path) in found
    assert not wanted


def test_a_policy_is_given_as_options_of_the_executor() -> None:
    slurm = RunningSlurm()
    made = Executor(slurm, on_timeout="requeue", on_oom="requeue", grace=30, oom_max_mem="8G")
    assert made._spec.survive == Survive(
        on_timeout="requeue", on_oom="requeue", grace=30, oom_max_mem="8G"
    )
    assert made._spec.launch == Launch()  # a step, which Slurm ends alone
    assert Executor(slurm, on_timeout="requeue")._spec.launch == Launch(launcher="none")
    more = Executor(slurm, survive=Survive(on_timeout="hold"), on_preempt="requeue")
    assert more._spec.survive == Survive(on_timeout="hold", on_preempt="requeue")
    image = Container(image="/i/x.sqsh")
    inside = Executor(slurm, on_timeout="requeue", container=image)._spec.container
    assert inside
    assert inside.mounts == (str(store.make_base_folder(None)),)
    with pytest.raises(
        BadInput, match="on-timeout must be one of requeue, hold, fail, not 'again'"
    ):
        Executor(slurm, on_timeout="again")
    with pytest.raises(BadInput, match="takes no option 'on_timeuot'; did you mean 'on_timeout'"):
        Executor(slurm, on_timeuot="requeue")
