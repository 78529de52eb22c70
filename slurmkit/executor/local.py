"""`LocalExecutor`: the interface of `Executor`, with a process of this machine for each task."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from slurmkit.executor.base import CallExecutor
from slurmkit.executor.futures import AttachRun, CallFuture
from slurmkit.executor.runs import Arguments, CallRun
from slurmkit.executor.store import LocalStore
from slurmkit.executor.worker import ASKED

_WHERE = "local"
_PAUSE = 0.05  # seconds between two looks whether all tasks have started
_SILENT = 1.0  # seconds that the exit of Python waits for that without a word
_WAITS = "slurmkit: LocalExecutor waits to start more tasks: {}; Ctrl-C drops them"
_DROPPED = "slurmkit: LocalExecutor has not started some tasks: {}; their calls are lost"
_RUNNING: list[subprocess.Popen[bytes]] = []  # keeps processes of an executor that is gone


class LocalExecutor(CallExecutor):
    """Executor that makes calls in processes of this machine, as `Executor` does in Slurm jobs.

    Args:
        max_workers: processes at once; by default the number of CPUs.
        folder: where calls and results are stored; by default in ~/.local/state.
        python: the interpreter; this one by default.
        progress: show a progress bar while waiting; None: if standard error is a terminal.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        python: str | None = None,
        progress: bool | None = None,
    ) -> None:
        self._made: dict[str, Any] = {
            "max_workers": max_workers, "folder": folder, "python": python, "progress": progress,
        }  # fmt: skip
        most = len(os.sched_getaffinity(0)) if max_workers is None else max_workers
        self._processes = _ProcessMonitor(python or sys.executable, most)
        super().__init__(self._processes, LocalStore(folder), most, progress=progress)

    @classmethod
    def attach(
        cls, job_id: str, *, folder: str | os.PathLike[str] | None = None
    ) -> list[CallFuture[Any]]:
        """Return the futures of calls sent from this machine before, by their `job`.

        Only results that exist already are found: another process cannot be followed.

        Raises:
            BadInput: when there is no record of it.
        """
        return cls(folder=folder).attach_run(job_id)

    @classmethod
    def forget(cls, job_id: str) -> None:
        """Remove the calls and results of a `job` that was sent from this machine.

        Raises:
            BadInput: when there is no record of it, or a process still works on it.
            SlurmkitError: when it cannot be removed.
        """
        cls().forget_run(job_id)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle how the executor was made; its calls are found by their futures."""
        return partial(LocalExecutor, **self._made), ()

    @property
    def _attach(self) -> AttachRun:
        return LocalExecutor.attach

    @property
    def _where(self) -> str:
        return _WHERE

    def _unfinished(self, run: CallRun) -> str:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # the process has ended
                if run.folder.encode() in path.read_bytes().split(b"\0"):
                    return f"process {path.parent.name} still works on it"
        return ""

    def _send_calls(
        self, function: Callable[..., Any], calls: Sequence[Arguments], tasks: int
    ) -> list[CallFuture[Any]]:
        if self._processes.finished:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        return super()._send_calls(function, calls, tasks)

    def _send(self, run: CallRun, worker: str) -> CallRun:
        first = Path(run.folder).name
        ids = tuple(f"{first}_{number}" for number in range(len(run.tasks)))
        sent = msgspec.structs.replace(run, ids=ids, first=first)
        self._processes.start(sent, worker)
        return sent


class _ProcessMonitor:
    """The `JobMonitor` of this machine: a queue of tasks and at most `most` processes.

    Attributes:
        finished: whether Python is exiting and nothing starts tasks any more.
    """

    def __init__(self, python: str, most: int) -> None:
        self._python = python
        self._most = most
        self._waiting: deque[tuple[str, list[str], Path]] = deque()
        self._started: dict[str, subprocess.Popen[bytes] | OSError] = {}
        self._lock = threading.Lock()  # around `_waiting`
        self.finished = False

    def start(self, run: CallRun, worker: str) -> None:
        """Put the tasks of a run into the queue."""
        with self._lock:
            for number, job_id in enumerate(run.ids):
                argv = [self._python, worker, run.folder, str(number)]
                self._waiting.append((job_id, argv, run.log(number)))

    def look(self, job_ids: Iterable[str]) -> Mapping[str, bool | None]:
        """Return the state of tasks; first start waiting tasks if there is room."""
        with self._lock:
            self._start_waiting()
            waiting = {job_id for job_id, _, _ in self._waiting}
        return {
            job_id: None if job_id in waiting else self._is_running(job_id) for job_id in job_ids
        }

    def describe_end(self, job_id: str) -> str:
        process = self._started.get(job_id)
        if process is None:
            return "another process started it, and this process cannot follow it"
        if isinstance(process, OSError):
            return f"cannot run {self._python}: {process.strerror}"
        return f"its task ended with exit code {process.returncode}"

    def stop(self, job_ids: Iterable[str]) -> None:
        ids = set(job_ids)
        with self._lock:
            self._waiting = deque(each for each in self._waiting if each[0] not in ids)
        for job_id in ids:
            process = self._started.get(job_id)
            if isinstance(process, subprocess.Popen):
                with suppress(ProcessLookupError):
                    process.terminate()

    def is_busy(self) -> bool:
        return self._count_waiting() > 0

    def finish(self, seconds: float) -> None:
        """Wait until every task has started, as the stdlib's executors do at the exit of Python."""
        del seconds  # processes are ended at once
        self.finished = True
        notice_at = time.monotonic() + _SILENT
        try:
            while count := self._count_waiting():
                if time.monotonic() > notice_at:
                    print(_WAITS.format(count), file=sys.stderr, flush=True)
                    notice_at = math.inf
                time.sleep(_PAUSE)
        except KeyboardInterrupt:
            print(_DROPPED.format(self._count_waiting()), file=sys.stderr)

    def _count_waiting(self) -> int:
        with self._lock:  # a task that `look` is just starting counts until it has started
            return len(self._waiting)

    def _start_waiting(self) -> None:
        running = sum(self._is_running(job_id) for job_id in self._started)
        while self._waiting and running < self._most:
            job_id, argv, log = self._waiting.popleft()
            self._started[job_id] = _start_process(argv, log)
            running += 1

    def _is_running(self, job_id: str) -> bool:
        process = self._started.get(job_id)
        return isinstance(process, subprocess.Popen) and process.poll() is None


def _start_process(argv: list[str], log: Path) -> subprocess.Popen[bytes] | OSError:
    """Start a task with its output in a log; return the error if that fails."""
    # Nobody restarts the process, so it must not stop for a checkpoint.
    own = {name: value for name, value in os.environ.items() if name != ASKED}
    try:
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True, env=own,
            )  # fmt: skip
    except OSError as error:
        return error
    _RUNNING[:] = [each for each in [*_RUNNING, process] if each.poll() is None]
    return process
