"""Rows of the queue: the fast parser of squeue's output, and their table cells and order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TypeVar

import msgspec

from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadInput, SlurmError
from slurmkit.formats.display import printable
from slurmkit.formats.durations import parse_elapsed
from slurmkit.formats.tres import gpu_count, gpu_parts

# The squeue -O field of each row field, in order. Free text chosen by users comes last.
QUEUE_FIELDS = {
    "job_id": "JobArrayID",
    "raw_id": "JobID",
    "user": "UserName",
    "account": "Account",
    "partition": "Partition",
    "qos": "QOS",
    "state": "State",
    "nodes": "NumNodes",
    "cpus": "NumCPUs",
    "tres": "tres-alloc",
    "priority": "PriorityLong",
    "submitted": "SubmitTime",
    "eligible": "EligibleTime",
    "started": "StartTime",
    "time_used": "TimeUsed",
    "time_limit": "TimeLimit",
    "node_list": "NodeList",
    "requested_nodes": "ReqNodes",
    "reason": "Reason",
    "dependency": "Dependency",
    "features": "Feature",
    "reservation": "Reservation",
    "workdir": "WorkDir",
    "output": "STDOUT",
    "comment": "Comment",
    "name": "Name",
}
QUEUE_COLUMNS = tuple("JOBID USER ACCOUNT PARTITION STATE TIME LIMIT NODES GPUS WHERE NAME".split())
NUMERIC_QUEUE_COLUMNS = frozenset({"TIME", "LIMIT", "NODES", "GPUS"})
FINAL_STATES = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED"
    " TIMEOUT".split()
)
# PENDING, and what squeue shows instead for requeued jobs or after a reservation was deleted.
PENDING_STATES = frozenset("PENDING REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT".split())
_NUMBERS = {"nodes", "cpus", "priority"}
_TIMES = {"submitted", "eligible", "started"}
_MAYBE = {"requested_nodes", "dependency", "features", "reservation", "comment"}
_NO_TIME = frozenset({"", "0", "N/A", "None", "Unknown"})
# Lines parsed at once. Few enough that each C call stays under a millisecond, so that other
# threads get the GIL and squeue's pipe does not fill up.
_LINES = 200

ValueT = TypeVar("ValueT")
_Reader = Callable[[str], object]
_Column = tuple[int, _Reader]


class QueueRow(msgspec.Struct, frozen=True, gc=False):
    """One job or pending array as slurmctld shows it.

    Attributes:
        job_id: `12`, `12_3`, `12+1` in a het job, or `12_[4-9]` for a pending array.
        raw_id: Slurm's own job id, different for each array task.
        partition: a pending job may name several, separated by commas.
        state: as squeue prints it: base state (RUNNING), or current flag (COMPLETING, REQUEUED).
        nodes: number of nodes allocated or requested; for a pending array, of each task.
        cpus: likewise.
        tres: allocated TRES; for a pending job the requested TRES, if the release prints them.
        gpus: whole GPUs in `tres`.
        submitted: epoch seconds.
        started: epoch seconds; an estimate while pending; None if unknown.
        time_used: as squeue prints it, e.g. `1:02:03`.
        time_limit: as squeue prints it, e.g. `10:00` or `UNLIMITED`.
        node_list: nodes it holds, or held; empty while pending.
        reason: Slurm's pending reason.
        output: path of its log, with Slurm's filename patterns unexpanded.
        name: free text typed by the user; escape it before showing it.
        eligible: epoch seconds from which it may start; None if unknown.
        dependency: its unfinished dependencies as Slurm prints them, or empty.
        features: value of `--constraint`, or empty.
        requested_nodes: value of `--nodelist`, or empty.
        reservation: value of `--reservation`, or empty.
    """

    job_id: str
    raw_id: str
    user: str
    account: str
    partition: str
    qos: str
    state: str
    nodes: int
    cpus: int
    tres: str
    gpus: int
    priority: int
    submitted: int | None
    started: int | None
    time_used: str
    time_limit: str
    node_list: str
    reason: str
    workdir: str
    output: str
    comment: str
    name: str
    eligible: int | None = None
    dependency: str = ""
    features: str = ""
    requested_nodes: str = ""
    reservation: str = ""

    @property
    def ended(self) -> bool:
        """Whether the job is in a final state."""
        return self.state in FINAL_STATES

    @property
    def waits(self) -> bool:
        """Whether the job is pending, under any of squeue's names for it."""
        return self.state in PENDING_STATES

    @property
    def array_id(self) -> str | None:
        """`12` for `12_3` and `12_[4-9]`; None outside an array."""
        array, underscore, _ = self.job_id.partition("_")
        return array if underscore else None


