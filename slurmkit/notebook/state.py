"""Where the servers of a person leave word: a folder for each job, on the shared home.

It is of mode 0700 and holds the token, the node and the port. The job removes it at its end; what
is left of one that was killed is removed when the list is next looked at.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slurmkit.errors import NoSuchJob, SlurmkitError
from slurmkit.notebook.server import RECORD, TOKEN
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import QueueFilter, read_queue
from slurmkit.statehome import state_folder

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster


class Server(msgspec.Struct, frozen=True):
    """Where a server listens.

    Attributes:
        node: by Slurm's name.
        started: epoch seconds.
    """

    node: str
    port: int
    started: int

    @property
    def address(self) -> str:
        """URL by its node; it asks for the token."""
        return f"http://{self.node}:{self.port}/"


class Notebook(msgspec.Struct, frozen=True):
    """A job with a server; None before that has started, and while the job does not run."""

    row: QueueRow
    server: Server | None


def every_folder() -> Path:
    """Of all clusters: `$XDG_STATE_HOME/slurmkit/jupyter`, or that in ~/.local/state."""
    return state_folder("jupyter")


def folder_of(cluster: Cluster) -> Path:
    """That of one cluster, made where it is missing.

    Raises:
        SlurmkitError: when it cannot be made.
    """
    folder = every_folder() / cluster.capabilities().cluster_name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SlurmkitError(
            f"cannot make the folder {folder}: {error.strerror}; notebooks leave word there"
        ) from error
    return folder


def expect(folder: Path, job_id: str) -> None:
    """Make a job known as one with a server, before that starts; else it is known from then on."""
    with suppress(OSError):
        (folder / job_id).mkdir(mode=0o700, exist_ok=True)


def read_server(folder: Path, job_id: str) -> Server | None:
    """Where the server of a job listens; None while it has not said."""
    here = folder / job_id
    try:
        os.listdir(here)  # noqa: PTH208 - makes NFS look again
        return msgspec.json.decode((here / RECORD).read_bytes(), type=Server)
    except (OSError, msgspec.DecodeError):
        return None


def read_token(folder: Path, job_id: str) -> str:
    """The token of a server that has started.

    Raises:
        SlurmkitError: when it cannot be read: the server has just ended.
    """
    path = folder / job_id / TOKEN
    try:
        return path.read_text("ascii").strip()
    except OSError as error:
        raise SlurmkitError(
            f"no token in {path} ({error.strerror}): the server of job {job_id} has just ended"
        ) from error


def notebooks(cluster: Cluster) -> list[Notebook]:
    """One's own servers, those to come included; what is left of jobs that ended is removed.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    folder = folder_of(cluster)
    ids = [path.name for path in folder.iterdir() if path.name.isdecimal()]  # before the queue
    if not ids:
        return []
    rows = {row.raw_id: row for row in read_queue(cluster.slurm, QueueFilter(me=True)).rows}
    for job_id in ids:
        if job_id not in rows:
            shutil.rmtree(folder / job_id, ignore_errors=True)
    there = sorted(set(ids) & rows.keys(), key=int)
    return [Notebook(rows[job_id], _server(folder, rows[job_id])) for job_id in there]


def _server(folder: Path, row: QueueRow) -> Server | None:
    """That of a run that was killed is none, though its word is left."""
    return read_server(folder, row.raw_id) if row.state == "RUNNING" else None


def notebook(cluster: Cluster, job_id: str) -> Notebook:
    """That of a job.

    Raises:
        NoSuchJob: when it is none.
        SlurmError: when slurmctld does not answer.
    """
    for each in notebooks(cluster):
        if each.row.raw_id == job_id:
            return each
    raise NoSuchJob(
        f"no notebook of yours runs or waits as job {job_id}; see: slurmkit jupyter list"
    )
