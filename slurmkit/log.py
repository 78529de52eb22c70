"""A job's output file, read once or followed to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slurmkit.errors import LogUnavailable

if TYPE_CHECKING:
    from slurmkit.cluster import Job
    from slurmkit.jobinfo import JobInfo

_CHUNK = 1 << 16
_FILE_SECONDS = 0.5
_STATE_SECONDS = 3.0


def follow(job: Job, *, until_over: bool, notice: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the bytes of a job's output file.

    Slurm's state is asked every few seconds only; the file itself twice a second.

    Raises:
        LogUnavailable: when the path is unknown, or the file is missing or unreadable.
    """
    info = job.info()
    if not until_over and info.state == "PENDING":
        raise LogUnavailable(f"job {job.id} has not started ({info.reason}); follow it with -f")
    if info.state == "PENDING":
        notice(f"job {job.id} has not started ({info.reason}); waiting")
    offset, asked = 0, time.monotonic()
    over = info.is_over or not until_over
    path = _path(job, info)
    while True:
        if path is not None and offset > _size(path):  # a requeued run has emptied the file
            offset = 0
            notice(f"job {job.id} was requeued and writes its output anew")
        if over and path is not None and not path.exists():
            raise LogUnavailable(_why_none(path, info))
        for chunk in _read_from(path, offset) if path else ():
            offset += len(chunk)
            yield chunk
        if over:  # read once more after the end was seen, so the last lines are there
            return
        time.sleep(_FILE_SECONDS)
        if time.monotonic() - asked >= _STATE_SECONDS:
            info, asked = job.info(), time.monotonic()
            path, over = _path(job, info), info.is_over


def _path(job: Job, info: JobInfo) -> Path | None:
    """Where the output goes; a path by node is not known before there is one."""
    where = info.output if info.state == "PENDING" else job.output_path(info)
    if where is None and info.state != "PENDING":
        raise LogUnavailable(f"Slurm no longer says where the output of job {job.id} went")
    return Path(where) if where else None


def _why_none(path: Path, info: JobInfo) -> str:
    if info.is_over and info.started is None:
        return f"job {info.job_id} ended {info.state} before it started, so it wrote nothing"
    if info.is_over and (info.exit_code or "").endswith(":53"):
        return f"job {info.job_id} could not open {path} or its directory on the node, so it failed"
    return f"{path} does not exist here; is it on a filesystem shared with the nodes?"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_from(path: Path, offset: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(_CHUNK):
                yield chunk
    except FileNotFoundError:  # not yet, while the job starts
        return
    except OSError as error:
        raise LogUnavailable(f"cannot read {path}: {error.strerror}") from error
