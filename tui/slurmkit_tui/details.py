"""What Enter opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurmkit.arrays import Joined
from slurmkit.doctor.model import Diagnosis
from slurmkit.facts import Fact, clock
from slurmkit.gpumap.model import Gpu
from slurmkit.nodes.read import NodeRow
from slurmkit.queue.rows import QueueRow
from slurmkit_tui.commands import job_argument
from slurmkit_tui.dialogs import Panel, pairs
from slurmkit_tui.facts import diagnosis_facts, ended_facts, facts, gpu_facts, node_facts, waiters
from slurmkit_tui.feed import Ask
from slurmkit_tui.jobscreen import JobScreen
from slurmkit_tui.myjobs import MyJob

if TYPE_CHECKING:
    from slurmkit_tui.app import SlurmkitApp
    from slurmkit_tui.view import View


def open_detail(app: SlurmkitApp, view: View, tab: str = "facts") -> None:
    """Open the row under the cursor; of a job one of its tabs."""
    row = view.current
    if isinstance(row, QueueRow):
        row = row.rows[0] if isinstance(row, Joined) else row
        _open_job(app, job_argument(row.job_id), facts(row), tab)
    elif isinstance(row, MyJob):
        job_id = job_argument(row.rows[0].job_id) if row.rows else row.whole
        _open_job(app, job_id, facts(row.rows[0]) if row.rows else ended_facts(row), tab)
    elif isinstance(row, Gpu):
        _open_gpu(app, row, tab)
    elif isinstance(row, Diagnosis):
        app.push_screen(Panel(row.check, pairs(diagnosis_facts(row))))
    elif isinstance(row, NodeRow):
        app.push_screen(Panel(f"Node {row.name}", pairs(node_facts(row))))


def _open_gpu(app: SlurmkitApp, gpu: Gpu, tab: str) -> None:
    """The job of a GPU; where there are several or none, what is known of the GPU."""
    if gpu.job_id is None:
        where = gpu.node if gpu.index is None else f"{gpu.index} of {gpu.node}"
        app.push_screen(Panel(f"GPU {where}", pairs(gpu_facts(gpu))))
        return
    _open_job(app, gpu.job_id, gpu_facts(gpu), tab)


def _open_job(app: SlurmkitApp, job_id: str, known: Sequence[Fact], tab: str) -> None:
    app.push_screen(JobScreen(job_id, [*known, *_waiters(app, job_id)], tab))


def _waiters(app: SlurmkitApp, job_id: str) -> list[Fact]:
    """As the last picture of the queue has it, or else that of one's own jobs."""
    for name in ("queue", "mine"):
        picture = app.session.pictures.get(Ask(name))
        if picture is not None and picture.answer is not None:
            source = f"{picture.answer.source} at {clock(picture.answer.taken)}"
            found = waiters(job_id, picture.answer.value.rows)
            return [(title, f"{value} ({source})") for title, value in found]
    return []
