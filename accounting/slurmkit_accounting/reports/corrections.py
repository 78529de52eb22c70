"""Which jobs caused the corrections of a closed month."""

from __future__ import annotations

from itertools import islice

from sqlalchemy import Connection, or_, select

from slurmkit_accounting.closing import Closing
from slurmkit_accounting.reports.counted import Counted
from slurmkit_accounting.reports.model import Closed
from slurmkit_accounting.reports.selected import Selection, overlapping
from slurmkit_accounting.schema import revisions, runs

_SHOWN = 10


def closed_months(connection: Connection, counted: Counted) -> tuple[Closed, ...]:
    """Every closed month of a report, with what was corrected since."""
    return tuple(_closed(connection, counted, closing) for closing in counted.closings)


def _closed(connection: Connection, counted: Counted, closing: Closing) -> Closed:
    said = sum(
        counted.gpu_hours(key, sums)
        for part, key, sums in counted.cells
        if key.cluster_id == closing.cluster_id
        and closing.span[0] <= counted.parts[part].begin < closing.span[1]
    )
    corrections = [one for one in counted.corrections if one.closing == closing]
    return Closed(
        cluster=closing.cluster,
        month=closing.month,
        at=closing.at,
        gpu_hours=float(said),
        corrected=float(sum(counted.gpu_hours(one.key, one.sums) for one in corrections)),
        jobs=_causes(connection, counted, closing) if corrections else (),
    )


def _causes(connection: Connection, counted: Counted, closing: Closing) -> tuple[str, ...]:
    """Runs of the month that are new, changed or retracted since; the first few."""
    revised = select(revisions.c.run_id).where(revisions.c.ingest_id > closing.ingest)
    since = or_(
        runs.c.first_ingest_id > closing.ingest,
        runs.c.id.in_(revised),
        runs.c.retracted >= closing.at,
    )
    chosen = Selection(connection, counted.question, counted.dimensions)
    ours = (runs.c.cluster_id == closing.cluster_id, since, *overlapping(closing.span))
    found = chosen.rows(("job_id",), *ours, retracted=True)
    jobs = list(islice((row.job_id for row, _ in found), _SHOWN + 1))
    return (*jobs[:_SHOWN], *(["and more"] if len(jobs) > _SHOWN else []))
