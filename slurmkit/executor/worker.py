"""Make the calls of one task on its node, and write their results to files.

    python slurmkit_call.py FOLDER [TASK]

This file is copied into the shared folder, and the job's Python runs it there (see `payload.py`).
It needs only `resultfiles.py` and the standard library. It runs on Python 3.6 and later, so that a
Python of the wrong version can say so.

A child process makes the calls, one after another. If a call kills the child, that call has failed,
and a new child makes the rest. A restarted task makes the calls without a result. A call that
returned a `slurmkit.resumable.Resumable` goes on from there.
"""

import json
import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __name__ == "slurmkit.executor.worker":
    from slurmkit.executor import resultfiles
else:  # in the shared folder
    import slurmkit_resultfiles as resultfiles

CALLS, RESULTS, HEAD, FUNCTION = "calls", "results", "run.json", "function"
STATES = "states"
WITHOUT = "without"  # folder of a stand-in for slurmkit, for jobs that do not have it
ASKED = "SLURMKIT_CHECKPOINT_FILE"  # docs/survive.md
CANCELLED = "cancelled-{}"
_LARGE = 1 << 20  # bytes; a larger result has a file of its own
_LOOK = 0.5  # seconds between two checks of the child: its own children may hold its pipe open
_SAVING = 5.0  # seconds for a call to save its state; slurm.conf(5) KillWait is longer
_STOPPED = 75  # EX_TEMPFAIL: there is more to do
_CHECKPOINTED = b"~"  # message of a child that has stopped for a checkpoint
_PATIENCE = 1.0  # seconds in which a signal to the whole task must reach this process too


def main(argv: "list[str]") -> int:
    """Make the calls of a task; return 1 if any failed, 75 if some are left for later."""
    if not is_asked_here():
        os.environ.pop(ASKED, None)
    task = argv[1] if len(argv) > 1 else os.environ.get("SLURMKIT_ARRAY_TASK_ID", "0")
    return Task(argv[0], int(task)).run()


class Task:
    """The calls of one task.

    Args:
        folder: folder of the run.
        number: number of the task in the run.
    """

    def __init__(self, folder: str, number: int) -> None:
        self.folder = folder
        self.head: dict[str, Any] = json.loads(
            resultfiles.read_private(os.path.join(folder, HEAD)).decode()
        )
        every: list[tuple[int, bytes]] = pickle.loads(  # noqa: S301 - our own, as was just seen
            resultfiles.read_private(os.path.join(folder, CALLS, str(number)))
        )
        again = os.environ.get("SLURM_RESTART_COUNT", "0")
        self.outbox = resultfiles.Outbox(os.path.join(folder, RESULTS), f"{number}-{again}")
        done = self.outbox.done(number)
        self.left = [call for call in every if call[0] not in done]
        self.failed = any(
            kind not in (resultfiles.VALUE, resultfiles.LEFT_OUT) for kind in done.values()
        )
        self.stopped = False
        self._own = [str(index) for index, _ in every]

    def run(self) -> int:
        """Make the calls. On SIGTERM write the results so far, or ask for a checkpoint."""
        signal.signal(signal.SIGTERM, _stop)
        try:
            words = unfit(self.head)
            if words:
                while self.left:
                    self._take(
                        resultfiles.StoredResult(
                            self.left.pop(0)[0], resultfiles.UNFIT, b"", _facts(words=words)
                        )
                    )
            while self.left and not self.stopped:
                self._some()
        finally:
            self.outbox.flush()
            self._tidy()
        if self.left:
            return _STOPPED
        if is_wanted():
            os.unlink(os.environ[ASKED])  # all calls are made: no restart is needed
        return 1 if self.failed else 0

    def _tidy(self) -> None:
        """Remove the saved states of calls that have a result, and what a kill left of others."""
        states = os.path.join(self.folder, STATES)
        done = set(self._own) - {str(index) for index, _ in self.left}
        for name in os.listdir(states):
            if name.removeprefix(".").partition("-")[0] in done:
                os.unlink(os.path.join(states, name))

    def _some(self) -> None:
        """Let one child process make calls until all are made or the child has died."""
        child, number = self._fork()
        pipe = Pipe(number, child)
        try:
            while not pipe.over:
                pipe.wait(self.outbox.due())
                self._hear(pipe)
            status = _waited(child)
        except BaseException:
            self._hear(pipe)
            self.outbox.flush()
            _end(child)
            self._hear(pipe)
            raise
        finally:
            os.close(number)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM:
            time.sleep(_PATIENCE)
            self.stopped = self.stopped or is_wanted()
        if self.left and not self.stopped:
            index = self.left.pop(0)[0]
            self._take(
                resultfiles.StoredResult(
                    index, resultfiles.DIED, b"", _facts(words=_end_in_words(status))
                )
            )

    def _hear(self, pipe: "Pipe") -> None:
        """Take the child's messages, one for each call; a large result is in a file already."""
        for data in pipe.read():
            if data == _CHECKPOINTED:
                self.stopped = True
                return
            self.left.pop(0)
            if len(data) > 1:
                self.outbox.put(data[1:])
            self.failed = self.failed or data[:1] != b"+"
        if self.outbox.due() <= 0:
            self.outbox.flush()

    def _take(self, result: resultfiles.StoredResult) -> None:
        self.outbox.put(resultfiles.dumped(result))
        self.failed = True

    def _fork(self) -> "tuple[int, int]":
        ours, theirs = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child:
            os.close(theirs)
            return child, ours
        code = 1
        try:
            os.close(ours)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            Caller(self).make(theirs)
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not run the parent's code
            sys.excepthook(*sys.exc_info())
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)


