"""What is remembered of an array that is more to its user than Slurm knows: a file for each.

It is kept on the shared home, anew after each of Slurm's arrays that was sent, so that a submit
which broke off is found again, and that a sweep's points are known when Slurm has forgotten them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slurmkit.capabilities.cache import read_own, write_aside
from slurmkit.errors import SlurmkitError
from slurmkit.logical import Tag
from slurmkit.planning.secrets import secret_variables
from slurmkit.spec import JobSpec
from slurmkit.statehome import state_folder

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

FOLDER = "arrays"


class Sent(msgspec.Struct, frozen=True):
    """One of Slurm's arrays: its id, its indices as Slurm has them, and what they lack."""

    job_id: str
    array: str
    offset: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One submit of an array.

    Attributes:
        token: stands in the comments of its jobs.
        submitted: epoch seconds.
        total: number of its tasks.
        planned: in how many of Slurm's arrays it is sent.
        sent: those that were, in order; the id of the first stands for the whole.
        again: id of the array whose points it runs again.
        secrets: names of variables that are not kept.
        spec: the job, without these.
    """

    token: str
    submitted: float
    total: int
    planned: int
    sent: tuple[Sent, ...] = ()
    again: str | None = None
    secrets: tuple[str, ...] = ()
    spec: JobSpec

    @property
    def first(self) -> str:
        """The id that stands for the whole; empty before it is known."""
        return self.sent[0].job_id if self.sent else ""

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.first or self.token}.json"

    def tag(self, offset: int) -> Tag:
        """What the next of Slurm's arrays says of the whole."""
        return Tag(self.token, offset, self.total, self.first or None)


def without_secrets(spec: JobSpec) -> tuple[JobSpec, tuple[str, ...]]:
    """A spec as it may lie on a disk, and the names of what it lacks."""
    kept = secret_variables(spec)
    open_ = {name: value for name, value in spec.environment.items() if name not in kept}
    return msgspec.structs.replace(spec, environment=open_), tuple(kept)


def keep(cluster: Cluster, record: Record, before: Record | None = None) -> None:
    """Write a record whole, or not at all; one that had another name goes.

    Raises:
        SlurmkitError: when it cannot be written.
    """
    folder = _folder(cluster)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_aside(folder / record.name, msgspec.json.encode(record))
        if before is not None and before.name != record.name:
            (folder / before.name).unlink(missing_ok=True)
    except OSError as error:
        raise SlurmkitError(
            f"cannot keep what is to be known of the array in {folder}: {error.strerror};"
            " make room there"
        ) from error


def drop(cluster: Cluster, record: Record) -> None:
    """Forget an array that was not sent after all."""
    (_folder(cluster) / record.name).unlink(missing_ok=True)


def read(cluster: Cluster, first: str) -> Record | None:
    """What is remembered of the array of that id; None for nothing, or nothing that can be read."""
    if not any(state_folder(FOLDER).glob(f"*/{first}.json")):
        return None  # most jobs are none: the name of the cluster need not be known
    return _read(_folder(cluster) / f"{first}.json")


def read_all(cluster: Cluster) -> Iterator[Record]:
    """Everything remembered of this cluster's arrays, the newest first."""
    found = [record for path in _files(_folder(cluster)) if (record := _read(path))]
    yield from sorted(found, key=lambda record: -record.submitted)


def firsts(cluster: Cluster, since: float) -> dict[str, str]:
    """The id that stands for an array, by those of its other parts.

    Args:
        cluster: where they were sent.
        since: epoch seconds; those submitted before are left out.
    """
    if not any(state_folder(FOLDER).glob("*/*.json")):
        return {}
    new = (path for path in _files(_folder(cluster)) if path.stat().st_mtime >= since)
    found = [record for path in new if (record := _read(path))]
    return {sent.job_id: record.first for record in found for sent in record.sent[1:]}


def ids() -> list[str]:
    """Of all arrays that are remembered, of any cluster, the newest first."""
    stems = {path.stem for path in state_folder(FOLDER).glob("*/*.json")}
    return sorted((stem for stem in stems if stem.isdecimal()), key=int, reverse=True)


def everywhere() -> dict[str, list[Record]]:
    """What is remembered, by the name of the cluster; no cluster is asked."""
    folders = [path for path in state_folder(FOLDER).glob("*") if path.is_dir()]
    return {
        folder.name: [record for path in _files(folder) if (record := _read(path))]
        for folder in folders
    }


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix == ".json"]
    except OSError:
        return []


def _read(path: Path) -> Record | None:
    try:
        return msgspec.json.decode(read_own(path), type=Record)
    except (OSError, msgspec.DecodeError):
        return None


def _folder(cluster: Cluster) -> Path:
    return state_folder(FOLDER) / cluster.capabilities().cluster_name
