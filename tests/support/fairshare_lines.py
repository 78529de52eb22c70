"""Lines of sshare and sprio."""

from __future__ import annotations

import math

from slurmkit.state.fairshare import FairshareRow, PriorityFactors

SHARES = (
    FairshareRow(depth=0, account="root", usage=1.0, raw_usage=100),
    FairshareRow(
        depth=1,
        account="vision",
        raw_shares=40,
        shares=0.4,
        raw_usage=90,
        usage=0.9,
        effective_usage=0.9,
        level=0.444,
    ),
    FairshareRow(
        depth=2,
        account="vision",
        user="alice",
        raw_shares=1,
        shares=0.5,
        raw_usage=90,
        usage=0.9,
        effective_usage=1.0,
        level=0.5,
        factor=0.25,
    ),
    FairshareRow(
        depth=2,
        account="vision",
        user="bob",
        raw_shares=1,
        shares=0.5,
        raw_usage=0,
        usage=0.0,
        effective_usage=0.0,
        level=math.inf,
    ),
)
FACTORS = PriorityFactors(
    job_id="12", partition="gpu", priority=1250, site=0, age=250, association=0, fairshare=1000,
    job_size=0, partition_factor=0, qos=0, nice=0, tres="",
)  # fmt: skip
