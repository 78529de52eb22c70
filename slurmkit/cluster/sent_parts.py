"""The jobs that one plan has become so far, while it is sent part by part."""

from __future__ import annotations

import secrets
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from slurmkit.cluster.sweeps import (
    ArrayRecord,
    SentArray,
    remove_record,
    save_record,
    without_secrets,
)
from slurmkit.errors import SlurmError, SlurmkitError
from slurmkit.state.arrays import parse_array_tag
from slurmkit.state.queue import QueueFilter

if TYPE_CHECKING:
    from slurmkit.cluster.protocol import Submitter
    from slurmkit.jobs.backends.commands import SubmitOverrides
    from slurmkit.planning.planner import Plan
    from slurmkit.spec.submission import Submission


class SentParts:
    """The jobs of a plan that were sent so far; use it in a `with` block.

    If an error or Ctrl-C ends the block, the jobs that were sent are cancelled.

    Args:
        cluster: the cluster that the plan is sent to.
        record: the record of the plan's array, which can be without an array.
    """

    def __init__(self, cluster: Submitter, record: ArrayRecorder) -> None:
        self.ids: list[str] = []
        self._cluster = cluster
        self._record = record

    def submit(self, submission: Submission, overrides: SubmitOverrides) -> str:
        """Submit the next part and return its job id.

        Args:
            submission: the part; it waits for the parts that it follows.
            overrides: sbatch options added to it.

        Raises:
            Refused: with Slurm's message.
        """
        overrides = overrides.after_jobs(
            (self.ids[at] for at in submission.after), submission.order
        )
        overrides = self._record.add_tag(overrides, submission)
        self.ids.append(self._cluster.backend.submit(submission, overrides))
        return self.ids[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, SlurmkitError):
            self._roll_back(error)
        elif isinstance(error, KeyboardInterrupt):
            self._cancel_after_interrupt()

    def _roll_back(self, error: SlurmkitError) -> None:
        """Cancel the jobs that were sent, and raise the error with their ids."""
        if not self.ids:
            self._record.forget()
            return
        left = self._cluster.backend.cancel(self.ids)
        sent = ", ".join(self.ids)
        rest = f", except {', '.join(left)}" if left else ""
        raise type(error)(f"{error}; the jobs sent before ({sent}) are cancelled{rest}") from error

    def _cancel_after_interrupt(self) -> None:
        """Cancel the jobs that were sent, also one whose id sbatch had not yet answered."""
        if known := {*self.ids, *self._record.in_queue()}:
            self._cluster.backend.cancel(sorted(known))


class ArrayRecorder:
    """The record of an array while its parts are sent; does nothing for any other plan.

    Args:
        plan: the plan that is sent.
        cluster: the cluster it is sent to.
        again: id of the array whose points it runs again.
    """

    def __init__(self, plan: Plan, cluster: Submitter, again: str | None = None) -> None:
        self._cluster = cluster
        is_array = all(submission.part is not None for submission in plan.submissions)
        self._record = _new_record(plan, again) if is_array else None
        if self._record:
            save_record(cluster, self._record)

    @property
    def offsets(self) -> dict[str, int]:
        """Index offset of each Slurm array by job id; empty for a plan without an array."""
        return {sent.job_id: sent.offset for sent in self._record.sent} if self._record else {}

    def add_tag(self, overrides: SubmitOverrides, submission: Submission) -> SubmitOverrides:
        """Return the sbatch options with the array's tag added to the comment."""
        if self._record is None or submission.part is None:
            return overrides
        return overrides.with_comment(self._record.tag(submission.part.offset).words())

    def add(self, submission: Submission, job_id: str) -> None:
        """Add a part that was sent to the record.

        Raises:
            SlurmkitError: when the record cannot be written.
        """
        if self._record is None or submission.part is None:
            return
        before, part = self._record, submission.part
        new = SentArray(job_id, part.array.partition("%")[0], part.offset)
        self._record = msgspec.structs.replace(before, sent=(*before.sent, new))
        save_record(self._cluster, self._record, before)

    def forget(self) -> None:
        """Remove the record: no part was sent."""
        if self._record:
            remove_record(self._cluster, self._record)

    def in_queue(self) -> list[str]:
        """Read the ids of its parts in the queue, also of a part whose sbatch answer was lost.

        Empty if slurmctld does not answer.
        """
        if self._record is None:
            return []
        token = self._record.token
        try:
            rows = self._cluster.queue(QueueFilter(me=True)).rows
        except SlurmError:
            return []
        own = [row for row in rows if (tag := parse_array_tag(row.comment)) and tag.token == token]
        return list(dict.fromkeys(row.array_id or row.job_id for row in own))


def _new_record(plan: Plan, again: str | None) -> ArrayRecord:
    spec, names = without_secrets(plan.spec)
    return ArrayRecord(
        token=secrets.token_hex(6),
        submitted=time.time(),
        total=sum(len(each.part.tasks) for each in plan.submissions if each.part),
        planned=len(plan.submissions),
        again=again,
        secrets=names,
        spec=msgspec.structs.replace(spec, chdir=dict(plan.submissions[0].options)["chdir"]),
    )
