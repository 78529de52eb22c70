"""What one line of sacct becomes: a run, or a reject that says why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

# A run's DBIndex as it is stored (see `schema.Unsigned64`), else its JobIDRaw and Submit.
Key: TypeAlias = "int | tuple[int, int]"
# Values of many runs, by the fields of `Run` and in their order.
Columns: TypeAlias = "dict[str, Sequence[Any]]"
# Texts of many rows, by their fields in order; none where there are no rows.
Texts: TypeAlias = "Sequence[Sequence[str]]"


class Run(NamedTuple):
    """One run of a job, named and ordered as table `runs` is written.

    Attributes:
        db_index: slurmdbd's number of the row, as it is stored: with a sign; None where sacct does
            not print it.
        state: Slurm's base state, without `by UID`.
        submit: epoch seconds, like `eligible`, `start` and `end`; None when not known (yet).
        cpus: CPUs in its allocation, 0 when it never had one.
        gpus: whole GPUs (or MIG instances) in its allocation.
        energy_joules: None where none was measured.
        suspended: seconds.
        time_limit: minutes as text, or `UNLIMITED`, `Partition_Limit`.
        doubt: why its number of GPUs cannot be trusted.
        fingerprint: of the line it was read from.
    """

    db_index: int | None
    job_id_raw: int
    job_id: str
    user: str
    uid: int | None
    account: str
    partition: str
    qos: str
    state: str
    submit: int
    start: int | None
    end: int | None
    nodes: int
    cpus: int
    gpus: int
    alloc_tres: str
    energy_joules: int | None
    eligible: int | None
    suspended: int
    cancelled_by: int | None
    req_tres: str
    time_limit: str
    exit_code: str
    node_list: str
    reservation: str
    doubt: str | None
    name: str
    fingerprint: int

    @property
    def key(self) -> Key:
        """What tells it from all others of its cluster."""
        return identify(self.db_index, self.job_id_raw, self.submit)


class Reject(NamedTuple):
    """Text that is no row: verbatim, and why it could not be read.

    Attributes:
        key: of the run it speaks of; None where it does not say.
    """

    line: str
    reason: str
    key: Key | None = None


class Batch(NamedTuple):
    """Some lines, split into fields.

    Attributes:
        lines: all texts as they lie in memory, to be freed in that order (after the columns).
        texts: the columns.
        fingerprints: of each row; equal for equal lines read in the same way.
        rejects: lines that could not even be split.
    """

    lines: Sequence[Any]
    texts: Texts
    fingerprints: list[int]
    rejects: list[Reject]

    @classmethod
    def of(
        cls, rows: Sequence[Sequence[str]], fingerprints: list[int], rejects: list[Reject]
    ) -> Batch:
        """Rows as a batch."""
        return cls(rows, list(zip(*rows, strict=True)), fingerprints, rejects)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The texts of the fields of each."""
        return list(zip(*self.texts, strict=True))

    def row(self, place: int) -> list[str]:
        """Those of one."""
        return [column[place] for column in self.texts]

    def some(self, places: Sequence[int]) -> Batch:
        """Some of its rows."""
        texts = [[column[place] for place in places] for column in self.texts]
        return Batch((), texts, [self.fingerprints[place] for place in places], [])

    def __len__(self) -> int:
        return len(self.fingerprints) + len(self.rejects)


def identify(db_index: int | None, job_id_raw: int, submit: int) -> Key:
    """Tell a run from all others of its cluster: by DBIndex, else by JobIDRaw and Submit."""
    return (job_id_raw, submit) if db_index is None else db_index


def key_text(key: Key) -> str:
    """A key as rejects keep it: as sacct prints it."""
    return str(key % 2**64) if isinstance(key, int) else f"{key[0]}@{key[1]}"
