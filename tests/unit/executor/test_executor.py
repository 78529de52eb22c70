"""Python functions as jobs: the local executor, and that of Slurm before a Slurm that runs them."""

from __future__ import annotations

import concurrent.futures
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from executor_lab import RunningSlurm, running_slurm
from jobs_lab import FakeJobs
from waiting import PATIENCE, wait_until

from slurmkit.errors import (
    BadInput,
    CallDied,
    CallError,
    ControllerDown,
    PythonDiffers,
    ResultLost,
)
from slurmkit.executor import follower, resultfiles, runs, worker
from slurmkit.executor.base import CallExecutor
from slurmkit.executor.futures import CallFuture, LibraryDiffers
from slurmkit.executor.local import LocalExecutor
from slurmkit.executor.payload import write_program
from slurmkit.executor.runs import divide_calls
from slurmkit.executor.slurm import Executor, SlurmMonitor
from slurmkit.executor.store import LocalStore

Maker = Callable[..., CallExecutor]


assert running_slurm  # a fixture


@pytest.fixture(params=["local", "slurm"])
def executor(request: pytest.FixtureRequest) -> Maker:
    """Makes an executor of either kind; what holds for one holds for the other."""
    if request.param == "local":
        return LocalExecutor
    slurm = request.getfixturevalue("slurm")
    return lambda *workers, **more: Executor(
        slurm, max_workers=(workers or (4,))[0], partition="cpu", **more
    )


def square(x: int) -> int:
    return x * x


def listed(folder: str) -> list[str]:
    return [path.name for path in Path(folder).iterdir()]


class Own:
    def __init__(self, value: int) -> None:
        self.value = value


