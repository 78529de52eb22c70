"""What Enter opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmkit.gpumap.model import Gpu
from slurmkit.nodes.read import NodeRow
from slurmkit.queue.rows import QueueRow
from slurmkit_tui.commands import job_argument
from slurmkit_tui.dialogs import JobDetail, Panel, pairs
from slurmkit_tui.facts import facts, gpu_facts, node_facts
from slurmkit_tui.feed import Ask

if TYPE_CHECKING:
    from slurmkit_tui.app import SlurmkitApp
    from slurmkit_tui.view import View


def open_detail(app: SlurmkitApp, view: View) -> None:
    """Open the row under the cursor."""
    row = view.current
    if isinstance(row, QueueRow):
        ask = Ask("job", (job_argument(row.job_id),))
        app.push_screen(JobDetail(row.job_id, facts(row), ask))
        app.ask_for(ask)
    elif isinstance(row, Gpu):
        _open_gpu(app, row)
    elif isinstance(row, NodeRow):
        app.push_screen(Panel(f"Node {row.name}", pairs(node_facts(row))))


def _open_gpu(app: SlurmkitApp, gpu: Gpu) -> None:
    """The job of a GPU; where there are several or none, what is known of the GPU."""
    if gpu.job_id is None:
        where = gpu.node if gpu.index is None else f"{gpu.index} of {gpu.node}"
        app.push_screen(Panel(f"GPU {where}", pairs(gpu_facts(gpu))))
        return
    ask = Ask("job", (gpu.job_id,))
    app.push_screen(JobDetail(gpu.job_id, gpu_facts(gpu), ask))
    app.ask_for(ask)
