"""GPUs that do nothing now, of the running jobs that the reader may see, from the ledger."""

from __future__ import annotations

from typing import NamedTuple

from flask import Blueprint, g, render_template
from sqlalchemy import select, text

from slurmkit.state.gpu_metrics import IDLE_BELOW, LEAST_MEASURED
from slurmkit.state.gpu_use import GpuUseNow
from slurmkit_accounting.ledger.bulk_write import in_values
from slurmkit_accounting.ledger.schema.runs import OPEN, runs
from slurmkit_accounting.portal.context import lines_about, reader
from slurmkit_accounting.portal.run_pages import note_rows

pages = Blueprint("idle", __name__)
_SECONDS = 1800  # as in `report idle`, if nothing else is asked
_MOST_ROWS = 500


class IdleGpuRow(NamedTuple):
    """A GPU of a running job, and whether it did nothing; None is unknown."""

    gpu: GpuUseNow
    idle: bool | None

    @property
    def is_new(self) -> bool:
        """Whether it did nothing, and its job has not held it for that long."""
        return self.idle is False and (self.gpu.busiest or 0.0) < IDLE_BELOW


@pages.get("/idle")
def page() -> str:
    """Show the GPUs of running jobs, those that do nothing first."""
    found: tuple[GpuUseNow, ...] = reader().ask(g.ledger, "gpu_use_now", seconds=_SECONDS)
    gpus = sorted((IdleGpuRow(one, _is_idle(one)) for one in found), key=_idle_first)
    shown = gpus[:_MOST_ROWS]
    _note_owners([one.gpu for one in shown])
    return render_template(
        "idle.html",
        title="GPUs that do nothing now",
        gpus=shown,
        hidden=len(gpus) - len(shown),
        numbers=_numbers(gpus),
        percent=IDLE_BELOW,
        minutes=_SECONDS // 60,
        about=lines_about(
            f"window: the last {_SECONDS // 60} minutes",
            "source of the use: the samples that the ledger collects; GPUs without a sample are"
            " not shown",
        ),
    )


def _is_idle(gpu: GpuUseNow) -> bool | None:
    """Return whether a GPU stayed below the bound; None if it was not measured all the time.

    One that its job has not held for that long is not idle, as in `report idle`.
    """
    if gpu.busiest is None:
        return None
    is_new = gpu.start is not None and gpu.last + gpu.age - gpu.start < _SECONDS
    if gpu.busiest >= IDLE_BELOW or is_new:
        return False
    measured = None if gpu.since is None else gpu.last - gpu.since
    least = _SECONDS * LEAST_MEASURED
    return True if measured is not None and measured + gpu.age >= least else None


def _numbers(gpus: list[IdleGpuRow]) -> list[tuple[str, int]]:
    """Return how many GPUs do nothing, how many work, and of how many that is not known."""
    new = sum(one.is_new for one in gpus)
    return [
        ("idle", sum(one.idle is True for one in gpus)),
        ("at work", sum(one.idle is False for one in gpus) - new),
        (f"held for less than {_SECONDS // 60} minutes", new),
        ("not measured long enough", sum(one.idle is None for one in gpus)),
    ]


def _idle_first(one: IdleGpuRow) -> tuple[object, ...]:
    return one.idle is not True, one.idle is False, one.gpu.user, one.gpu.node, one.gpu.index or 0


def _note_owners(gpus: list[GpuUseNow]) -> None:
    """Write down that the reader saw these jobs."""
    jobs = {one.job_id_raw for one in gpus}
    with g.ledger.transaction() as connection:
        shown = in_values(connection, runs.c.job_id_raw, jobs)
        rows = connection.scalars(select(runs.c.id).where(text(OPEN), shown)).all() if jobs else []
    note_rows(rows, "runs")
