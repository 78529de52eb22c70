"""Where the output of a job is: its standard output and error, and the files of its ranks."""

from __future__ import annotations

import msgspec

from slurmkit.errors import BadInput, LogUnavailable, NoSuchJob
from slurmkit.jobs.info import JobInfo, path_of
from slurmkit.jobs.sacct import kept_path, work_dir
from slurmkit.queue.rows import record_mark
from slurmkit.slurm import Slurm

RANK_MARK = ".rank"
"""Between the path of a job's output and the number of a rank: that rank's own (--log-per-rank)."""


class LogFile(msgspec.Struct, frozen=True):
    """Which of a job's files.

    Attributes:
        stderr: its standard error, where that has a file of its own (`--error`).
        pattern: a file its steps write, as it was given to `srun --output`, e.g. `out-%j-%t`.
        rank: whose file it is: `%t` of `pattern`, or without one a file of `--log-per-rank`.
    """

    stderr: bool = False
    pattern: str | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        """Refuse what has no meaning together."""
        if self.stderr and self.pattern is not None:
            raise BadInput("give either --error or --file, not both")
        if self.rank is not None and self.stderr:
            raise BadInput("a rank's file holds its standard error too; leave --error out")


def find(slurm: Slurm, info: JobInfo, which: LogFile) -> str | None:
    """Path of a job's file; None while it is not known yet.

    Raises:
        LogUnavailable: when Slurm no longer says, or it depends on more than a path can say.
    """
    waits = info.state == "PENDING"
    if which.pattern is not None:
        path = path_of(which.pattern, info, _work_dir(slurm, info), which.rank or 0)
        if path is None and not waits:
            raise LogUnavailable(f"{which.pattern} depends on a node; write the name of its node")
        return path
    if which.rank is not None:
        beside = find(slurm, info, LogFile())
        return beside and f"{beside}{RANK_MARK}{which.rank}"
    path = _error_path(slurm, info) if which.stderr else None
    path = path or info.output or (None if waits else _kept(slurm, info, "StdOut"))
    if path is None and not waits:
        raise LogUnavailable(f"Slurm no longer says where the output of job {info.job_id} went")
    return path


def _kept(slurm: Slurm, info: JobInfo, field: str) -> str | None:
    kept = kept_path(slurm, info, field)
    return path_of(kept[0], info, kept[1]) if kept else None


def _error_path(slurm: Slurm, info: JobInfo) -> str | None:
    """None too where standard error goes to the same file as standard output."""
    for output, error, workdir in _in_queue(slurm, info):
        return path_of(error, info, workdir) if error != output else None
    return _kept(slurm, info, "StdErr")


def _work_dir(slurm: Slurm, info: JobInfo) -> str:
    for _, _, workdir in _in_queue(slurm, info):
        return workdir
    found = work_dir(slurm, info.job_id)
    if found is None:
        raise LogUnavailable(f"Slurm no longer says where job {info.job_id} started")
    return found


def _in_queue(slurm: Slurm, info: JobInfo) -> list[list[str]]:
    """Standard output, error and working directory, while slurmctld remembers the job."""
    mark = record_mark()
    fields = ",".join(f"{name}:{mark}" for name in ("JobArrayID", "STDOUT", "STDERR", "WorkDir"))
    argv = ["squeue", "--noheader", "--states=all", f"--jobs={info.job_id}", "-O", fields]
    try:
        parts = slurm.run(argv).split(mark)
    except NoSuchJob:
        return []
    rows = [parts[at : at + 4] for at in range(0, len(parts) - 4, 4)]
    return [row[1:] for row in rows if row[0].strip() == info.job_id] or [row[1:] for row in rows]