class Caller:
    """The child process that makes calls."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._function: Any = None
        self._differ: dict[str, Any] = {}
        self._got_sigterm = False

    def make(self, pipe: int) -> None:
        """Make the calls that are left until the job has to stop; send a message after each."""
        sys.path[:] = search_path(self._task.head)
        if ASKED in os.environ:
            signal.signal(signal.SIGTERM, self._hear)
            os.register_at_fork(after_in_child=self._forked)
        for call in self._task.left:
            result = None if is_wanted() else self._made(call)
            # Slurm's signal also ends processes that a call has started, and the call may raise.
            if result is None or (self._got_sigterm and result.kind == resultfiles.ERROR):
                _write_all(pipe, resultfiles.sized(_CHECKPOINTED))
                return
            sign = b"+" if result.kind in (resultfiles.VALUE, resultfiles.LEFT_OUT) else b"-"
            data = resultfiles.dumped(result)
            if len(data) >= _LARGE:
                self._task.outbox.write(f"c{call[0]}", [data])
                data = b""
            _write_all(pipe, resultfiles.sized(sign + data))

    def _hear(self, number: int, frame: object) -> None:
        """Handle SIGTERM, sent to all processes of a step: go on while there is time."""
        del frame
        self._got_sigterm = True
        if not asks():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _forked(self) -> None:
        """Let SIGTERM end processes that a call forks: multiprocessing pools rely on that."""
        if signal.getsignal(signal.SIGTERM) == self._hear:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _made(self, call: "tuple[int, bytes]") -> "resultfiles.StoredResult | None":
        index, data = call
        if os.path.exists(os.path.join(self._task.folder, CANCELLED.format(index))):
            return resultfiles.StoredResult(index, resultfiles.LEFT_OUT)
        try:
            function, args, kwargs = self._begin(index, data)
            self._differ = self._differ or differing(self._task.head["libraries"])
            value = function(*args, **kwargs)
            while _is_resumable(value):
                after = (value.function, value.args, value.kwargs)
                self._keep(index, dumps(after))
                if is_wanted():
                    return None
                value = after[0](*after[1], **after[2])
            return resultfiles.StoredResult(
                index, resultfiles.VALUE, dumps(value), _facts(differ=self._differ)
            )
        except BaseException as error:  # noqa: BLE001 - SystemExit is a result too
            return resultfiles.StoredResult(
                index, resultfiles.ERROR, _pickled(error), self._error_facts(error)
            )

    def _begin(self, index: int, data: bytes) -> Any:
        """Return function, args and kwargs of a call: from its saved state, or from the start."""
        if os.path.exists(self._state(index)):
            return pickle.loads(resultfiles.read_private(self._state(index)))  # noqa: S301 - read_private
        return (self._shared(), *pickle.loads(data))  # noqa: S301 - from the folder that is ours

    def _keep(self, index: int, after: bytes) -> None:
        """Save the state of a call; if the disk is full, the last state stays."""
        try:
            resultfiles.write_whole(self._state(index), after)
        except OSError as error:
            with suppress(OSError):  # the log may have no room either
                print(f"slurmkit: the state of call {index} is not saved: {error}", file=sys.stderr)

    def _state(self, index: int) -> str:
        return os.path.join(self._task.folder, STATES, str(index))

    def _shared(self) -> Any:
        if self._function is None:
            data = resultfiles.read_private(os.path.join(self._task.folder, FUNCTION))
            self._function = pickle.loads(data)  # noqa: S301 - our own, as was just seen
        return self._function

    def _error_facts(self, error: BaseException) -> "dict[str, Any]":
        import traceback  # noqa: PLC0415 - most calls need none

        trace = error.__traceback__ and error.__traceback__.tb_next  # without our own frame
        lines = traceback.format_exception(type(error), error, trace)
        words = "".join(traceback.format_exception_only(type(error), error)).strip()
        differ = self._differ or differing(self._task.head["libraries"])
        missing = getattr(error, "name", None) if isinstance(error, ImportError) else None
        return _facts(words=words, trace="".join(lines), differ=differ, missing=missing)


class Pipe:
    """The messages of a child about its calls.

    Attributes:
        over: whether the child has ended and all its messages were read.
    """

    def __init__(self, number: int, child: int) -> None:
        os.set_blocking(number, False)
        self._number = number
        self._child = child
        self._data = bytearray()
        self._gone = self.over = False
        self._waiting = select.poll()
        self._waiting.register(number, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Sleep until there is a message, the child has ended, or the time is over."""
        heard = self._waiting.poll(1000 * max(0.0, min(seconds, _LOOK)))
        self._gone = not heard and _is_over(self._child)

    def read(self) -> "Iterator[bytes]":
        """Yield the messages since the last read."""
        self.over = self._fill() or self._gone
        while len(self._data) >= resultfiles.SIZE:
            end = resultfiles.SIZE + int.from_bytes(self._data[: resultfiles.SIZE], "big")
            if len(self._data) < end:
                return
            data = bytes(self._data[resultfiles.SIZE : end])
            del self._data[:end]
            yield data

    def _fill(self) -> bool:
        """Read all that the pipe holds; return whether that was its end."""
        while True:
            try:
                piece = os.read(self._number, 1 << 16)
            except BlockingIOError:
                return False
            if not piece:
                return True
            self._data += piece


