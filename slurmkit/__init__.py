"""slurmkit: submit GPU jobs to Slurm, follow them, and account for every GPU-hour.

    >>> from slurmkit import Cluster, Gpus, JobSpec, plan
    >>> spec = JobSpec(command=("python", "train.py"), gpus=Gpus(2, "a100"), time="1:00:00")
    >>> made = plan(spec, Cluster())
    >>> print(made.submissions[0].script)            # exactly what will be sent
    >>> job = Cluster().submit(made)                 # sends that

Public names are imported on first use, so `import slurmkit` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from slurmkit.version import __version__

if TYPE_CHECKING:
    from slurmkit.cluster.cluster import Cluster
    from slurmkit.cluster.workflow_plan import plan_workflow
    from slurmkit.errors import SlurmkitError
    from slurmkit.executor.local import LocalExecutor
    from slurmkit.executor.slurm import Executor
    from slurmkit.jobs.job import Job
    from slurmkit.jobs.outcome import Outcome
    from slurmkit.planning.planner import Plan, plan
    from slurmkit.resumable import Resumable, checkpoint_wanted
    from slurmkit.spec.gpus import Gpus
    from slurmkit.spec.jobspec import JobSpec
    from slurmkit.spec.submission import Submission
    from slurmkit.spec.survival import Survive
    from slurmkit.spec.sweep import Sweep
    from slurmkit.spec.workflow import Workflow
    from slurmkit.state.queue import Queue, QueueFilter
    from slurmkit.state.queue_rows import QueueRow

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
    "Cluster": "cluster.cluster",
    "Executor": "executor.slurm",
    "Gpus": "spec.gpus",
    "Job": "jobs.job",
    "JobSpec": "spec.jobspec",
    "LocalExecutor": "executor.local",
    "Outcome": "jobs.outcome",
    "Plan": "planning.planner",
    "Queue": "state.queue",
    "QueueFilter": "state.queue",
    "QueueRow": "state.queue_rows",
    "Resumable": "resumable",
    "SlurmkitError": "errors",
    "Submission": "spec.submission",
    "Survive": "spec.survival",
    "Sweep": "spec.sweep",
    "Workflow": "spec.workflow",
    "checkpoint_wanted": "resumable",
    "plan": "planning.planner",
    "plan_workflow": "cluster.workflow_plan",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'slurmkit' has no attribute {name!r}")
    value = getattr(import_module(f"slurmkit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
