"""Fairshare: the tree of accounts, where I stand and why, and what my jobs' priority is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import ClassVar

from slurmkit import forecast
from slurmkit.fairshare import Factors, Share, Shares, in_words, part
from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.feed.pictures import Fairness
from slurmkit_tui.listing import Column, Context, Listing
from slurmkit_tui.notedview import NotedView
from slurmkit_tui.session import Session
from slurmkit_tui.view import Part

_JOBS = 3  # whose factors are shown


def _level(row: Share) -> str:
    if row.level is None:
        return ""
    return "no use" if math.isinf(row.level) else f"{row.level:.3g}"


def _account(row: Share) -> str:
    return "  " * row.depth + (row.user or row.account)


def _level_style(row: Share, _context: Context) -> str:
    return "" if row.level is None else "state--running" if row.level >= 1 else "cell--warn"


COLUMNS = (
    Column("account", "ACCOUNT / USER", lambda r, _: _account(r), attrgetter("account"),
           lambda rows: max((len(_account(row)) for row in rows), default=0), limit=36, narrow=24,
           match=attrgetter("account"),
           style=lambda r, c: "cell--mine" if r.user and r.user == c.me else ""),
    Column("user", "USER", lambda r, _: r.user, attrgetter("user"), 8, shown=False),
    Column("shares", "SHARES", lambda r, _: "" if r.raw_shares is None else str(r.raw_shares),
           attrgetter("raw_shares"), 7, right=True),
    Column("norm", "OF SIBLINGS", lambda r, _: part(r.shares) if r.depth else "",
           attrgetter("shares"), 11, short="PART", right=True),
    Column("usage", "USED", lambda r, _: part(r.usage) if r.depth else "", attrgetter("usage"), 7,
           right=True),
    Column("effective", "OF SIBLINGS' USE", lambda r, _: part(r.effective_usage),
           attrgetter("effective_usage"), 16, short="EFF", right=True),
    Column("level", "LEVELFS", lambda r, _: _level(r), attrgetter("level"), 8, right=True,
           style=_level_style),
    Column("factor", "FACTOR",
           lambda r, _: "" if not r.user else "?" if r.factor is None else f"{r.factor:.3f}",
           attrgetter("factor"), 7, right=True),
)  # fmt: skip
SHARES = Listing(
    "share",
    COLUMNS,
    key=lambda r: f"{r.account}/{r.user}/{r.partition}",
    haystack=lambda r: f"{r.account}\n{r.user}",
    mine=lambda r, context: r.user == context.me,
)


class FairshareView(NotedView):
    """The tree as sshare has it; below it where I stand."""

    NAME = "fairshare"
    ASK = Ask("fairshare")
    EVERY = 6.0  # slurmctld works shares out every five minutes
    LISTING: ClassVar[Listing] = SHARES

    def notes(self, answer: Answer, session: Session) -> Sequence[str]:
        """See `NotedView.notes`."""
        found, me = answer.value, session.feed.me
        shares = Shares(found.taken, found.rows)
        standing = [in_words(branch) for branch in shares.branches(me)]
        lines = standing or [f"sshare shows no share of {me}"]
        if found.half_life and found.half_life not in ("0", "00:00:00"):
            lines.append(
                f"usage fades: half of it counts after {found.half_life} (PriorityDecayHalfLife),"
                " a quarter after twice that, if nothing new is used"
            )
        lines += [_factors(job) for job in found.factors[:_JOBS]]
        for branch in shares.branches(me):
            lines += _fading(branch, found)
        if found.without_factors:
            lines.append(f"priority factors are unknown: {found.without_factors}")
        return lines

    def tally(self, rows: Sequence[Share], context: Context) -> Iterable[Part]:
        """See `ListView.tally`."""
        own = [row.factor for row in rows if row.user == context.me and row.factor is not None]
        if own:
            yield (f"my factor {max(own):.3f}, 1 is best", "$primary bold")


def _fading(branch: Sequence[Share], found: Fairness) -> list[str]:
    """What becomes of my usage; only where somebody shares with me."""
    if len(branch) < 2:
        return []
    of = forecast.forecast(branch[-1], branch[-2], found.half_life)
    if of is None:
        why = "Slurm does not say usage, LevelFS and half-life of it"
        return [f"how {branch[-1].user} in {branch[-1].account} recovers is unknown: {why}"]
    return [f"{branch[-1].account}: {line}" for line in forecast.in_words(of, found.reset)]


def _factors(job: Factors) -> str:
    parts = {
        "fairshare": job.fairshare, "age": job.age, "QOS": job.qos, "size": job.job_size,
        "partition": job.partition_factor, "association": job.association, "site": job.site,
    }  # fmt: skip
    said = ", ".join(f"{name} {points}" for name, points in parts.items() if points)
    nice = f", nice {-job.nice}" if job.nice else ""
    return f"job {job.job_id} in {job.partition}: priority {job.priority} = {said or '0'}{nice}"