def dumps(value: Any) -> bytes:
    """Pickle a value, with cloudpickle if plain pickle fails."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - whatever its __reduce__ raises
        import cloudpickle  # noqa: PLC0415 - most values do not need it

        return bytes(cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL))


def search_path(head: "dict[str, Any]") -> "list[str]":
    """Return `sys.path` in the order of the caller, so that the same modules are found.

    Another Python, e.g. in a container, searches its own folders first and none of the caller's
    libraries. Modules sent from another machine have their own path and an empty prefix.
    """
    own = os.path.dirname(os.path.abspath(__file__))
    last = os.path.join(own, WITHOUT)
    if head["prefix"] in ("", sys.prefix):
        found = [own, *head["path"], *sys.path]
    else:
        alien = [each for each in head["path"] if "/python" in each or "-packages" in each]
        found = [*sys.path, *(each for each in head["path"] if each not in alien)]
    return [*(each for each in dict.fromkeys(found) if each != last), last]


def version_of(library: str) -> object:
    """Return `__version__` of a loaded library, without running a `__getattr__` of it."""
    return getattr(sys.modules.get(library), "__dict__", {}).get("__version__")


def unfit(head: "dict[str, Any]") -> str:
    """Return why this Python cannot read the caller's pickles; empty when it can."""
    if list(sys.version_info[:2]) == head["python"]:
        return ""
    here = f"{_dotted(sys.version_info[:2])} ({sys.executable} on {os.uname().nodename})"
    there = f"{_dotted(head['python'])} ({head['executable']} on {head['node']})"
    return f"the job's Python is {here}, but the call was made with Python {there}"


