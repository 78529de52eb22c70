"""When nodes were out of use and why, from slurmdbd: it keeps an event for each such time.

slurmctld writes an event when a node goes down, or is drained and its last job has ended
(`_drain_node` in node_mgr.c). A new reason ends the event and begins the next one. Nothing has to
run on the nodes for that, and the reasons of node_check.py name the GPU by its serial number.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import Connection, insert, select, update

from slurmkit.errors import SlurmError
from slurmkit.formats.tres import gpu_count
from slurmkit.slurm.commands import SlurmCommands
from slurmkit_accounting.ledger.schema.runs import node_events

FIELDS = ("NodeName", "Start", "End", "State", "TRES", "User", "Reason")
# Beginnings of slurmctld's words for a node that saves power, starts anew or is maintained.
_IN_ORDER = ("POW", "BOOT", "FUTR", "MAINT")


class NodeEvent(NamedTuple):
    """A time in which a node was out of use.

    Attributes:
        node: name of the node.
        start: epoch seconds.
        end: epoch seconds; None while it lasts.
        state: as Slurm writes it, e.g. `DRAIN` or `DOWN*`.
        reason: why, at most 255 bytes.
        user: who gave the reason.
        gpus: GPUs of the node; None if unknown. Without gres/gpu in AccountingStorageTRES it is 0.
    """

    node: str
    start: int
    end: int | None
    state: str
    reason: str
    user: str
    gpus: int | None


def read_node_events(slurm: SlurmCommands, cluster: str, since: int) -> list[NodeEvent] | None:
    """Read the events of a cluster's nodes that did not end before a time, oldest first.

    Args:
        slurm: runs sacctmgr.
        cluster: name of the cluster.
        since: epoch seconds.

    Returns:
        None if slurmdbd does not show them: PrivateData=events hides them from all but operators.
    """
    wanted = [f"Clusters={cluster}", "Event=Node", f"Start=uts{since}"]
    argv = ["sacctmgr", "-nP", "show", "event", *wanted, f"Format={','.join(FIELDS)}"]
    try:
        return parse_node_events(slurm.run(argv))
    except SlurmError:
        return None


def parse_node_events(text: str) -> list[NodeEvent]:
    """Parse lines of `FIELDS`; a line that is none, as after a line break in a reason, is left out.

    Times are epoch seconds (SLURM_TIME_FORMAT=%s); one without an end has `Unknown`.
    """
    events = []
    for line in text.splitlines():
        parts = line.split("|", len(FIELDS) - 1)
        if len(parts) == len(FIELDS) and parts[0] and parts[1].isdigit():
            node, start, end, state, tres, user, reason = parts
            if not state.startswith(_IN_ORDER):
                until = int(end) if end.isdigit() else None
                name = user.partition("(")[0]
                gpus = _gpus(tres)
                events.append(NodeEvent(node, int(start), until, state, reason, name, gpus))
    return sorted(events, key=lambda event: (event.start, event.node))


def _gpus(tres: str) -> int | None:
    with suppress(ValueError):
        return gpu_count(tres) if tres else None
    return None


def record_node_events(
    connection: Connection, cluster: int, events: Sequence[NodeEvent], now: int
) -> None:
    """Store what has changed; an event that was open and is shown no more ended at some time.

    Args:
        connection: to the ledger, in a transaction.
        cluster: its id in the ledger.
        events: all that lasted at `now`, and others.
        now: epoch seconds at which they were read.
    """
    of_cluster = node_events.c.cluster_id == cluster
    key = (node_events.c.node, node_events.c.start)
    begun = min((event.start for event in events), default=now)
    known = {
        (row.node, row.start): row
        for row in connection.execute(
            select(node_events).where(
                of_cluster, (node_events.c.end.is_(None)) | (node_events.c.start >= begun)
            )
        )
    }
    shown = set()
    for event in events:
        shown.add((event.node, event.start))
        row = known.get((event.node, event.start))
        if row is None:
            connection.execute(insert(node_events).values(cluster_id=cluster, **event._asdict()))
        elif tuple(getattr(row, name) for name in NodeEvent._fields) != event:
            mine = (of_cluster, key[0] == event.node, key[1] == event.start)
            connection.execute(update(node_events).where(*mine).values(**event._asdict()))
    for (node, start), row in known.items():
        if row.end is None and (node, start) not in shown:
            mine = (of_cluster, key[0] == node, key[1] == start)
            connection.execute(update(node_events).where(*mine).values(end=max(now, start)))
