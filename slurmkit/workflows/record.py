"""What was sent of a workflow, on disk: written anew, whole, after each job.

A job is sent held, and with its workflow's tag in its comment. So whatever happens to the process
that sends them, nothing runs before all is there, and `resume` or `cancel` find every job.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from slurmkit.capabilities.cache import read_own, write_aside
from slurmkit.config import nearest
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.statehome import state_folder
from slurmkit.workflows.model import Workflow

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

FOLDER = "workflows"
Phase = Literal["sending", "sent", "cancelled"]
TAG = "slurmkit-flow"
"""A job's comment has TAG:TOKEN:NAME."""


class SentJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job of a workflow, as it was last sent.

    Attributes:
        after: what it waits for, as in the file.
        digest: tells whether it has changed in the file since.
        ids: of Slurm's jobs; none while it is not sent.
        held: it is still to be released.
        array: its tasks, as `--array` has them; empty for what is no array.
    """

    after: tuple[str, ...]
    digest: str
    ids: tuple[str, ...] = ()
    held: bool = False
    array: str = ""


class Record(msgspec.Struct, frozen=True):
    """A workflow that was sent.

    Attributes:
        token: names it: eight hexadecimal digits.
        file: it came from; empty for one made in Python.
        folder: where jobs start that do not say.
        created: epoch seconds.
        phase: `sending` until all jobs are sent and released.
        jobs: by name, each after those it waits for.
    """

    token: str
    name: str
    file: str
    folder: str
    created: int
    phase: Phase
    jobs: dict[str, SentJob]

    def with_job(self, name: str, job: SentJob) -> Record:
        """The same with another job of that name."""
        return msgspec.structs.replace(self, jobs={**self.jobs, name: job})

    @property
    def ids(self) -> tuple[str, ...]:
        """Of all its jobs."""
        return tuple(job_id for job in self.jobs.values() for job_id in job.ids)


def tag(token: str, name: str = "") -> str:
    """What stands in the comment of a job."""
    return f"{TAG}:{token}:{name}"


def digest(workflow: Workflow, name: str) -> str:
    """The same as long as a job and what it waits for are."""
    spec = msgspec.json.encode(workflow.spec(name), order="deterministic")
    edges = "\n".join(map(str, workflow.edges(name)))
    return hashlib.sha256(spec + edges.encode()).hexdigest()[:16]


class Shelf:
    """The records of a person's workflows on one cluster.

    Args:
        cluster: which.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.folder = state_folder(FOLDER) / cluster.capabilities().cluster_name

    def write(self, record: Record) -> None:
        """Keep a record in place of the one before.

        Raises:
            SlurmkitError: when it cannot be written.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_aside(self._path(record.token), msgspec.json.encode(record))
        except OSError as error:
            raise SlurmkitError(
                f"cannot keep what is sent of workflow {record.name} in {self.folder}:"
                f" {error.strerror}; make room there"
            ) from error

    def read(self, token: str) -> Record | None:
        """The record of that token; None where there is none that can be read."""
        try:
            return msgspec.json.decode(read_own(self._path(token)), type=Record)
        except (OSError, msgspec.DecodeError):
            return None

    def remove(self, token: str) -> None:
        """Forget a workflow of which nothing is left."""
        self._path(token).unlink(missing_ok=True)

    def records(self) -> list[Record]:
        """All of them, the last one sent first."""
        found = map(self.read, tokens_in(self.folder))
        return sorted(filter(None, found), key=lambda record: -record.created)

    def find(self, word: str) -> Record | None:
        """The workflow of a token, or the last one sent of a name."""
        return next((r for r in self.records() if word in (r.token, r.name)), None)

    def unknown(self, word: str) -> BadInput:
        """That there is no such workflow, naming those there are."""
        every = self.records()
        known = [name for record in every for name in (record.name, record.token)]
        hint = nearest(word, list(dict.fromkeys(known))) if known else "none was sent from here"
        return BadInput(f"no workflow {word!r} of yours; {hint}; see: slurmkit workflow list")

    @contextmanager
    def locked(self, token: str) -> Iterator[None]:
        """Be the only process that sends or cancels jobs of a workflow.

        Raises:
            SlurmkitError: when another one does.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.folder / f".{token}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise SlurmkitError(f"cannot write in {self.folder}: {error.strerror}") from error
        try:
            _lock(lock, token)
            yield
        finally:
            os.close(lock)

    def _path(self, token: str) -> Path:
        return self.folder / f"{token}.json"


def names(cluster: Cluster, since: float) -> dict[str, str]:
    """What jobs are in the workflows written since then, `digits/train`, by Slurm's ids."""
    if not any(state_folder(FOLDER).glob("*/*.json")):
        return {}  # the name of the cluster need not be known
    shelf = Shelf(cluster)
    return {
        job_id: f"{record.name}/{name}"
        for record in filter(None, map(shelf.read, tokens_in(shelf.folder, since)))
        for name, job in record.jobs.items()
        for job_id in job.ids
    }


def _lock(file: int, token: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SlurmkitError(
            f"another slurmkit is at work on workflow {token}; wait for it, or end it"
        ) from None


def tokens_in(folder: Path, since: float = 0) -> list[str]:
    """Of the records in a folder that were written since then, in epoch seconds."""
    found = (path for path in folder.glob("*.json") if not path.name.startswith("."))
    return sorted(path.stem for path in found if path.stat().st_mtime >= since)
