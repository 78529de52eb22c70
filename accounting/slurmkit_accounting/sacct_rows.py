"""Rows of sacct: ask for them, and put them together again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slurmkit_accounting.columns import Layout, fingerprints
from slurmkit_accounting.rows import Batch, Reject

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
    "Suspended",
    "AllocNodes",
    "AllocCPUS",
    "AllocTRES",
    "ReqTRES",
    "ConsumedEnergyRaw",
    "TimelimitRaw",
    "ExitCode",
    "NodeList",
    "Reservation",
    "JobName",
)
_LAST_OF_IDENTITY = FIELDS.index("Submit")


def layout() -> Layout:
    """How its lines are read."""
    return Layout(FIELDS)


def sacct_argv(mark: str, *selection: str) -> list[str]:
    """Build the command; with a delimiter after the last field too (-p), so none runs on."""
    # Memory to the MiB, where it would be rounded to two decimals.
    flags = ["-a", "-X", "-D", "--noconvert", "--noheader", "-p", f"--delimiter={mark}"]
    return ["sacct", *flags, f"--format={','.join(FIELDS)}", *selection]


def read_batches(lines: Iterable[str], mark: str, how: Layout, size: int) -> Iterator[Batch]:
    """Split what sacct prints into fields, up to `size` rows at a time.

    Args:
        lines: sacct's output, line ends kept; a line break in a job's name breaks its row.
        mark: the delimiter the rows were asked for with.
        how: the layout of the rows.
        size: rows of a batch.
    """
    rows: list[list[str]] = []
    rejects: list[Reject] = []
    for row in _whole(lines, mark):
        if isinstance(row, Reject):
            rejects.append(row)
        else:
            rows.append(row)
        if len(rows) + len(rejects) >= size:
            yield _batch(rows, rejects, how)
            rows, rejects = [], []
    if rows or rejects:
        yield _batch(rows, rejects, how)


def _batch(rows: list[list[str]], rejects: list[Reject], how: Layout) -> Batch:
    prints = fingerprints("\x1f".join(row).encode() for row in rows)
    return Batch.of(rows, [number ^ how.seed for number in prints], rejects)


def _whole(lines: Iterable[str], mark: str) -> Iterator[list[str] | Reject]:
    held, end, size = "", f"{mark}\n", len(FIELDS)
    for line in lines:
        held += line
        if line.endswith(end):
            parts = _storable(held).split(mark)
            if len(parts) > size:
                yield from _row(parts[:-1])
                held = ""
    if held.strip():
        parts = _storable(held).split(mark)
        yield Reject("\x1f".join(parts), "the row breaks off before its last field", _whose(parts))


def _row(parts: list[str]) -> Iterator[list[str] | Reject]:
    if "\n" in parts[0]:
        # No row begins with a line break: what stands before one is not part of it.
        stray, _, parts[0] = parts[0].rpartition("\n")
        if stray.strip():
            yield Reject(stray, "not part of a row")
    if len(parts) == len(FIELDS):
        yield parts
    else:  # more: several rows in one
        why = f"{len(parts)} fields where {len(FIELDS)} were asked for"
        yield Reject("\x1f".join(parts), why, _whose(parts))


def _whose(parts: list[str]) -> int | tuple[int, int] | None:
    """Whose row it is, cut off or with something before it."""
    if not _LAST_OF_IDENTITY + 1 < len(parts) <= len(FIELDS):
        return None
    return _LAYOUT.key([parts[0].rpartition("\n")[2], *parts[1:]])


def _storable(text: str) -> str:
    """PostgreSQL stores no NUL."""
    return text.replace("\0", "\ufffd")


_LAYOUT = Layout(FIELDS)
