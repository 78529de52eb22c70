"""What a program expects of any executor: nothing hangs, is lost or kept; errors and types fit."""

from __future__ import annotations

import concurrent.futures
import gc
import logging
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from executor_lab import RunningSlurm, running_slurm
from waiting import PATIENCE, wait_until

import slurmkit
from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import BadInput, CallError, ControllerDown, NotOver
from slurmkit.executor.base import CallExecutor, OrderedResults, ProgressBar
from slurmkit.executor.follower import Follower
from slurmkit.executor.futures import CallFuture
from slurmkit.executor.local import LocalExecutor
from slurmkit.executor.options import ExecutorOptions
from slurmkit.executor.payload import _STAND_IN, _program_files
from slurmkit.executor.slurm import Executor
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.survival import Survive
from slurmkit.testing import FakeSlurm

ROOT = Path(__file__).parents[3]
Maker = Callable[..., CallExecutor]


assert running_slurm  # a fixture


@pytest.fixture(params=["local", "slurm"])
def executor(request: pytest.FixtureRequest) -> Maker:
    if request.param == "local":
        return LocalExecutor
    slurm = request.getfixturevalue("slurm")
    return lambda workers=2: Executor(slurm, max_workers=workers, partition="cpu")


class Own:
    def __init__(self, value: int) -> None:
        self.value = value


# --- what unpickling and callbacks raise ----------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise OSError


def raiser(kind: type[BaseException]) -> object:
    """Return what raises when it is unpickled."""

    def fail() -> None:
        raise kind("when unpickled")

    class Trap:
        def __reduce__(self) -> Any:
            return fail, ()

    return Trap()


def raise_raiser(kind: type[BaseException]) -> None:
    class Wrapped(RuntimeError):
        def __reduce__(self) -> Any:
            return raiser(kind).__reduce__()

    raise Wrapped("as the call saw it")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, Unprintable])
def test_a_result_that_raises_when_it_is_read_fails_alone(
    executor: Maker, kind: type[BaseException]
) -> None:
    with executor(1) as made:
        futures = made.submit_all(lambda x: raiser(kind) if x == 1 else x, range(3))
        error = futures[1].exception(PATIENCE)
        assert isinstance(error, CallError)
        assert re.search(rf"its result cannot be read here: \S*{kind.__name__}", str(error))
        assert [futures[at].result(PATIENCE) for at in (0, 2)] == [0, 2]
        assert made.submit(abs, -4).result(PATIENCE) == 4


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exception_that_raises_when_it_is_read_fails_alone(
    executor: Maker, kind: type[BaseException]
) -> None:
    with executor(1) as made:
        with pytest.raises(CallError, match=r"call 0 of job \S+ raised .*as the call saw it"):
            made.submit(raise_raiser, kind).result(PATIENCE)
        assert made.submit(abs, -4).result(PATIENCE) == 4


