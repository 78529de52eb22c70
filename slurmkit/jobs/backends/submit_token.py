"""Submit tokens: a random word in a job's comment, by which the job is found again."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from slurmkit.errors import SlurmError
from slurmkit.formats.job_ids import whole_id
from slurmkit.jobs.accounting_records import starttime_option
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.records import read_records
from slurmkit.state.queue import QueueFilter, read_queue

if TYPE_CHECKING:
    pass


TOKEN_PREFIX = "slurmkit:"  # noqa: S105 - no secret
_CLOCK_SKEW = 300  # seconds that clocks may differ
_FIELDS = ("JobID", "Comment", "SubmitLine")


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_hex(8)


def find_in_queue(slurm: SlurmCommands, token: str) -> str | None:
    """Return the id of your own job with a token, while slurmctld knows the job.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    rows = read_queue(slurm, QueueFilter(me=True, states=("all",))).rows
    return next(
        (whole_id(r.job_id) for r in rows if f"{TOKEN_PREFIX}{token}" in r.comment.split()), None
    )


def find_in_database(slurm: SlurmCommands, token: str, user: str, since: int) -> str | None:
    """Return the id of a person's job with a token, from the accounting database.

    The database keeps the comment only with AccountingStoreFlags=job_comment, and the submit line
    always (sacct(1), from 21.08 on).

    Args:
        slurm: runs Slurm's commands.
        token: the token in the comment.
        user: login name.
        since: epoch seconds of the submit; earlier jobs are not searched.

    Raises:
        SlurmError: when slurmdbd does not answer.
    """
    argv = ["sacct", f"--user={user}", "-X", starttime_option(max(0, since - _CLOCK_SKEW))]
    for job_id, *texts in read_records(slurm, argv, _FIELDS):
        if any(f"{TOKEN_PREFIX}{token}" in text for text in texts):
            return whole_id(job_id.strip())
    return None


def find_by_token(slurm: SlurmCommands, token: str, user: str, since: int) -> str | None:
    """Return the id of the job with a token, from the queue or else from the database.

    Raises:
        SlurmError: when the queue has no such job and slurmdbd does not answer.
    """
    try:
        found = find_in_queue(slurm, token)
    except SlurmError:
        found = None
    return found or find_in_database(slurm, token, user, since)
