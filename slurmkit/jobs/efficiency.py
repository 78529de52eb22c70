"""What a person's jobs use of what they hold: CPUs so far, and memory at its peak."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from slurmkit.jobs.mine import DAYS
from slurmkit.jobs.sacct import since_argument
from slurmkit.jobs.steps import StepUse, read_selected, share
from slurmkit.slurm import Slurm


class Efficiency(msgspec.Struct, frozen=True):
    """What a job used and had; None is unknown.

    Attributes:
        cpu_used: seconds of CPU.
        cpu_had: CPUs times seconds.
        mem_used: bytes at the peak of the step that took the most.
        mem_had: bytes.
    """

    cpu_used: float | None
    cpu_had: float | None
    mem_used: float | None
    mem_had: float | None

    @property
    def mem(self) -> float | None:
        """Memory at its peak, of what the job has."""
        return share(self.mem_used, self.mem_had)


class Uses(msgspec.Struct, frozen=True):
    """A person's jobs at one time.

    Attributes:
        of: by Slurm's own number of each job or array task.
        missing: what is not known, and why; empty when nothing is missing.
        source: who was asked.
        taken: epoch seconds at which Slurm was asked.
        seconds: how long the answers took.
    """

    of: dict[str, Efficiency]
    missing: str
    source: str
    taken: float
    seconds: float


def read_uses(slurm: Slurm, user: str, days: int = DAYS) -> Uses:
    """Ask sacct for the steps of the last days, and sstat for those that run.

    Raises:
        DatabaseDown: when slurmdbd does not answer: nobody else knows steps that ended.
    """
    since = since_argument(int(time.time()) - days * 86400)
    found = read_selected(slurm, [f"--user={user}", since])
    of = efficiencies(found.rows)
    return Uses(of, found.missing, found.source, found.taken, found.seconds)


def efficiencies(rows: Iterable[StepUse]) -> dict[str, Efficiency]:
    """Of each job, from its allocation and its steps."""
    steps: dict[str, list[StepUse]] = {}
    jobs: dict[str, StepUse] = {}
    for row in rows:
        if row.is_allocation:
            jobs[row.raw_id] = row
        elif _counts(row):
            steps.setdefault(row.raw_id.partition(".")[0], []).append(row)
    return {raw_id: _of(job, steps.get(raw_id, ())) for raw_id, job in jobs.items()}


def together(several: Sequence[Efficiency | None]) -> tuple[float | None, float | None]:
    """Shares of CPUs and memory of the tasks of an array: of all its CPUs; of its worst task."""
    known = [each for each in several if each is not None]
    whole = len(known) == len(several)
    used, had = total(e.cpu_used for e in known), total(e.cpu_had for e in known)
    peaks = [each.mem for each in known]
    sure = [peak for peak in peaks if peak is not None]
    return (
        share(used, had) if whole else None,
        max(sure, default=None) if whole and len(sure) == len(peaks) else None,
    )


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None when there is nothing, or one of them is unknown."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if known and len(known) == len(found) else None


def _counts(step: StepUse) -> bool:
    """Nobody measures a step of no length, and of the one that only holds the node few do."""
    measured = step.use.cpu_seconds is not None
    return measured or not (step.elapsed == 0 or step.step_id.endswith(".extern"))


def _of(job: StepUse, steps: Sequence[StepUse]) -> Efficiency:
    peaks = [step.use.mem_peak for step in steps if step.use.mem_peak is not None]
    unsure = any(step.runs and step.use.mem_peak is None for step in steps)
    return Efficiency(
        cpu_used=total(step.use.cpu_seconds for step in steps),
        cpu_had=None if job.cpus is None or job.elapsed is None else float(job.cpus * job.elapsed),
        mem_used=None if unsure else max(peaks, default=None),
        mem_had=job.mem_asked,
    )
