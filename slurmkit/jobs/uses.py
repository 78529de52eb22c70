"""Which records are of a job as it is now: its id, and its array's, are used again years later."""

from __future__ import annotations

from collections.abc import Sequence

from slurmkit.jobs.info import JobInfo
from slurmkit.queue.rows import QueueRow

# A job may be requeued while slurmctld remembers it, for MinJobAge (usually 300 s) after its end;
# only after that its id can be another's.
_REQUEUE_SECONDS = 3600


def last_use(runs: Sequence[JobInfo], rows: Sequence[QueueRow] = ()) -> list[JobInfo]:
    """The runs of a job, or of the tasks of an array, without those of an earlier one of its id.

    The times from submit to end of all runs of one array follow each other without a break.

    Args:
        runs: of sacct, in the order they were submitted.
        rows: of squeue; what slurmdbd knows may all be older.
    """
    kept: list[JobInfo] = []
    until = float("-inf")
    for run in runs:
        if kept and ((run.submitted or 0) > until + _REQUEUE_SECONDS or run.user != kept[-1].user):
            kept, until = [], float("-inf")
        kept.append(run)
        until = max(until, run.ended or float("inf"))
    first = min((row.submitted or 0 for row in rows), default=until)
    return kept if first <= until + _REQUEUE_SECONDS else []
