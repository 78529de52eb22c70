"""The Python code that is sent with calls: the caller's own modules, and the worker program.

The caller's modules go to a cluster that does not have them. The program needs no slurmkit in the
job; cloudpickle is sent with it.
"""

from __future__ import annotations

import importlib.util
import py_compile
import sys
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path, PurePath
from types import ModuleType

import slurmkit
from slurmkit import resumable
from slurmkit.executor import resultfiles, worker
from slurmkit.executor.store import Store, content_name
from slurmkit.version import __version__

_INSTALLED = ("/site-packages/", "/dist-packages/")
_OURS = "slurmkit"  # the parts that jobs need are sent with the worker
_NAME = "slurmkit_call.py"
# The folder is added by hand since PYTHONSAFEPATH would leave it out. The worker is imported, not
# run as a script, so that its compiled file is used.
_PROGRAM = """import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import slurmkit_worker
sys.exit(slurmkit_worker.main(sys.argv[1:]))
"""
_STAND_IN = f"{worker.WITHOUT}/slurmkit"  # for jobs without slurmkit, e.g. in an image
_STAND_IN_PROGRAM = """import os, sys
from slurmkit.resumable import Resumable, checkpoint_wanted

__version__ = {version!r}
_LACKING = {lacking!r}

def _missing(name):
    where = "{{}} on {{}}".format(sys.executable, os.uname().nodename)
    words = "no {{}}: slurmkit is not installed for {{}}, which has only Resumable and" \
        " checkpoint_wanted; install slurmkit for that Python from where yours came, or name" \
        " another: python=..."
    return ModuleNotFoundError(words.format(name, where), name=name)

class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("slurmkit."):
            raise _missing(name)

def __getattr__(name):
    if name in _LACKING:
        raise _missing("slurmkit." + name)
    raise AttributeError("module 'slurmkit' has no attribute " + repr(name))

sys.meta_path.append(_Finder)
"""


def send_own_code(store: Store) -> str:
    """Write the caller's modules as they are now into a store; return the path of their folder.

    Raises:
        SlurmkitError: when it cannot be written.
    """
    files: dict[str, bytes] = {}
    for name, path in own_files().items():
        with suppress(OSError):  # it was imported and has been removed since
            files[name] = path.read_bytes()
    name = content_name(sorted(files.items()), "code")
    if not store.has(name):
        store.add(name, files)
    return f"{store.folder}/{name}"


def own_files() -> dict[str, Path]:
    """Return the files of modules that are neither Python's nor installed, by relative path.

    A package comes with all its modules, also those not imported yet.
    """
    files: dict[str, Path] = {}
    for name, module in list(sys.modules.items()):
        if _is_own(name, module):
            files |= _module_files(name.replace(".", "/"), Path(str(module.__file__)))
    return files


def _module_files(relative: str, file: Path) -> dict[str, Path]:
    if file.name != "__init__.py":
        return {f"{relative}.py": file}
    below = ((path.relative_to(file.parent), path) for path in file.parent.rglob("*.py"))
    return {f"{relative}/{name}": path for name, path in below if not _is_foreign(name)}


def _is_foreign(name: PurePath) -> bool:
    """Return whether a file belongs to a virtual environment or the like inside a package."""
    return any(part.startswith(".") or part.endswith("-packages") for part in name.parts)


def _is_own(name: str, module: ModuleType) -> bool:
    """Return whether a module is the user's own: a .py file outside Python and site-packages."""
    known = getattr(module, "__dict__", {})  # a module's __getattr__ may run code
    file, own = known.get("__file__"), known.get("__name__")
    # cloudpickle sends the contents of __main__ by value.
    if own != name or name in ("__main__", "__mp_main__") or not isinstance(file, str):
        return False
    if name.partition(".")[0].startswith(_OURS) or not file.endswith(".py"):
        return False
    python = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return not any(each in file for each in _INSTALLED) and not file.startswith(python)


def write_program(store: Store) -> str:
    """Write the program and cloudpickle into a store, unless they are there; return its path.

    The folder name is a hash of the contents, so that waiting jobs find the version they were sent
    with. Files next to a program hide modules of the same name; ours have names of their own.

    Raises:
        SlurmkitError: when it cannot be written.
    """
    files = _program_files()
    name = content_name((sys.implementation.cache_tag, sorted(files.items())), "worker")
    if not store.has(name):
        store.add(name, files | _compiled(files))
    return f"{store.folder}/{name}/{_NAME}"


def _program_files() -> dict[str, bytes]:
    import cloudpickle  # noqa: PLC0415 - it takes 20 ms

    paths = {f"cloudpickle/{p.name}": p for p in Path(cloudpickle.__file__).parent.glob("*.py")}
    paths["slurmkit_worker.py"] = Path(worker.__file__)
    paths["slurmkit_resultfiles.py"] = Path(resultfiles.__file__)
    paths[f"{_STAND_IN}/resumable.py"] = Path(resumable.__file__)
    files = {name: path.read_bytes() for name, path in paths.items()}
    lacking = sorted({*slurmkit.__all__} - {"Resumable", "__version__", "checkpoint_wanted"})
    text = _STAND_IN_PROGRAM.format(version=__version__, lacking=lacking)
    return {**files, _NAME: _PROGRAM.encode(), f"{_STAND_IN}/__init__.py": text.encode()}


def _compiled(files: dict[str, bytes]) -> dict[str, bytes]:
    """Compile each module with this Python into `__pycache__`; other Pythons compile their own."""
    compiled: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        source, cached = Path(folder, "source"), str(Path(folder, "compiled"))
        for name, data in files.items():
            source.write_bytes(data)
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH  # the file's date does not matter
            py_compile.compile(str(source), cached, name, doraise=True, invalidation_mode=mode)
            compiled[importlib.util.cache_from_source(name)] = Path(cached).read_bytes()
    return compiled