def test_a_callback_that_exits_stops_no_other_future(
    executor: Maker, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with executor(1) as made, caplog.at_level(logging.ERROR, "concurrent.futures"):
        futures = made.submit_all(_when, [go] * 2, range(2))
        for future in futures:
            future.add_done_callback(lambda _: sys.exit(3))
        go.touch()
        assert [future.result(PATIENCE) for future in futures] == [0, 1]
        assert made.submit(abs, -4).result(PATIENCE) == 4
    assert [record.message[:26] for record in caplog.records] == ["exception calling callback"] * 2


def _divide(x: int, y: int) -> float:
    return x / y


def _when(go: Path, x: int) -> int:
    """Return when a file is there."""
    while not go.exists():
        time.sleep(0.01)
    return x


# --- at the end of a script -----------------------------------------------------------------------

SCRIPT = """
import os, sys, time
from pathlib import Path
from slurmkit import LocalExecutor

def call(folder, x):
    (folder / str(x)).touch()
    while x == 0 and not (folder / "go").exists():
        time.sleep(0.01)

folder = Path(sys.argv[1])
made = LocalExecutor(1)
for x in range(5):
    made.submit(call, folder, x)
"""


def started(folder: Path, script: str = SCRIPT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stderr=subprocess.PIPE, text=True
    )


def made_calls(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.isdigit()}


def test_a_script_that_ends_leaves_out_no_call(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    script = started(tmp_path)
    script.communicate(timeout=PATIENCE)
    assert script.returncode == 0
    wait_until(lambda: made_calls(tmp_path) == set("01234"))


def test_ctrl_c_at_the_end_says_what_is_lost(tmp_path: Path) -> None:
    script = started(tmp_path)
    assert script.stderr
    try:
        told = script.stderr.readline()
        wait_until(lambda: made_calls(tmp_path) == {"0"})
        script.send_signal(signal.SIGINT)
        _, said = script.communicate(timeout=PATIENCE)
    finally:
        (tmp_path / "go").touch()
    assert told == "slurmkit: LocalExecutor waits to start more tasks: 4; Ctrl-C drops them\n"
    assert said == "slurmkit: LocalExecutor has not started some tasks: 4; their calls are lost\n"


def test_a_call_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    """A function that runs at exit, after the executor's own."""
    late = "import atexit\natexit.register(lambda: made.submit(call, folder, 7))\n"
    script = started(tmp_path, late + SCRIPT.replace("range(5)", "range(1, 3)"))
    _, said = script.communicate(timeout=PATIENCE)
    assert "RuntimeError: cannot schedule new futures after interpreter shutdown" in said
    wait_until(lambda: made_calls(tmp_path) == set("12"))


def test_a_forked_child_waits_for_no_call_of_its_parent(tmp_path: Path) -> None:
    forks = "if os.fork() == 0:\n    sys.exit()\nos.wait()\n(folder / 'go').touch()\n"
    script = started(tmp_path, SCRIPT + forks)
    script.communicate(timeout=PATIENCE)
    assert script.returncode == 0
    wait_until(lambda: made_calls(tmp_path) == set("01234"))


def test_the_last_job_is_cancelled_once_slurm_is_back(
    slurm: RunningSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.starts = False
    made = Executor(slurm, partition="cpu")
    slurm.cancel_fails = ControllerDown("away")
    future = made.submit(abs, -4)
    future.cancel()
    follower = made._follower
    wait_until(lambda: follower._place.is_busy() and not follower._runs)
    follower._place.finish(0)
    assert capsys.readouterr().err == "slurmkit: not cancelled; do it yourself: scancel 101\n"
    slurm.cancel_fails = None
    wait_until(lambda: slurm.cancelled == [["101"]])
    wait_until(lambda: not follower._place.is_busy())
    follower._place.finish(0)
    assert capsys.readouterr().err == ""


# --- errors ---------------------------------------------------------------------------------------


def test_errors_are_those_of_the_stdlib_too(executor: Maker) -> None:
    for number in (0, -1):
        with pytest.raises(ValueError, match=f"max_workers must be greater than 0, not {number}"):
            executor(number)
        with (
            executor(1) as made,
            pytest.raises(ValueError, match=f"chunksize must be greater than 0, not {number}"),
        ):
            made.map(abs, [1], chunksize=number)
    assert issubclass(NotOver, TimeoutError)
    assert str(NotOver("job 7")) == "job 7"
    assert str(BadInput("no")) == "no"


# --- references -----------------------------------------------------------------------------------


# --- pickling ------------------------------------------------------------------------------------


def _unpickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own


def test_futures_can_be_pickled(executor: Maker) -> None:
    """As submitit's jobs."""
    with executor(2) as made:
        futures = made.submit_all(_divide, [6, 1, 9], [3, 0, 2])
        concurrent.futures.wait(futures, PATIENCE)
    again = _unpickled(futures)
    assert [each.index for each in again] == [0, 1, 2]
    assert (again[0].result(PATIENCE), again[2].result(PATIENCE)) == (2, 4.5)
    with pytest.raises(ZeroDivisionError):
        again[1].result(PATIENCE)


def test_a_future_is_unpickled_before_its_call_is_done(slurm: RunningSlurm, tmp_path: Path) -> None:
    with Executor(slurm, partition="cpu") as made:
        future = made.submit(_when, tmp_path / "go", 5)
        again = _unpickled(future)
        assert not again.done()
        (tmp_path / "go").touch()
        assert (future.result(PATIENCE), again.result(PATIENCE)) == (5, 5)


def _followers() -> int:
    return sum(thread.name == "slurmkit-calls" for thread in threading.enumerate())


def test_futures_unpickled_one_by_one_attach_their_run_once(slurm: RunningSlurm) -> None:
    slurm.starts = False
    with Executor(slurm, max_workers=2, partition="cpu") as made:
        futures = made.submit_all(abs, range(4))
        before = _followers()
        again = [_unpickled(future) for future in (*futures, futures[2])]
        more = _followers() - before
        for future in futures:
            future.cancel()
    assert [each.index for each in again] == [0, 1, 2, 3, 2]
    assert again[4] is again[2]
    assert more == 1  # one attachment, with its own thread


def test_threads_that_unpickle_futures_attach_their_run_once(slurm: RunningSlurm) -> None:
    slurm.starts = False
    with Executor(slurm, max_workers=2, partition="cpu") as made:
        futures = made.submit_all(abs, range(8))
        before, together = _followers(), threading.Barrier(8)

        def unpickle(future: CallFuture[int]) -> CallFuture[int]:
            together.wait(PATIENCE)
            return cast("CallFuture[int]", _unpickled(future))

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            again = list(pool.map(unpickle, futures))
        more = _followers() - before
        for future in futures:
            future.cancel()
    assert [each.index for each in again] == list(range(8))
    assert more == 1


def test_unpickled_futures_keep_no_result_but_their_own(executor: Maker) -> None:
    with executor(1) as made:
        futures = made.submit_all(Own, range(3))
        concurrent.futures.wait(futures, PATIENCE)
    first, second = _unpickled(futures[0]), _unpickled(futures[1])
    known = weakref.ref(first.result(PATIENCE))
    del first
    wait_until(lambda: gc.collect() >= 0 and known() is None)
    assert second.result(PATIENCE).value == 1
    assert _unpickled(futures[0]).result(PATIENCE).value == 0
    assert _unpickled(futures[2]).result(PATIENCE).value == 2


def test_another_process_has_the_result(tmp_path: Path) -> None:
    with LocalExecutor(1) as made:
        future = made.submit(pow, 2, 10)
        assert future.result(PATIENCE) == 1024
    (tmp_path / "future").write_bytes(pickle.dumps(future))
    program = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).result(60))"
    argv = [sys.executable, "-c", program, tmp_path / "future"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.stdout == "1024\n", done.stderr


def test_an_executor_can_be_pickled(executor: Maker) -> None:
    with _unpickled(executor(2)) as made:
        assert made.submit(pow, 2, 3).result(PATIENCE) == 8


def test_a_cluster_is_pickled_by_name() -> None:
    assert _unpickled(Cluster("")) == Cluster("")
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(Cluster(FakeSlurm({})))


def test_a_map_keeps_no_result(executor: Maker) -> None:
    """CPython's test_free_reference."""
    with executor(1) as made:
        values = []
        results = made.map(Own, range(4))
        for found in results:
            values.append(found.value)
            known = weakref.ref(found)
            del found
            wait_until(lambda known=known: gc.collect() >= 0 and known() is None)
    assert values == [0, 1, 2, 3]


def test_an_executor_keeps_no_result(executor: Maker) -> None:
    with executor(1) as made:
        first, *others = made.submit_all(Own, range(3))
        known = weakref.ref(first.result(PATIENCE))
        del first
        wait_until(lambda: gc.collect() >= 0 and known() is None)
        assert [future.result(PATIENCE).value for future in others] == [1, 2]


def test_an_executor_without_calls_has_no_thread(executor: Maker) -> None:
    """Nor is anything of it kept once it is gone."""

    def use() -> weakref.ref[Follower]:
        made = executor(1)
        for _ in range(2):
            assert made.submit(abs, -4).result(PATIENCE) == 4
            wait_until(lambda: made._follower._thread is None)
        return weakref.ref(made._follower)

    known = use()
    wait_until(lambda: gc.collect() >= 0 and known() is None)


def test_the_bar_counts_results_that_were_taken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with LocalExecutor(1) as made:
        futures = made.submit_all(_when, [tmp_path, tmp_path, go], range(3))
        results = OrderedResults(futures, ProgressBar(asked=True), None)
        assert [next(results), next(results)] == [0, 1]
        results._bar.wait(futures[2:], results._left, 1.0, before=results._yielded)
        go.touch()
        assert list(results) == [2]
    assert "2/3" in capsys.readouterr().err


# --- types ----------------------------------------------------------------------------------------

TYPED = """
from concurrent.futures import Future, as_completed
from slurmkit import Executor, LocalExecutor, Resumable

def area(width: int, height: int = 2) -> float:
    return width * height

def count(to: int, at: int = 0) -> int | Resumable:
    return at if at == to else Resumable(count, to, at + 1)

with Executor(partition="cpu", gpus="a100:2", on_timeout="requeue", array_throttle=3) as made:
    futures = made.submit_all(area, [1, 2])
    order: dict[Future[float], int] = {future: at for at, future in enumerate(futures)}
    print(sorted(order[future] for future in as_completed(futures)))
    reveal_type(made.submit(area, 3, height=4))
    reveal_type(made.submit(count, 3))
    reveal_type(made.map(count, [3]))

Executor(tiem="10")  # wrong
Executor(time=10)  # wrong
made.submit(area, "3")  # wrong
made.submit(area)  # wrong
text: str = LocalExecutor(2).submit(area, 3).result()  # wrong
"""


def test_a_type_checker_finds_wrong_options_and_arguments(tmp_path: Path) -> None:
    program = tmp_path / "typed.py"
    program.write_text(TYPED)
    # With the configuration of `make lint`, whose cache makes this quick.
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", str(program)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = re.findall(r"typed\.py:(\d+): (error|note): (.*)", checked.stdout)
    assert said, checked.stdout + checked.stderr
    wrong = [at for at, line in enumerate(TYPED.split("\n"), 1) if line.endswith("# wrong")]
    assert [int(at) for at, kind, _ in said if kind == "error"] == wrong, checked.stdout
    assert 'Unexpected keyword argument "tiem" for "Executor"' in checked.stdout
    assert [words for _, _, words in said if "Revealed" in words] == [
        'Revealed type is "slurmkit.executor.futures.CallFuture[float]"',
        'Revealed type is "slurmkit.executor.futures.CallFuture[int]"',
        'Revealed type is "typing.Iterator[int]"',
    ]


def test_typed_options_are_the_fields_of_a_job() -> None:
    ours = {"array", "command", "error", "output", "script", "sweep"}
    fields = {*JobSpec.__struct_fields__, *Survive.__struct_fields__} - ours
    assert set(ExecutorOptions.__annotations__) == fields
    declared = JobSpec.__annotations__ | Survive.__annotations__
    known = {name: form.__forward_arg__ for name, form in ExecutorOptions.__annotations__.items()}
    assert known == {name: declared[name] for name in fields} | {"gpus": "Gpus | str | None"}


# --- slurmkit in jobs that lack it ----------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["from slurmkit import Executor", "import slurmkit.executor.slurm", "slurmkit.plan"]
)
def test_a_job_without_slurmkit_says_so(tmp_path: Path, line: str) -> None:
    with LocalExecutor(1, folder=tmp_path) as made:
        made.submit(abs, -4).result(PATIENCE)
    (folder,) = tmp_path.glob(".slurmkit-calls/worker-*/without")
    begin = f"import sys; sys.path.append({str(folder)!r}); import slurmkit; slurmkit.Resumable; "
    rest = "slurmkit.checkpoint_wanted(); assert not hasattr(slurmkit, 'x'); "
    # -I -S: without the libraries of this Python.
    bare = [sys.executable, "-I", "-S", "-c", begin + rest + line]
    done = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().split("\n")[-1]
    assert re.match(
        r"ModuleNotFoundError: no slurmkit\.\w+: slurmkit is not installed for \S+python\S* on \S+,"
        r" which has only Resumable and checkpoint_wanted; install slurmkit for that Python",
        last,
    ), done.stderr


def test_all_public_names_are_known_to_jobs_that_lack_them() -> None:
    text = _program_files()[f"{_STAND_IN}/__init__.py"].decode()
    for name in set(slurmkit.__all__) - {"__version__"}:
        assert repr(name) in text or f"import {name}" in text or f", {name}\n" in text
