"""`report nodes`: which nodes and GPUs were out of use, why, how often, and what that cost."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, func, select

from slurmkit.errors import BadInput
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.notices import node_events_task, task_runs
from slurmkit_accounting.ledger.schema.runs import clusters, node_events
from slurmkit_accounting.ledger.schema.usage import HOUR
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import Question
from slurmkit_accounting.reports.model import Column, Meta, Panel, Report, Series, sum_columns

OUTAGE = "outage"
SUBJECTS = ("node", "gpu", "check", OUTAGE)
_TEXTS = {"node": ("checks",), "gpu": ("nodes", "checks"), "check": ("nodes",)}
_MOST_BARS = 20
# What node_check.py and our prolog and epilog write: `slurmkit: CHECK [GPU]: text; …`.
_OURS = "slurmkit: "
_FAULT = re.compile(r"([a-z_]+)(?: (\S+))?: .*")
# What Slurm itself writes, and the name of the check here.
_SLURMS = (
    ("Prolog error", "prolog"),
    ("Epilog error", "epilog"),
    ("Not responding", "not_responding"),
    ("Kill task failed", "kill_task"),
    ("gres/gpu count", "gpus"),
)
_DEFINITIONS = (
    (
        "outage: a time in which a node was down, or drained and without jobs, as slurmdbd has it;"
        " the last jobs on a node that drains still use it, so that time is not lost"
    ),
    "gpu_hours_lost: length of the outages within the window, times the GPUs of the node",
    "repeated: outages for a check (and GPU) that an earlier outage in the window was for",
    (
        "check: as node_check.py names it; prolog, epilog, not_responding, kill_task and gpus also"
        " by slurmctld; other: the reason of an administrator"
    ),
)
_REASONS = (
    "reasons: what the node was down or drained for, one after another, and who gave each, as"
    " slurmdbd has it; the outage ended when the node was resumed"
)
_SEVERAL = "an outage for several GPUs or checks is in the row of each of them, with all its hours"


class Fault(NamedTuple):
    """What a reason names: a check, and the GPU by serial number, UUID or PCI address, or none."""

    check: str
    gpu: str

    @property
    def is_of_known_gpu(self) -> bool:
        """Whether it names a GPU wherever that is; a PCI address is the same on each node."""
        return bool(self.gpu) and ":" not in self.gpu


class Outage(msgspec.Struct, frozen=True):
    """A time in which a node was out of use, whatever reasons it had one after another.

    Attributes:
        node: name of the node; with several clusters `CLUSTER/NODE`.
        begin: epoch seconds.
        end: epoch seconds; None while it lasts.
        reasons: each reason with who gave it, in their order; may name people.
        faults: what the reasons name, each once.
        repeated: what of it an earlier outage of the window was for, too.
        seconds: length within the window.
        gpu_seconds: the same times the GPUs of the node; None if these are unknown.
    """

    node: str
    begin: int
    end: int | None
    reasons: tuple[str, ...]
    faults: frozenset[Fault]
    repeated: frozenset[Fault]
    seconds: int
    gpu_seconds: int | None


def nodes_report(
    ledger: Ledger, question: Question, by: str = "node", node: str | None = None
) -> Report:
    """Report outages within the window, most GPU-hours lost first; by outage the newest first.

    Args:
        ledger: open for reading.
        question: window; of the filters only `cluster` has an effect. A scope of less than
            everything sees no texts of reasons.
        by: `node`, `gpu`, `check`, or `outage` for the history, a row for each.
        node: only outages of this node.

    Raises:
        BadInput: for another `by`.
        LedgerError: when the ledger cannot be read.
    """
    if by not in SUBJECTS:
        raise BadInput(f"by must be {', '.join(SUBJECTS[:-1])} or {SUBJECTS[-1]}; not {by!r}")
    columns = _HISTORY if by == OUTAGE else _sums(by)
    with ledger.transaction() as connection:
        outages = load_outages(connection, question)
        if node is not None:
            outages = [each for each in outages if each.node.rpartition("/")[2] == node]
        if by == OUTAGE:
            rows = _history(outages, with_reasons=question.scope.is_everything)
        else:
            rows = _rows(outages, by)
        meta = Meta(
            report="nodes",
            by=(by,),
            filters=question.filters | ({} if node is None else {"node": (node,)}),
            total=sum_columns(columns, rows),
            definitions=_definitions(by),
            notes=(*([] if rows else [_nothing(outages, by)]), *_unread(connection, question)),
            **provenance.ledger_fields(ledger, connection, question.now, question.scope),
            **provenance.window_fields(connection, question.window, question.zone, question.now),
        )
    panels = () if by == OUTAGE else (_panel(rows, by),)
    return Report(meta, columns, tuple(rows), panels)


_HISTORY = (
    Column("node"),
    Column("checks"),
    Column("gpu"),
    Column("failed", "time"),
    Column("well_since", "time"),
    Column("hours_out", "hours", adds_up=True),
    Column("gpu_hours_lost", "hours", adds_up=True),
    Column("repeated"),
    Column("reasons"),
)


def _history(outages: Sequence[Outage], *, with_reasons: bool) -> list[dict[str, Any]]:
    """Return a row for each outage, the newest first."""
    newest = sorted(outages, key=lambda each: (-each.begin, each.node))
    return [
        {
            "node": each.node,
            "checks": " ".join(sorted({fault.check for fault in each.faults})),
            "gpu": " ".join(sorted({fault.gpu for fault in each.faults} - {""})),
            "failed": each.begin,
            "well_since": each.end,
            "hours_out": each.seconds / HOUR,
            "gpu_hours_lost": None if each.gpu_seconds is None else each.gpu_seconds / HOUR,
            "repeated": " ".join(sorted({fault.check for fault in each.repeated})),
            "reasons": "; then ".join(each.reasons) if with_reasons else None,
        }
        for each in newest
    ]


def _definitions(by: str) -> tuple[str, ...]:
    if by == OUTAGE:
        return (*_DEFINITIONS, _REASONS)
    return _DEFINITIONS if by == "node" else (*_DEFINITIONS, _SEVERAL)


def _sums(by: str) -> tuple[Column, ...]:
    return (
        Column(by),
        *map(Column, _TEXTS[by]),
        Column("outages", "count", adds_up=by == "node"),
        Column("repeated", "count", adds_up=by == "node"),
        Column("hours_out", "hours", adds_up=by == "node"),
        Column("gpu_hours_lost", "hours", adds_up=by == "node"),
        Column("last_failed", "time"),
        Column("well_since", "time"),
    )


def load_outages(connection: Connection, question: Question) -> list[Outage]:
    """Load the outages within a window, oldest first."""
    begin, end = question.window
    names = {row[0]: row[1] for row in connection.execute(select(clusters.c.id, clusters.c.name))}
    wanted = question.filters.get("cluster", tuple(names.values()))
    later = node_events.alias()
    next_start = select(func.min(later.c.start)).where(
        later.c.cluster_id == node_events.c.cluster_id,
        later.c.node == node_events.c.node,
        later.c.start > node_events.c.start,
    )
    # slurmdbd may have left one open although the node was there again.
    ended = func.coalesce(node_events.c.end, next_start.scalar_subquery())
    query = (
        select(node_events, ended.label("ended"))
        .where(node_events.c.start < end, (ended.is_(None)) | (ended > begin))
        .order_by(node_events.c.cluster_id, node_events.c.node, node_events.c.start)
    )
    chains: list[list[Any]] = []
    for event in connection.execute(query):
        if names[event.cluster_id] not in wanted:
            continue
        # slurmctld ends an event and begins the next in the same second when the reason changes.
        if chains and _of(chains[-1][0]) == _of(event) and _lasts_at(chains[-1], event.start):
            chains[-1].append(event)
        else:
            chains.append([event])
    named: set[tuple[object, Fault]] = set()
    found = []
    for chain in sorted(chains, key=lambda chain: (chain[0].start, chain[0].node)):
        faults = frozenset(fault for event in chain for fault in parse_faults(event.reason))
        of = {fault: None if fault.is_of_known_gpu else _of(chain[0]) for fault in faults}
        again = frozenset(fault for fault in faults if (of[fault], fault) in named)
        named |= {(of[fault], fault) for fault in faults}
        prefix = f"{names[chain[0].cluster_id]}/" if len(names) > 1 else ""
        found.append(_outage(prefix, chain, faults, again, question))
    return found


def _of(event: Any) -> tuple[int, str]:
    return event.cluster_id, event.node


def _lasts_at(chain: Sequence[Any], time: int) -> bool:
    return any(event.ended is None or event.ended >= time for event in reversed(chain))


def _outage(
    prefix: str,
    chain: Sequence[Any],
    faults: frozenset[Fault],
    again: frozenset[Fault],
    question: Question,
) -> Outage:
    first, until = question.window[0], min(question.window[1], question.now)
    seconds, gpu_seconds = 0, 0
    counted = first
    for event in chain:
        last = until if event.ended is None else min(event.ended, until)
        length = max(last - max(event.start, counted), 0)
        counted = max(counted, last)
        seconds += length
        gpu_seconds += length * (event.gpus or 0)
    ends = [event.ended for event in chain]
    return Outage(
        node=prefix + chain[0].node,
        begin=chain[0].start,
        end=None if None in ends else max(ends),
        reasons=tuple(dict.fromkeys(map(_reason, chain))),
        faults=faults,
        repeated=again,
        seconds=seconds,
        gpu_seconds=None if any(event.gpus is None for event in chain) else gpu_seconds,
    )


def _reason(event: Any) -> str:
    return f"{event.reason or 'no reason'} ({event.user})" if event.user else event.reason


def parse_faults(reason: str) -> tuple[Fault, ...]:
    """Parse the reason of a node; one that nobody of us wrote is the check `other`."""
    if not reason.startswith(_OURS):
        for words, check in _SLURMS:
            if reason.startswith(words):
                return (Fault(check, ""),)
        return (Fault("other", ""),)
    found = []
    for part in reason.removeprefix(_OURS).split("; "):
        match = _FAULT.match(part)
        found.append(Fault(match[1], match[2] or "") if match else Fault("other", ""))
    return tuple(dict.fromkeys(found))


def _rows(outages: Iterable[Outage], by: str) -> list[dict[str, Any]]:
    grouped: dict[str, list[tuple[Outage, list[Fault]]]] = defaultdict(list)
    for outage in outages:
        groups: dict[str, list[Fault]] = defaultdict(list)
        for fault in outage.faults:
            if name := _label(outage, fault, by):
                groups[name].append(fault)
        for name, faults in groups.items():
            grouped[name].append((outage, faults))
    rows = [_row(name, each, by) for name, each in grouped.items()]
    return sorted(rows, key=lambda row: (-(row["gpu_hours_lost"] or 0), -row["hours_out"], row[by]))


def _label(outage: Outage, fault: Fault, by: str) -> str:
    if by == "check":
        return fault.check
    if by == "node":
        return outage.node
    return fault.gpu if fault.is_of_known_gpu or not fault.gpu else f"{outage.node} {fault.gpu}"


def _row(name: str, group: Sequence[tuple[Outage, list[Fault]]], by: str) -> dict[str, Any]:
    outages = [outage for outage, _ in group]
    texts = {
        "nodes": {outage.node for outage in outages},
        "checks": {fault.check for _, faults in group for fault in faults},
    }
    lost = [outage.gpu_seconds for outage in outages]
    ends = [outage.end for outage in outages]
    return {
        by: name,
        **{text: " ".join(sorted(texts[text])) for text in _TEXTS[by]},
        "outages": len(outages),
        "repeated": sum(1 for outage, faults in group if outage.repeated & set(faults)),
        "hours_out": sum(outage.seconds for outage in outages) / HOUR,
        "gpu_hours_lost": None if None in lost else sum(filter(None, lost)) / HOUR,
        "last_failed": max(outage.begin for outage in outages),
        "well_since": None if None in ends else max(filter(None, ends)),
    }


def _nothing(outages: Sequence[Outage], by: str) -> str:
    if by == "gpu" and outages:
        return "no outage of the window names a GPU; node_check.py as HealthCheckProgram names them"
    return (
        "no node was down or drained; only operators see that where slurmdbd has PrivateData=events"
    )


def _unread(connection: Connection, question: Question) -> Iterator[str]:
    """Yield since when the outages of a cluster could not be read, and why."""
    names = connection.scalars(select(clusters.c.name).order_by(clusters.c.name)).all()
    for name in names:
        query = select(task_runs.c.due, task_runs.c.error)
        row = connection.execute(query.where(task_runs.c.task == node_events_task(name))).first()
        if row is not None and row.error and row.due < question.window[1]:
            since = question.zone.show(row.due)
            yield f"outages of {name} since {since} could not be read: {row.error}"


def _panel(rows: Sequence[Mapping[str, Any]], by: str) -> Panel:
    shown = rows[:_MOST_BARS]
    labels = tuple(row[by] for row in shown)
    values = tuple(row["gpu_hours_lost"] for row in shown)
    note = "Length of the outages times the GPUs of the node."
    return Panel("bars", "GPU-hours lost", "hours", labels, (Series("GPU-hours", values),), note)
