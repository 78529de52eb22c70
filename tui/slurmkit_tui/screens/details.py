"""Opening the details of a row: a job's screen, or a dialog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurmkit.doctor.case import Diagnosis
from slurmkit.formats.display import format_time
from slurmkit.jobs.describe import Fact
from slurmkit.jobs.info import JobInfo
from slurmkit.state.arrays import MergedArrayRow
from slurmkit.state.gpumap_model import Gpu
from slurmkit.state.nodes import NodeRow
from slurmkit.state.queue_rows import QueueRow
from slurmkit_tui.actions.commands import query_id
from slurmkit_tui.feed import FeedQuestion
from slurmkit_tui.jobform.my_jobs import MyJobRow
from slurmkit_tui.screens.facts import (
    diagnosis_facts,
    ended_facts,
    gpu_facts,
    node_facts,
    queue_row_facts,
    waiter_facts,
)
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.widgets.dialogs import TextDialog
from slurmkit_tui.widgets.wrapped_text import two_columns

if TYPE_CHECKING:
    from slurmkit_tui.host import AppHost
    from slurmkit_tui.views.base import View


def open_detail(app: AppHost, view: View, tab: str = "facts") -> None:
    """Open the details of the row under the cursor; for a job, the screen with tab `tab`."""
    row = view.current
    if isinstance(row, QueueRow):
        row = row.rows[0] if isinstance(row, MergedArrayRow) else row
        app.push_screen(_job_screen(app, row, queue_row_facts(row), tab))
    elif isinstance(row, MyJobRow) and row.rows:
        app.push_screen(_job_screen(app, row.rows[0], queue_row_facts(row.rows[0]), tab))
    elif isinstance(row, MyJobRow) and row.last_run:
        app.push_screen(_job_screen(app, row.last_run, ended_facts(row), tab))
    elif isinstance(row, Gpu):
        _open_gpu(app, row, tab)
    elif isinstance(row, Diagnosis):
        app.push_screen(TextDialog(row.check, two_columns(diagnosis_facts(row))))
    elif isinstance(row, NodeRow):
        app.push_screen(TextDialog(f"Node {row.name}", two_columns(node_facts(row))))


def _open_gpu(app: AppHost, gpu: Gpu, tab: str) -> None:
    """Open the job of a GPU; if it has several jobs or none, a dialog with the GPU's facts."""
    if gpu.job_id is None:
        where = gpu.node if gpu.index is None else f"{gpu.index} of {gpu.node}"
        app.push_screen(TextDialog(f"GPU {where}", two_columns(gpu_facts(gpu))))
        return
    known = [*gpu_facts(gpu), *_waiters(app, gpu.job_id)]
    app.push_screen(JobScreen(gpu.job_id, known, tab))


def _job_screen(
    app: AppHost, row: QueueRow | JobInfo, known: Sequence[Fact], tab: str
) -> JobScreen:
    job_id = query_id(row.job_id)
    return JobScreen(job_id, [*known, *_waiters(app, job_id)], tab, row)


def _waiters(app: AppHost, job_id: str) -> list[Fact]:
    """Return the jobs that wait for a job, from the last answer about the queue or my jobs."""
    for name in ("queue", "mine"):
        last_answer = app.session.last_answers.get(FeedQuestion(name))
        if last_answer is not None and last_answer.answer is not None:
            source = f"{last_answer.answer.source} at {format_time(last_answer.answer.taken)}"
            waiting = waiter_facts(job_id, last_answer.answer.value.rows)
            return [(title, f"{value} ({source})") for title, value in waiting]
    return []
