"""The nodes: their state and why, and what of them is in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import ClassVar

from slurmkit.nodes.cells import counted_gpus, gib, jobs_on, load, why
from slurmkit.nodes.read import NodeRow
from slurmkit_tui.feed import Ask
from slurmkit_tui.listing import Column, Context, Listing, longest
from slurmkit_tui.listview import ListView
from slurmkit_tui.view import Part

_STYLES = {"down": "cell--bad", "drained": "cell--warn", "idle": "state--running"}


def _haystack(row: NodeRow) -> str:
    types = " ".join(of.type or "" for of in row.gpus)
    return "\n".join((row.name, row.state, " ".join(row.partitions), types, row.reason))


def _used(row: NodeRow) -> int:
    return sum(of.used for of in row.gpus)


def _gpus_size(rows: Sequence[NodeRow]) -> int:
    """The longest text, of which each kind of node has one or a few."""
    return max(map(len, {" ".join(counted_gpus(row)) for row in rows}), default=0)


def _jobs_size(rows: Sequence[NodeRow]) -> int:
    return max(map(len, map(jobs_on, rows)), default=0)


COLUMNS = (
    Column("node", "NODE", lambda r, _: r.name, attrgetter("name"), longest("name"), limit=24,
           aliases=("name",)),
    Column("state", "STATE", lambda r, _: r.state.lower(), attrgetter("state"), longest("state"),
           limit=22, narrow=9, match=lambda r: f"{r.state} {r.kind}",
           style=lambda r, _: _STYLES.get(r.kind, "")),
    Column("partition", "PARTITIONS", lambda r, _: ",".join(r.partitions),
           lambda r: ",".join(r.partitions), 14, aliases=("partitions",), short="PART", wide=True,
           style=lambda _r, _c: "cell--muted"),
    Column("cpus", "CPUS", lambda r, _: f"{r.cpus_allocated}/{r.cpus}",
           attrgetter("cpus_allocated"), 9, aliases=("cpu",), right=True),
    Column("mem", "MEM", lambda r, _: f"{gib(r.memory_allocated)}/{gib(r.memory)}G",
           attrgetter("memory_allocated"), 12, right=True, wide=True),
    Column("load", "LOAD", lambda r, _: load(r),
           attrgetter("load"), 6, right=True),
    Column("gpus", "GPUS", lambda r, _: " ".join(counted_gpus(r)), _used, _gpus_size, limit=44,
           narrow=24, aliases=("gpu",), match=lambda r: " ".join(counted_gpus(r)),
           style=lambda r, _: "cell--gpus" if _used(r) else "cell--muted"),
    Column("jobs", "JOBS", lambda r, _: jobs_on(r), lambda r: len(r.jobs), _jobs_size, limit=24,
           aliases=("job",), match=lambda r: " ".join(r.jobs)),
    Column("reason", "REASON", lambda r, _: why(r), attrgetter("reason"), 40, limit=60,
           narrow=60),
)  # fmt: skip
NODES = Listing("node", COLUMNS, attrgetter("name"), _haystack)


class NodesView(ListView):
    """Every node."""

    NAME = "nodes"
    ASK = Ask("nodes")
    LISTING: ClassVar[Listing] = NODES

    def tally(self, rows: Sequence[NodeRow], context: Context) -> Iterable[Part]:
        """See `ListView.tally`."""
        del context
        for kind, count in Counter(row.kind for row in rows).most_common():
            yield f"{count:,} {kind}"
