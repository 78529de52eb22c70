"""When nodes were out of use and why, from slurmdbd: it keeps an event for each such time.

slurmctld writes an event when a node goes down, or is drained and its last job has ended
(`_drain_node` in node_mgr.c). A new reason ends the event and begins the next one. Nothing has to
run on the nodes for that, and the reasons of node_check.py name the GPU by its serial number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, insert, select, update

from slurmkit.errors import SlurmError
from slurmkit.formats.tres import gpu_count
from slurmkit.slurm.commands import SlurmCommands
from slurmkit_accounting.ledger.coverage import load_spans
from slurmkit_accounting.ledger.schema.notices import node_events_task, task_runs
from slurmkit_accounting.ledger.schema.runs import node_events

FIELDS = ("NodeName", "Start", "End", "State", "TRES", "User", "Reason")
# Beginnings of slurmctld's words for a node that is out of use. It has events of others, too: of
# those that save power (`IDLE~`), reboot (`BOOT^`) or are maintained (`MAINT`).
_OUT_OF_USE = ("DOWN", "DRAIN", "DRNG", "FAIL", "INVAL")
_MOST = 2**63 - 1  # no database takes a larger number
_NODES = ("scontrol", "--all", "--oneliner", "show", "node")


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


class NodeEventsAnswer(NamedTuple):
    """What Slurm says of a cluster's nodes.

    Attributes:
        events: oldest first; None if slurmdbd does not show them.
        nodes: names of the nodes that slurmctld knows; None if it does not say, or nobody asked.
        error: why there are no events.
    """

    events: list[NodeEvent] | None
    nodes: frozenset[str] | None = None
    error: str = ""


def read_node_events(slurm: SlurmCommands, cluster: str, since: int) -> NodeEventsAnswer:
    """Read the events of a cluster's nodes that did not end before a time, oldest first.

    PrivateData=events hides them from all but operators.

    Args:
        slurm: runs sacctmgr, and scontrol if an event lasts.
        cluster: name of the cluster.
        since: epoch seconds.
    """
    wanted = [f"Clusters={cluster}", "Event=Node", f"Start=uts{since}"]
    argv = ["sacctmgr", "-nP", "show", "event", *wanted, f"Format={','.join(FIELDS)}"]
    try:
        events = parse_node_events(slurm.run(argv))
    except SlurmError as error:
        return NodeEventsAnswer(None, error=str(error))
    lasting = any(event.end is None for event in events)
    return NodeEventsAnswer(events, _read_node_names(slurm) if lasting else None)


def _read_node_names(slurm: SlurmCommands) -> frozenset[str] | None:
    """Read the names of all nodes; None if slurmctld does not show all of them."""
    try:
        lines = slurm.run(_NODES).splitlines()
    except SlurmError:  # as with PrivateData=nodes, for all but operators
        return None
    found = [re.match(r"NodeName=(\S+)", line) for line in lines if line.strip()]
    names = frozenset(match[1] for match in found if match is not None)
    return names if names and None not in found else None


def parse_node_events(text: str) -> list[NodeEvent]:
    """Parse lines of `FIELDS`; a line that is none, as after a line break in a reason, is left out.

    Times are epoch seconds (SLURM_TIME_FORMAT=%s); one without an end has `Unknown`.
    """
    events = {}
    for line in text.split("\n"):
        parts = line.split("|", len(FIELDS) - 1)
        if len(parts) == len(FIELDS) and parts[0] and parts[3].startswith(_OUT_OF_USE):
            node, start, end, state, tres, user, reason = parts
            begin, until = _seconds(start), _seconds(end)
            if begin is not None and (until is not None or not end.isdecimal()):
                name = user.partition("(")[0]
                event = NodeEvent(node, begin, until, state, reason, name, _gpus(tres))
                events[node, begin] = event
    return sorted(events.values(), key=lambda event: (event.start, event.node))


def _seconds(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 19 else None


def _gpus(tres: str) -> int | None:
    with suppress(ValueError):
        count = gpu_count(tres)
        return count if tres and 0 <= count <= _MOST else None
    return None


def begin_of_events(connection: Connection, cluster: int, name: str, begin: int) -> int:
    """Return the time from which to read events: from where they were read last.

    Without any, that is all of the ledger's time.

    Args:
        connection: to the ledger.
        cluster: its id in the ledger.
        name: its name.
        begin: epoch seconds at which the window of the ingest begins.
    """
    read_until = connection.scalar(select(task_runs.c.due).where(_of_reading(name)))
    if read_until is not None:
        return min(begin, int(read_until))
    mine = node_events.c.cluster_id == cluster
    if connection.scalar(select(node_events.c.id).where(mine).limit(1)) is not None:
        return begin
    return min([begin, *(span.begin for span in load_spans(connection, cluster))])


def _of_reading(cluster: str) -> ColumnElement[bool]:
    return task_runs.c.task == node_events_task(cluster)


def record_reading(
    connection: Connection, cluster: str, begin: int, now: int, error: str = ""
) -> None:
    """Record until when events were read; what could not be read now is read later.

    Args:
        connection: to the ledger, in a transaction.
        cluster: its name.
        begin: epoch seconds from which they were to be read.
        now: epoch seconds at which they were read.
        error: why they could not be read; empty if they were.
    """
    values = {"due": begin if error else now, "started": now, "ended": now, "error": error or None}
    if not error:
        values["well"] = now
    of_this = _of_reading(cluster)
    if connection.execute(update(task_runs).where(of_this).values(**values)).rowcount == 0:
        connection.execute(insert(task_runs).values(task=node_events_task(cluster), **values))


def record_node_events(
    connection: Connection,
    cluster: int,
    events: Sequence[NodeEvent],
    now: int,
    nodes: Collection[str] | None = None,
) -> None:
    """Store what has changed; an event that was open and is shown no more ended at some time.

    slurmdbd never ends the event of a node that was taken out of slurm.conf, so it ends here.

    Args:
        connection: to the ledger, in a transaction.
        cluster: its id in the ledger.
        events: all that lasted at `now`, and others.
        now: epoch seconds at which they were read.
        nodes: the nodes that slurmctld knows; None if it did not say.
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
    for each in events:
        shown.add((each.node, each.start))
        row = known.get((each.node, each.start))
        event = _ended(each, None if row is None else row.end, now, nodes)
        if row is None:
            connection.execute(insert(node_events).values(cluster_id=cluster, **event._asdict()))
        elif tuple(getattr(row, name) for name in NodeEvent._fields) != event:
            mine = (of_cluster, key[0] == event.node, key[1] == event.start)
            connection.execute(update(node_events).where(*mine).values(**event._asdict()))
    for (node, start), row in known.items():
        if row.end is None and (node, start) not in shown:
            mine = (of_cluster, key[0] == node, key[1] == start)
            connection.execute(update(node_events).where(*mine).values(end=max(now, start)))


def _ended(
    event: NodeEvent, known_end: int | None, now: int, nodes: Collection[str] | None
) -> NodeEvent:
    """Return an event with its end: when its node was gone, if that was earlier.

    An event of a node that is there again and still out of use goes on.
    """
    if event.end is None:
        if nodes is None or event.node in nodes:
            # While slurmctld does not say which nodes it knows, what has ended stays so.
            return event if nodes is not None else event._replace(end=known_end)
        return event._replace(end=max(now, event.start) if known_end is None else known_end)
    return event if known_end is None else event._replace(end=min(event.end, known_end))
