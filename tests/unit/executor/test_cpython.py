"""CPython's own tests of concurrent.futures, run on our executors.

They are those of the running Python, or Debian's libpython3-testsuite. What differs by nature is
named in `DIFFERS`, with the reason; every other test must pass.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
import test
from executor_lab import RunningSlurm

from slurmkit.errors import CallDied, CallError
from slurmkit.executor.local import LocalExecutor
from slurmkit.executor.slurm import Executor

_NAME = "test.test_concurrent_futures"
_DEBIAN = Path(f"/usr/lib/python3.{sys.version_info[1]}/test/test_concurrent_futures.py")
_SUITES = ("ExecutorTest", "AsCompletedTests", "WaitTests", "ExecutorShutdownTest",
           "ExecutorDeadlockTest")  # fmt: skip

DIFFERS = {
    "test_interpreter_shutdown": "what a call prints is in the log of its task",
    "test_hang_gh83386": "what a call prints is in the log of its task",
    "test_submit_after_interpreter_shutdown": "it imports the executor from concurrent.futures",
    "test_error_at_task_pickle": "a call that cannot be pickled is refused at once, by submit",
    "test_error_at_task_unpickle": "that is the call's own error, with its traceback",
    "test_exit_at_task_unpickle": "that is the call's own error, with its traceback",
    "test_cancel_futures": "each call is a job of its own, and all of them start at once",
    "test_shutdown_deadlock_pickle": "it looks at the threads of a ProcessPoolExecutor",
}
# A died worker breaks a ProcessPoolExecutor; here each call has its own error.
_BROKEN = (CallDied, CallError)


def _suite() -> ModuleType | None:
    """Load CPython's tests, or Debian's of the same version."""
    if importlib.util.find_spec("test.support") is None:
        return None
    found = importlib.util.find_spec(_NAME)
    if found is None and _DEBIAN.exists():
        found = importlib.util.spec_from_file_location(_NAME, _DEBIAN)
    if found is None or found.loader is None or found.submodule_search_locations is not None:
        return None
    module = importlib.util.module_from_spec(found)
    sys.modules[_NAME] = module
    test.test_concurrent_futures = module  # type: ignore[attr-defined]
    found.loader.exec_module(module)
    module.BrokenProcessPool = _BROKEN  # type: ignore[attr-defined]
    cloudpickle.register_pickle_by_value(module)
    return module


SUITE = _suite()
if SUITE is None:
    pytest.skip(
        f"CPython's tests are in Debian's libpython3.{sys.version_info[1]}-testsuite",
        allow_module_level=True,
    )


def _cases() -> Iterator[Any]:
    for suite in _SUITES:
        tests = getattr(SUITE, suite, object)
        for name in sorted(each for each in dir(tests) if each.startswith("test_")):
            if name not in DIFFERS:
                yield pytest.param(suite, name, id=f"{suite}-{name}")


class _WithoutContext:
    """What the tests ask of a ProcessPoolExecutor: a way to start processes, which we have not."""

    def get_context(self) -> None:
        return None


def _type(slurm: RunningSlurm | None) -> type:
    if slurm is None:

        class Local(LocalExecutor):
            def __init__(self, max_workers: int | None = None, mp_context: None = None) -> None:
                super().__init__(max_workers)

        return Local

    class OnSlurm(Executor):
        def __init__(self, max_workers: int = 32, mp_context: None = None) -> None:
            super().__init__(slurm, max_workers=max_workers, partition="cpu")

    return OnSlurm


@pytest.fixture(params=["local", "slurm"])
def executor_type(request: pytest.FixtureRequest) -> Iterator[type]:
    slurm = RunningSlurm() if request.param == "slurm" else None
    yield _type(slurm)
    if slurm:
        slurm.end()


@pytest.mark.parametrize(("suite", "name"), _cases())
def test_cpython(executor_type: type, suite: str, name: str) -> None:
    bases = (_WithoutContext, SUITE.ExecutorMixin, getattr(SUITE, suite), SUITE.unittest.TestCase)
    case = type(suite, bases, {"executor_type": executor_type})(name)
    result = SUITE.unittest.TestResult()
    case.run(result)
    assert not result.errors + result.failures, (result.errors + result.failures)[0][1]
    if result.skipped:
        pytest.skip(result.skipped[0][1])