def differing(libraries: "dict[str, str]") -> "dict[str, Any]":
    """Return [version here, version of the caller] of loaded libraries that differ."""
    found = {
        name: (there if sys.modules.get(name) is None else version_of(name), there)
        for name, there in libraries.items()
    }
    return {name: [str(here), there] for name, (here, there) in found.items() if here != there}


def is_wanted() -> bool:
    """Return whether the job has to stop, like `slurmkit.resumable.checkpoint_wanted`."""
    return os.path.exists(os.environ.get(ASKED, ""))


def asks() -> bool:
    """Ask the calls of this job for a checkpoint; return whether that was possible."""
    path = os.environ.get(ASKED, "")
    try:
        if not path or _has_later_run(os.path.dirname(path)):
            return False
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:
        return False
    return True


def _has_later_run(state: str) -> bool:
    """Return whether a later run of the job exists: the request would reach that one."""
    runs = [name[len("lease.") :] for name in os.listdir(state) if name.startswith("lease.")]
    own = int(os.environ.get("SLURMKIT_RESTART", "0"))
    return any(run.isdigit() and int(run) > own for run in runs)


def is_asked_here() -> bool:
    """Return whether the checkpoint file is this job's, not that of the job which sent it."""
    known = os.environ.get
    own = known("SLURM_JOB_ID")
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        own = f"{known('SLURM_ARRAY_JOB_ID')}_{known('SLURM_ARRAY_TASK_ID')}"
    return os.path.basename(os.path.dirname(known(ASKED, ""))) == own


def _is_resumable(value: object) -> bool:
    """Return whether a value is a `slurmkit.resumable.Resumable`, without an import of slurmkit."""
    return (type(value).__module__, type(value).__name__) == ("slurmkit.resumable", "Resumable")


def _facts(**more: Any) -> "dict[str, Any]":
    found = {"node": os.uname().nodename, "python": sys.executable}
    return dict(found, **{name: value for name, value in more.items() if value})


def _pickled(error: BaseException) -> bytes:
    """Pickle an exception without its frames; empty if it cannot be pickled."""
    try:
        return dumps(error)
    except Exception:  # noqa: BLE001 - whatever its __reduce__ raises
        return b""


def _is_over(child: int) -> bool:
    """Return whether a child has ended; it still has to be waited for."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _waited(child: int) -> int:
    return os.waitpid(child, 0)[1]


def _end(child: int) -> None:
    """End a child, with some time for its call to save its state."""
    end = time.monotonic() + _SAVING
    os.kill(child, signal.SIGTERM)
    while not _is_over(child) and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    _waited(child)


def _end_in_words(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hint = "; was it out of memory?" if number == signal.SIGKILL else ""
        return f"its process was ended by signal {number} ({signal.Signals(number).name}){hint}"
    return f"its process ended by itself, with exit code {os.WEXITSTATUS(status)}"


def _dotted(version: "Iterable[int]") -> str:
    return ".".join(map(str, version))


def _write_all(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


def _stop(number: int, frame: object) -> None:
    del frame
    if not asks():
        sys.exit(128 + number)
