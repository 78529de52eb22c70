"""Variables that look like secrets, on their way to a job: a file that its owner alone can read.

It is named by the job, which reads it at its start and removes it when it ends well. What a job
left that failed or was killed, or the tasks of an array, is removed when its owner submits or
cancels a job, once the job is over: a run that is requeued finds it.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slurmkit.errors import SlurmError, SlurmkitError
from slurmkit.jobs.ids import whole_id
from slurmkit.planning.secrets import secret_variables
from slurmkit.queue.snapshot import QueueFilter
from slurmkit.statehome import state_folder

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster
    from slurmkit.spec import JobSpec

FOLDER = "secrets"
_NEW = ".new-"
_SAID = ": in a file that you alone can read"
_FORGOTTEN = 3600.0  # seconds after which nobody is between writing a file and naming it
_LOOKED = ".looked"
_PAUSE = 600.0  # seconds from one look at the queue to the next: many submit in a loop


@contextmanager
def handed_over(spec: JobSpec, cluster: Cluster) -> Iterator[Callable[[str], None]]:
    """Write the secrets of a job before it is sent; what this gives names them by its id.

    Raises:
        SlurmkitError: when they cannot be kept from others, or not written.
    """
    variables = secret_variables(spec)
    if not variables:
        yield _nothing
        return
    try:
        folder = _own_folder(cluster)
        fresh = _written(folder, variables)
    except OSError as error:
        raise _trouble(error) from error
    try:
        yield lambda job_id: _name(fresh, folder / job_id)
    finally:
        fresh.unlink(missing_ok=True)


def _written(folder: Path, variables: dict[str, str]) -> Path:
    number, name = tempfile.mkstemp(prefix=_NEW, dir=folder)  # of mode 0600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.writelines(f"export {n}={shlex.quote(v)}\n" for n, v in variables.items())
    except OSError:
        Path(name).unlink()
        raise
    return Path(name)


def _nothing(job_id: str) -> None:
    del job_id


def _name(fresh: Path, path: Path) -> None:
    try:
        path.unlink(missing_ok=True)  # of an older job, before the cluster's ids began again
        path.hardlink_to(fresh)
    except OSError as error:
        raise _trouble(error) from error


def _trouble(error: OSError) -> SlurmkitError:
    return SlurmkitError(
        f"cannot keep the job's secret variables in {error.filename or state_folder(FOLDER)}:"
        f" {error.strerror}; make room there, or let the job read them from a file of yours"
    )


def _own_folder(cluster: Cluster) -> Path:
    folder = _folder(cluster)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in (folder.parent, folder):
        found = each.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise SlurmkitError(f"{each} is not a folder of yours; remove it: secrets go there")
        if stat.S_IMODE(found.st_mode) & 0o077:
            each.chmod(0o700)
    return folder


def _folder(cluster: Cluster) -> Path:
    return state_folder(FOLDER) / cluster.capabilities().cluster_name


def forget(cluster: Cluster, job_ids: Iterable[str] = ()) -> None:
    """Remove the secrets of these jobs, and of all that are over; what cannot be stays.

    Slurm is asked only where there are any, and at most once in ten minutes.
    """
    if not state_folder(FOLDER).is_dir():
        return
    try:
        folder = _folder(cluster)
        ids = {path.name for path in folder.iterdir() if path.name.isdecimal()}
        gone = ids & set(job_ids)
        if ids - gone and _looks(folder / _LOOKED):  # a job sent since is not among these ids
            rows = cluster.queue(QueueFilter(me=True)).rows
            gone |= ids - {whole_id(row.job_id) for row in rows}
        for job_id in gone:
            (folder / job_id).unlink(missing_ok=True)
        for path in folder.glob(f"{_NEW}*"):
            if time.time() - path.stat().st_mtime > _FORGOTTEN:
                path.unlink(missing_ok=True)
    except (OSError, SlurmError):
        return


def _looks(mark: Path) -> bool:
    """Whether it is time to look again; if so, it is noted."""
    if mark.exists() and time.time() - mark.stat().st_mtime < _PAUSE:
        return False
    mark.touch()
    return True


def reading(names: Iterable[str]) -> tuple[str, ...]:
    """Lines of any POSIX shell that give a job its secrets, and say how it forgets them."""
    said = f"# {', '.join(names)}{_SAID}, named once the job is sent."
    return (said, f"slurmkit_file={shlex.quote(str(state_folder(FOLDER)))}", *_READING)


_READING = tuple(
    """
slurmkit_file=$slurmkit_file/$SLURM_CLUSTER_NAME/${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} slurmkit_try=0
until [ -r "$slurmkit_file" ]; do
  slurmkit_try=$((slurmkit_try + 1))
  if [ "$slurmkit_try" -gt 60 ]; then
    echo "slurmkit: $slurmkit_file is not there (any more): submit the job anew, with slurmkit" >&2
    exit 1
  fi
  sleep 1
  ls "${slurmkit_file%/*}" >/dev/null 2>&1 || :  # NFS looks again
done
. "$slurmkit_file"
# Its end; but what failed or is being requeued, and other tasks of an array, may need them again.
slurmkit_forget() {
  slurmkit_code=$?
  if [ "$slurmkit_code" = 0 ] && [ -z "${SLURM_ARRAY_JOB_ID:-}" ] &&
    [ "$(squeue -h -j "$SLURM_JOB_ID" -t RUNNING -o %i 2>/dev/null)" ]; then
    rm -f "$slurmkit_file"
  fi
}
""".strip().split("\n")
)
FORGETTING = ("slurmkit_forget", 'exit "$slurmkit_code"')
"""Lines after a command."""
FORGETTING_SCRIPT = ("trap slurmkit_forget EXIT",)
"""A line before a script, which may end anywhere; a trap of its own goes before it."""
_BEFORE = re.compile(
    rf"^# (?P<names>[\w, ]+){_SAID}[^\n]*\n.*?^slurmkit_forget\(\) \{{\n.*?^\}}\n"
    r"(trap slurmkit_forget EXIT\n)?",
    re.MULTILINE | re.DOTALL,
)
_AFTER = re.compile(r'^(slurmkit_code=\$\?\n)?slurmkit_forget\nexit "\$slurmkit_code"\n*\Z', re.M)


def without_reading(script: str) -> tuple[str, str]:
    """A script that was sent, without what reads secrets and forgets them, and their names.

    The file is that job's own: another one that waits for it waits in vain.
    """
    found = _BEFORE.search(script)
    if found is None:
        return script, ""
    return _AFTER.sub("", script[: found.start()] + script[found.end() :]), found["names"]
