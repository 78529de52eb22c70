"""Let slurmctld judge a submission without sending it."""

from __future__ import annotations

import re
import time

from slurmkit.capabilities.model import Standing
from slurmkit.errors import Refused
from slurmkit.findings import Finding
from slurmkit.planning.script import Submission
from slurmkit.slurm import Slurm
from slurmkit.spec import JobSpec

# Said on 24.11 also of jobs that sbatch takes and runs: a nodelist shorter than the number of
# nodes, a partition whose nodes are drained.
_DOUBTFUL = "Requested node configuration is not available"
_START = re.compile(r"to start at (\d+)")


def after_start(spec: JobSpec, standing: Standing) -> tuple[str, ...]:
    """Options of the trial of a job for a reservation that has not begun.

    sbatch takes it and lets it wait; with --test-only it says "Invalid time specified" (24.11).
    """
    starts = [each.start for each in standing.reservations if each.name == spec.reservation]
    if not starts or starts[0] <= standing.taken or spec.begin is not None:
        return ()
    return (f"--begin={time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(starts[0]))}",)


def trial(
    slurm: Slurm, submission: Submission, *options: str
) -> tuple[int | None, tuple[Finding, ...]]:
    """Run `sbatch --test-only`: an estimated start in epoch seconds, and its refusal.

    Its yes is worth little: it knows neither QOS nor association limits, and it answers "now" to
    jobs that then wait for ever. Each call uses up a job id.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    try:
        said = slurm.run(["sbatch", "--test-only", *options], stdin=submission.script, errors=True)
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
