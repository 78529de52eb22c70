"""Records of sent workflows: one file for each, written again after each job is sent.

Each job is sent held, with a tag of its workflow in its comment. So if the sending process dies, no
job runs before all are sent, and `resume` and `cancel` find every job. A lost record is rebuilt
from the tags of the jobs that Slurm knows.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from slurmkit.config.files import did_you_mean
from slurmkit.config.paths import (
    describe_write_error,
    lock_file,
    open_lock_file,
    read_private_file,
    state_folder,
    write_private_file,
)
from slurmkit.errors import BadInput, SlurmError, SlurmkitError
from slurmkit.formats.job_ids import whole_id
from slurmkit.jobs.accounting_records import read_submit_lines, starttime_option
from slurmkit.spec.workflow import KINDS, Edge, Workflow
from slurmkit.state.associations import current_user
from slurmkit.state.queue import QueueFilter
from slurmkit.state.queue_rows import QueueRow

if TYPE_CHECKING:
    from slurmkit.cluster.protocol import Submitter

FOLDER = "workflows"
Phase = Literal["sending", "sent", "cancelled"]
TAG_PREFIX = "slurmkit-flow"
"""Prefix of the tag in a job's comment: TAG:TOKEN:NAME."""

_DAYS = 14  # days that sacct is searched
_TAG = re.compile(rf"\b{TAG_PREFIX}:(?P<token>[0-9a-f]{{8}}):(?P<name>[\w.\-]+)", re.ASCII)
_CLAUSE = re.compile(r"(?P<word>after[a-z]*):(?P<id>\d+)")
_WORDS = {word: kind for kind, word in KINDS.items()}


class SentJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job of a workflow, as it was last sent.

    Attributes:
        after: what it waits for, as in the file.
        digest: hash of the job, to see later whether the file has changed.
        ids: ids of its Slurm jobs; empty while it is not sent.
        held: whether it is still to be released.
        array: its tasks in the form of `--array`; empty for a single job.
    """

    after: tuple[str, ...]
    digest: str
    ids: tuple[str, ...] = ()
    held: bool = False
    array: str = ""


class WorkflowRecord(msgspec.Struct, frozen=True):
    """The record of a workflow that was sent.

    Attributes:
        token: its id, eight hexadecimal digits.
        name: name of the workflow.
        file: file it was loaded from; empty if made in Python.
        folder: default working directory of its jobs.
        created: epoch seconds.
        phase: `sending` until all jobs are sent and released.
        jobs: jobs by name, in topological order.
    """

    token: str
    name: str
    file: str
    folder: str
    created: int
    phase: Phase
    jobs: dict[str, SentJob]

    def with_job(self, name: str, job: SentJob) -> WorkflowRecord:
        """Return the record with a job replaced."""
        return msgspec.structs.replace(self, jobs={**self.jobs, name: job})

    @property
    def ids(self) -> tuple[str, ...]:
        """Slurm's ids of all its jobs."""
        return tuple(job_id for job in self.jobs.values() for job_id in job.ids)


def workflow_tag(token: str, name: str = "") -> str:
    """Return the tag for the comment of a job."""
    return f"{TAG_PREFIX}:{token}:{name}"


def job_digest(workflow: Workflow, name: str) -> str:
    """Return a hash of a job and of what it waits for."""
    spec = msgspec.json.encode(workflow.spec(name), order="deterministic")
    edges = "\n".join(map(str, workflow.edges(name)))
    return hashlib.sha256(spec + edges.encode()).hexdigest()[:16]


class WorkflowRecords:
    """The folder with the records of the user's workflows on one cluster."""

    def __init__(self, cluster: Submitter) -> None:
        self.folder = state_folder(FOLDER) / cluster.capabilities().cluster_name

    def write(self, record: WorkflowRecord) -> None:
        """Write a record in place of the last one.

        Raises:
            SlurmkitError: when it cannot be written.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private_file(self._path(record.token), msgspec.json.encode(record))
        except OSError as error:
            raise SlurmkitError(
                f"cannot write the record of workflow {record.name} in {self.folder}:"
                f" {describe_write_error(error)}"
            ) from error

    def read(self, token: str) -> WorkflowRecord | None:
        """Load the record of a token; None when there is none that can be read."""
        try:
            return msgspec.json.decode(read_private_file(self._path(token)), type=WorkflowRecord)
        except (OSError, msgspec.DecodeError):
            return None

    def remove(self, token: str) -> None:
        """Remove the record of a workflow without jobs."""
        self._path(token).unlink(missing_ok=True)

    def records(self) -> list[WorkflowRecord]:
        """Load all records, the last one sent first."""
        loaded = map(self.read, tokens_in(self.folder))
        return sorted(filter(None, loaded), key=lambda record: -record.created)

    def find(self, word: str) -> WorkflowRecord | None:
        """Find a workflow by token, or the last one sent with a name."""
        return next((r for r in self.records() if word in (r.token, r.name)), None)

    def unknown(self, word: str) -> BadInput:
        """Return the error for an unknown workflow, with the nearest name."""
        every = self.records()
        known = [name for record in every for name in (record.name, record.token)]
        hint = (
            did_you_mean(word, list(dict.fromkeys(known))) if known else "none was sent from here"
        )
        return BadInput(f"you have no workflow {word!r}; {hint}; see: slurmkit workflow list")

    @contextmanager
    def locked(self, token: str) -> Iterator[None]:
        """Lock a workflow, so that no other process sends or cancels its jobs.

        Raises:
            SlurmkitError: when another process holds the lock.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = open_lock_file(self.folder / f".{token}.lock")
        except OSError as error:
            raise SlurmkitError(f"cannot write in {self.folder}: {error.strerror}") from error
        with lock:
            if not lock_file(lock):
                raise SlurmkitError(
                    f"another slurmkit is working on workflow {token}; wait for its end, or end it"
                )
            yield

    def _path(self, token: str) -> Path:
        return self.folder / f"{token}.json"


