"""What a cluster's books cover: spans of time that were read in full, and the gaps between."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from sqlalchemy import Connection, delete, insert, select

from slurmkit_accounting.schema import spans

Span = tuple[int, int]


def covered(connection: Connection, cluster: int) -> list[Span]:
    """Epoch seconds [begin, finish) of each, earliest first; what lies between two is a gap."""
    query = select(spans.c.begin, spans.c.finish).where(spans.c.cluster_id == cluster)
    return [(row[0], row[1]) for row in connection.execute(query.order_by(spans.c.begin))]


def gaps(connection: Connection, cluster: int) -> list[Span]:
    """What lies between the spans."""
    return [(one[1], other[0]) for one, other in pairwise(covered(connection, cluster))]


def within(settled: Iterable[Span], time: int | None) -> bool:
    """Whether a time lies in any of some spans."""
    return time is not None and any(begin <= time < finish for begin, finish in settled)


def cover(connection: Connection, cluster: int, span: Span) -> None:
    """Add a span, joined with those that it touches."""
    stored = covered(connection, cluster)
    touching = [one for one in stored if one[0] <= span[1] and span[0] <= one[1]]
    if touching == [span]:
        return
    begin = min(span[0], *(one[0] for one in touching), span[0])
    finish = max(span[1], *(one[1] for one in touching), span[1])
    begins = [one[0] for one in touching]
    ours = spans.c.cluster_id == cluster
    connection.execute(delete(spans).where(ours, spans.c.begin.in_(begins)))
    connection.execute(insert(spans).values(cluster_id=cluster, begin=begin, finish=finish))
