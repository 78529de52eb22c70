"""View of fairshare: the tree of accounts, my own standing, and my jobs' priority factors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import ClassVar

from slurmkit.state import fairshare
from slurmkit.state.fairshare import (
    FairshareRow,
    FairshareTree,
    PriorityFactors,
    describe_fairshare,
    format_share,
)
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.feed.composed import FairshareAnswer
from slurmkit_tui.session import ClusterSession
from slurmkit_tui.views.base import SummaryPart, TableViewWithNotes
from slurmkit_tui.widgets.listing import Listing, RowContext, TableColumn

_JOBS = 3  # number of jobs whose factors are shown


def _level(row: FairshareRow) -> str:
    if row.level is None:
        return ""
    return "unused" if math.isinf(row.level) else f"{row.level:.3g}"


def _account(row: FairshareRow) -> str:
    return "  " * row.depth + (row.user or row.account)


def _level_style(row: FairshareRow, _context: RowContext) -> str:
    return "" if row.level is None else "state--running" if row.level >= 1 else "cell--warn"


COLUMNS = (
    TableColumn(
        "account",
        "ACCOUNT / USER",
        lambda r, _: _account(r),
        attrgetter("account"),
        lambda rows: max((len(_account(row)) for row in rows), default=0),
        limit=36,
        narrow=24,
        match=attrgetter("account"),
        style=lambda r, c: "cell--mine" if r.user and r.user == c.me else "",
    ),
    TableColumn("user", "USER", lambda r, _: r.user, attrgetter("user"), 8, shown=False),
    TableColumn(
        "shares",
        "SHARES",
        lambda r, _: "" if r.raw_shares is None else str(r.raw_shares),
        attrgetter("raw_shares"),
        7,
        right=True,
    ),
    TableColumn(
        "norm",
        "OF SIBLINGS",
        lambda r, _: format_share(r.shares) if r.depth else "",
        attrgetter("shares"),
        11,
        short="PART",
        right=True,
    ),
    TableColumn(
        "usage",
        "USED",
        lambda r, _: format_share(r.usage) if r.depth else "",
        attrgetter("usage"),
        7,
        right=True,
    ),
    TableColumn(
        "effective",
        "OF SIBLINGS' USE",
        lambda r, _: format_share(r.effective_usage),
        attrgetter("effective_usage"),
        16,
        short="EFF",
        right=True,
    ),
    TableColumn(
        "level",
        "LEVELFS",
        lambda r, _: _level(r),
        attrgetter("level"),
        8,
        right=True,
        style=_level_style,
    ),
    TableColumn(
        "factor",
        "FACTOR",
        lambda r, _: "" if not r.user else "?" if r.factor is None else f"{r.factor:.3f}",
        attrgetter("factor"),
        7,
        right=True,
    ),
)
SHARE_ROWS = Listing(
    "share",
    COLUMNS,
    key=lambda r: f"{r.account}/{r.user}/{r.partition}",
    haystack=lambda r: f"{r.account}\n{r.user}",
    mine=lambda r, context: r.user == context.me,
)


class FairshareView(TableViewWithNotes):
    """The tree of sshare; below it my own standing."""

    NAME = "fairshare"
    ASK = FeedQuestion("fairshare")
    EVERY = 6.0  # slurmctld computes fairshare every five minutes
    LISTING: ClassVar[Listing] = SHARE_ROWS

    def notes(self, answer: FeedAnswer, session: ClusterSession) -> Sequence[str]:
        fairness, me = answer.value, session.feed.me
        shares = FairshareTree(fairness.taken, fairness.rows)
        standing = [describe_fairshare(branch) for branch in shares.branches(me)]
        lines = standing or [f"sshare shows no share of {me}"]
        if fairness.half_life and fairness.half_life not in ("0", "00:00:00"):
            lines.append(
                f"usage decays: half of it still counts after {fairness.half_life}"
                " (PriorityDecayHalfLife), a quarter after twice that time"
            )
        lines += [_factors(job) for job in fairness.factors[:_JOBS]]
        for branch in shares.branches(me):
            lines += _recovery(branch, fairness)
        if fairness.without_factors:
            lines.append(f"priority factors are unknown: {fairness.without_factors}")
        return lines

    def tally(self, rows: Sequence[FairshareRow], context: RowContext) -> Iterable[SummaryPart]:
        own = [row.factor for row in rows if row.user == context.me and row.factor is not None]
        if own:
            yield (f"my factor {max(own):.3f}, 1 is best", "$primary bold")


def _recovery(branch: Sequence[FairshareRow], fairness: FairshareAnswer) -> list[str]:
    """Forecast how my fairshare recovers; only in an account with other users."""
    if len(branch) < 2:
        return []
    decay = fairshare.forecast_fairshare(branch[-1], branch[-2], fairness.half_life)
    if decay is None:
        why = "Slurm does not report its usage, LevelFS and half-life"
        return [f"no forecast for {branch[-1].user} in {branch[-1].account}: {why}"]
    return [
        f"{branch[-1].account}: {line}"
        for line in fairshare.describe_forecast(decay, fairness.reset)
    ]


def _factors(job: PriorityFactors) -> str:
    """Return the sum of a job's priority factors as one line."""
    parts = {
        "fairshare": job.fairshare, "age": job.age, "QOS": job.qos, "size": job.job_size,
        "partition": job.partition_factor, "association": job.association, "site": job.site,
    }  # fmt: skip
    terms = ", ".join(f"{name} {points}" for name, points in parts.items() if points)
    nice = f", nice {-job.nice}" if job.nice else ""
    return f"job {job.job_id} in {job.partition}: priority {job.priority} = {terms or '0'}{nice}"
