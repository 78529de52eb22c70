"""The queue of the whole cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, ClassVar

from slurmkit import arrays
from slurmkit import states as slurm_states
from slurmkit.facts import clock
from slurmkit.logical import shown_id
from slurmkit.queue.cells import counts_gpus, gpus, parts_in_words, waiting_for, where
from slurmkit.queue.order import KEYS
from slurmkit.queue.rows import QueueRow
from slurmkit.tres import gpu_parts
from slurmkit_tui import states
from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.listing import Column, Context, Listing, longest
from slurmkit_tui.listview import ListView
from slurmkit_tui.session import Session
from slurmkit_tui.view import Part


def job_key(row: QueueRow) -> str:
    """What stays the same of an id: a pending array `12_[4-9]` loses tasks as they start."""
    array, bracket, _ = row.job_id.partition("[")
    return array + bracket


def held(row: QueueRow) -> int:
    """GPUs it holds now; what a pending job asks for is not held."""
    return row.gpus if row.node_list and not row.waits and not row.ended else 0


def is_mine(row: QueueRow, context: Context) -> bool:
    """Whether it belongs to the person at the screen."""
    return row.user == context.me


def _haystack(row: QueueRow) -> str:
    return "\n".join(
        (shown_id(row), row.user, row.account, row.partition, row.state, row.node_list, row.reason,
         row.name, slurm_states.code(row.state))
    )  # fmt: skip


def _muted(_row: QueueRow, _context: Context) -> str:
    return "cell--muted"


def _state_searched(row: QueueRow) -> str:
    return f"{row.state} {slurm_states.code(row.state)}"


def _rank_sort(row: QueueRow) -> int | None:
    return row.priority if row.waits else None


def _holds_part(row: QueueRow) -> bool:
    return bool(row.node_list and not row.waits and not row.ended and gpu_parts(row.tres))


def _gpus_size(rows: Sequence[QueueRow]) -> int:
    """Numbers are short; parts of GPUs have a word. Many rows have the same TRES."""
    shared = map(gpu_parts, set(map(attrgetter("tres"), rows)))
    return max([4, *map(len, map(parts_in_words, filter(None, shared)))])


COLUMNS = (
    Column("jobid", "JOBID", lambda r, _: shown_id(r), KEYS["jobid"], longest("job_id"),
           match=shown_id, aliases=("id", "job"), limit=22),
    Column("user", "USER", lambda r, _: r.user, KEYS["user"], longest("user"), narrow=10,
           style=lambda r, c: "cell--mine" if r.user == c.me else ""),
    Column("account", "ACCOUNT", lambda r, _: r.account, KEYS["account"],
           longest("account"), short="ACCT", limit=14, wide=True, style=_muted),
    Column("partition", "PARTITION", lambda r, _: r.partition, KEYS["partition"],
           longest("partition"), short="PART", limit=14, narrow=9),
    Column("qos", "QOS", lambda r, _: r.qos, KEYS["qos"], longest("qos"), limit=14,
           wide=True, style=_muted, shown=False),
    Column("state", "STATE", lambda r, _: r.state, KEYS["state"], longest("state"),
           match=_state_searched, aliases=("st",), short="ST", brief=slurm_states.code,
           style=lambda r, _: states.style(r.state)),
    Column("time", "TIME", lambda r, _: r.time_used, KEYS["time"],
           longest("time_used"), right=True),
    Column("limit", "LIMIT", lambda r, _: r.time_limit, KEYS["limit"],
           longest("time_limit"), right=True, wide=True, style=_muted),
    Column("nodes", "NODES", lambda r, _: str(r.nodes), KEYS["nodes"], 5, short="N",
           aliases=("node",), right=True),
    Column("cpus", "CPUS", lambda r, _: str(r.cpus), KEYS["cpus"], 6, aliases=("cpu",),
           right=True, wide=True, shown=False),
    Column("gpus", "GPUS", lambda r, c: gpus(r, known=c.gpus_known), KEYS["gpus"], _gpus_size,
           match=attrgetter("tres"), aliases=("gpu",), short="GPU", right=True,
           style=lambda r, _: "cell--gpus" if held(r) or _holds_part(r) else "cell--muted"),
    Column("priority", "PRIORITY", lambda r, _: str(r.priority), _rank_sort, 10,
           aliases=("prio",), right=True, wide=True, style=_muted, shown=False),
    Column("submit", "SUBMITTED", lambda r, _: clock(r.submitted), KEYS["submit"], 16,
           wide=True, style=_muted, shown=False),
    Column("start", "START", lambda r, _: clock(r.started), KEYS["start"], 16, wide=True,
           style=_muted, shown=False),
    Column("where", "WHERE", lambda r, _: where(r.node_list, waiting_for(r)),
           KEYS["where"], 28, match=lambda r: f"{r.node_list} {r.reason}",
           aliases=("on", "reason"), limit=28,
           style=lambda r, _: "" if r.node_list else "cell--muted"),
    Column("name", "NAME", lambda r, _: r.name, KEYS["name"], longest("name"), limit=60,
           narrow=60),
)  # fmt: skip
JOBS = Listing("job", COLUMNS, job_key, _haystack, is_mine, "no jobs in the queue")


class QueueView(ListView):
    """Every job that slurmctld has, mine marked."""

    NAME = "queue"
    OF_JOBS = True
    ASK = Ask("queue")
    LISTING: ClassVar[Listing] = JOBS

    def rows_of(self, answer: Answer) -> Sequence[QueueRow]:
        """See `ListView.rows_of`."""
        return arrays.joined(answer.value.rows)

    @property
    def rows(self) -> Sequence[Any]:
        """See `View.rows`: as Slurm has them, which something can be done to."""
        chosen = self.table.rows_chosen
        split = (row.rows if isinstance(row, arrays.Joined) else (row,) for row in chosen)
        return [row for rows in split for row in rows]

    def context(self, answer: Answer, session: Session) -> Context:
        """See `ListView.context`."""
        tracked = session.site.tracks_gpus if session.site else None
        known = counts_gpus(answer.value.rows, tracked=tracked)
        return Context(session.feed.me, answer.taken, gpus_known=known, cluster=session.cluster)

    def tally(self, rows: Sequence[QueueRow], context: Context) -> Iterable[Part]:
        """See `ListView.tally`."""
        found = list(map(attrgetter("state"), rows))
        yield (f"{found.count('RUNNING'):,} running", "$success")
        yield (f"{found.count('PENDING'):,} pending", "$warning")
        if context.gpus_known or not rows:
            count = sum(map(held, rows))
            yield f"{count:,} GPU{'' if count == 1 else 's'} held"
        else:
            yield "GPUs unknown"