class Awkward(Exception):
    """One that pickles, and cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def troubled(x: int) -> int:
    if x == 3:
        raise KeyError(x)
    if x == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    if x == 7:
        os._exit(9)
    return x * x


# --- results --------------------------------------------------------------------------------------


def test_a_call_and_its_result(executor: Maker) -> None:
    with executor() as made:
        future = made.submit(divmod, 17, 5)
        assert future.result(PATIENCE) == (3, 2)
        assert made.submit(lambda *, x: x + 1, x=2).result(PATIENCE) == 3
    assert future.done()
    with pytest.raises(RuntimeError, match="after shutdown"):
        made.submit(square, 1)


def test_a_map_in_order(executor: Maker) -> None:
    with executor(2) as made:
        assert list(made.map(pow, range(50), [2] * 60)) == [x * x for x in range(50)]
        assert list(made.map(square, [])) == []


def test_what_the_stdlib_does_with_executors(executor: Maker) -> None:
    with executor() as made:
        futures = [made.submit(square, x) for x in range(3)]
        done = {future.result() for future in concurrent.futures.as_completed(futures, 60)}
    assert done == {0, 1, 4}


def test_a_class_of_a_script_comes_back_as_itself(executor: Maker) -> None:
    Own.__module__ = "__main__"  # so cloudpickle sends it by value
    with executor() as made:
        found = made.submit(Own, 3).result(PATIENCE)
    assert isinstance(found, Own)
    assert found.value == 3


def test_large_results_have_files_of_their_own(executor: Maker) -> None:
    with executor(1) as made:
        found = list(made.map(lambda n: b"x" * n, [10, 3 << 20, 20]))
    assert [len(each) for each in found] == [10, 3 << 20, 20]


# --- what goes wrong in a call --------------------------------------------------------------------


def test_an_exception_with_where_it_was_raised(executor: Maker) -> None:
    with executor() as made:
        future = made.submit(troubled, 3)
        with pytest.raises(KeyError) as caught:
            future.result(PATIENCE)
    assert "in troubled" in str(caught.value.__cause__)
    assert "raise KeyError(x)" in str(caught.value.__cause__)
    assert "slurmkit_worker" not in str(caught.value.__cause__)


def test_each_call_fails_alone(executor: Maker) -> None:
    """One raised, one was killed and one ended its process: all in one task."""
    with executor(1) as made:
        futures = made.submit_all(troubled, range(10))
        ended = {index: future.exception(PATIENCE) for index, future in enumerate(futures)}
    assert {index for index, error in ended.items() if error is None} == {0, 1, 2, 4, 6, 8, 9}
    assert isinstance(ended[3], KeyError)
    assert isinstance(ended[5], CallDied)
    assert "signal 9 (SIGKILL)" in str(ended[5])
    assert "exit code 9" in str(ended[7])
    assert [future.result() for future in futures[8:]] == [64, 81]


def test_a_map_goes_on_after_a_call_that_raised(executor: Maker) -> None:
    with executor(2) as made:
        results = made.map(troubled, [2, 3, 4])
        assert next(results) == 4
        with pytest.raises(KeyError):
            next(results)
        assert list(results) == [16]


def test_exceptions_that_cannot_be_unpickled(executor: Maker) -> None:
    def awkward() -> None:
        raise Awkward(1, 2)

    with executor() as made:
        with pytest.raises(CallError, match="Awkward: 1 and 2") as caught:
            made.submit(awkward).result(PATIENCE)
        with pytest.raises(TypeError, match="pickle"):
            made.submit(threading.Lock).result(PATIENCE)
        with pytest.raises(SystemExit):
            made.submit(sys.exit, 3).result(PATIENCE)
    assert "in awkward" in str(caught.value.__cause__)


def test_what_cannot_be_sent(executor: Maker) -> None:
    with executor() as made, pytest.raises(BadInput, match="an argument of call 0 cannot be sent"):
        made.submit(square, threading.Lock())


def test_a_process_that_something_outlives(executor: Maker) -> None:
    """A child of a call holds the pipe that the results come through."""

    def leaves_a_child() -> None:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    with executor() as made, pytest.raises(CallDied):
        made.submit(leaves_a_child).result(PATIENCE)


def test_the_wrong_python_is_named(executor: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    head = runs._head(LocalStore(None))
    monkeypatch.setattr(runs, "_head", lambda _: {**head, "python": [3, 6]})
    words = r"call was made with Python 3\.6"
    with executor() as made, pytest.raises(PythonDiffers, match=words) as caught:
        made.submit(square, 1).result(PATIENCE)
    assert f"the job's Python is 3.{sys.version_info[1]} ({sys.executable} on" in str(caught.value)
    assert "Executor(python=…)" in str(caught.value)


def test_another_version_of_a_library_is_named(
    executor: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = runs._head(LocalStore(None))
    libraries = {**head["libraries"], "json": "9.9"}
    monkeypatch.setattr(runs, "_head", lambda _: {**head, "libraries": libraries})
    with executor() as made:
        with pytest.warns(
            LibraryDiffers, match=r"json has version 2\.0\.9 for .* on .*, and 9\.9 here"
        ):
            assert made.submit(json.dumps, []).result(PATIENCE) == "[]"
        with pytest.raises(TypeError) as caught:
            made.submit(json.dumps, object).result(PATIENCE)
    assert any("json has version 2.0.9" in note for note in caught.value.__notes__)


def test_a_library_that_is_missing_there_is_named(executor: Maker, tmp_path: Path) -> None:
    def needs() -> None:
        import no_such_library_anywhere  # type: ignore[import-not-found]  # noqa: F401, PLC0415

    with executor() as made, pytest.raises(ModuleNotFoundError) as caught:
        made.submit(needs).result(PATIENCE)
    assert any("could not import no_such_library_anywhere" in n for n in caught.value.__notes__)


def test_modules_beside_a_script_are_found(
    executor: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is called as our program was."""
    (tmp_path / "worker.py").write_text("def double(x): return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import worker as own  # type: ignore[import-not-found]  # noqa: PLC0415

    with executor() as made:
        assert made.submit(own.double, 4).result(PATIENCE) == 8
    del sys.modules["worker"]


def test_a_module_that_hides_another_hides_it_in_the_job(
    executor: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wave.py").write_text("def double(x): return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    import wave as own  # noqa: PLC0415 - the library's own has no such function

    with executor() as made:
        assert made.submit(own.double, 4).result(PATIENCE) == 8  # type: ignore[attr-defined]
    del sys.modules["wave"]


def test_libraries_of_another_python_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(Path(worker.__file__).parent)
    monkeypatch.setattr(sys, "path", [own, "/node", "/both"])
    other, last = "/v/lib/python3.11/site-packages", f"{own}/{worker.WITHOUT}"
    head = {**runs._head(LocalStore(None)), "path": ["/mine", last, "/both", other]}
    assert worker.search_path(head) == [own, "/mine", "/both", other, "/node", last]
    elsewhere = {**head, "prefix": "/elsewhere"}
    assert worker.search_path(elsewhere) == [own, "/node", "/both", "/mine", last]
    sent = {"prefix": "", "path": ["/sent", "/home/a/python/project"]}
    path = [own, "/sent", "/home/a/python/project", "/node", "/both", last]
    assert worker.search_path(sent) == path


def test_modules_that_are_kept_from_being_imported(
    executor: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sys.modules[name] = None`, as some tests and libraries do, there and here."""
    monkeypatch.setitem(sys.modules, "no_such_library", None)

    def without() -> dict[str, Any]:
        sys.modules["absent"] = None  # type: ignore[assignment]
        return worker.differing({"absent": "1.0", "json": "9.9"})

    with executor() as made:
        assert made.submit(without).result(PATIENCE) == {"json": ["2.0.9", "9.9"]}


# --- a task that ends -----------------------------------------------------------------------------


def test_a_lost_result_is_an_error_in_the_outcome_s_words(slurm: RunningSlurm) -> None:
    def kills_all() -> None:
        print("out of luck")
        sys.stdout.flush()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(20)

    with Executor(slurm, partition="cpu") as made, pytest.raises(ResultLost) as caught:
        made.submit(kills_all).result(PATIENCE)
    assert "call 0 of job 101 left no result: failed" in str(caught.value)
    assert "ends with: " in str(caught.value)


def test_many_lost_tasks_have_whole_exit_codes_with_one_look() -> None:
    """sacct tells `72 or 200`; only some outcomes are read in full."""
    jobs = FakeJobs("24.11.5")
    ids = [str(number) for number in range(7, 27)]
    jobs.runs = [
        {"JobID": each, "State": "FAILED", "ExitCode": "72:0", "StdErr": "/none"} for each in ids
    ]
    code = {"status": ["ERROR"], "return_code": {"number": 200}}
    jobs.json = json.dumps({"jobs": [{"job_id": int(n), "exit_code": code} for n in ids]})
    monitor = SlurmMonitor(jobs.cluster())
    wait_until(lambda: set(monitor.look(ids).values()) == {False})
    for each in ids[:10]:
        monitor.describe_end(each)
    asked = len(jobs.slurm.asked)
    words = {monitor.describe_end(each) for each in ids[10:]}
    assert words == {"failed with exit code 200, after 0:05 on c1"}
    assert sum("--json" in argv for argv in jobs.slurm.asked[asked:]) == 1


def test_an_interpreter_that_is_not_there(slurm: RunningSlurm) -> None:
    with Executor(slurm, partition="cpu", python="/nowhere/python") as made:
        future = made.submit(square, 1)
        with pytest.raises(ResultLost, match=r"exit code 127.*/nowhere/python: No such file"):
            future.result(PATIENCE)
    with (
        LocalExecutor(python="/nowhere/python") as local,
        pytest.raises(ResultLost, match="No such"),
    ):
        local.submit(square, 1).result(PATIENCE)


def test_a_job_that_slurm_forgot_is_an_error(slurm: RunningSlurm) -> None:
    slurm.starts = False
    with Executor(slurm, partition="cpu") as made:
        future = made.submit(square, 1)
        slurm.jobs.queue.clear()
        with pytest.raises(ResultLost, match="no job 101 in the queue or in the accounting"):
            future.result(PATIENCE)


def test_a_task_that_starts_anew_makes_what_is_left(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    counted = tmp_path / "counted"

    def count(x: int) -> int:
        with counted.open("a") as file:
            print(x, file=file)
        return x

    run = runs.write_run(store, count, [((x,), {}) for x in range(4)], divide_calls(4, 1))
    kept = resultfiles.Outbox(f"{run.folder}/results", "0-0")
    kept.put(resultfiles.dumped(resultfiles.StoredResult(2, resultfiles.VALUE, pickle.dumps(2))))
    env = {**os.environ, "SLURM_RESTART_COUNT": "1"}
    for _ in range(2):
        subprocess.run([sys.executable, write_program(store), run.folder], check=True, env=env)
    assert counted.read_text().split() == ["0", "1", "3"]


def test_a_signal_to_the_task_leaves_what_is_known(tmp_path: Path) -> None:
    """The call it is at is not said to have failed: the task may start anew."""
    store = LocalStore(tmp_path)
    marks = tmp_path / "marks"
    marks.mkdir()

    def slow(x: int) -> int:
        (marks / str(x)).touch()
        time.sleep(60 * (x == 3))
        return x

    run = runs.write_run(store, slow, [((x,), {}) for x in range(5)], divide_calls(5, 1))
    started = subprocess.Popen(
        [sys.executable, write_program(store), run.folder], start_new_session=True
    )
    while not (marks / "3").exists():
        time.sleep(0.01)
    os.killpg(started.pid, signal.SIGTERM)
    assert started.wait(PATIENCE) == 128 + signal.SIGTERM
    results = f"{run.folder}/results"
    read = [resultfiles.read_private(f"{results}/{name}") for name in listed(results)]
    done = [each for data in read for each in resultfiles.results_in(data)]
    assert sorted((each.call, each.kind) for each in done) == [(x, "value") for x in range(3)]


# --- cancelling -----------------------------------------------------------------------------------


def test_a_call_is_cancelled_while_it_runs(executor: Maker) -> None:
    made = executor()
    future = made.submit(time.sleep, 60)
    wait_until(future.running)
    assert "running" in repr(future)
    assert future.cancel()
    assert concurrent.futures.wait([future], 20).done
    assert future.cancelled()
    made.shutdown()


def test_calls_of_a_task_that_goes_on_are_left_out(slurm: RunningSlurm, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def touch(x: int) -> int:
        (marks / str(x)).touch()
        while not (marks / "go").exists():
            time.sleep(0.01)
        return x

    with Executor(slurm, max_workers=1, partition="cpu") as made:
        futures = made.submit_all(touch, range(4))
        wait_until((marks / "0").exists)
        assert futures[2].cancel()
        concurrent.futures.wait(futures[2:3])
        (marks / "go").touch()
        assert [futures[x].result(PATIENCE) for x in (0, 1, 3)] == [0, 1, 3]
    assert not (marks / "2").exists()
    assert slurm.cancelled == []
    again = Executor.attach(futures[0].job, slurm)
    wait_until(again[2].cancelled)


def test_shutdown_cancels_all_and_tries_again_while_slurm_is_away(slurm: RunningSlurm) -> None:
    slurm.starts = False
    made = Executor(slurm, max_workers=3, partition="cpu")
    futures = made.submit_all(square, range(9))
    slurm.cancel_fails = ControllerDown("away")
    made.shutdown(wait=False, cancel_futures=True)
    wait_until(lambda: all(future.cancelled() for future in futures))
    slurm.cancel_fails = None
    wait_until(lambda: slurm.cancelled == [["101_0", "101_1", "101_2"]])


# --- the parts ------------------------------------------------------------------------------------


def test_the_bar_is_shown_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with LocalExecutor(1) as made:
        list(made.map(time.sleep, [0.2] * 4))
    assert capsys.readouterr().err == ""
    with LocalExecutor(1, progress=True) as made:
        list(made.map(time.sleep, [0.3] * 4))
    shown = capsys.readouterr()
    assert "/4" in shown.err
    assert shown.out == ""


def test_trouble_that_lasts_is_told_of_the_calls_that_it_concerns(
    slurm: RunningSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_HICCUP", 0.3)
    slurm.starts = False
    made = Executor(slurm, partition="cpu")
    future: CallFuture = made.submit(square, 1)
    slurm.starts = True
    other = made.submit(lambda: time.sleep(1) or 3)
    import shutil  # noqa: PLC0415

    shutil.rmtree(future.log.parent)
    with pytest.raises(CallError, match="cannot follow the job: FileNotFoundError"):
        future.result(PATIENCE)
    assert other.result(PATIENCE) == 3


def test_trouble_that_passes_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that is away for longer than a result may be late after its task's end."""
    monkeypatch.setattr(follower, "_GRACE", 0.1)
    read, end = LocalStore.read, time.monotonic() + 3

    def stale(store: LocalStore, path: str) -> bytes:
        if time.monotonic() < end:
            raise OSError(errno.ESTALE, "Stale file handle", path)
        return read(store, path)

    monkeypatch.setattr(LocalStore, "read", stale)
    with LocalExecutor(1) as made:
        assert list(made.map(square, range(3))) == [0, 1, 4]


def test_results_come_before_all_are_there(executor: Maker, tmp_path: Path) -> None:
    go = tmp_path / "go"

    def last_waits(x: int) -> int:
        while x == 3 and not go.exists():
            time.sleep(0.02)
        return x

    with executor(1) as made:
        results = made.map(last_waits, range(4))
        assert list(islice(results, 3)) == [0, 1, 2]
        go.touch()
        assert list(results) == [3]
