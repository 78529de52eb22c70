"""Calls that were sent: as which jobs, found again, and whose their files are."""

from __future__ import annotations

import concurrent.futures
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from executor_lab import RunningSlurm, running_slurm
from waiting import PATIENCE, wait_until

import slurmkit
from slurmkit.errors import (
    BadInput,
    ControllerDown,
    Refused,
    ResultLost,
    ResultRefused,
    SlurmkitError,
)
from slurmkit.executor import resultfiles, store, worker
from slurmkit.executor.local import LocalExecutor
from slurmkit.executor.runs import load_run
from slurmkit.executor.slurm import MOST_TASKS, Executor, PlanWarning

assert running_slurm  # a fixture


def square(x: int) -> int:
    return x * x


def third_fails(x: int) -> int:
    if x == 3:
        raise KeyError(x)
    return x * x


# --- sent, and found again ------------------------------------------------------------------------


def test_a_map_is_one_array_of_few_tasks(slurm: RunningSlurm) -> None:
    with Executor(slurm, max_workers=5, partition="cpu", time="3", array_throttle=2) as made:
        assert list(made.map(square, range(100))) == [x * x for x in range(100)]
        (script,) = slurm.submits
        assert "#SBATCH --array=0-4%2\n" in script
        assert "#SBATCH --time=3\n" in script
        assert "#SBATCH --job-name=square\n" in script
        assert "srun" not in script
        list(made.map(square, range(4), chunksize=3))
        assert "#SBATCH --array=0-1%2\n" in slurm.submits[1]
        made.submit(square, 1).result(PATIENCE)
        assert "--array" not in slurm.submits[2]
    assert MOST_TASKS < 100


def test_more_tasks_than_an_array_holds() -> None:
    slurm = RunningSlurm(largest=4)
    with Executor(slurm, partition="cpu") as made:
        futures = made.submit_all(square, range(10), chunksize=1)
        assert [future.result(PATIENCE) for future in futures] == [x * x for x in range(10)]
    slurm.end()
    assert len(slurm.submits) == 3
    assert [future.job_id for future in futures[3:5]] == ["101_3", "102_0"]
    assert {future.job for future in futures} == {"101"}
    assert [f.result(PATIENCE) for f in Executor.attach("101", slurm)] == [x * x for x in range(10)]


