"""Rows of sacct: ask for them, put them together again, read them or say why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from slurmkit.tres import gpu_count, parse_tres

ValueT = TypeVar("ValueT")
Key = tuple[int, ...]

# sacct's fields in the order they are asked for. Text a user chooses comes last.
FIELDS = (
    "DBIndex",
    "JobIDRaw",
    "JobID",
    "User",
    "UID",
    "Account",
    "Partition",
    "QOS",
    "State",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "AllocNodes",
    "AllocCPUS",
    "AllocTRES",
    "ReqTRES",
    "TimelimitRaw",
    "ExitCode",
    "NodeList",
    "JobName",
)
_INSTEAD_OF_INDEX = (FIELDS.index("JobIDRaw"), FIELDS.index("Submit"))
_LAST_OF_IDENTITY = max(_INSTEAD_OF_INDEX)
_NO_TIME = frozenset(("", "0", "Unknown", "None", "N/A"))
# What the ledger stores: DBIndex has no sign since 24.11, everything else is far smaller.
_BIGGEST_INDEX = 2**64 - 1
_BIGGEST = 2**63 - 1


class Run(msgspec.Struct, frozen=True, gc=False):
    """One run of a job, named as the columns of table `runs`.

    Attributes:
        db_index: slurmdbd's number of the row; None where sacct does not print it.
        state: Slurm's base state, without `by UID`.
        submit: epoch seconds, like `eligible`, `start` and `end`; None when not known (yet).
        cpus: CPUs in its allocation, 0 when it never had one.
        gpus: whole GPUs (or MIG instances) in its allocation.
        time_limit: minutes as text, or `UNLIMITED`, `Partition_Limit`.
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
    eligible: int | None
    start: int | None
    end: int | None
    nodes: int
    cpus: int
    gpus: int
    alloc_tres: str
    req_tres: str
    time_limit: str
    exit_code: str
    node_list: str
    name: str

    @property
    def key(self) -> Key:
        """What tells it from all others of its cluster."""
        return identify(self.db_index, self.job_id_raw, self.submit)


class Reject(msgspec.Struct, frozen=True):
    """Text of sacct that is no row: verbatim, and why it could not be read.

    Attributes:
        key: of the run it speaks of; None where it does not say.
    """

    line: str
    reason: str
    key: Key | None = None


def identify(db_index: int | None, job_id_raw: int, submit: int) -> Key:
    """Tell a run from all others of its cluster: by DBIndex, else by JobIDRaw and Submit."""
    return (job_id_raw, submit) if db_index is None else (db_index,)


def sacct_argv(mark: str, *selection: str) -> list[str]:
    """Build the command; with a delimiter after the last field too (-p), so none runs on."""
    flags = ["-a", "-X", "-D", "--noheader", "-p", f"--delimiter={mark}"]
    return ["sacct", *flags, f"--format={','.join(FIELDS)}", *selection]


def read_rows(lines: Iterable[str], mark: str) -> Iterator[Run | Reject]:
    """Read what sacct prints, row by row; what cannot be read comes out as a Reject.

    Args:
        lines: sacct's output, line ends kept; a line break in a job's name breaks its row.
        mark: the delimiter the rows were asked for with.
    """
    held = ""
    for line in lines:
        held += line
        if line.endswith(f"{mark}\n") and held.count(mark) >= len(FIELDS):
            yield from _read(held.removesuffix(f"{mark}\n"), mark)
            held = ""
    if held.strip():
        yield _reject(held, "the row breaks off before its last field", mark)


def _read(row: str, mark: str) -> Iterator[Run | Reject]:
    parts = row.split(mark)
    # No row begins with a line break: what stands before one is not part of it.
    stray, _, parts[0] = parts[0].rpartition("\n")
    if stray.strip():
        yield _reject(stray, "not part of a row", mark)
    if len(parts) != len(FIELDS):
        yield _reject(row, f"{len(parts)} fields where {len(FIELDS)} were asked for", mark)
        return
    try:
        yield _run(dict(zip(FIELDS, parts, strict=True)))
    except ValueError as error:
        yield _reject(mark.join(parts), str(error), mark)


def _reject(line: str, reason: str, mark: str) -> Reject:
    # Only the delimiter, different in each call, is replaced: the same row stays the same reject.
    return Reject(_storable(line.replace(mark, "\x1f")), reason, _whose(line.split(mark)))


def _whose(parts: Sequence[str]) -> Key | None:
    if not _LAST_OF_IDENTITY + 1 < len(parts) <= len(FIELDS):  # more are several rows in one
        return None
    try:
        index = _index(parts[0].rpartition("\n")[2])
        job, submit = (0 if index else _number(parts[place]) for place in _INSTEAD_OF_INDEX)
        return identify(index, job, submit)
    except ValueError:
        return None


def _run(raw: Mapping[str, str]) -> Run:
    tres = parse_tres(raw["AllocTRES"])
    return Run(
        db_index=_field(raw, "DBIndex", _index),
        job_id_raw=_field(raw, "JobIDRaw", _number),
        job_id=raw["JobID"],
        user=_storable(raw["User"]),
        uid=_field(raw, "UID", _optional),
        account=_storable(raw["Account"]),
        partition=raw["Partition"],
        qos=raw["QOS"],
        state=raw["State"].partition(" ")[0],  # `CANCELLED by 10001`
        submit=_field(raw, "Submit", _number),
        eligible=_field(raw, "Eligible", _time),
        start=_field(raw, "Start", _time),
        end=_field(raw, "End", _time),
        nodes=_field(raw, "AllocNodes", _optional) or 0,
        cpus=_number(tres["cpu"]) if "cpu" in tres else _field(raw, "AllocCPUS", _optional) or 0,
        gpus=_field(raw, "AllocTRES", _gpus),
        alloc_tres=raw["AllocTRES"],
        req_tres=raw["ReqTRES"],
        time_limit=raw["TimelimitRaw"],
        exit_code=raw["ExitCode"],
        node_list=raw["NodeList"],
        name=_storable(raw["JobName"]),
    )


def _field(raw: Mapping[str, str], name: str, read: Callable[[str], ValueT]) -> ValueT:
    try:
        return read(raw[name])
    except ValueError as error:
        raise ValueError(f"{name} {raw[name]!r} cannot be read") from error


def _gpus(tres: str) -> int:
    return _number(str(gpu_count(tres)))  # Slurm has printed 2^64 - 2 for "no value"


def _index(text: str) -> int | None:
    return _number(text, biggest=_BIGGEST_INDEX) or None if text else None


def _number(text: str, *, biggest: int = _BIGGEST) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > biggest:
        raise ValueError(text)
    return int(text)


def _optional(text: str) -> int | None:
    return _number(text) if text else None


def _time(text: str) -> int | None:
    return None if text in _NO_TIME else _number(text)


def _storable(text: str) -> str:
    """PostgreSQL stores no NUL."""
    return text.replace("\0", "\ufffd")
