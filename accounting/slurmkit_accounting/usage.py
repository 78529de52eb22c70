"""The SQL of usage: seconds of CPUs and GPUs that runs held within a window, and whose."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Select, Subquery, Table, and_, case, func, or_, select

from slurmkit_accounting.schema import (
    clusters,
    group_names,
    group_owners,
    ingests,
    memberships,
    people_syncs,
    runs,
    uids,
    usernames,
)

Number = ColumnElement[int]
Rows: TypeAlias = "Select[*tuple[Any, ...]]"
_SUMS = ("jobs", "running", "unseen", "gpu_seconds", "cpu_seconds")


class Counted(NamedTuple):
    """Which runs are counted, and until when.

    Attributes:
        window: epoch seconds [from, to).
        now: epoch seconds up to which runs without an end are counted; those that sacct does not
            show any more only up to when it last did.
        job: only runs of this job, `12` or `12_3`; all when None.
    """

    window: tuple[int, int]
    now: int
    job: str | None = None


def usage_by_column(column: str, counted: Counted) -> Rows:
    """Sum usage by a column of `runs`.

    Rows are of (key, jobs, running, unseen, gpu_seconds, cpu_seconds): `running` have no end,
    `unseen` of those are not shown by sacct any more; `gpu_seconds` is NULL where no run is of a
    cluster that tracks GPUs.

    Args:
        column: e.g. `account`.
        counted: which runs.
    """
    held = _held(counted)
    return _summed(held, held.c[column])


def usage_by_pi(counted: Counted) -> Rows:
    """Sum usage by the PI's number in `people`, NULL for runs that map to no PI.

    Runs are first summed by who ran them, under which account and when: between two syncs of
    people nothing about them changes, so the PI is looked up once for each such sum.
    """
    held = _held(counted)
    claims = _summed(held, held.c.user, held.c.uid, held.c.account, held.c.era).subquery("claims")
    person = func.coalesce(
        _person_by(usernames, usernames.c.username == claims.c.user, claims.c.era),
        _person_by(uids, uids.c.uid == claims.c.uid, claims.c.era),
    ).label("person")
    known = select(claims, person).subquery("known")
    # A group's account is no reason to charge somebody else's group.
    fallback = case((_group_of_account(known).is_(None), _only_owner(known)))
    pi = func.coalesce(_owner_of_account(known), fallback).label("pi")
    mapped = select(pi, *(known.c[name] for name in _SUMS)).subquery("mapped")
    sums = (func.sum(mapped.c[name]).label(name) for name in _SUMS)
    return select(mapped.c.pi, *sums).group_by(mapped.c.pi)


def newest_ingests() -> Subquery:
    """Each cluster's newest finished ingest: `cluster_id` and `started`."""
    newest = select(func.max(ingests.c.id)).where(ingests.c.ended.is_not(None))
    chosen = ingests.c.id.in_(newest.group_by(ingests.c.cluster_id))
    return select(ingests.c.cluster_id, ingests.c.started).where(chosen).subquery("newest")


def _held(counted: Counted) -> Subquery:
    """One row per run that overlaps the window, with what it held within it."""
    start, end = counted.window
    last = newest_ingests()
    unseen = and_(runs.c.end.is_(None), runs.c.last_seen < last.c.started)
    until = case((unseen, runs.c.last_seen), else_=func.coalesce(runs.c.end, counted.now))
    seconds = _smaller(until, end) - _larger(runs.c.start, start)
    seconds = case((seconds > 0, seconds), else_=0)
    untracked = and_(clusters.c.tracks_gpus.is_(False), runs.c.gpus == 0)
    last_sync = select(func.max(people_syncs.c.at)).where(people_syncs.c.at <= runs.c.submit)
    overlap = and_(
        runs.c.start < end,
        # A run of no length counts where it began.
        or_(runs.c.end.is_(None), runs.c.end > start, runs.c.start >= start),
        runs.c.cpus > 0,  # cancelled before it started: older releases give it a Start
    )
    return (
        select(
            runs.c.user,
            runs.c.uid,
            runs.c.account,
            func.coalesce(last_sync.scalar_subquery(), 0).label("era"),
            case((runs.c.end.is_(None), 1), else_=0).label("open"),
            case((unseen, 1), else_=0).label("unseen"),
            case((untracked, None), else_=runs.c.gpus * seconds).label("gpu_seconds"),
            (runs.c.cpus * seconds).label("cpu_seconds"),
        )
        .join(clusters, clusters.c.id == runs.c.cluster_id)
        .outerjoin(last, last.c.cluster_id == runs.c.cluster_id)
        .where(overlap, *_of_job(counted.job))
        .subquery("held")
    )


def _of_job(job: str | None) -> list[ColumnElement[bool]]:
    """`12` is a job, or all of an array or heterogeneous job, `12_3` or `12+1` a part of one."""
    if job is None:
        return []
    parts = [runs.c.job_id.startswith(f"{job}{sign}", autoescape=True) for sign in "_+"]
    return [or_(runs.c.job_id == job, *parts)]


def _summed(held: Subquery, *keys: ColumnElement[object]) -> Rows:
    return select(
        *keys,
        func.count().label("jobs"),
        func.sum(held.c.open).label("running"),
        func.sum(held.c.unseen).label("unseen"),
        func.sum(held.c.gpu_seconds).label("gpu_seconds"),
        func.sum(held.c.cpu_seconds).label("cpu_seconds"),
    ).group_by(*keys)


def _person_by(
    table: Table, same: ColumnElement[bool], era: ColumnElement[int]
) -> ColumnElement[int]:
    return _as_of(era, func.min(table.c.person_id), (table,), same)


def _owner_of_account(known: Subquery) -> ColumnElement[int]:
    """Owner of the group named like the account, when the person was in it."""
    return _as_of(
        known.c.era,
        func.min(group_owners.c.person_id),
        (group_names, memberships, group_owners),
        group_names.c.name == func.lower(known.c.account),
        memberships.c.person_id == known.c.person,
        memberships.c.group_id == group_names.c.group_id,
        group_owners.c.group_id == group_names.c.group_id,
    )


def _group_of_account(known: Subquery) -> ColumnElement[int]:
    named = group_names.c.name == func.lower(known.c.account)
    return _as_of(known.c.era, func.min(group_names.c.group_id), (group_names,), named)


def _only_owner(known: Subquery) -> ColumnElement[int]:
    """Owner of the person's groups, when all that have one have the same."""
    owner = group_owners.c.person_id
    return _as_of(
        known.c.era,
        case((func.min(owner) == func.max(owner), func.min(owner))),
        (memberships, group_owners),
        memberships.c.person_id == known.c.person,
        group_owners.c.group_id == memberships.c.group_id,
    )


def _as_of(
    era: ColumnElement[int],
    what: ColumnElement[int],
    tables: tuple[Table, ...],
    *conditions: ColumnElement[bool],
) -> ColumnElement[int]:
    """Look one number up among dated facts, as they were in `era`."""
    dates = [
        and_(table.c.valid_from <= era, or_(table.c.valid_to.is_(None), table.c.valid_to > era))
        for table in tables
    ]
    return select(what).select_from(*tables).where(*conditions, *dates).scalar_subquery()


def _smaller(one: Number, other: int) -> Number:
    return case((one < other, one), else_=other)


def _larger(one: Number, other: int) -> Number:
    return case((one > other, one), else_=other)
