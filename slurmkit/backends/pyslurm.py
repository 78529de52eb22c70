"""Submitting in this process, by PySlurm, where it says exactly what sbatch would.

All else is done by commands: what PySlurm cannot say of a job, and every other call.
"""

from __future__ import annotations

import logging
from collections import Counter
from types import ModuleType

from slurmkit.backends.beside import ALONE, Beside
from slurmkit.backends.commands import CommandsBackend
from slurmkit.backends.described import Inexpressible, described, merged
from slurmkit.backends.jobenv import handed_on
from slurmkit.backends.usable import library, verdict
from slurmkit.capabilities.cache import load_capabilities
from slurmkit.errors import BrokenPlugin
from slurmkit.planning.script import Submission
from slurmkit.slurm import Slurm, translate

SENT: Counter[str] = Counter()
"""How many jobs of this process went which way: `libslurm`, or why by `sbatch`."""

_LOG = logging.getLogger(__name__)
_REFUSALS = range(2000, 3000)  # ESLURM_… of slurm_errno.h: slurmctld has looked at it, and says no


class PyslurmBackend(CommandsBackend):
    """See `slurmkit.plugins.Backend`; the name of the plugin is `pyslurm`."""

    def __init__(self, slurm: Slurm) -> None:
        super().__init__(slurm)
        self._library: ModuleType | None = None
        self._config: dict[str, str] = {}

    def submit(self, submission: Submission, beside: Beside = ALONE) -> str:
        """See `Backend.submit`.

        Raises:
            BrokenPlugin: when PySlurm cannot be used here.
        """
        pyslurm = self._library or self._open()
        try:
            job_id = self._send(pyslurm, submission, beside)
        except Inexpressible as why:
            SENT[f"sbatch: {why}"] += 1
            _LOG.info("sbatch is used instead of PySlurm: %s", why)
            return super().submit(submission, beside)
        SENT["libslurm"] += 1
        return job_id

    def _open(self) -> ModuleType:
        found = verdict(self._slurm)
        if found.why_not:
            raise BrokenPlugin(f"PySlurm cannot be used: {found.why_not}; {found.fix}")
        self._config = load_capabilities(self._slurm).config
        self._library = library()
        return self._library

    def _send(self, pyslurm: ModuleType, submission: Submission, beside: Beside) -> str:
        fields = described(submission, beside)
        environment = handed_on(merged(submission, beside), self._config)
        try:
            made = pyslurm.JobSubmitDescription(**fields, environment=environment)
            return str(made.submit())
        except pyslurm.RPCError as error:
            if error.errno in _REFUSALS:  # sbatch tries again where that helps, and says it in full
                raise Inexpressible(f"slurmctld refused it ({error})") from error
            raise translate("sbatch", str(error), 1) from error
        except (ValueError, TypeError, OverflowError) as error:
            raise Inexpressible(f"PySlurm did not take it ({error})") from error
