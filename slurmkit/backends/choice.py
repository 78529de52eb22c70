"""Which backend sends a cluster's jobs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec

from slurmkit.backends.beside import ALONE, Beside
from slurmkit.backends.commands import CommandsBackend
from slurmkit.slurm import LocalSlurm, Slurm

if TYPE_CHECKING:
    from slurmkit.planner import Submission
    from slurmkit.plugins import Backend

AUTO = "auto"
_PAYS = 25  # submits of a process from which on PySlurm's import is worth its time


class SubmitSection(msgspec.Struct, frozen=True):
    """`[submit]`.

    Attributes:
        backend: what sends jobs: `commands` (sbatch), `pyslurm`, or another plugin of
            slurmkit.backends; `auto` takes sbatch, and PySlurm in a process that sends many jobs,
            where it can be used.
    """

    backend: str = AUTO


class DefaultBackend(CommandsBackend):
    """Commands, and for submits what `[submit] backend` or SLURMKIT_BACKEND names.

    Args:
        slurm: the border to Slurm.
        wanted: instead of these; a name of slurmkit.backends, or `auto`.
    """

    def __init__(self, slurm: Slurm, wanted: str | None = None) -> None:
        super().__init__(slurm)
        self._wanted = wanted
        self._sent = 0
        self._sender: Backend | None = None
        self._lock = threading.Lock()

    def submit(self, submission: Submission, beside: Beside = ALONE) -> str:
        """See `Backend.submit`.

        Raises:
            BadInput: when the backend that is named is none.
            BrokenPlugin: when it cannot be used.
        """
        with self._lock:
            self._sent += 1
            sender = self._sender or self._choose()
        return sender.submit(submission, beside) if sender else super().submit(submission, beside)

    def _choose(self) -> Backend | None:
        """What sends; None for commands as long as that is not settled."""
        self._wanted = self._wanted or wanted_backend()
        if self._wanted != AUTO:
            self._sender = named(self._wanted, self._slurm)
        elif self._sent >= _PAYS and isinstance(self._slurm, LocalSlurm):
            self._sender = _fastest(self._slurm)
        return self._sender


def wanted_backend() -> str:
    """What the environment or the configuration names.

    Raises:
        BadConfig: when the configuration cannot be used.
    """
    from slurmkit.config import load_section  # noqa: PLC0415 - few commands submit

    return os.environ.get("SLURMKIT_BACKEND") or load_section("submit", SubmitSection).backend


def named(name: str, slurm: Slurm) -> Backend:
    """Make the backend of that name.

    Raises:
        BadInput: when there is none.
        BrokenPlugin: when it cannot be imported.
    """
    from slurmkit.plugins import load  # noqa: PLC0415 - few commands submit

    return cast("Callable[[Slurm], Backend]", load("backends", name))(slurm)


def _fastest(slurm: Slurm) -> Backend:
    from slurmkit.backends.usable import verdict  # noqa: PLC0415 - many submits

    found = verdict(slurm)
    if found.why_not:
        import logging  # noqa: PLC0415 - only where it is said

        logging.getLogger(__name__).info("PySlurm is not used: %s", found.why_not)
        return CommandsBackend(slurm)
    from slurmkit.backends.pyslurm import PyslurmBackend  # noqa: PLC0415 - as above

    return PyslurmBackend(slurm)