def load_workflow_names(cluster: Submitter, since: float) -> dict[str, str]:
    """Return workflow and job, e.g. `digits/train`, by Slurm's ids.

    Args:
        cluster: the cluster they were sent to.
        since: epoch seconds; records written before are left out.
    """
    if not any(state_folder(FOLDER).glob("*/*.json")):
        return {}  # saves reading the cluster's name
    shelf = WorkflowRecords(cluster)
    return {
        job_id: f"{record.name}/{name}"
        for record in filter(None, map(shelf.read, tokens_in(shelf.folder, since)))
        for name, job in record.jobs.items()
        for job_id in job.ids
    }


def tokens_in(folder: Path, since: float = 0) -> list[str]:
    """Return the tokens of the records in a folder written at or after `since` (epoch seconds)."""
    paths = (path for path in folder.glob("*.json") if not path.name.startswith("."))
    return sorted(path.stem for path in paths if path.stat().st_mtime >= since)


def recover_record(cluster: Submitter, token: str) -> WorkflowRecord | None:
    """Rebuild the record of a workflow from Slurm; None when Slurm knows none of its jobs.

    Dependencies are known only of pending jobs. The workflow can be shown and cancelled, but not
    resumed, since its file is unknown.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    rows = {whole_id(row.job_id): row for row in _own_rows(cluster) if _token(row) == token}
    names = {job_id: match["name"] for job_id, row in rows.items() if (match := _tag(row))}
    last = {name: job_id for job_id, name in _past_jobs(cluster, token)}  # the last of several runs
    names |= {job_id: name for name, job_id in last.items() if name not in names.values()}
    if not names:
        return None
    jobs: dict[str, SentJob] = {}
    for job_id in sorted(names, key=int):  # a job's dependencies were sent before it
        jobs[names[job_id]] = _sent_job(job_id, jobs.get(names[job_id]), rows.get(job_id), names)
    times = [row.submitted for row in rows.values() if row.submitted]
    phase: Phase = "sending" if any(job.held for job in jobs.values()) else "sent"
    return WorkflowRecord(token, token, "", "", min(times, default=0), phase, jobs)


def _sent_job(
    job_id: str, before: SentJob | None, row: QueueRow | None, names: dict[str, str]
) -> SentJob:
    """Return a job with one more of its Slurm jobs."""
    ids = (*(before.ids if before else ()), job_id)
    if row is None:
        return SentJob((), "", ids)
    return SentJob(tuple(_edges(row, names)), "", ids, row.waits and row.priority == 0)


def read_queued_tokens(cluster: Submitter) -> list[str]:
    """Return the tokens of workflows with jobs in the queue."""
    return list(dict.fromkeys(token for row in _own_rows(cluster) if (token := _token(row))))


def _own_rows(cluster: Submitter) -> Iterable[QueueRow]:
    return cluster.backend.queue(QueueFilter(me=True)).rows


def _tag(row: QueueRow) -> re.Match[str] | None:
    return _TAG.search(row.comment)


def _token(row: QueueRow) -> str:
    match = _tag(row)
    return match["token"] if match else ""


def _past_jobs(cluster: Submitter, token: str) -> Iterator[tuple[str, str]]:
    """Yield ids and names from sacct in the order of submit; none if slurmdbd is down."""
    since = starttime_option(int(time.time()) - _DAYS * 86400)
    with suppress(SlurmError):
        for line in read_submit_lines(
            cluster.slurm, f"--user={current_user(cluster.slurm)}", since
        ):
            match = _TAG.search(line.text)
            if match and match["token"] == token:
                yield whole_id(line.job_id), match["name"]


def _edges(row: QueueRow, names: dict[str, str]) -> Iterator[str]:
    for match in _CLAUSE.finditer(row.dependency):
        if match["id"] in names and match["word"] in _WORDS:
            yield str(Edge(names[match["id"]], _WORDS[match["word"]]))


def unrecorded_jobs(cluster: Submitter, record: WorkflowRecord) -> list[str]:
    """Return the ids of tagged jobs in the queue that are missing in the record.

    Their sender was killed before it could record them; they are held.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    ids = (whole_id(row.job_id) for row in read_tagged_jobs(cluster, record.token))
    return list(dict.fromkeys(job_id for job_id in ids if job_id not in record.ids))


def read_tagged_jobs(cluster: Submitter, token: str) -> list[QueueRow]:
    """Read the user's jobs in the queue that have the tag of a workflow."""
    rows = cluster.backend.queue(QueueFilter(me=True)).rows
    return [
        row for row in rows if any(w.startswith(workflow_tag(token)) for w in row.comment.split())
    ]