class _Memo(dict[str, ValueT]):
    """A cache that parses each distinct text once; most values repeat, and rows share them."""

    def __init__(self, read: Callable[[str], ValueT]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, text: str) -> ValueT:
        value = self[text] = self._read(text)
        return value


def squeue_format(mark: str) -> str:
    """Return squeue's `-O` argument; a suffix without a width prints the field untruncated."""
    return ",".join(f"{field}:{mark}" for field in QUEUE_FIELDS.values())


def parse_queue(lines: Iterable[str], mark: str) -> tuple[QueueRow, ...]:
    """Parse squeue's output while it arrives. A row may span lines, since job names may.

    Args:
        lines: the output, with line ends.
        mark: the separator after each field.

    Raises:
        SlurmError: when the output does not consist of whole, valid rows.
    """
    columns = _columns()
    rows: list[QueueRow] = []
    rest = ""
    pieces = iter(lines)
    while text := "".join(islice(pieces, _LINES)):
        parts = (rest + text).split(mark)
        whole = (len(parts) - 1) // len(QUEUE_FIELDS) * len(QUEUE_FIELDS)
        rows += _rows(parts[:whole], columns)
        rest = mark.join(parts[whole:])
    if rest.strip():
        raise SlurmError(f"squeue's answer broke off after {len(rows)} rows; try again")
    return tuple(rows)


def _columns() -> list[_Column]:
    """Return, for each field of a row, its index in squeue's output and its parser."""
    readers: tuple[_Reader, ...] = (str, int, gpu_count, _time, _optional)
    memos = {read: _Memo(read).__getitem__ for read in readers}
    positions = {name: at for at, name in enumerate(QUEUE_FIELDS)}
    positions["gpus"] = positions["tres"]
    return [(positions[name], memos[_reader(name)]) for name in QueueRow.__struct_fields__]


def _reader(name: str) -> _Reader:
    if name == "gpus":
        return gpu_count
    if name in _NUMBERS:
        return int
    if name in _TIMES:
        return _time
    return _optional if name in _MAYBE else str


def _rows(parts: list[str], columns: list[_Column]) -> list[QueueRow]:
    """Build rows column by column, so that the loops run in C: some microseconds per job."""
    step = len(QUEUE_FIELDS)
    parts[::step] = [job_id.lstrip("\n") for job_id in parts[::step]]
    try:
        return list(map(QueueRow, *(map(read, parts[at::step]) for at, read in columns)))
    except ValueError as error:
        raise SlurmError(f"squeue printed a job that cannot be read: {error}") from error


def _optional(text: str) -> str:
    return "" if text in {"(null)", "N/A"} else text


def _time(text: str) -> int | None:
    return None if text in _NO_TIME else int(text)


def parse_epoch(text: str) -> int | None:
    """Parse a time printed with SLURM_TIME_FORMAT=%s; `Unknown`, `N/A`, `None` and 0 are None."""
    return int(text) if text.isdigit() and text != "0" else None


def queue_cells(row: QueueRow, *, gpus_known: bool) -> tuple[str, ...]:
    """Return the escaped cells of a row, in the order of `QUEUE_COLUMNS`.

    Args:
        row: the job.
        gpus_known: whether the cluster counts GPUs in TRES; see `counts_gpus`.
    """
    return escape_cells(
        row.job_id,
        row.user,
        row.account,
        row.partition,
        row.state,
        row.time_used,
        row.time_limit,
        str(row.nodes),
        format_gpu_count(row, known=gpus_known),
        format_where(row.node_list, pending_reason(row)),
        row.name,
    )


