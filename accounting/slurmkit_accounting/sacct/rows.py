"""Types of parsed sacct rows: runs, rejects with a reason, and batches of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

# JobIDRaw and Submit of a run, in epoch seconds: slurmdbd has one row for each such pair. A DBIndex
# is no key: a database that was re-created counts from 1 again, and a job that slurmctld sends to
# it once more gets another one.
RunKey: TypeAlias = "tuple[int, int]"
# Values of many runs, by field of `RunRow` and in that order.
RunColumns: TypeAlias = "dict[str, Sequence[Any]]"
# Texts of many rows: one sequence for each field; empty if there are no rows.
FieldTexts: TypeAlias = "Sequence[Sequence[str]]"


class RunRow(NamedTuple):
    """One run of a job; names and order of the fields are those of table `runs`.

    Attributes:
        db_index: slurmdbd's row number, stored as a signed number; None if sacct does not print it.
        state: Slurm's base state, without `by UID`.
        submit: epoch seconds, like `eligible`, `start` and `end`; None when not known (yet).
        cpus: CPUs in its allocation, 0 when it never had one.
        gpus: whole GPUs (or MIG instances) in its allocation.
        energy_joules: None if not measured.
        suspended: seconds.
        time_limit: minutes as text, or `UNLIMITED`, `Partition_Limit`.
        doubt: why its number of GPUs cannot be trusted; None if it can.
        fingerprint: hash of the row it was parsed from.
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
    def key(self) -> RunKey:
        """The key of the run, unique within its cluster."""
        return self.job_id_raw, self.submit


class Reject(NamedTuple):
    """A row that could not be parsed: its text verbatim, and the reason.

    Attributes:
        key: the key of its run; None if that is not readable.
        db_index: its DBIndex as it is stored; None if there is none, or it is not readable.
    """

    line: str
    reason: str
    key: RunKey | None = None
    db_index: int | None = None


class RowBatch(NamedTuple):
    """Some rows of sacct, split into fields.

    Attributes:
        lines: all texts in their order in memory. They are freed in that order, after the columns.
        texts: the texts of each field.
        fingerprints: one for each row; equal for equal rows parsed with the same layout.
        rejects: text that could not be split into fields.
    """

    lines: Sequence[Any]
    texts: FieldTexts
    fingerprints: list[int]
    rejects: list[Reject]

    @classmethod
    def of(
        cls, rows: Sequence[Sequence[str]], fingerprints: list[int], rejects: list[Reject]
    ) -> RowBatch:
        """Make a batch of rows."""
        return cls(rows, list(zip(*rows, strict=True)), fingerprints, rejects)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The texts of each row."""
        return list(zip(*self.texts, strict=True))

    def row(self, index: int) -> list[str]:
        """Return the texts of one row."""
        return [column[index] for column in self.texts]

    def some(self, indices: Sequence[int]) -> RowBatch:
        """Return a batch of some of the rows."""
        texts = [[column[index] for index in indices] for column in self.texts]
        return RowBatch((), texts, [self.fingerprints[index] for index in indices], [])

    def __len__(self) -> int:
        return len(self.fingerprints) + len(self.rejects)


def format_run_key(key: RunKey) -> str:
    """Format a key as rejects store it."""
    return f"{key[0]}@{key[1]}"


def format_db_index(index: int) -> str:
    """Format a stored DBIndex as sacct prints it, without a sign."""
    return str(index % 2**64)
