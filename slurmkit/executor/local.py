"""The executor of this machine: a process for each task, with the interface of that of Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from slurmkit.executor.calls import CallExecutor
from slurmkit.executor.future import CallFuture
from slurmkit.executor.runs import Run
from slurmkit.executor.store import Here
from slurmkit.executor.worker import ASKED

_WHERE = "local"
_RUNNING: list[subprocess.Popen[bytes]] = []  # also when the executor that started them is gone


class LocalExecutor(CallExecutor):
    """Makes calls in processes of this machine, as `Executor` does in jobs of Slurm.

    Args:
        max_workers: processes at once; by default as many as there are CPUs.
        folder: where calls and results are kept; by default in ~/.local/state.
        python: the interpreter; this one by default.
        progress: show a bar while calls are waited for; None: where standard error is a terminal.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        python: str | None = None,
        progress: bool | None = None,
    ) -> None:
        most = len(os.sched_getaffinity(0)) if max_workers is None else max_workers
        self._processes = _Processes(python or sys.executable, most)
        super().__init__(self._processes, Here(folder), most, progress=progress)

    @classmethod
    def attach(
        cls, job_id: str, *, folder: str | os.PathLike[str] | None = None
    ) -> list[CallFuture]:
        """The futures of calls that were sent from this machine before, by the `job` of theirs.

        Another process cannot follow them: only results that are there are found.

        Raises:
            BadInput: when nothing is known of it.
        """
        return cls(folder=folder).found(job_id)

    @classmethod
    def forget(cls, job_id: str) -> None:
        """Remove calls and results that were sent from this machine, by the `job` of theirs.

        Raises:
            BadInput: when nothing is known of it, or a process is still at it.
            SlurmkitError: when it cannot be removed.
        """
        cls().forgotten(job_id)

    @property
    def _where(self) -> str:
        return _WHERE

    def _at_work(self, run: Run) -> str:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it is over
                if run.folder.encode() in path.read_bytes().split(b"\0"):
                    return f"process {path.parent.name} is still at it"
        return ""

    def _send(self, run: Run, worker: str) -> Run:
        first = Path(run.folder).name
        ids = tuple(f"{first}_{number}" for number in range(len(run.tasks)))
        sent = msgspec.structs.replace(run, ids=ids, first=first)
        self._processes.start(sent, worker)
        return sent


class _Processes:
    """See `slurmkit.executor.follow.Place`."""

    def __init__(self, python: str, most: int) -> None:
        self._python = python
        self._most = most
        self._waiting: deque[tuple[str, list[str], Path]] = deque()
        self._started: dict[str, subprocess.Popen[bytes] | OSError] = {}
        self._lock = threading.Lock()  # around those that wait

    def start(self, run: Run, worker: str) -> None:
        """Have the tasks of a run wait for their turn."""
        with self._lock:
            for number, job_id in enumerate(run.ids):
                argv = [self._python, worker, run.folder, str(number)]
                self._waiting.append((job_id, argv, run.log(number)))

    def look(self, job_ids: Iterable[str]) -> Mapping[str, bool | None]:
        """See `Place.look`; those that wait are started as soon as there is room."""
        with self._lock:
            self._fill()
            waiting = {job_id for job_id, _, _ in self._waiting}
        return {
            job_id: None if job_id in waiting else self._is_running(job_id) for job_id in job_ids
        }

    def words(self, job_id: str) -> str:
        """See `Place.words`."""
        found = self._started.get(job_id)
        if found is None:
            return "another process sent it, and it cannot be followed from here"
        if isinstance(found, OSError):
            return f"cannot run {self._python}: {found.strerror}"
        return f"its task ended with exit code {found.returncode}"

    def stop(self, job_ids: Iterable[str]) -> None:
        """See `Place.stop`."""
        ids = set(job_ids)
        with self._lock:
            self._waiting = deque(each for each in self._waiting if each[0] not in ids)
        for job_id in ids:
            found = self._started.get(job_id)
            if isinstance(found, subprocess.Popen):
                with suppress(ProcessLookupError):
                    found.terminate()

    def _fill(self) -> None:
        running = sum(self._is_running(job_id) for job_id in self._started)
        while self._waiting and running < self._most:
            job_id, argv, log = self._waiting.popleft()
            self._started[job_id] = _started(argv, log)
            running += 1

    def _is_running(self, job_id: str) -> bool:
        found = self._started.get(job_id)
        return isinstance(found, subprocess.Popen) and found.poll() is None


def _started(argv: list[str], log: Path) -> subprocess.Popen[bytes] | OSError:
    own = {name: value for name, value in os.environ.items() if name != ASKED}  # nobody restarts it
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
