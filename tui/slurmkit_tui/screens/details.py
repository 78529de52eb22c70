"""Details of a row: its facts, and the screen or the dialog that Enter opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from slurmkit_tui.session import ClusterSession


class RowDetails(NamedTuple):
    """What is known of a row without another question.

    Attributes:
        title: what the row is about: `Job 12`.
        facts: its facts.
        job_id: the job whose screen Enter opens; empty for a row that is no job.
        job: the job, if the row is one.
        begun: when its run began, if it is this person's job and has a log; else None.
    """

    title: str
    facts: Sequence[Fact]
    job_id: str = ""
    job: QueueRow | JobInfo | None = None
    begun: float | None = None


def row_details(row: Any, session: ClusterSession) -> RowDetails | None:
    """Return the details of a row of a view; None for a row that has none."""
    if isinstance(row, MyJobRow) and not row.rows:
        return _job_details(row.last_run, ended_facts(row), session) if row.last_run else None
    if isinstance(row, MyJobRow | MergedArrayRow):
        row = row.rows[0]
    if isinstance(row, QueueRow):
        return _job_details(row, queue_row_facts(row), session)
    if isinstance(row, Gpu):
        return _gpu_details(row, session)
    if isinstance(row, Diagnosis):
        return RowDetails(row.check, diagnosis_facts(row))
    return RowDetails(f"Node {row.name}", node_facts(row)) if isinstance(row, NodeRow) else None


def _job_details(
    job: QueueRow | JobInfo, facts: Sequence[Fact], session: ClusterSession
) -> RowDetails:
    job_id = query_id(job.job_id)
    waits = job.waits if isinstance(job, QueueRow) else job.started is None
    return RowDetails(
        f"Job {job_id}",
        [*facts, *_waiters(session, job_id)],
        job_id,
        job,
        None if waits or job.user != session.feed.me else job.started,
    )


def _gpu_details(gpu: Gpu, session: ClusterSession) -> RowDetails:
    title = f"GPU {gpu.node if gpu.index is None else f'{gpu.index} of {gpu.node}'}"
    if gpu.job_id is None:
        return RowDetails(title, gpu_facts(gpu))
    facts = [*gpu_facts(gpu), *_waiters(session, gpu.job_id)]
    begun = gpu.since if gpu.user == session.feed.me else None
    return RowDetails(f"{title}: job {gpu.job_id} of {gpu.user}", facts, gpu.job_id, begun=begun)


def open_detail(app: AppHost, tab: str = "facts") -> None:
    """Open the details of the row under the cursor; for a job, the screen with tab `tab`.

    A GPU opens the screen of its job; if it has several jobs or none, a dialog with its facts.
    """
    details = row_details(app.view.current, app.session)
    if details is None:
        return
    if details.job_id:
        app.push_screen(JobScreen(details.job_id, details.facts, tab, details.job))
    else:
        app.push_screen(TextDialog(details.title, two_columns(details.facts)))


def _waiters(session: ClusterSession, job_id: str) -> list[Fact]:
    """Return the jobs that wait for a job, from the last answer about the queue or my jobs."""
    for ask in (FeedQuestion("queue"), FeedQuestion("mine"), FeedQuestion("mine", ("queue",))):
        last_answer = session.last_answers.get(ask)
        if last_answer is not None and last_answer.answer is not None:
            source = f"{last_answer.answer.source} at {format_time(last_answer.answer.taken)}"
            waiting = waiter_facts(job_id, last_answer.answer.value.rows)
            return [(title, f"{value} ({source})") for title, value in waiting]
    return []
