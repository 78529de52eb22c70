"""A user's "leave it", once for a job; the ledger's service knows the user by uid."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
from sqlalchemy import Connection, insert, select

from slurmkit.errors import BadInput
from slurmkit.formats.job_ids import check_job_id
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.reclaim import reclaim_acts, reclaim_keeps
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.reclaim.policy import (
    ReclaimJob,
    choose_policy,
    load_policies,
)
from slurmkit_accounting.remote.served import changes_remote

_LONGEST = 500  # characters of a reason
_COPIED = (
    "cluster_id", "job_id_raw", "job_id", "user", "uid", "account", "partition", "qos",
    "alloc_tres", "submit", "start", "limit_end",
)  # fmt: skip


class LeftAloneJob(msgspec.Struct, frozen=True):
    """A job that is left alone.

    Attributes:
        until: epoch seconds; None if no policy decides about the job any more.
        reason: as its user gave it.
    """

    cluster: str
    job_id: str
    until: int | None
    reason: str


@changes_remote
def keep_job(
    ledger: Ledger, job: str, *, reason: str, cluster: str | None = None, uid: int = -1
) -> LeftAloneJob:
    """Have the idle GPUs of a job left alone for a while, once.

    Args:
        ledger: a ledger open for writing.
        job: the id of one job, `12` or `12_3`, about which something was done.
        reason: why; the PI and operators see it.
        cluster: its cluster; any when left out.
        uid: the user; the service sets it to the uid of whoever asks.

    Raises:
        BadInput: when nothing was done about such a job of the user, or the user has asked before,
            or the reason is empty or too long.
        LedgerError: when the ledger cannot be written.
    """
    user = os.getuid() if uid < 0 else uid
    words = " ".join(reason.split())
    if not words or len(words) > _LONGEST or not words.isprintable():
        raise BadInput(f"give a reason of one line, of at most {_LONGEST} characters")
    wanted = check_job_id(job)
    now = int(time.time())
    with ledger.transaction() as connection:
        act = _last_act(connection, wanted, cluster, user)
        if act is None:
            raise BadInput(
                f"job {wanted} is not yours, or had no mail about idle GPUs; you can have your own"
                " jobs left alone, each once it had such a mail"
            )
        before = connection.execute(
            select(reclaim_keeps.c.at, reclaim_keeps.c.reason).where(
                reclaim_keeps.c.cluster_id == act.cluster_id,
                reclaim_keeps.c.job_id_raw == act.job_id_raw,
                reclaim_keeps.c.uid == user,
            )
        ).one_or_none()
        if before is not None:
            raise BadInput(
                f"job {wanted} was left alone before, at {find_zone('UTC').show(before.at)}"
                f" ({before.reason}), and that goes once for a job; ask your administrator"
            )
        values = {name: getattr(act, name) for name in _COPIED}
        connection.execute(insert(reclaim_keeps).values(**values, at=now, reason=words))
        name = connection.scalar(select(clusters.c.name).where(clusters.c.id == act.cluster_id))
    hours = _keep_hours(act)
    until = None if hours is None else now + 3600 * hours
    return LeftAloneJob(str(name), act.job_id, until, words)


def _last_act(connection: Connection, job: str, cluster: str | None, uid: int) -> Any | None:
    """Return the last act about a job of a user; None without one."""
    query = (
        select(reclaim_acts)
        .join(clusters)
        .where(reclaim_acts.c.job_id == job, reclaim_acts.c.uid == uid)
        .order_by(reclaim_acts.c.id.desc())
        .limit(1)
    )
    if cluster is not None:
        query = query.where(clusters.c.name == cluster)
    return connection.execute(query).one_or_none()


def _keep_hours(act: Any) -> int | None:
    """Return for how long the policy that decides now leaves the job alone."""
    job = ReclaimJob(**{name: getattr(act, name) for name in _COPIED}, gpus=act.gpus)
    decided = choose_policy(load_policies(), job)
    return None if decided is None else decided[1].keep_hours
