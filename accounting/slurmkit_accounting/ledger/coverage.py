"""The spans of time that were read in full for a cluster, and the gaps between them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select

from slurmkit_accounting.ledger.database import once
from slurmkit_accounting.ledger.schema.runs import spans


class CoveredSpan(NamedTuple):
    """A span of time [begin, finish), in epoch seconds."""

    begin: int
    finish: int


def load_spans(connection: Connection, cluster: int) -> list[CoveredSpan]:
    """Load the spans that were read in full, earliest first."""
    query = select(spans.c.begin, spans.c.finish).where(spans.c.cluster_id == cluster)
    ordered = query.order_by(spans.c.begin)
    stored = once(
        connection,
        ("spans", cluster),
        lambda: [CoveredSpan(*row) for row in connection.execute(ordered)],
    )
    return list(stored)


def load_gaps(connection: Connection, cluster: int) -> list[CoveredSpan]:
    """Return the gaps between the spans."""
    stored = load_spans(connection, cluster)
    return [CoveredSpan(one.finish, following.begin) for one, following in pairwise(stored)]


def is_covered(settled: Iterable[CoveredSpan], time: int | None) -> bool:
    """Return whether a time lies in any of the spans."""
    return time is not None and any(begin <= time < finish for begin, finish in settled)


def add_span(connection: Connection, cluster: int, span: CoveredSpan) -> None:
    """Add a span; merge it with those that it touches."""
    stored = load_spans(connection, cluster)
    touching = [one for one in stored if one.begin <= span.finish and span.begin <= one.finish]
    if touching == [span]:
        return
    begin = min(one.begin for one in (span, *touching))
    finish = max(one.finish for one in (span, *touching))
    begins = [one.begin for one in touching]
    ours = spans.c.cluster_id == cluster
    connection.execute(delete(spans).where(ours, spans.c.begin.in_(begins)))
    connection.execute(insert(spans).values(cluster_id=cluster, begin=begin, finish=finish))
