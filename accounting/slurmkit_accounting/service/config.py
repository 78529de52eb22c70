"""The sections `[ledger.service]` and `[ledger.schedule]` of the configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec

Seconds = Annotated[int, msgspec.Meta(ge=1, le=86400)]


class ServiceSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[ledger.service]`: where the site's ledger is asked, and who may see what.

    Attributes:
        url: for clients, `http://HOST:PORT` of the service; reports ask it unless --db is given.
        user: the account the service runs as, by name or number; only it can read a query, and
            clients take answers from nobody else.
        timeout: seconds a client waits for an answer.
        listen: for the service, the address it answers queries on.
        monitor: where it shows /health and /metrics to this host.
        operators: user names that see everything; so do Slurm's operators and administrators.
        operator_groups: groups of the operating system whose members see everything.
        stale_after: /health fails when the last ingest that went well is older, in seconds.
        people_stale_after: the same for people.
        metrics_by_user: whether metrics name users.
    """

    url: str = ""
    user: str = "slurmkit"
    timeout: Seconds = 60
    listen: str = "127.0.0.1:6830"
    monitor: str = "127.0.0.1:6831"
    operators: tuple[str, ...] = ()
    operator_groups: tuple[str, ...] = ()
    stale_after: int = 3 * 3600
    people_stale_after: int = 3 * 86400
    metrics_by_user: bool = False


class ScheduleSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[ledger.schedule]`: when the service does what, as five cron fields; empty for never.

    Attributes:
        timezone: of these times and of the months that are closed and mailed; the host's when
            empty.
        ingest: new and changed jobs from sacct.
        sweep: all of the last 40 days from sacct once more, for what was put right late.
        people: people and groups from the directory.
        budgets: notices of budgets that are nearly, or all, used up.
        close: closes the month before.
        mail: sends each PI the month before.
    """

    timezone: str = ""
    ingest: str = "*/10 * * * *"
    sweep: str = "30 3 * * sun"
    people: str = "20 * * * *"
    budgets: str = ""
    close: str = ""
    mail: str = ""
