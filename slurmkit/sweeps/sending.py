"""An array on its way: each of its parts says what whole it is of, and the whole is remembered."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from slurmkit.backends.beside import Beside
from slurmkit.errors import SlurmError
from slurmkit.logical import tag_of
from slurmkit.queue.snapshot import QueueFilter
from slurmkit.sweeps import records
from slurmkit.sweeps.records import Record, Sent

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster
    from slurmkit.planner import Plan
    from slurmkit.planning.script import Submission


class Sending:
    """Follows the submissions of one plan; of a plan that is no such array nothing is said.

    Args:
        plan: what is sent.
        cluster: where.
        again: id of the array whose points it runs again.
    """

    def __init__(self, plan: Plan, cluster: Cluster, again: str | None = None) -> None:
        self._cluster = cluster
        self._record = _record(plan, again) if _is_array(plan) else None
        if self._record:
            records.keep(cluster, self._record)

    @property
    def is_array(self) -> bool:
        """Whether its jobs are one array."""
        return self._record is not None

    def beside(self, given: Beside, submission: Submission) -> Beside:
        """What is sent beside a submission, with what it says of the whole."""
        if self._record is None or submission.part is None:
            return given
        return given.saying(self._record.tag(submission.part.offset).words())

    def sent(self, submission: Submission, job_id: str) -> None:
        """Remember a part that was sent.

        Raises:
            SlurmkitError: when it cannot be written down.
        """
        if self._record is None or submission.part is None:
            return
        before, part = self._record, submission.part
        new = Sent(job_id, part.array.partition("%")[0], part.offset)
        self._record = msgspec.structs.replace(before, sent=(*before.sent, new))
        records.keep(self._cluster, self._record, before)

    def forget(self) -> None:
        """The parts that were sent are taken back."""
        if self._record:
            records.drop(self._cluster, self._record)

    def in_queue(self) -> list[str]:
        """Ids of its parts in the queue, also of one whose id nobody has heard; none if unknown."""
        if self._record is None:
            return []
        try:
            rows = self._cluster.queue(QueueFilter(me=True)).rows
        except SlurmError:
            return []
        own = [row for row in rows if (tag := tag_of(row.comment)) and self._is(tag.token)]
        return list(dict.fromkeys(row.array_id or row.job_id for row in own))

    def _is(self, token: str) -> bool:
        return self._record is not None and self._record.token == token


def _is_array(plan: Plan) -> bool:
    return all(submission.part is not None for submission in plan.submissions)


def _record(plan: Plan, again: str | None) -> Record:
    spec, names = records.without_secrets(plan.spec)
    return Record(
        token=secrets.token_hex(6),
        submitted=time.time(),
        total=sum(len(each.part.tasks) for each in plan.submissions if each.part),
        planned=len(plan.submissions),
        again=again,
        secrets=names,
        spec=msgspec.structs.replace(spec, chdir=dict(plan.submissions[0].options)["chdir"]),
    )
