"""Find a job by the token that stands in its comment since its submit."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from slurmkit.errors import SlurmError
from slurmkit.jobs.ids import whole_id
from slurmkit.jobs.sacct import since_argument
from slurmkit.queue.rows import record_mark
from slurmkit.queue.snapshot import QueueFilter, read_queue

if TYPE_CHECKING:
    from slurmkit.slurm import Slurm

SIGN = "slurmkit:"
_EARLY = 300  # seconds by which clocks may differ
_FIELDS = ("JobID", "Comment", "SubmitLine")


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_hex(8)


def in_queue(slurm: Slurm, token: str) -> str | None:
    """Id of one's own job with a token, while slurmctld knows it.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    rows = read_queue(slurm, QueueFilter(me=True, states=("all",))).rows
    return next((whole_id(r.job_id) for r in rows if f"{SIGN}{token}" in r.comment.split()), None)


def in_database(slurm: Slurm, token: str, user: str, since: int) -> str | None:
    """Id of a person's job with a token, from the accounting database.

    Its comment is kept there only with AccountingStoreFlags=job_comment, its submit line always
    (sacct(1), from 21.08 on).

    Args:
        slurm: the border to Slurm.
        token: what stands in the comment.
        user: login name.
        since: epoch seconds of the submit; what came earlier is not looked at.

    Raises:
        SlurmError: when slurmdbd does not answer.
    """
    mark = record_mark()
    argv = ["sacct", "--noheader", "--parsable", f"--delimiter={mark}", f"--user={user}", "-X"]
    argv += [since_argument(max(0, since - _EARLY)), f"--format={','.join(_FIELDS)}"]
    parts = slurm.run(argv).split(mark)
    for at in range(0, len(parts) - len(_FIELDS), len(_FIELDS)):
        job_id, *texts = parts[at : at + len(_FIELDS)]
        if any(f"{SIGN}{token}" in text for text in texts):
            return whole_id(job_id.strip())
    return None


def look_up(slurm: Slurm, token: str, user: str, since: int) -> str | None:
    """In the queue, then in the database; see `in_queue` and `in_database`.

    Raises:
        SlurmError: when the queue has no such job and slurmdbd does not answer.
    """
    try:
        found = in_queue(slurm, token)
    except SlurmError:
        found = None
    return found or in_database(slurm, token, user, since)
