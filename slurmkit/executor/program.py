"""The program of the jobs: the worker, with what it needs beside it."""

from __future__ import annotations

import importlib.util
import py_compile
import sys
import tempfile
from pathlib import Path

from slurmkit import __version__, resumable
from slurmkit.executor import resultfiles, worker
from slurmkit.executor.store import Store, named_by

_NAME = "slurmkit_call.py"
# PYTHONSAFEPATH would keep out what lies beside it, which is not compiled anew for each task.
_PROGRAM = """import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import slurmkit_worker
sys.exit(slurmkit_worker.main(sys.argv[1:]))
"""
_STAND_IN = f"{worker.WITHOUT}/slurmkit"  # for jobs that have none: those of an image, say


def program(store: Store) -> str:
    """Path of the program in a store, put there with the cloudpickle of this Python if it is not.

    The name of its folder tells its contents, so that jobs which wait find what they were sent
    with. What lies beside a program hides modules of the same name, so the names are ours.

    Raises:
        SlurmkitError: when it cannot be written.
    """
    files = _files()
    name = named_by((sys.implementation.cache_tag, sorted(files.items())), "worker")
    if not store.has(name):
        store.add(name, files | _compiled(files))
    return f"{store.folder}/{name}/{_NAME}"


def _files() -> dict[str, bytes]:
    import cloudpickle  # noqa: PLC0415 - it takes 20 ms

    found = {f"cloudpickle/{p.name}": p for p in Path(cloudpickle.__file__).parent.glob("*.py")}
    found["slurmkit_worker.py"] = Path(worker.__file__)
    found["slurmkit_resultfiles.py"] = Path(resultfiles.__file__)
    found[f"{_STAND_IN}/resumable.py"] = Path(resumable.__file__)
    read = {name: path.read_bytes() for name, path in found.items()}
    names = "from slurmkit.resumable import Resumable, checkpoint_wanted"
    text = f"__version__ = {__version__!r}\n{names}\n"
    return {**read, _NAME: _PROGRAM.encode(), f"{_STAND_IN}/__init__.py": text.encode()}


def _compiled(files: dict[str, bytes]) -> dict[str, bytes]:
    """Each module compiled by this Python, as in `__pycache__`; another one compiles its own."""
    found: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        source, cached = Path(folder, "source"), str(Path(folder, "compiled"))
        for name, data in files.items():
            source.write_bytes(data)
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH  # whatever the file's date is
            py_compile.compile(str(source), cached, name, doraise=True, invalidation_mode=mode)
            found[importlib.util.cache_from_source(name)] = Path(cached).read_bytes()
    return found
