"""Records of sweeps and of arrays that are split into several Slurm arrays: one file for each.

A record is written to the shared home again after each Slurm array is sent. So an interrupted
submit is found again, and the points of a sweep stay known when Slurm has forgotten them. Without
a record, the Slurm arrays of a user's array are found by the tags in their comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slurmkit.config.paths import (
    ARRAYS_FOLDER,
    describe_write_error,
    read_private_file,
    state_folder,
    write_private_file,
)
from slurmkit.errors import SlurmError, SlurmkitError
from slurmkit.formats.job_ids import whole_id
from slurmkit.jobs.accounting_records import read_submit_lines, starttime_option
from slurmkit.planning.secrets import secret_variables
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.arrays import ArrayTag, SplitArray, parse_array_tag
from slurmkit.state.queue import QueueFilter
from slurmkit.state.queue_rows import QueueRow

if TYPE_CHECKING:
    from slurmkit.cluster.protocol import Submitter

_WITHIN = 3600  # seconds that a submit of many arrays may take


class SentArray(msgspec.Struct, frozen=True):
    """One Slurm array that was sent.

    Attributes:
        job_id: Slurm's id.
        array: its indices in Slurm.
        offset: added to a Slurm index, it gives the user's index.
    """

    job_id: str
    array: str
    offset: int


class ArrayRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One submit of a user array.

    Attributes:
        token: part of the comments of its jobs.
        submitted: epoch seconds.
        total: number of tasks.
        planned: number of Slurm arrays that it is split into.
        sent: the Slurm arrays sent so far, in order; the id of the first stands for the whole.
        again: id of the array whose points it runs again.
        secrets: names of secret variables, whose values are not stored.
        spec: the job, without the secret variables.
    """

    token: str
    submitted: float
    total: int
    planned: int
    sent: tuple[SentArray, ...] = ()
    again: str | None = None
    secrets: tuple[str, ...] = ()
    spec: JobSpec

    @property
    def first(self) -> str:
        """Id that stands for the whole array; empty before it is known."""
        return self.sent[0].job_id if self.sent else ""

    @property
    def name(self) -> str:
        """File name of the record."""
        return f"{self.first or self.token}.json"

    def tag(self, offset: int) -> ArrayTag:
        """Return the tag for the comment of the next Slurm array."""
        return ArrayTag(self.token, offset, self.total, self.first or None)


def without_secrets(spec: JobSpec) -> tuple[JobSpec, tuple[str, ...]]:
    """Return a spec without its secret variables, and their names."""
    secrets = secret_variables(spec)
    open_ = {name: value for name, value in spec.environment.items() if name not in secrets}
    return msgspec.structs.replace(spec, environment=open_), tuple(secrets)


def save_record(cluster: Submitter, record: ArrayRecord, before: ArrayRecord | None = None) -> None:
    """Write a record, whole or not at all, and remove `before` if its file had another name.

    Raises:
        SlurmkitError: when it cannot be written.
    """
    folder = _folder(cluster)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private_file(folder / record.name, msgspec.json.encode(record))
        if before is not None and before.name != record.name:
            (folder / before.name).unlink(missing_ok=True)
    except OSError as error:
        raise SlurmkitError(
            f"cannot write the record of the array in {folder}: {describe_write_error(error)}"
        ) from error


def remove_record(cluster: Submitter, record: ArrayRecord) -> None:
    """Remove the record of an array that was not sent after all."""
    (_folder(cluster) / record.name).unlink(missing_ok=True)


def load_record(cluster: Submitter, first: str) -> ArrayRecord | None:
    """Load the record of an array; None when there is none that can be read."""
    if not any(state_folder(ARRAYS_FOLDER).glob(f"*/{first}.json")):
        return None  # true for most jobs, and saves reading the cluster's name
    return _load(_folder(cluster) / f"{first}.json")


def load_records(cluster: Submitter) -> Iterator[ArrayRecord]:
    """Load all records of this cluster's arrays, newest first."""
    loaded = [record for path in _files(_folder(cluster)) if (record := _load(path))]
    yield from sorted(loaded, key=lambda record: -record.submitted)


def load_first_ids(cluster: Submitter, since: float) -> dict[str, str]:
    """Return the first id of each split array by the ids of its later parts.

    Args:
        cluster: the cluster they were sent to.
        since: epoch seconds; older records are left out.
    """
    if not any(state_folder(ARRAYS_FOLDER).glob("*/*.json")):
        return {}
    new = (path for path in _files(_folder(cluster)) if path.stat().st_mtime >= since)
    loaded = [record for path in new if (record := _load(path))]
    return {sent.job_id: record.first for record in loaded for sent in record.sent[1:]}