def escape_cells(*texts: str) -> tuple[str, ...]:
    """Escape unprintable characters in texts."""
    return texts if "".join(texts).isprintable() else tuple(map(printable, texts))


def pending_reason(row: QueueRow) -> str:
    """Return the reason why a job has no nodes; empty if it has nodes, or ended without."""
    return "" if row.node_list or (row.ended and row.reason == "None") else row.reason


def format_where(nodes: str, reasons: str) -> str:
    """Format the nodes, and the pending reason in brackets."""
    return " ".join(filter(None, [nodes, f"({reasons})" if reasons else ""]))


def format_gpu_count(row: QueueRow, *, known: bool) -> str:
    """Format the number of GPUs; `?` if the release prints no TRES of a pending job.

    Shards and MPS are named: `2 shard`, `50 mps`.
    """
    if row.gpus:
        return str(row.gpus)
    parts = format_gpu_parts(gpu_parts(row.tres))
    return parts or ("0" if known and "=" in row.tres else "?")


def format_gpu_parts(parts: Mapping[str, int]) -> str:
    """Format shards and MPS: `2 shard`."""
    return ", ".join(f"{count} {kind}" for kind, count in parts.items())


def counts_gpus(rows: Iterable[QueueRow], *, tracked: bool | None) -> bool:
    """Return whether the cluster counts GPUs in TRES, so that a job without them has none.

    Args:
        rows: the queue; a row with GPUs proves that they are counted.
        tracked: whether AccountingStorageTRES has GPUs; None if unknown.
    """
    return bool(tracked) or any(row.gpus for row in rows)


_SortKey = Callable[[QueueRow], "str | float | None"]
SORT_KEYS: dict[str, _SortKey] = {
    "jobid": lambda row: int(row.raw_id),
    "user": lambda row: row.user,
    "account": lambda row: row.account,
    "partition": lambda row: row.partition,
    "qos": lambda row: row.qos,
    "state": lambda row: row.state,
    "time": lambda row: parse_elapsed(row.time_used),
    "limit": lambda row: parse_elapsed(row.time_limit),
    "nodes": lambda row: row.nodes,
    "cpus": lambda row: row.cpus,
    "gpus": lambda row: row.gpus or _gpu_part_key(row.tres),
    "where": lambda row: row.node_list or None,
    "priority": lambda row: row.priority,
    "submit": lambda row: row.submitted,
    "start": lambda row: row.started,
    "name": lambda row: row.name,
}


def _gpu_part_key(tres: str) -> float:
    """Return a sort key between 0 and 1 for shards and MPS: more than no GPU, less than one."""
    parts = sum(gpu_parts(tres).values())
    return parts / (parts + 1)


def sort_rows(rows: Iterable[QueueRow], by: str) -> list[QueueRow]:
    """Sort rows by `SORT_KEYS`, e.g. `user,-gpus`; `-` reverses a key, unknown values come last.

    Raises:
        BadInput: for an unknown key, naming the nearest one.
    """
    result = list(rows)
    for word in reversed(by.split(",")):
        descending, name = word.startswith("-"), word.lstrip("-").strip().lower()
        key = SORT_KEYS.get(name)
        if key is None:
            near = did_you_mean(name, list(SORT_KEYS), "columns")
            raise BadInput(f"--sort {by}: there is no column {name!r} to sort by; {near}")
        _sort(result, key, descending=descending)
    return result


def _sort(rows: list[QueueRow], key: _SortKey, *, descending: bool) -> None:
    def known_first(row: QueueRow) -> tuple[bool, str | float]:
        value = key(row)
        return ((value is None) != descending, 0 if value is None else value)

    rows.sort(key=known_first, reverse=descending)
