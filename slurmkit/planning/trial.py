"""Let slurmctld judge a submission without sending it."""

from __future__ import annotations

import re

from slurmkit.errors import Refused
from slurmkit.findings import Finding
from slurmkit.planning.script import Submission
from slurmkit.slurm import Slurm

# Said on 24.11 also of jobs that sbatch takes and runs: a nodelist shorter than the number of
# nodes, a partition whose nodes are drained.
_DOUBTFUL = "Requested node configuration is not available"
_START = re.compile(r"to start at (\d+)")


def trial(slurm: Slurm, submission: Submission) -> tuple[int | None, tuple[Finding, ...]]:
    """Run `sbatch --test-only`: an estimated start in epoch seconds, and its refusal.

    Its yes is worth little: it knows neither QOS nor association limits, and it answers "now" to
    jobs that then wait for ever. Each call uses up a job id.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    try:
        said = slurm.run(["sbatch", "--test-only"], stdin=submission.script, errors=True)
    except Refused as refusal:
        finding = Finding(
            severity="warning" if _DOUBTFUL in str(refusal) else "error",
            code="slurm-refuses",
            message=f"slurmctld refuses it: {refusal}",
            source="sbatch --test-only",
        )
        return None, (finding,)
    return parse_start(said), ()


def parse_start(said: str) -> int | None:
    """The start in what sbatch said with SLURM_TIME_FORMAT=%s, None when it named none."""
    match = _START.search(said)
    return int(match[1]) if match else None
