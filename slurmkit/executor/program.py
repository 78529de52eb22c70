"""The program of the jobs: the worker, with what it needs beside it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from slurmkit import __version__, resumable
from slurmkit.executor import resultfiles, worker
from slurmkit.executor.store import Store

NAME = "slurmkit_worker.py"
"""The worker's name there: what lies beside a program hides modules of the same name."""
_STAND_IN = f"{worker.WITHOUT}/slurmkit"  # for jobs that have none: those of an image, say


def program(store: Store) -> str:
    """Path of the worker in a store, put there with the cloudpickle of this Python if it is not.

    The name of its folder tells its contents, so that jobs which wait find what they were sent
    with.

    Raises:
        SlurmkitError: when it cannot be written.
    """
    files = _files()
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    name = f"worker-{digest[:16]}"
    if not store.has(name):
        store.add(name, files)
    return f"{store.folder}/{name}/{NAME}"


def _files() -> dict[str, bytes]:
    import cloudpickle  # noqa: PLC0415 - it takes 20 ms

    found = {f"cloudpickle/{p.name}": p for p in Path(cloudpickle.__file__).parent.glob("*.py")}
    found[NAME] = Path(worker.__file__)
    found["slurmkit_resultfiles.py"] = Path(resultfiles.__file__)
    found[f"{_STAND_IN}/resumable.py"] = Path(resumable.__file__)
    read = {name: path.read_bytes() for name, path in found.items()}
    names = "from slurmkit.resumable import Resumable, checkpoint_wanted"
    text = f"__version__ = {__version__!r}\n{names}\n"
    return {**read, f"{_STAND_IN}/__init__.py": text.encode()}
