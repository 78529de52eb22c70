"""The choice of the backend that submits a cluster's jobs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec

from slurmkit.config.files import load_section
from slurmkit.config.plugins import load_plugin
from slurmkit.jobs.backends.commands import NO_OVERRIDES, CommandsBackend, SubmitOverrides
from slurmkit.slurm.commands import LocalSlurmCommands, SlurmCommands

if TYPE_CHECKING:
    from slurmkit.jobs.backends.protocol import Backend
    from slurmkit.spec.submission import Submission

AUTO = "auto"
_SUBMITS_WORTH_PYSLURM = 25  # submits in one process from which on importing PySlurm saves time


class SubmitSection(msgspec.Struct, frozen=True):
    """`[submit]`.

    Attributes:
        backend: what submits jobs: `commands` (sbatch), `pyslurm`, or another plugin of
            slurmkit.backends. `auto` uses sbatch, and PySlurm in a process that submits many jobs,
            where PySlurm can be used.
    """

    backend: str = AUTO


class DefaultBackend(CommandsBackend):
    """Slurm's commands; submits go through the backend of `[submit] backend` or SLURMKIT_BACKEND.

    Args:
        slurm: runs Slurm's commands.
        wanted: a backend to use instead of the configured one; a name of slurmkit.backends, or
            `auto`.
    """

    def __init__(self, slurm: SlurmCommands, wanted: str | None = None) -> None:
        super().__init__(slurm)
        self._wanted = wanted
        self._sent = 0
        self._sender: Backend | None = None
        self._lock = threading.Lock()

    def submit(self, submission: Submission, overrides: SubmitOverrides = NO_OVERRIDES) -> str:
        """Submit with the chosen backend, or else with sbatch.

        Raises:
            BadInput: when no backend has the name asked for.
            BrokenPlugin: when the backend cannot be used.
        """
        with self._lock:
            self._sent += 1
            sender = self._sender or self._choose()
        return (
            sender.submit(submission, overrides)
            if sender
            else super().submit(submission, overrides)
        )

    def check(self) -> None:
        """Check that the wanted backend is there, before anything is planned or sent.

        Raises:
            BadConfig: when the configuration cannot be used.
            BadInput: when no backend has the name asked for.
            BrokenPlugin: when the backend cannot be used.
        """
        self._wanted = self._wanted or configured_backend()
        if self._wanted != AUTO:
            load_plugin("backends", self._wanted)

    def _choose(self) -> Backend | None:
        """Return the backend that submits; None means commands, until many jobs were submitted."""
        self._wanted = self._wanted or configured_backend()
        if self._wanted != AUTO:
            self._sender = load_backend(self._wanted, self._slurm)
        elif self._sent >= _SUBMITS_WORTH_PYSLURM and isinstance(self._slurm, LocalSlurmCommands):
            self._sender = _pyslurm_if_usable(self._slurm)
        return self._sender


def check_backend(backend: Backend) -> None:
    """Check the choice of a backend, as `DefaultBackend.check`; any other was chosen already."""
    if isinstance(backend, DefaultBackend):
        backend.check()


def configured_backend() -> str:
    """Return the backend that the environment or the configuration names.

    Raises:
        BadConfig: when the configuration cannot be used.
    """
    return os.environ.get("SLURMKIT_BACKEND") or load_section("submit", SubmitSection).backend


def load_backend(name: str, slurm: SlurmCommands) -> Backend:
    """Create the backend of that name.

    Raises:
        BadInput: when there is no such backend.
        BrokenPlugin: when it cannot be imported.
    """
    return cast("Callable[[SlurmCommands], Backend]", load_plugin("backends", name))(slurm)


def _pyslurm_if_usable(slurm: SlurmCommands) -> Backend:
    """Return the PySlurm backend where PySlurm can be used, else the one of commands."""
    from slurmkit.jobs.backends import pyslurm, pyslurm_usable  # noqa: PLC0415 - for many submits

    check = pyslurm_usable.check_pyslurm(slurm)
    if check.why_not:
        import logging  # noqa: PLC0415 - only for this message

        logging.getLogger(__name__).info("PySlurm is not used: %s", check.why_not)
        return CommandsBackend(slurm)
    return pyslurm.PyslurmBackend(slurm)
