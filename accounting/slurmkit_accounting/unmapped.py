"""Usage that belongs to no PI, and how that can be mended."""

from __future__ import annotations

from operator import add
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, func, select

from slurmkit_accounting.moves import WHOLE_GPUS
from slurmkit_accounting.pi import Gap, People
from slurmkit_accounting.schema.runs import clusters
from slurmkit_accounting.schema.usage import usage_days, usage_keys

HOUR_SECONDS = 3600
_MENDED = {
    "stranger": "{user} is not in the directory: add them, or write an override",
    "no group": "no group is named {account}: make one with an owner, name a coordinator, or write"
    " an override",
    "not a member": "{user} is not in the group {account}: add them, or write an override",
    "no owner": "the group {account} has no owner: name one, or write an override",
}


class Unmapped(msgspec.Struct, frozen=True, kw_only=True):
    """Ended runs of one user under one account that no PI is known for.

    Attributes:
        counted_as: the account, whose line they are on in a report by PI; or `unmapped`.
        gap: why no group tells; the last one where there were several.
        gpu_hours: GPUs, or MIG slices, times hours.
        fix: what to do about it, in words.
    """

    cluster: str
    account: str
    user: str
    counted_as: str
    gap: Gap
    runs: int
    gpu_hours: float
    cpu_hours: float
    fix: str


def unmapped(connection: Connection) -> list[Unmapped]:
    """Everything in the usage tables without a PI, the most GPU-hours first."""
    people = People.load(connection)
    sums: dict[tuple[str, str, str, str], list[int]] = {}
    gaps: dict[tuple[str, str, str, str], Gap] = {}
    for cluster, started, gpus, cpus, *key in connection.execute(_usage()):
        owner = people.pi(*key)
        if owner.via in {"account", "unmapped"}:
            who = (cluster, key[1], key[2], owner.name)
            gaps[who] = people.gap(*key[1:])
            held = (int(started), int(gpus or 0), int(cpus))
            sums[who] = list(map(add, sums.get(who, [0, 0, 0]), held))
    found = (_made(who, gaps[who], sums[who]) for who in sums)
    return sorted(found, key=lambda one: (-one.gpu_hours, -one.cpu_hours, one.account, one.user))


def _made(who: tuple[str, str, str, str], gap: Gap, sums: list[int]) -> Unmapped:
    cluster, account, user, counted_as = who
    return Unmapped(
        cluster=cluster,
        account=account,
        user=user,
        counted_as=counted_as,
        gap=gap,
        runs=sums[0],
        gpu_hours=sums[1] / HOUR_SECONDS,
        cpu_hours=sums[2] / HOUR_SECONDS,
        fix=_MENDED[gap].format(user=user or "?", account=account or "?"),
    )


def _usage() -> Select[*tuple[Any, ...]]:
    columns = [usage_keys.c[name] for name in ("cluster_id", "account", "user", "uid", "era")]
    gpus = func.sum(usage_days.c.gpu_seconds).filter(WHOLE_GPUS)
    sums = (func.sum(usage_days.c.started), gpus, func.sum(usage_days.c.cpu_seconds))
    return (
        select(clusters.c.name, *sums, *columns)
        .join(usage_keys, usage_keys.c.id == usage_days.c.key_id)
        .join(clusters, clusters.c.id == usage_keys.c.cluster_id)
        .group_by(clusters.c.name, *columns)
        .order_by(usage_keys.c.era)
    )
