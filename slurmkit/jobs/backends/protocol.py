"""The Protocol of a backend: submit and control jobs, and load the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from slurmkit.jobs.backends.commands import NO_OVERRIDES, SubmitOverrides

if TYPE_CHECKING:
    from slurmkit.errors import SlurmError
    from slurmkit.spec.submission import Submission
    from slurmkit.state.queue import Queue, QueueFilter


class Backend(Protocol):
    """A way to submit and control jobs and to read the queue.

    Calling it with a `SlurmCommands` makes one.

    These operations can be done in process, without commands. The accounting database and long
    lists are always read with commands.

    Methods that control a job raise `NoSuchJob` for an id that slurmctld does not know, `JobOver`
    for a job that has ended, `Refused` for any other refusal, and `ControllerDown` when slurmctld
    does not answer. Ids are `12`, `12_3` (an array task) or `12+1` (a het component), already
    checked.
    """

    def submit(self, submission: Submission, overrides: SubmitOverrides = NO_OVERRIDES) -> str:
        """Submit one batch job and return its id; a refused job leaves nothing behind.

        Args:
            submission: its script is sent byte for byte.
            overrides: sbatch options added at submit time.

        Raises:
            BadInput: when its dependency cannot be joined with the one in `overrides`.
        """
        ...

    def cancel(
        self, job_ids: Sequence[str], *, signal: str | None = None
    ) -> Mapping[str, SlurmError]:
        """Cancel jobs, or send them a signal; return the failures by job id.

        Args:
            job_ids: an array's id means all tasks that have not ended, `12_[4-9]` pending tasks.
            signal: `USR1`, or `B:USR1` for the batch shell instead of the steps.
        """
        ...

    def hold(self, job_id: str) -> None:
        """Hold a pending job; a running job goes on."""
        ...

    def release(self, job_id: str) -> None:
        """Let a held job start again."""
        ...

    def requeue(self, job_id: str) -> None:
        """Requeue a job that runs, or that ended a short while ago."""
        ...

    def update(self, job_id: str, changes: Mapping[str, str]) -> None:
        """Change a job; `changes` are sbatch's long options and their new values."""
        ...

    def queue(self, only: QueueFilter | None = None) -> Queue:
        """Take a snapshot of the queue; ids that slurmctld does not know have no rows."""
        ...
