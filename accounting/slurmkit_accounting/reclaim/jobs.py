"""Jobs in the queue as `slurmkit reclaim` sees them, and how a job is asked for its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurmkit.errors import NoSuchJob
from slurmkit.formats.durations import parse_elapsed
from slurmkit.formats.tres import gpu_count
from slurmkit.jobs.job import REHEARSALS
from slurmkit.jobs.lookup import read_batch_script
from slurmkit.planning.survival import parse_survival
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.records import read_records
from slurmkit.spec.survival import MOST_GRACE, MOST_RESTARTS
from slurmkit.state.queue_rows import FINAL_STATES, PENDING_STATES, parse_epoch
from slurmkit_accounting.reclaim.policy import ReclaimJob

_FIELDS = tuple(
    "JobID JobArrayID UserName UserID Account Partition QOS State StartTime EndTime SubmitTime"
    " TimeUsed TimeLimit tres-alloc BatchFlag RestartCnt HetJobID Reservation Name".split()
)
_STATE_FIELDS = ("JobID", "State", "RestartCnt", "StartTime", "Reason")
_NONE = frozenset(("", "0", "N/A", "(null)", "None"))
_COMES_BACK = ("requeue", "hold")


class JobState(NamedTuple):
    """What slurmctld says of a job now.

    Attributes:
        state: as squeue prints it; empty if slurmctld does not know the job any more.
        restarts: how often it was requeued.
        start: when its present run began, epoch seconds; None if none runs.
        reason: why it waits.
    """

    state: str
    restarts: int = 0
    start: int | None = None
    reason: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return not self.state or self.state in FINAL_STATES

    @property
    def waits(self) -> bool:
        """Whether it is in the queue."""
        return self.state in PENDING_STATES

    @property
    def is_held(self) -> bool:
        """Whether it waits to be released."""
        return self.waits and (self.reason.startswith("JobHeld") or self.state == "REQUEUE_HOLD")


class CheckpointRequest(NamedTuple):
    """How a job that survives is asked for its checkpoint.

    Attributes:
        signal: name of the signal for its batch shell; a second one changes nothing.
        grace: seconds that its work has from then on.
    """

    signal: str
    grace: int


def read_running_jobs(slurm: SlurmCommands, cluster: int, now: float) -> tuple[ReclaimJob, ...]:
    """Read the jobs that run and hold GPUs.

    Args:
        slurm: runs squeue.
        cluster: row id of the cluster.
        now: epoch seconds.

    Raises:
        SlurmError: when Slurm does not answer or its answer cannot be read.
    """
    argv = ["squeue", "--all", "--states=RUNNING"]
    rows = _read_rows(slurm, argv, _FIELDS)
    found = (_running_job(dict(zip(_FIELDS, row, strict=True)), cluster, now) for row in rows)
    return tuple(job for job in found if job is not None)


def read_job_state(slurm: SlurmCommands, job: ReclaimJob) -> JobState:
    """Read what became of a job.

    Raises:
        SlurmError: when Slurm does not answer or its answer cannot be read.
    """
    argv = ["squeue", "--all", "--states=all", f"--jobs={job.job_id}"]
    try:
        rows = _read_rows(slurm, argv, _STATE_FIELDS)
    except NoSuchJob:
        return JobState("")
    for raw_id, state, restarts, start, reason in rows:
        if raw_id == str(job.job_id_raw):
            return JobState(state, _number(restarts), parse_epoch(start), reason)
    return JobState("")


def read_checkpoint_request(slurm: SlurmCommands, job: ReclaimJob) -> CheckpointRequest | None:
    """Return how to ask a job for its checkpoint; None for a job that would not come back then.

    Raises:
        SlurmError: when Slurm does not show the job's script.
    """
    if not job.batch:
        return None
    settings = parse_survival(read_batch_script(slurm, job.job_id))
    for ending, signal in REHEARSALS.items():
        action = settings.get(f"on_{ending}", "")
        if action not in _COMES_BACK:
            continue
        grace = _within(settings.get("grace", ""), MOST_GRACE)
        most = _within(settings.get("restarts", ""), MOST_RESTARTS)
        # One that was requeued too often fails instead.
        may_come_back = action == "hold" or (most is not None and job.restarts < most)
        if grace is not None and may_come_back:
            return CheckpointRequest(signal.removeprefix("B:"), grace)
    return None


def _within(text: str, most: int) -> int | None:
    """Parse a number of a user's script; None for one that slurmkit cannot have written."""
    digits = text if text.isascii() and text.isdecimal() else ""
    if not digits or len(digits) > len(str(most)):
        return None
    return int(digits) if 1 <= int(digits) <= most else None


def _running_job(fields: dict[str, str], cluster: int, now: float) -> ReclaimJob | None:
    start = parse_epoch(fields["StartTime"])
    tres = fields["tres-alloc"]
    if start is None or "gres/" not in tres or not fields["JobID"].isdecimal():
        return None
    limit = None if fields["TimeLimit"] == "UNLIMITED" else parse_epoch(fields["EndTime"])
    used = parse_elapsed(fields["TimeUsed"])
    return ReclaimJob(
        cluster_id=cluster,
        job_id_raw=int(fields["JobID"]),
        job_id=fields["JobArrayID"],
        user=fields["UserName"],
        uid=int(fields["UserID"]) if fields["UserID"].isdecimal() else None,
        account=fields["Account"],
        partition=fields["Partition"],
        qos=fields["QOS"],
        reservation="" if fields["Reservation"] in _NONE else fields["Reservation"],
        name=fields["Name"],
        batch=fields["BatchFlag"] == "1",
        het=fields["HetJobID"] not in _NONE or "+" in fields["JobArrayID"],
        suspended=0 if used is None else max(int(now - start - used), 0),
        submit=parse_epoch(fields["SubmitTime"]) or start,
        start=start,
        limit_end=limit,
        gpus=gpu_count(tres),
        alloc_tres=tres,
        restarts=_number(fields["RestartCnt"]),
    )


def _number(text: str) -> int:
    """Parse a count; 0 for what squeue prints in place of one."""
    return int(text) if text.isdecimal() else 0


def _read_rows(slurm: SlurmCommands, argv: Sequence[str], fields: Sequence[str]) -> list[list[str]]:
    """Run squeue and return the fields of its rows, without blanks around them."""
    return [[each.strip() for each in row] for row in read_records(slurm, argv, fields)]
