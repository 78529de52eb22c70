"""The caller's own modules, which are sent with a call to where they are not installed."""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_INSTALLED = ("/site-packages/", "/dist-packages/")
_LOCK = threading.Lock()  # cloudpickle keeps one list for all threads


@contextmanager
def sent_by_value() -> Iterator[None]:
    """Meanwhile cloudpickle takes functions and classes of the caller's modules with their code."""
    import cloudpickle  # noqa: PLC0415 - it takes 20 ms

    with _LOCK:
        before = cloudpickle.list_registry_pickle_by_value()
        added = [each for each in own_modules() if each.__name__ not in before]
        for module in added:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in added:
                cloudpickle.unregister_pickle_by_value(module)


def own_modules() -> list[ModuleType]:
    """Modules that are neither Python's nor installed, but lie in folders of the caller."""
    return [each for each in list(sys.modules.values()) if _is_own(each)]


def _is_own(module: ModuleType) -> bool:
    known = getattr(module, "__dict__", {})  # without running what it may do when it is asked
    name, file = known.get("__name__"), known.get("__file__")
    if (
        not isinstance(name, str)
        or not isinstance(file, str)
        or sys.modules.get(name) is not module
    ):
        return False
    # What jobs lack of slurmkit is beside the worker.
    if name == "__main__" or name.partition(".")[0] == "slurmkit" or not file.endswith(".py"):
        return False
    python = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return not any(each in file for each in _INSTALLED) and not file.startswith(python)
