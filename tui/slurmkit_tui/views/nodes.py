"""View of the nodes: state with reason, and resources in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import ClassVar

from slurmkit.formats.memory import format_gib
from slurmkit.state.nodes import (
    NodeRow,
    format_gpu_use,
    format_jobs,
    format_load,
    format_reason,
)
from slurmkit_tui.feed import FeedQuestion
from slurmkit_tui.views.base import SummaryPart, TableView
from slurmkit_tui.widgets.listing import Listing, RowContext, TableColumn, longest_text

_STYLES = {"down": "cell--bad", "drained": "cell--warn", "idle": "state--running"}


def _haystack(row: NodeRow) -> str:
    types = " ".join(gres.type or "" for gres in row.gpus)
    return "\n".join((row.name, row.state, " ".join(row.partitions), types, row.reason))


def _used(row: NodeRow) -> int:
    return sum(gres.used for gres in row.gpus)


def _gpus_size(rows: Sequence[NodeRow]) -> int:
    """Return the width of the longest text; there are few different ones."""
    return max(map(len, {" ".join(format_gpu_use(row)) for row in rows}), default=0)


def _jobs_size(rows: Sequence[NodeRow]) -> int:
    return max(map(len, map(format_jobs, rows)), default=0)


COLUMNS = (
    TableColumn(
        "node",
        "NODE",
        lambda r, _: r.name,
        attrgetter("name"),
        longest_text("name"),
        limit=24,
        aliases=("name",),
    ),
    TableColumn(
        "state",
        "STATE",
        lambda r, _: r.state.lower(),
        attrgetter("state"),
        longest_text("state"),
        limit=22,
        narrow=18,
        match=lambda r: f"{r.state} {r.kind}",
        style=lambda r, _: _STYLES.get(r.kind, ""),
    ),
    TableColumn(
        "partition",
        "PARTITIONS",
        lambda r, _: ",".join(r.partitions),
        lambda r: ",".join(r.partitions),
        14,
        aliases=("partitions",),
        short="PART",
        wide=True,
        style=lambda _r, _c: "cell--muted",
    ),
    TableColumn(
        "cpus",
        "CPUS",
        lambda r, _: f"{r.cpus_allocated}/{r.cpus}",
        attrgetter("cpus_allocated"),
        9,
        aliases=("cpu",),
        right=True,
    ),
    TableColumn(
        "mem",
        "MEM",
        lambda r, _: f"{format_gib(r.memory_allocated)}/{format_gib(r.memory)}G",
        attrgetter("memory_allocated"),
        12,
        right=True,
        wide=True,
    ),
    TableColumn("load", "LOAD", lambda r, _: format_load(r), attrgetter("load"), 6, right=True),
    TableColumn(
        "gpus",
        "GPUS",
        lambda r, _: " ".join(format_gpu_use(r)),
        _used,
        _gpus_size,
        limit=44,
        narrow=24,
        aliases=("gpu",),
        match=lambda r: " ".join(format_gpu_use(r)),
        style=lambda r, _: "cell--gpus" if _used(r) else "cell--muted",
    ),
    TableColumn(
        "jobs",
        "JOBS",
        lambda r, _: format_jobs(r),
        lambda r: len(r.jobs),
        _jobs_size,
        limit=24,
        wide=True,
        aliases=("job",),
        match=lambda r: " ".join(r.jobs),
    ),
    TableColumn(
        "reason",
        "REASON",
        lambda r, _: format_reason(r),
        attrgetter("reason"),
        lambda rows: max(map(len, map(format_reason, rows)), default=0),
        limit=60,
        narrow=60,
    ),
)
NODES = Listing("node", COLUMNS, attrgetter("name"), _haystack)


class NodesView(TableView):
    """All nodes."""

    NAME = "nodes"
    ASK = FeedQuestion("nodes")
    LISTING: ClassVar[Listing] = NODES

    def tally(self, rows: Sequence[NodeRow], context: RowContext) -> Iterable[SummaryPart]:
        del context
        for kind, count in Counter(row.kind for row in rows).most_common():
            yield f"{count:,} {kind}"
