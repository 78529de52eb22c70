"""What was done about idle GPUs, in the ledger: rows are added and never changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, func, insert, select

from slurmkit_accounting.ledger.bulk_write import in_values
from slurmkit_accounting.ledger.schema.reclaim import (
    reclaim_acts,
    reclaim_keeps,
    reclaim_outcomes,
)
from slurmkit_accounting.reclaim.idleness import Idleness, PastAct, Step
from slurmkit_accounting.reclaim.policy import ReclaimJob

ActName = Literal["report", "mail", "requeue", "cancel"]
Outcome = Literal["reported", "mailed", "not mailed", "held", "cancelled", "ended", "not done"]
FAILED: frozenset[Outcome] = frozenset(("not mailed", "not done"))
_STEPS: dict[str, Step] = {"report": "report", "mail": "mail"}
_OF_RUN = (
    "cluster_id", "job_id_raw", "job_id", "user", "uid", "account", "partition", "qos",
    "alloc_tres", "submit", "start", "limit_end",
)  # fmt: skip


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is done about a run, as it is recorded before it is done.

    Attributes:
        job: the run.
        action: what is done.
        found: the samples that cause it.
        grace: seconds that the job has for a checkpoint; 0 for other acts.
        to_pi: whether the mail also goes to the PI.
    """

    job: ReclaimJob
    policy: str
    action: ActName
    found: Idleness
    grace: int = 0
    to_pi: bool = False


class OpenAct(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded act without an outcome: it is under way, or the service was killed.

    Attributes:
        id: row of the act.
        job: the run, as it was recorded.
        at: when it was recorded, epoch seconds.
        restarts: how often the job had been requeued then.
    """

    id: int
    job: ReclaimJob
    policy: str
    action: ActName
    at: int
    window_begin: int
    idle_gpus: int
    mean: float
    samples: int
    covered: float
    restarts: int
    grace: int
    to_pi: bool


def record_act(connection: Connection, act: Act) -> OpenAct:
    """Record an act, before it is done."""
    found = act.found
    values = {
        **{name: getattr(act.job, name) for name in _OF_RUN},
        "policy": act.policy,
        "action": act.action,
        "at": int(found.at),
        "window_begin": int(found.begin),
        "gpus": act.job.gpus,
        "idle_gpus": found.idle_gpus,
        "mean": found.mean or 0.0,
        "samples": found.samples,
        "covered": found.covered,
        "samples_by_gpu": msgspec.json.encode(found.gpus).decode(),
        "restarts": act.job.restarts,
        "grace": act.grace,
        "to_pi": act.to_pi,
    }
    added = connection.execute(insert(reclaim_acts).values(**values))
    (number,) = added.inserted_primary_key or (0,)
    return _open_act(SimpleNamespace(id=number, **values))


def record_outcome(
    connection: Connection, act_id: int, outcome: Outcome, at: float, why: str = ""
) -> None:
    """Record what came of an act."""
    values = {"act_id": act_id, "outcome": outcome, "at": int(at), "why": why}
    connection.execute(insert(reclaim_outcomes).values(**values))


def load_open_acts(connection: Connection, cluster: int) -> list[OpenAct]:
    """Load the acts of a cluster that have no outcome yet, oldest first."""
    joined = reclaim_acts.outerjoin(reclaim_outcomes)
    query = (
        select(reclaim_acts)
        .select_from(joined)
        .where(reclaim_acts.c.cluster_id == cluster, reclaim_outcomes.c.act_id.is_(None))
    )
    return [_open_act(row) for row in connection.execute(query.order_by(reclaim_acts.c.id))]


def load_past_acts(
    connection: Connection, cluster: int, job_ids: Collection[int]
) -> dict[tuple[int, int], list[PastAct]]:
    """Load what was done about the runs of some jobs, by Slurm's own job id and the run's start."""
    query = (
        select(
            reclaim_acts.c.job_id_raw,
            reclaim_acts.c.start,
            reclaim_acts.c.action,
            reclaim_acts.c.at,
            reclaim_outcomes.c.outcome,
        )
        .select_from(reclaim_acts.outerjoin(reclaim_outcomes))
        .where(
            reclaim_acts.c.cluster_id == cluster,
            in_values(connection, reclaim_acts.c.job_id_raw, job_ids),
        )
    )
    found: dict[tuple[int, int], list[PastAct]] = defaultdict(list)
    for job, start, action, at, outcome in connection.execute(query.order_by(reclaim_acts.c.id)):
        step = _STEPS.get(action, "take")
        found[job, start].append(PastAct(step, at, failed=outcome in FAILED))
    return found


def load_keeps(
    connection: Connection, cluster: int, job_ids: Collection[int]
) -> dict[tuple[int, int], tuple[int, str]]:
    """Load when and why users asked to "leave it", by Slurm's own job id and the user's uid."""
    table = reclaim_keeps.c
    query = select(table.job_id_raw, table.uid, table.at, table.reason).where(
        table.cluster_id == cluster, in_values(connection, table.job_id_raw, job_ids)
    )
    return {(job, uid): (at, reason) for job, uid, at, reason in connection.execute(query)}


def had_mail(connection: Connection, cluster: int, user: str, since: float, until: float) -> bool:
    """Return whether a user had a mail in a time, about any run."""
    query = (
        select(func.count())
        .select_from(reclaim_acts.join(reclaim_outcomes))
        .where(
            reclaim_acts.c.cluster_id == cluster,
            reclaim_acts.c.user == user,
            reclaim_acts.c.action == "mail",
            reclaim_acts.c.at >= int(since),
            reclaim_acts.c.at < until,
            reclaim_outcomes.c.outcome == "mailed",
        )
    )
    return bool(connection.scalar(query))


def idle_since(connection: Connection, job: ReclaimJob) -> int | None:
    """Return when the window begins for which the user of a run was last warned; None without."""
    query = (
        select(reclaim_acts.c.window_begin)
        .where(
            reclaim_acts.c.cluster_id == job.cluster_id,
            reclaim_acts.c.job_id_raw == job.job_id_raw,
            reclaim_acts.c.start == job.start,
            reclaim_acts.c.action == "mail",
        )
        .order_by(reclaim_acts.c.id.desc())
        .limit(1)
    )
    begin: int | None = connection.scalar(query)
    return begin


def _open_act(row: Any) -> OpenAct:
    job = ReclaimJob(
        **{name: getattr(row, name) for name in _OF_RUN}, gpus=row.gpus, restarts=row.restarts
    )
    own: Sequence[str] = [name for name in OpenAct.__struct_fields__ if name != "job"]
    return OpenAct(job=job, **{name: getattr(row, name) for name in own})
