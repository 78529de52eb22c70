"""slurmkit: submit GPU jobs to Slurm, follow them, and account for every GPU-hour.

    >>> from slurmkit import Cluster, Gpus, JobSpec, plan
    >>> spec = JobSpec(command=("python", "train.py"), gpus=Gpus(2, "a100"), time="1:00:00")
    >>> made = plan(spec, Cluster())
    >>> print(made.submissions[0].script)            # exactly what would be sent
    >>> job = Cluster().submit(made)                 # sends that

Names are imported on first use, so `import slurmkit` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster
    from slurmkit.errors import SlurmkitError
    from slurmkit.executor.local import LocalExecutor
    from slurmkit.executor.slurm import Executor
    from slurmkit.jobs.job import Job
    from slurmkit.jobs.outcome import Outcome
    from slurmkit.planner import Plan, Submission, plan
    from slurmkit.queue.rows import QueueRow
    from slurmkit.queue.snapshot import Queue, QueueFilter
    from slurmkit.resumable import Resumable, checkpoint_wanted
    from slurmkit.spec import Gpus, JobSpec, Survive, Sweep
    from slurmkit.workflows.model import Workflow
    from slurmkit.workflows.plan import plan_workflow

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "Executor",
    "Gpus",
    "Job",
    "JobSpec",
    "LocalExecutor",
    "Outcome",
    "Plan",
    "Queue",
    "QueueFilter",
    "QueueRow",
    "Resumable",
    "SlurmkitError",
    "Submission",
    "Survive",
    "Sweep",
    "Workflow",
    "__version__",
    "checkpoint_wanted",
    "plan",
    "plan_workflow",
]

_HOMES = {
    "Cluster": "cluster",
    "Executor": "executor.slurm",
    "Gpus": "spec",
    "Job": "jobs.job",
    "JobSpec": "spec",
    "LocalExecutor": "executor.local",
    "Outcome": "jobs.outcome",
    "Plan": "planner",
    "Queue": "queue.snapshot",
    "QueueFilter": "queue.snapshot",
    "QueueRow": "queue.rows",
    "Resumable": "resumable",
    "SlurmkitError": "errors",
    "Submission": "planner",
    "Survive": "spec",
    "Sweep": "spec",
    "Workflow": "workflows.model",
    "checkpoint_wanted": "resumable",
    "plan": "planner",
    "plan_workflow": "workflows.plan",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'slurmkit' has no attribute {name!r}")
    value = getattr(import_module(f"slurmkit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
