"""Endings that are rehearsed on a running job, by signals that its batch shell knows."""

from __future__ import annotations

from slurmkit.errors import BadInput
from slurmkit.slurm import Slurm
from slurmkit.survive.lines import SURVIVES

REHEARSALS = {"timeout": "B:USR1", "preempt": "B:USR2"}
"""Endings, and what `scancel` sends the batch shell for each."""


def check_rehearsal(slurm: Slurm, job_id: str, ending: str) -> None:
    """Refuse a job whose batch shell does not know the signal, which would end it.

    Raises:
        BadInput: saying why.
        SlurmError: when Slurm does not show the job's script.
    """
    if ending not in REHEARSALS:
        raise BadInput(f"{ending!r} cannot be rehearsed; one of {', '.join(REHEARSALS)}")
    script = slurm.run(["scontrol", "write", "batch_script", job_id, "-"])
    if SURVIVES not in script:
        raise BadInput(
            f"job {job_id} has no policy for its ends, and would be killed; submit it with"
            f" --on-{ending} requeue"
        )
