"""slurmkit: submit GPU jobs to Slurm, follow them, and account for every GPU-hour.

    >>> from slurmkit import Cluster, Gpus, JobSpec, plan
    >>> spec = JobSpec(command=("python", "train.py"), gpus=Gpus(2, "a100"), time="1:00:00")
    >>> made = plan(spec, Cluster())
    >>> print(made.submissions[0].script)            # exactly what will be sent
    >>> job = Cluster().submit(made)                 # sends that
    >>> job = Cluster().run(spec)                    # both in one

Public names are imported on first use, so `import slurmkit` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from slurmkit.version import __version__

if TYPE_CHECKING:
    from slurmkit.cluster.cluster import Cluster, PlanRefused
    from slurmkit.cluster.workflow_plan import plan_workflow
    from slurmkit.errors import SlurmkitError
    from slurmkit.executor.local import LocalExecutor
    from slurmkit.executor.slurm import Executor
    from slurmkit.jobs.job import Job
    from slurmkit.jobs.outcome import Outcome
    from slurmkit.jobs.waiting import as_completed, wait
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
    "PlanRefused",
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
    "as_completed",
    "checkpoint_wanted",
    "plan",
    "plan_workflow",
    "wait",
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
    "PlanRefused": "cluster.cluster",
    "Queue": "state.queue",
    "QueueFilter": "state.queue",
    "QueueRow": "state.queue_rows",
    "Resumable": "resumable",
    "SlurmkitError": "errors",
    "Submission": "spec.submission",
    "Survive": "spec.survival",
    "Sweep": "spec.sweep",
    "Workflow": "spec.workflow",
    "as_completed": "jobs.waiting",
    "checkpoint_wanted": "resumable",
    "plan": "planning.planner",
    "plan_workflow": "cluster.workflow_plan",
    "wait": "jobs.waiting",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'slurmkit' has no attribute {name!r}")
    value = getattr(import_module(f"slurmkit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
