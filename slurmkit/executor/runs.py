"""Runs: calls sent together. Write their files, and keep a record to find them again."""

from __future__ import annotations

import json
import os
import pickle
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from slurmkit.config.paths import read_private_file, state_folder, write_private_file
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.executor import resultfiles, worker
from slurmkit.executor.store import Store, make_private_folder, write_error

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
_NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]")


class CallRun(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one function that were sent together.

    Attributes:
        folder: folder of the calls and their results on the cluster.
        name: name of the function.
        submitted: epoch seconds.
        tasks: indices of the calls that each task makes, in order.
        ids: job id of each task, `12_3` or `12`; empty before they are sent.
        first: the id that stands for the whole run.
    """

    folder: str
    name: str
    submitted: float
    tasks: tuple[tuple[int, ...], ...]
    ids: tuple[str, ...] = ()
    first: str = ""

    def log(self, number: int) -> Path:
        """Return the path of a task's log, unless the job's `output` says otherwise."""
        return Path(self.folder) / f"log-{self.ids[number]}.out"


def divide_calls(count: int, tasks: int) -> tuple[tuple[int, ...], ...]:
    """Assign calls to tasks round robin, so that the first calls are made first."""
    return tuple(tuple(range(first, count, tasks)) for first in range(min(count, tasks)))


def write_run(
    store: Store,
    function: Callable[..., Any],
    calls: Sequence[Arguments],
    tasks: tuple[tuple[int, ...], ...],
) -> CallRun:
    """Pickle a function and its calls, and write them into a store.

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
    place = f"runs/{name[:40]}-{secrets.token_hex(6)}"
    own = (pickle.dumps([(at, each[at]) for at in task], resultfiles.PROTOCOL) for task in tasks)
    files = {f"{worker.CALLS}/{number}": data for number, data in enumerate(own)}
    files |= {worker.HEAD: json.dumps(_head(store)).encode(), worker.FUNCTION: shared}
    store.add(place, files, (worker.RESULTS, worker.STATES))
    return CallRun(
        folder=f"{store.folder}/{place}", name=name[:100], submitted=time.time(), tasks=tasks
    )


def _head(store: Store) -> dict[str, Any]:
    """Describe this Python, so that the job can compare its own."""
    prefix, path = store.modules()
    versions = {name: worker.version_of(name) for name in list(sys.modules) if "." not in name}
    return {
        "python": list(sys.version_info[:2]),
        "executable": sys.executable,
        "node": os.uname().nodename,
        "prefix": prefix,
        "path": path,
        "libraries": {name: each for name, each in versions.items() if isinstance(each, str)},
    }


def save_run(run: CallRun, where: str) -> None:
    """Write a record of a run, to be found by its job id.

    Args:
        run: the run, with its ids.
        where: name of the cluster.

    Raises:
        SlurmkitError: when it cannot be written.
    """
    path = _record_path(run.first, where)
    try:
        make_private_folder(path.parent)
        write_private_file(path, msgspec.json.encode(run))
    except OSError as error:
        raise write_error(str(path), error) from error


def load_run(job_id: str, where: str) -> CallRun:
    """Load the run of a job that was sent from here.

    Raises:
        BadInput: when there is no record of it.
    """
    try:
        return msgspec.json.decode(read_private_file(_record_path(job_id, where)), type=CallRun)
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(
            f"no record of calls that you sent to {where} as job {job_id} from this home directory;"
            " use the id of all calls sent together, which is the `job` of each future"
        ) from error


def remove_run(store: Store, run: CallRun, where: str) -> None:
    """Remove the files of a run, and its record.

    Raises:
        BadInput: when its folder is not this user's.
        SlurmkitError: when it cannot be removed.
    """
    try:
        store.remove(run.folder)
        _record_path(run.first, where).unlink()
    except OSError as error:
        name = error.filename or run.folder
        raise SlurmkitError(f"cannot remove {name}: {error.strerror}; try again") from error


def _record_path(job_id: str, where: str) -> Path:
    return state_folder("calls") / "jobs" / where / f"{_NO_NAME.sub('', job_id)}.json"