def test_a_task_of_an_array_sends_calls_itself(
    slurm: RunningSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its variables are in what it sends, too."""
    monkeypatch.setenv("SLURMKIT_ARRAY_TASK_ID", "5")
    with Executor(slurm, max_workers=2, partition="cpu") as made:
        assert made.submit(square, 3).result(PATIENCE) == 9
        assert list(made.map(square, range(4))) == [0, 1, 4, 9]


def test_found_again_from_another_process(slurm: RunningSlurm) -> None:
    with Executor(slurm, max_workers=2, partition="cpu") as made:
        futures = made.submit_all(third_fails, range(4))
        concurrent.futures.wait(futures, 60)
    found = Executor.attach(futures[0].job_id, slurm)
    assert [future.exception(PATIENCE) is None for future in found] == [True, True, True, False]
    assert [future.result() for future in found[:3]] == [0, 1, 4]
    with pytest.raises(BadInput, match="no record of calls that you sent to lab as job 999"):
        Executor.attach("999", slurm)


def test_local_calls_are_found_again() -> None:
    with LocalExecutor(2) as made:
        futures = made.submit_all(square, range(4))
    found = LocalExecutor.attach(futures[0].job)
    assert [future.result(PATIENCE) for future in found] == [0, 1, 4, 9]
    waiting = made.__class__(1)
    lost = waiting.submit(time.sleep, 5)
    (other,) = LocalExecutor.attach(lost.job)
    with pytest.raises(ResultLost, match="another process started it"):
        other.result(PATIENCE)
    lost.cancel()
    waiting.shutdown()


def test_what_is_over_can_be_forgotten(slurm: RunningSlurm) -> None:
    slurm.starts = False
    with Executor(slurm, max_workers=2, partition="cpu") as made:
        futures = made.submit_all(square, range(4))
        other = made.submit(square, 9)
        job, folder = futures[0].job, futures[0].log.parent
        with pytest.raises(BadInput, match=r"job 101_\[0-1\] is pending; the files of 101 can"):
            Executor.forget(futures[3].job_id, slurm)
        assert (folder / worker.HEAD).exists()
        slurm.jobs.squeue_fails = ControllerDown("away")
        with pytest.raises(ControllerDown):
            Executor.forget(job, slurm)
        assert (folder / worker.HEAD).exists()
        slurm.jobs.squeue_fails = None
        for future in (*futures, other):
            future.cancel()
    slurm.jobs.queue.clear()
    Executor.forget(job, slurm)
    assert not folder.exists()
    assert other.log.parent.exists()
    with pytest.raises(BadInput, match="no record of calls that you sent to lab as job 101"):
        Executor.forget(job, slurm)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_somebody_else_is_not_removed(slurm: RunningSlurm) -> None:
    with Executor(slurm, partition="cpu") as made:
        future = made.submit(square, 3)
        future.result(PATIENCE)
    slurm.jobs.queue.clear()
    folder = future.log.parent
    os.chown(folder, 12345, -1)
    with pytest.raises(BadInput, match="is not yours, so it is not removed"):
        Executor.forget(future.job, slurm)
    assert folder.exists()


def test_local_calls_are_forgotten_once_no_process_is_at_them() -> None:
    with LocalExecutor(1) as made:
        future = made.submit(time.sleep, 30)
        while not future.running():
            time.sleep(0.01)
        with pytest.raises(BadInput, match=r"process \d+ still works on it"):
            LocalExecutor.forget(future.job)
        future.cancel()
    wait_until(lambda: not made._unfinished(load_run(future.job, "local")))
    LocalExecutor.forget(future.job)
    assert not future.log.parent.exists()


def test_what_slurm_refuses_leaves_nothing(slurm: RunningSlurm) -> None:
    def refuse(argv: Any, stdin: Any) -> str:
        raise Refused("no")

    slurm.jobs.slurm._answers["sbatch"] = refuse
    made = Executor(slurm, partition="cpu")
    with pytest.raises(Refused):
        made.submit(square, 1)
    assert list((store.make_base_folder(None) / "runs").iterdir()) == []
    with pytest.raises(BadInput, match="no partition 'cpx'"):
        Executor(slurm, partition="cpx").submit(square, 1)


def test_options_are_those_of_a_job(slurm: RunningSlurm) -> None:
    with pytest.raises(BadInput, match="takes no option 'partitoin'; did you mean 'partition'"):
        Executor(slurm, partitoin="cpu")
    with pytest.raises(BadInput, match="takes no option 'command'"):
        Executor(slurm, command=("a",))
    with pytest.raises(BadInput, match="takes no option 'output'"):
        Executor(slurm, output="log")
    with pytest.raises(BadInput, match="max_workers must be greater than 0"):
        Executor(slurm, max_workers=0)
    with pytest.raises(BadInput, match="chunksize must be greater than 0"):
        Executor(slurm).map(square, [1], chunksize=0)
    made = Executor(slurm, gpus="a100:2", container=slurmkit.spec.Container(image="/i/x.sqsh"))
    assert made._spec.gpus == slurmkit.Gpus(2, "a100")
    assert made._spec.command == ("python3",)
    assert made._spec.container
    assert made._spec.container.mounts == (str(store.make_base_folder(None)),)


def test_what_the_plan_warns_of_is_told(slurm: RunningSlurm) -> None:
    slurm.starts = False
    made = Executor(slurm, partition="cpu", options={"tres-per-task": "gres/gpu=1"})
    with pytest.warns(
        PlanWarning, match="--tres-per-task is passed on to sbatch, but slurmkit does not check"
    ):
        made.submit(square, 1).cancel()


@pytest.mark.parametrize("how", ["submit", "submit_all", "map"])
def test_a_warning_names_the_line_that_sends_the_calls(slurm: RunningSlurm, how: str) -> None:
    made = Executor(slurm, partition="cpu", options={"tres-per-task": "gres/gpu=1"})
    program = "argument = 1 if how == 'submit' else [1]\ngetattr(made, how)(square, argument)\n"
    with pytest.warns(PlanWarning) as told:
        exec(  # noqa: S102 - a script of its own, whose line is the outermost
            compile(program, "sends.py", "exec"),
            {"__name__": "__main__", "made": made, "how": how, "square": square},
        )
    assert {(warned.filename, warned.lineno) for warned in told} == {("sends.py", 2)}
    made.shutdown()


@pytest.mark.parametrize("more", [{"ntasks": 4}, {"nodes": "1-2"}, {"ntasks_per_node": 2}])
def test_several_tasks_would_make_each_call_several_times(
    slurm: RunningSlurm, more: dict[str, Any]
) -> None:
    slurm.starts = False
    step = Executor(slurm, partition="cpu", launch=slurmkit.spec.Launch(), **more)
    with pytest.raises(BadInput, match=r"--n.*=\S+ would make each call in several tasks, and"):
        step.submit(square, 1)
    assert slurm.submits == []
    assert list((store.make_base_folder(None) / "runs").iterdir()) == []
    with pytest.warns(PlanWarning, match="idle unless the command itself starts something"):
        Executor(slurm, partition="cpu", **more).submit(square, 1).cancel()
    one = Executor(slurm, partition="cpu", launch=slurmkit.spec.Launch(), ntasks=1)
    one.submit(square, 1).cancel()


def test_ctrl_c_leaves_the_jobs(slurm: RunningSlurm) -> None:
    slurm.starts = False
    with pytest.raises(KeyboardInterrupt), Executor(slurm, partition="cpu") as made:  # noqa: PT012
        future = made.submit(square, 1)
        signal.raise_signal(signal.SIGINT)
    assert not future.done()
    assert slurm.cancelled == []
    future.cancel()


def test_a_result_has_a_time(slurm: RunningSlurm) -> None:
    slurm.starts = False
    made = Executor(slurm, partition="cpu")
    results = made.map(square, [1, 2], timeout=0.1)
    with pytest.raises(TimeoutError, match="call 0 of job 101_0 has no result yet"):
        next(results)
    made.shutdown(wait=True, cancel_futures=True)


# --- whose files ----------------------------------------------------------------------------------


def test_results_are_ours_alone(slurm: RunningSlurm) -> None:
    slurm.starts = False
    made = Executor(slurm, partition="cpu")
    future = made.submit(square, 1)
    folder = future.log.parent
    for path in (folder, folder / "results", folder.parent):
        assert path.stat().st_mode & 0o777 == 0o700
    for path in (folder / "run.json", folder / "calls" / "0"):
        assert path.stat().st_mode & 0o777 == 0o600
    forged = resultfiles.sized(
        resultfiles.dumped(resultfiles.StoredResult(0, resultfiles.VALUE, pickle.dumps(2)))
    )
    aside = folder / "forged"
    aside.write_bytes(forged)
    aside.chmod(0o622)
    aside.rename(folder / "results" / "0-0-0")
    words = r"not trusted: others may read or change it \(mode 622\)"
    with pytest.raises(ResultRefused, match=words):
        future.result(PATIENCE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_result_of_somebody_else_is_refused(slurm: RunningSlurm) -> None:
    slurm.starts = False
    future = Executor(slurm, partition="cpu").submit(square, 1)
    aside = future.log.parent / "forged"
    forged = resultfiles.sized(
        resultfiles.dumped(resultfiles.StoredResult(0, resultfiles.VALUE, pickle.dumps(2)))
    )
    resultfiles.write_whole(str(aside), forged)
    os.chown(aside, 12345, 12345)
    aside.rename(future.log.parent / "results" / "0-0-0")
    with pytest.raises(ResultRefused, match="it belongs to user id 12345, not to you"):
        future.result(PATIENCE)


def test_a_link_is_no_result(slurm: RunningSlurm, tmp_path: Path) -> None:
    slurm.starts = False
    future = Executor(slurm, partition="cpu").submit(square, 1)
    (future.log.parent / "results" / "0-0-0").symlink_to(tmp_path)
    with pytest.raises(ResultRefused):
        future.result(PATIENCE)


@pytest.fixture
def for_groups() -> Iterator[None]:
    """What is made is for its group, too, as on many clusters."""
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.usefixtures("for_groups")
@pytest.mark.parametrize("home", [0o700, 0o755])
def test_where_what_is_made_is_for_a_group_too(home: int) -> None:
    """Nothing that slurmkit makes itself is a reason to refuse it."""
    Path.home().chmod(home)
    with LocalExecutor() as made:
        future = made.submit(square, 2)
        assert future.result(PATIENCE) == 4
    below = [each for each in future.log.parents if each.is_relative_to(Path.home())]
    assert [each.stat().st_mode & 0o777 for each in below[:-1]] == [0o700] * (len(below) - 1)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that others get to, as they do not to those of pytest."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.usefixtures("for_groups")
def test_what_another_command_made_for_a_group_is_closed(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is what the shell of a job that survives makes; what is not ours is left as it is."""
    monkeypatch.setenv("HOME", str(public))
    state = public / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    state.mkdir(mode=0o755)
    state.chmod(0o755)
    (state / "slurmkit" / "runs").mkdir(parents=True)
    store.make_base_folder(None)
    assert (state / "slurmkit").stat().st_mode & 0o777 == 0o700
    state.chmod(0o775)
    with pytest.raises(
        BadInput, match=r"others may write to \S*/state, .* \(chmod go-w\), or choose"
    ):
        store.make_base_folder(None)
    assert state.stat().st_mode & 0o777 == 0o775
    public.chmod(0o700)  # nobody else gets there
    store.make_base_folder(None)


def test_what_is_checked_is_what_is_used(tmp_path: Path) -> None:
    """A link that somebody else may put elsewhere leads jobs nowhere else."""
    own, link = tmp_path / "own", tmp_path / "link"
    own.mkdir()
    link.symlink_to(own)
    base = store.make_base_folder(link)
    assert base == own / ".slurmkit-calls"
    with LocalExecutor(folder=link) as made:
        future = made.submit(lambda: sys.argv[1])
        link.unlink()
        assert Path(future.result(PATIENCE)).is_relative_to(base)


def test_a_folder_that_others_may_change_is_refused(public: Path, tmp_path: Path) -> None:
    public.chmod(0o770)
    with pytest.raises(BadInput, match="others may write to"):
        LocalExecutor(folder=public)
    public.chmod(0o1777)
    with LocalExecutor(folder=public) as made:
        assert made.submit(square, 2).result(PATIENCE) == 4
    assert (public / ".slurmkit-calls").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(SlurmkitError, match="cannot write calls to"):
        LocalExecutor(folder=tmp_path / "file")
