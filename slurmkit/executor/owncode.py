"""The caller's own modules, which are sent with a call to where they are not installed."""

from __future__ import annotations

import sys
import sysconfig
from contextlib import suppress
from pathlib import Path, PurePath
from types import ModuleType

from slurmkit.executor.store import Store, named_by

_INSTALLED = ("/site-packages/", "/dist-packages/")
_OURS = "slurmkit"  # what jobs lack of it is beside the worker


def send_own_code(store: Store) -> str:
    """Path of a folder in a store with the modules of the caller as they are now.

    Raises:
        SlurmkitError: when it cannot be written.
    """
    files: dict[str, bytes] = {}
    for name, path in own_files().items():
        with suppress(OSError):  # it was imported, and is gone
            files[name] = path.read_bytes()
    name = named_by(sorted(files.items()), "code")
    if not store.has(name):
        store.add(name, files)
    return f"{store.folder}/{name}"


def own_files() -> dict[str, Path]:
    """Files of modules that are neither Python's nor installed, by where they are looked for.

    Of a package all modules are there, also those that are imported later.
    """
    found: dict[str, Path] = {}
    for name, module in list(sys.modules.items()):
        if _is_own(name, module):
            found |= _files(name.replace(".", "/"), Path(str(module.__file__)))
    return found


def _files(place: str, file: Path) -> dict[str, Path]:
    if file.name != "__init__.py":
        return {f"{place}.py": file}
    below = ((path.relative_to(file.parent), path) for path in file.parent.rglob("*.py"))
    return {f"{place}/{name}": path for name, path in below if not _is_foreign(name)}


def _is_foreign(name: PurePath) -> bool:
    """Whether it is of an environment or the like that lies in a package."""
    return any(part.startswith(".") or part.endswith("-packages") for part in name.parts)


def _is_own(name: str, module: ModuleType) -> bool:
    known = getattr(module, "__dict__", {})  # without running what it may do when it is asked
    file, own = known.get("__file__"), known.get("__name__")
    # What __main__ has travels by value.
    if own != name or name in ("__main__", "__mp_main__") or not isinstance(file, str):
        return False
    if name.partition(".")[0].startswith(_OURS) or not file.endswith(".py"):
        return False
    python = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return not any(each in file for each in _INSTALLED) and not file.startswith(python)