def load_records_by_cluster() -> dict[str, list[ArrayRecord]]:
    """Load all records by name of the cluster, without asking any cluster."""
    folders = [path for path in state_folder(ARRAYS_FOLDER).glob("*") if path.is_dir()]
    return {
        folder.name: [record for path in _files(folder) if (record := _load(path))]
        for folder in folders
    }


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix == ".json"]
    except OSError:
        return []


def _load(path: Path) -> ArrayRecord | None:
    try:
        return msgspec.json.decode(read_private_file(path), type=ArrayRecord)
    except (OSError, msgspec.DecodeError):
        return None


def _folder(cluster: Submitter) -> Path:
    return state_folder(ARRAYS_FOLDER) / cluster.capabilities().cluster_name


def find_split_arrays(cluster: Submitter, firsts: Iterable[str]) -> dict[str, SplitArray]:
    """Find the user arrays that have these first ids; an ordinary job or array is left out.

    slurmctld is asked once for all ids, slurmdbd for those that slurmctld has forgotten.
    """
    ids = list(dict.fromkeys(firsts))
    records = {job_id: record for job_id in ids if (record := load_record(cluster, job_id))}
    try:
        rows = _read_rows(cluster, ids)
    except SlurmError:
        rows = {}
    arrays = {
        i: split_array_of(records[i])
        for i in records
        if i not in rows or _is_of(rows[i], records[i])
    }
    others = [
        rows[i] for i in ids if i in rows and i not in arrays and parse_array_tag(rows[i].comment)
    ]
    gone = [job_id for job_id in ids if job_id not in rows and job_id not in arrays]
    with suppress(SlurmError):
        for user in dict.fromkeys(row.user for row in others):
            arrays |= _join_parts((row.array_id for row in others), _tags_in_queue(cluster, user))
        if gone:
            for tagged in _tags_in_database(cluster, gone):
                arrays |= _join_parts(gone, tagged)
    return arrays


def has_array_record(cluster: Submitter, first: str) -> bool:
    """Return whether there is a record of an array with that first id; Slurm is not asked."""
    return load_record(cluster, first) is not None


def split_array_of(record: ArrayRecord) -> SplitArray:
    """Return the user array of a record."""
    return SplitArray(record.first, {sent.job_id: sent.offset for sent in record.sent})


def _is_of(row: QueueRow, record: ArrayRecord) -> bool:
    """Return whether a job belongs to the record; a later job may have the same id."""
    tag = parse_array_tag(row.comment)
    return tag is not None and tag.token == record.token


def _read_rows(cluster: Submitter, ids: Sequence[str]) -> dict[str, QueueRow]:
    rows = cluster.queue(QueueFilter(job_ids=tuple(ids), states=("all",))).rows
    return {whole_id(row.job_id): row for row in rows}


def _tags_in_queue(cluster: Submitter, user: str) -> Iterable[tuple[str, ArrayTag]]:
    """Read the tags of one user's arrays: anybody can write a tag into a comment."""
    for row in cluster.queue(QueueFilter(users=(user,), states=("all",))).rows:
        if (tag := parse_array_tag(row.comment)) and row.array_id:
            yield row.array_id, tag


def _tags_in_database(
    cluster: Submitter, ids: Sequence[str]
) -> Iterable[list[tuple[str, ArrayTag]]]:
    """Read the tags of arrays in sacct, and of their users' other arrays of the same time.

    Each user's tags come by themselves: anybody can write a tag into a comment.
    """
    lines = read_submit_lines(cluster.slurm, f"--jobs={','.join(ids)}")
    tagged = [line for line in lines if parse_array_tag(line.text)]
    for user in dict.fromkeys(line.user for line in tagged):
        first = min(line.submitted or 0 for line in tagged if line.user == user)
        since = starttime_option(first - _WITHIN)
        lines = read_submit_lines(cluster.slurm, f"--user={user}", since)
        yield [(whole_id(e.job_id), tag) for e in lines if (tag := parse_array_tag(e.text))]


def _join_parts(
    firsts: Iterable[str | None], tagged: Iterable[tuple[str, ArrayTag]]
) -> dict[str, SplitArray]:
    """Join Slurm arrays with the same token; only the first of each says no other first id."""
    tags = dict(tagged)
    arrays = {}
    for first in firsts:
        if first is not None and first in tags and tags[first].first is None:
            token = tags[first].token
            parts = [(job_id, tag.offset) for job_id, tag in tags.items() if tag.token == token]
            arrays[first] = SplitArray(first, dict(sorted(parts, key=lambda part: part[1])))
    return arrays
