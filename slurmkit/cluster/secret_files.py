"""Secret variables of a job, passed in a file that only its owner can read.

The file has the job's id as its name. The job reads it at its start and removes it when it ends
well. Jobs that fail or are killed, and array tasks, leave the file, so that a requeued run finds
it. It is removed when its owner next submits or cancels a job after that job is over.
"""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slurmkit.config.paths import state_folder
from slurmkit.errors import SlurmError, SlurmkitError
from slurmkit.formats.job_ids import whole_id
from slurmkit.jobs.lookup import read_queued_ids
from slurmkit.planning.secrets import SECRETS_FOLDER, secret_variables
from slurmkit.state.queue import QueueFilter

if TYPE_CHECKING:
    from slurmkit.cluster.protocol import Submitter
    from slurmkit.spec.jobspec import JobSpec

_NEW = ".new-"
_LEFTOVER_SECONDS = (
    3600.0  # seconds after which a file that was never named is left over from a crash
)
_QUERY_MARK = ".looked"
_QUERY_SECONDS = 600.0  # seconds between two queries of the queue: many users submit in a loop


@contextmanager
def write_secrets(spec: JobSpec, cluster: Submitter) -> Iterator[Callable[[str], None]]:
    """Write a job's secrets to a file before it is sent; yield a function that sets its job id.

    Raises:
        SlurmkitError: when the file cannot be written, or not be kept from others.
    """
    variables = secret_variables(spec)
    if not variables:
        yield lambda _job_id: None
        return
    try:
        folder = _own_folder(cluster)
        fresh = _write_file(folder, variables)
    except OSError as error:
        raise _write_error(error) from error
    try:
        yield lambda job_id: _link(fresh, folder / job_id)
    finally:
        fresh.unlink(missing_ok=True)


def _write_file(folder: Path, variables: dict[str, str]) -> Path:
    number, name = tempfile.mkstemp(prefix=_NEW, dir=folder)  # of mode 0600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.writelines(f"export {n}={shlex.quote(v)}\n" for n, v in variables.items())
    except OSError:
        Path(name).unlink()
        raise
    return Path(name)


def _link(fresh: Path, path: Path) -> None:
    try:
        path.unlink(missing_ok=True)  # of an older job: the cluster's job ids may start over
        path.hardlink_to(fresh)
    except OSError as error:
        raise _write_error(error) from error


def _write_error(error: OSError) -> SlurmkitError:
    return SlurmkitError(
        "cannot write the job's secret variables to"
        f" {error.filename or state_folder(SECRETS_FOLDER)}:"
        f" {error.strerror}; free some space there, or let the job read them from your own file"
    )


def _own_folder(cluster: Submitter) -> Path:
    folder = _folder(cluster)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in (folder.parent, folder):
        status = each.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise SlurmkitError(
                f"{each} is not a folder that you own; remove it: slurmkit stores secrets there"
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            each.chmod(0o700)
    return folder


def _folder(cluster: Submitter) -> Path:
    return state_folder(SECRETS_FOLDER) / cluster.capabilities().cluster_name


def remove_secrets(cluster: Submitter, job_ids: Iterable[str] = ()) -> None:
    """Remove the secrets of these jobs and of all jobs that are over; errors are ignored.

    Slurm is asked only if there are secrets, and at most once in ten minutes.
    """
    if not state_folder(SECRETS_FOLDER).is_dir():
        return
    try:
        folder = _folder(cluster)
        ids = {path.name for path in folder.iterdir() if path.name.isdecimal()}
        gone = ids & set(job_ids)
        if ids - gone and _is_query_due(
            folder / _QUERY_MARK
        ):  # `ids` has no job sent after the listing
            rows = cluster.queue(QueueFilter(me=True)).rows
            missing = ids - gone - {whole_id(row.job_id) for row in rows}
            gone |= missing - read_queued_ids(cluster.backend, missing)
        for job_id in gone:
            (folder / job_id).unlink(missing_ok=True)
        for path in folder.glob(f"{_NEW}*"):
            if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                path.unlink(missing_ok=True)
    except (OSError, SlurmError):
        return


def _is_query_due(mark: Path) -> bool:
    """Tell whether it is time to ask Slurm again; if so, set the mark."""
    if mark.exists() and time.time() - mark.stat().st_mtime < _QUERY_SECONDS:
        return False
    mark.touch()
    return True
