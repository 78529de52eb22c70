"""Calls that were sent together: what lies in their folder, and where it is found again."""

from __future__ import annotations

import json
import os
import pickle
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from slurmkit.capabilities.cache import read_own, write_aside
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.executor import resultfiles, worker
from slurmkit.executor.folders import own_folder
from slurmkit.statehome import state_folder

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
_NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one function that were sent together.

    Attributes:
        folder: where they and their results are.
        name: of the function.
        submitted: epoch seconds.
        tasks: the indices of the calls that each task makes, in order.
        ids: the job of each task, `12_3` or `12`; empty before they are sent.
        first: the id that stands for all of them.
    """

    folder: str
    name: str
    submitted: float
    tasks: tuple[tuple[int, ...], ...]
    ids: tuple[str, ...] = ()
    first: str = ""

    def log(self, number: int) -> Path:
        """Where what a task prints goes, unless the job's `output` says otherwise."""
        return Path(self.folder) / f"log-{self.ids[number]}.out"


def divided(count: int, tasks: int) -> tuple[tuple[int, ...], ...]:
    """Deal calls out to tasks like cards, so that the first ones are made first."""
    return tuple(tuple(range(first, count, tasks)) for first in range(min(count, tasks)))


def prepare(
    base: Path,
    function: Callable[..., Any],
    calls: Sequence[Arguments],
    tasks: tuple[tuple[int, ...], ...],
) -> Run:
    """Write what a run's tasks read.

    Raises:
        BadInput: when the function or an argument cannot be pickled.
        SlurmkitError: when it cannot be written.
    """
    import cloudpickle  # noqa: PLC0415 - it takes 20 ms

    def pickled(value: object, what: str) -> bytes:
        try:
            return bytes(cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        except Exception as error:  # whatever a __reduce__ raises
            words = f"{type(error).__name__}: {error}"
            raise BadInput(f"{what} cannot be sent: it cannot be pickled ({words})") from error

    name = _NO_NAME.sub("", getattr(function, "__name__", type(function).__name__)) or "call"
    shared = pickled(function, f"the function {name}")
    each = [pickled(call, f"an argument of call {at}") for at, call in enumerate(calls)]
    run = Run(
        folder=str(base / "runs" / f"{name[:40]}-{secrets.token_hex(6)}"),
        name=name[:100],
        submitted=time.time(),
        tasks=tasks,
    )
    try:
        _write(run, shared, each)
    except OSError as error:
        raise _unwritten(run.folder, error) from error
    return run


def _write(run: Run, shared: bytes, each: Sequence[bytes]) -> None:
    own_folder(Path(run.folder).parent)
    folder = own_folder(Path(run.folder))
    for name in (worker.CALLS, worker.RESULTS, worker.STATES):
        own_folder(folder / name)
    resultfiles.write_whole(str(folder / worker.HEAD), json.dumps(_head()).encode())
    resultfiles.write_whole(str(folder / worker.FUNCTION), shared)
    for number, indices in enumerate(run.tasks):
        own = pickle.dumps([(index, each[index]) for index in indices], resultfiles.PROTOCOL)
        resultfiles.write_whole(str(folder / worker.CALLS / str(number)), own)


def _head() -> dict[str, Any]:
    """What this Python is, to be compared in the job."""
    versions = {name: worker.version_of(name) for name in list(sys.modules) if "." not in name}
    return {
        "python": list(sys.version_info[:2]),
        "executable": sys.executable,
        "node": os.uname().nodename,
        "prefix": sys.prefix,
        "path": [os.path.abspath(each) for each in sys.path],  # noqa: PTH100 - "" is a folder here
        "libraries": {name: each for name, each in versions.items() if isinstance(each, str)},
    }


def keep(run: Run, where: str) -> None:
    """Remember a run by its job.

    Args:
        run: what was sent.
        where: name of the cluster.

    Raises:
        SlurmkitError: when it cannot be written.
    """
    path = _record(run.first, where)
    try:
        own_folder(path.parent)
        write_aside(path, msgspec.json.encode(run))
    except OSError as error:
        raise _unwritten(str(path), error) from error


def find(job_id: str, where: str) -> Run:
    """The run of a job that was sent from here.

    Raises:
        BadInput: when nothing is known of it.
    """
    try:
        return msgspec.json.decode(read_own(_record(job_id, where)), type=Run)
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(
            f"no calls of a job {job_id} were sent to {where} by you from this home; the number is"
            " that of the whole, as a future's `job` has it"
        ) from error


def drop(run: Run, where: str) -> None:
    """Remove the files of a run, and what is remembered of it.

    Raises:
        BadInput: when its folder is not this user's.
        SlurmkitError: when it cannot be removed.
    """
    folder = Path(run.folder)
    try:
        if folder.exists():
            if folder.lstat().st_uid != os.geteuid():
                raise BadInput(f"{folder} is not yours, and is left as it is")
            shutil.rmtree(folder)
        _record(run.first, where).unlink()
    except OSError as error:
        name = error.filename or folder
        raise SlurmkitError(f"cannot remove {name}: {error.strerror}; try again") from error


def _record(job_id: str, where: str) -> Path:
    return state_folder("calls") / "jobs" / where / f"{_NO_NAME.sub('', job_id)}.json"


def _unwritten(path: str, error: OSError) -> SlurmkitError:
    return SlurmkitError(
        f"cannot keep calls in {error.filename or path}: {error.strerror}; make room there"
    )
