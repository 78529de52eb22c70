"""How many GPU-hours a change of people moves from one PI to another."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, Select, and_, func, select

from slurmkit_accounting.pi import Owner, People
from slurmkit_accounting.schema.usage import usage_days, usage_keys

# Shards and MPS units are no GPUs; what they count for is for prices to say.
_KIND = usage_keys.c.gpu_type
WHOLE_GPUS = and_(_KIND.not_in(("-", "shard", "mps")), ~_KIND.startswith("shard:"))


class Move(msgspec.Struct, frozen=True):
    """Usage of ended runs that changes hands.

    Attributes:
        giver: whose it was.
        taker: whose it is now.
        gpu_seconds: GPUs, or MIG slices, times seconds.
    """

    giver: Owner
    taker: Owner
    gpu_seconds: int


def moves(connection: Connection, before: People) -> tuple[Move, ...]:
    """Compare whose all usage was before with whose it is now, the largest move first.

    Args:
        connection: inside the transaction in which people changed, usage under its new eras.
        before: everybody as they were.
    """
    after = People.load(connection)
    moved: dict[tuple[object, object], Move] = {}
    for seconds, *key in connection.execute(_usage()):
        # What was true throughout an old era was true in each part of it.
        giver, taker = before.pi(*key), after.pi(*key)
        if giver.key != taker.key:
            known = moved.get((giver.key, taker.key))
            total = int(seconds) + (known.gpu_seconds if known else 0)
            moved[giver.key, taker.key] = Move(giver, taker, total)
    return tuple(sorted(moved.values(), key=_largest_first))


def _largest_first(one: Move) -> tuple[int, str, str]:
    return (-one.gpu_seconds, one.giver.name, one.taker.name)


def _usage() -> Select[*tuple[Any, ...]]:
    columns = [usage_keys.c[name] for name in ("cluster_id", "account", "user", "uid", "era")]
    return (
        select(func.sum(usage_days.c.gpu_seconds), *columns)
        .join(usage_keys, usage_keys.c.id == usage_days.c.key_id)
        .where(WHOLE_GPUS)
        .group_by(*columns)
    )
