"""View of the queue of the whole cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, ClassVar

from slurmkit.formats import job_states as slurm_states
from slurmkit.formats.display import format_time
from slurmkit.formats.tres import gpu_parts
from slurmkit.state import arrays
from slurmkit.state.arrays import shown_id
from slurmkit.state.queue_rows import (
    SORT_KEYS,
    QueueRow,
    counts_gpus,
    format_gpu_count,
    format_gpu_parts,
    format_where,
    pending_reason,
)
from slurmkit_tui import themes
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.session import ClusterSession
from slurmkit_tui.views.base import SummaryPart, TableView
from slurmkit_tui.widgets.listing import Listing, RowContext, TableColumn, longest_text


def queue_row_key(row: QueueRow) -> str:
    """Return the fixed part of an id: a pending array `12_[4-9]` loses tasks as they start."""
    array, bracket, _ = row.job_id.partition("[")
    return array + bracket


def running_and_pending(rows: Sequence[QueueRow]) -> Iterable[SummaryPart]:
    """Yield how many jobs run and wait; each pending task of an array is one, as in the queue."""
    running = sum(row.state == "RUNNING" for row in rows)
    waiting = sum(arrays.count_tasks(row) for row in rows if row.waits)
    yield (f"{running:,} running", "$success")
    yield (f"{waiting:,} pending", "$warning")


def allocated_gpus(row: QueueRow) -> int:
    """Return the number of GPUs allocated now; 0 for a pending job."""
    return row.gpus if row.node_list and not row.waits and not row.ended else 0


def is_mine(row: QueueRow, context: RowContext) -> bool:
    """Return whether a job belongs to the person at the screen."""
    return row.user == context.me


def _haystack(row: QueueRow) -> str:
    return "\n".join(
        (shown_id(row), row.user, row.account, row.partition, row.state, row.node_list, row.reason,
         row.name, slurm_states.state_code(row.state))
    )  # fmt: skip


def _muted(_row: QueueRow, _context: RowContext) -> str:
    return "cell--muted"


def _state_searched(row: QueueRow) -> str:
    return f"{row.state} {slurm_states.state_code(row.state)}"


def _rank_sort(row: QueueRow) -> int | None:
    return row.priority if row.waits else None


def _holds_part(row: QueueRow) -> bool:
    return bool(row.node_list and not row.waits and not row.ended and gpu_parts(row.tres))


def _gpus_size(rows: Sequence[QueueRow]) -> int:
    """Return the width. Many rows share one TRES text, so each text is measured once."""
    shared = map(gpu_parts, set(map(attrgetter("tres"), rows)))
    return max([4, *map(len, map(format_gpu_parts, filter(None, shared)))])


_nodes_size, _reason_size = longest_text("node_list"), longest_text("reason")


def _where_size(rows: Sequence[QueueRow]) -> int:
    return max(_nodes_size(rows), _reason_size(rows) + len("()"))


COLUMNS = (
    TableColumn(
        "jobid",
        "JOBID",
        lambda r, _: shown_id(r),
        SORT_KEYS["jobid"],
        longest_text("job_id"),
        match=shown_id,
        aliases=("id", "job"),
        limit=22,
    ),
    TableColumn(
        "user",
        "USER",
        lambda r, _: r.user,
        SORT_KEYS["user"],
        longest_text("user"),
        narrow=10,
        style=lambda r, c: "cell--mine" if r.user == c.me else "",
    ),
    TableColumn(
        "account",
        "ACCOUNT",
        lambda r, _: r.account,
        SORT_KEYS["account"],
        longest_text("account"),
        short="ACCT",
        limit=14,
        wide=True,
        style=_muted,
    ),
    TableColumn(
        "partition",
        "PARTITION",
        lambda r, _: r.partition,
        SORT_KEYS["partition"],
        longest_text("partition"),
        short="PART",
        limit=14,
        narrow=9,
    ),
    TableColumn(
        "qos",
        "QOS",
        lambda r, _: r.qos,
        SORT_KEYS["qos"],
        longest_text("qos"),
        limit=14,
        wide=True,
        style=_muted,
        shown=False,
    ),
    TableColumn(
        "state",
        "STATE",
        lambda r, _: r.state,
        SORT_KEYS["state"],
        longest_text("state"),
        match=_state_searched,
        aliases=("st",),
        short="ST",
        brief=slurm_states.state_code,
        style=lambda r, _: themes.state_style(r.state),
    ),
    TableColumn(
        "time",
        "TIME",
        lambda r, _: r.time_used,
        SORT_KEYS["time"],
        longest_text("time_used"),
        right=True,
    ),
    TableColumn(
        "limit",
        "LIMIT",
        lambda r, _: r.time_limit,
        SORT_KEYS["limit"],
        longest_text("time_limit"),
        right=True,
        wide=True,
        style=_muted,
    ),
    TableColumn(
        "nodes",
        "NODES",
        lambda r, _: str(r.nodes),
        SORT_KEYS["nodes"],
        5,
        short="N",
        aliases=("node",),
        right=True,
    ),
    TableColumn(
        "cpus",
        "CPUS",
        lambda r, _: str(r.cpus),
        SORT_KEYS["cpus"],
        6,
        aliases=("cpu",),
        right=True,
        wide=True,
        shown=False,
    ),
    TableColumn(
        "gpus",
        "GPUS",
        lambda r, c: format_gpu_count(r, known=c.gpus_known),
        SORT_KEYS["gpus"],
        _gpus_size,
        match=attrgetter("tres"),
        aliases=("gpu",),
        short="GPU",
        right=True,
        style=lambda r, _: "cell--gpus" if allocated_gpus(r) or _holds_part(r) else "cell--muted",
    ),
    TableColumn(
        "priority",
        "PRIORITY",
        lambda r, _: str(r.priority),
        _rank_sort,
        10,
        aliases=("prio",),
        right=True,
        wide=True,
        style=_muted,
        shown=False,
    ),
    TableColumn(
        "submit",
        "SUBMITTED",
        lambda r, _: format_time(r.submitted),
        SORT_KEYS["submit"],
        16,
        wide=True,
        style=_muted,
        shown=False,
    ),
    TableColumn(
        "start",
        "START",
        lambda r, _: format_time(r.started),
        SORT_KEYS["start"],
        16,
        wide=True,
        style=_muted,
        shown=False,
    ),
    TableColumn(
        "where",
        "WHERE",
        lambda r, _: format_where(r.node_list, pending_reason(r)),
        SORT_KEYS["where"],
        _where_size,
        match=lambda r: f"{r.node_list} {r.reason}",
        aliases=("on", "reason"),
        limit=28,
        style=lambda r, _: "" if r.node_list else "cell--muted",
    ),
    TableColumn(
        "name",
        "NAME",
        lambda r, _: r.name,
        SORT_KEYS["name"],
        longest_text("name"),
        limit=60,
        narrow=60,
    ),
)
JOBS = Listing("job", COLUMNS, queue_row_key, _haystack, is_mine, "no jobs in the queue")


class QueueView(TableView):
    """All jobs in slurmctld, with mine marked."""

    NAME = "queue"
    OF_JOBS = True
    ASK = FeedQuestion("queue")
    LISTING: ClassVar[Listing] = JOBS

    def rows_of(self, answer: FeedAnswer) -> Sequence[QueueRow]:
        return arrays.merge_pending_rows(answer.value.rows)

    @property
    def rows(self) -> Sequence[Any]:
        """Return Slurm's own rows of the chosen jobs, which can be changed."""
        chosen = self.table.chosen_rows
        split = (row.rows if isinstance(row, arrays.MergedArrayRow) else (row,) for row in chosen)
        return [row for rows in split for row in rows]

    def context(self, answer: FeedAnswer, session: ClusterSession) -> RowContext:
        tracked = session.site.tracks_gpus if session.site else None
        known = counts_gpus(answer.value.rows, tracked=tracked)
        return RowContext(session.feed.me, answer.taken, gpus_known=known, cluster=session.cluster)

    def tally(self, rows: Sequence[QueueRow], context: RowContext) -> Iterable[SummaryPart]:
        yield from running_and_pending(rows)
        if context.gpus_known or not rows:
            count = sum(map(allocated_gpus, rows))
            yield f"{count:,} GPU{'' if count == 1 else 's'} held"
        else:
            yield "GPUs unknown"
