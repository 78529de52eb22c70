"""Usage without a PI and how to fix that, and usage that moves to another PI."""

from __future__ import annotations

from operator import add
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, and_, func, select

from slurmkit_accounting.ledger.schema.people import people_syncs, usernames
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.ledger.schema.usage import usage_keys, usage_months
from slurmkit_accounting.people.pi import MappingGap, Owner, People

HOUR_SECONDS = 3600
_NOT_READ = "no directory was read yet: slurmkit setup, slurmkit ledger people sync"
_NO_DIRECTORY = "add a coordinator of {account} (sacctmgr add coordinator), or write an override"
_FIXES = {
    "stranger": "{user} is not in the directory: add them, or write an override",
    "no group": "no group is named {account}: create one with an owner, add a coordinator, or write"
    " an override",
    "not a member": "{user} is not in the group {account}: add them, or write an override",
    "no owner": "the group {account} has no owner: add one, or write an override",
}
# Shards and MPS units are not whole GPUs; prices say how much they count.
_KIND = usage_keys.c.gpu_type
WHOLE_GPUS = and_(_KIND.not_in(("-", "shard", "mps")), ~_KIND.startswith("shard:"))


class UnmappedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of ended runs of one user under one account, without a known PI.

    Attributes:
        counted_as: the line in a report by PI that has this usage: the account, or `unmapped`.
        gap: why no group gives the PI; the latest reason if there were several.
        gpu_hours: GPUs, or MIG slices, times hours.
        fix: what to do about it, in words.
    """

    cluster: str
    account: str
    user: str
    counted_as: str
    gap: MappingGap
    runs: int
    gpu_hours: float
    cpu_hours: float
    fix: str


def load_unmapped_usage(connection: Connection) -> list[UnmappedUsage]:
    """List all usage without a PI, most GPU-hours first."""
    people = People.load(connection)
    fixes = _load_fixes(connection)
    sums: dict[tuple[str, str, str, str], list[int]] = {}
    gaps: dict[tuple[str, str, str, str], MappingGap] = {}
    for cluster, started, gpus, cpus, *key in connection.execute(_usage()):
        owner = people.pi(*key)
        if owner.via in {"account", "unmapped"}:
            line = (cluster, key[1], key[2], owner.name)
            gaps[line] = people.gap(*key[1:])
            more = (int(started), int(gpus or 0), int(cpus))
            sums[line] = list(map(add, sums.get(line, [0, 0, 0]), more))
    usage = [
        UnmappedUsage(
            cluster=cluster,
            account=account,
            user=user,
            counted_as=counted_as,
            gap=gaps[cluster, account, user, counted_as],
            runs=started,
            gpu_hours=gpu_seconds / HOUR_SECONDS,
            cpu_hours=cpu_seconds / HOUR_SECONDS,
            fix=fixes[gaps[cluster, account, user, counted_as]].format(
                user=user or "?", account=account or "?"
            ),
        )
        for (cluster, account, user, counted_as), (
            started,
            gpu_seconds,
            cpu_seconds,
        ) in sums.items()
    ]
    return sorted(usage, key=lambda one: (-one.gpu_hours, -one.cpu_hours, one.account, one.user))


def _load_fixes(connection: Connection) -> dict[str, str]:
    """Return what to do about each gap; without anybody from a directory it is the same for all."""
    if connection.scalar(select(usernames.c.person_id).limit(1)) is not None:
        return _FIXES
    was_read = connection.scalar(select(people_syncs.c.id).limit(1)) is not None
    return dict.fromkeys(_FIXES, _NO_DIRECTORY if was_read else _NOT_READ)


def _usage() -> Select[*tuple[Any, ...]]:
    """Return the query of runs, GPU- and CPU-seconds by cluster, account, user, uid and era."""
    columns = [usage_keys.c[name] for name in ("cluster_id", "account", "user", "uid", "era")]
    gpus = func.sum(usage_months.c.gpu_seconds).filter(WHOLE_GPUS)
    sums = (func.sum(usage_months.c.started), gpus, func.sum(usage_months.c.cpu_seconds))
    return (
        select(clusters.c.name, *sums, *columns)
        .join(usage_keys, usage_keys.c.id == usage_months.c.key_id)
        .join(clusters, clusters.c.id == usage_keys.c.cluster_id)
        .group_by(clusters.c.name, *columns)
        .order_by(usage_keys.c.era)
    )


class UsageMove(msgspec.Struct, frozen=True):
    """Usage of ended runs that moves from one PI to another.

    Attributes:
        giver: the owner before.
        taker: the owner now.
        gpu_seconds: GPUs, or MIG slices, times seconds.
    """

    giver: Owner
    taker: Owner
    gpu_seconds: int


def find_usage_moves(connection: Connection, before: People) -> tuple[UsageMove, ...]:
    """Compare the owners of all usage before and now; return the moves, largest first.

    Args:
        connection: inside the transaction that changed people, with usage under its new eras.
        before: all people before the change.
    """
    after = People.load(connection)
    moved: dict[tuple[object, object], UsageMove] = {}
    for seconds, *key in connection.execute(_gpu_usage()):
        # A new era is part of one old era, so `before` can be asked about it too.
        giver, taker = before.pi(*key), after.pi(*key)
        if giver.key != taker.key:
            known = moved.get((giver.key, taker.key))
            total = int(seconds) + (known.gpu_seconds if known else 0)
            moved[giver.key, taker.key] = UsageMove(giver, taker, total)
    return tuple(
        sorted(
            moved.values(),
            key=lambda move: (-move.gpu_seconds, move.giver.name, move.taker.name),
        )
    )


def _gpu_usage() -> Select[*tuple[Any, ...]]:
    """Return the query of GPU-seconds by cluster, account, user, uid and era."""
    columns = [usage_keys.c[name] for name in ("cluster_id", "account", "user", "uid", "era")]
    return (
        select(func.sum(usage_months.c.gpu_seconds), *columns)
        .join(usage_keys, usage_keys.c.id == usage_months.c.key_id)
        .where(WHOLE_GPUS)
        .group_by(*columns)
    )
