"""What one look at Slurm teaches about a watched job; pure, so that any clock can try it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from slurmkit.errors import DatabaseDown, NoSuchJob, SlurmError, SlurmkitError, SlurmTimeout
from slurmkit.jobs.info import UNKNOWN, JobInfo
from slurmkit.jobs.lookup import combine
from slurmkit.queue.rows import QueueRow

LAG_SECONDS = 10.0
"""How long slurmdbd may take to hear of an end before slurmctld's word alone is taken."""
GRACE_SECONDS = 60.0
"""How long a job must be out of the queue, its end unknown to slurmdbd, to be given up."""


class Known(NamedTuple):
    """What is known of a watched job.

    Attributes:
        info: its last facts.
        over: whether it has ended, and nothing more is to be learnt.
        error: why it cannot be watched.
        gone_since: monotonic seconds since which it is not live in the queue.
    """

    info: JobInfo | None = None
    over: bool = False
    error: SlurmkitError | None = None
    gone_since: float | None = None

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to ask."""
        return self.over or self.error is not None

    def differs(self, other: Known) -> bool:
        """Whether something has happened, other than time passing."""
        return self.settled != other.settled or _gist(self.info) != _gist(other.info)


class Seen(NamedTuple):
    """What Slurm said of one job in one look.

    Attributes:
        rows: of squeue.
        runs: of sacct, which is asked about what is not live in the queue.
        silent: why sacct did not answer.
        now: monotonic seconds.
    """

    rows: Sequence[QueueRow]
    runs: Sequence[JobInfo]
    silent: SlurmError | None
    now: float


def learn(job_id: str, before: Known, seen: Seen) -> Known:
    """Take in what a look has shown."""
    info = combine(job_id, seen.rows, seen.runs)
    if any(not row.ended for row in seen.rows):
        return Known(info)
    since = seen.now if before.gone_since is None else before.gone_since
    if seen.rows:
        return _ended(job_id, info, seen, since)
    if info is not None and info.is_over and not _lags(info, before.info):
        return Known(info, over=True)
    if isinstance(seen.silent, DatabaseDown | SlurmTimeout):
        return before._replace(gone_since=None)  # nothing was learnt: the grace starts anew
    return _missing(job_id, before._replace(gone_since=since), info, seen.now)


def _ended(job_id: str, info: JobInfo | None, seen: Seen, since: float) -> Known:
    """The queue says that it has ended; sacct knows more, if it does not lag behind."""
    if info is not None and info.is_over and info.source == "sacct":
        return Known(info, over=True)
    if seen.silent is not None or seen.now - since >= LAG_SECONDS:
        return Known(combine(job_id, seen.rows, ()), over=True)
    return Known(info, gone_since=since)


def _missing(job_id: str, before: Known, info: JobInfo | None, now: float) -> Known:
    """Not in the queue, and slurmdbd does not know its end (yet)."""
    known = before.info or info
    if known is None:
        return Known(error=NoSuchJob(f"no job {job_id} in the queue or in the accounting database"))
    if now - (before.gone_since or now) < GRACE_SECONDS:
        return before._replace(info=known)
    return Known(msgspec.structs.replace(known, state=UNKNOWN, reason="", tally={}), over=True)


def _lags(past: JobInfo, last_seen: JobInfo | None) -> bool:
    """Whether slurmdbd only knows a run before the one that was last seen in the queue."""
    return last_seen is not None and (past.submitted or 0) < (last_seen.submitted or 0)


def _gist(info: JobInfo | None) -> object:
    return info and (info.state, info.reason, info.node_list, info.tally, info.submitted)
