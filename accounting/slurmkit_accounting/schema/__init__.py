"""The ledger's tables. Times are epoch seconds, `valid_to` NULL means still valid.

A change here comes with a new revision in `migrations/versions/` and a new `REVISION`.
"""

from __future__ import annotations

from slurmkit_accounting.schema.base import REVISION, VERSION_TABLE, Unsigned64, metadata
from slurmkit_accounting.schema.closing import closed_usage, closings
from slurmkit_accounting.schema.people import (
    coordinators,
    departments,
    eras,
    group_names,
    group_owners,
    groups,
    memberships,
    nestings,
    people,
    people_syncs,
    pi_overrides,
    uids,
    usernames,
)
from slurmkit_accounting.schema.runs import (
    CUT_SHORT,
    DOUBTFUL,
    GONE,
    HAS_DB_INDEX,
    LONG,
    NO_DB_INDEX,
    OPEN,
    RETRACTED,
    SUSPENDED,
    UNREAD,
    clusters,
    ingests,
    rejects,
    revisions,
    runs,
    spans,
    steps,
    suspensions,
)
from slurmkit_accounting.schema.service import mailings, task_runs
from slurmkit_accounting.schema.usage import DAY, HOUR, SUMS, usage_days, usage_hours, usage_keys

__all__ = [
    "CUT_SHORT",
    "DAY",
    "DOUBTFUL",
    "GONE",
    "HAS_DB_INDEX",
    "HOUR",
    "LONG",
    "NO_DB_INDEX",
    "OPEN",
    "RETRACTED",
    "REVISION",
    "SUMS",
    "SUSPENDED",
    "UNREAD",
    "VERSION_TABLE",
    "Unsigned64",
    "closed_usage",
    "closings",
    "clusters",
    "coordinators",
    "departments",
    "eras",
    "group_names",
    "group_owners",
    "groups",
    "ingests",
    "mailings",
    "memberships",
    "metadata",
    "nestings",
    "people",
    "people_syncs",
    "pi_overrides",
    "rejects",
    "revisions",
    "runs",
    "spans",
    "steps",
    "suspensions",
    "task_runs",
    "uids",
    "usage_days",
    "usage_hours",
    "usage_keys",
    "usernames",
]
