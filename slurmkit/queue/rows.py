"""One row of the queue, and how many of them are read quickly from squeue's text."""

from __future__ import annotations

import os
from binascii import b2a_base64
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

import msgspec

from slurmkit.errors import SlurmError
from slurmkit.tres import gpu_count

# squeue -O field for each row field, in order. Text a user chooses comes last.
FIELDS = {
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
ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED"
    " TIMEOUT".split()
)
# What squeue shows instead of PENDING of a job that was put back, or whose reservation is gone.
WAITING = frozenset("PENDING REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT".split())
_NUMBERS = {"nodes", "cpus", "priority"}
_TIMES = {"submitted", "eligible", "started"}
_MAYBE = {"requested_nodes", "dependency", "features", "reservation", "comment"}
_NO_TIME = frozenset({"", "0", "N/A", "None", "Unknown"})
# Lines read at once: no call in C over them takes a millisecond, for which other threads would
# wait, and squeue's pipe does not fill up meanwhile.
_LINES = 200

ValueT = TypeVar("ValueT")
_Reader = Callable[[str], object]
_Column = tuple[int, _Reader]


class QueueRow(msgspec.Struct, frozen=True, gc=False):
    """One job or pending array as slurmctld shows it.

    Attributes:
        job_id: `12`, `12_3`, `12+1` in a het job, or `12_[4-9]` for a pending array.
        raw_id: Slurm's own number for it, different for each array task.
        partition: of a pending job, all that it asks for, by comma.
        state: as squeue says it: the base state (RUNNING), or what goes on (COMPLETING, REQUEUED).
        nodes: how many nodes it holds or asks for; each task of a pending array, like `cpus`.
        tres: allocated TRES; for a pending job what it asks for, where the release says so.
        gpus: whole GPUs in `tres`.
        submitted: epoch seconds.
        started: epoch seconds; an estimate while pending; None when unknown.
        time_used: as squeue prints it, e.g. `1:02:03`.
        time_limit: as squeue prints it, e.g. `10:00` or `UNLIMITED`.
        node_list: nodes it holds, or held; empty while pending.
        reason: why it waits, in Slurm's word.
        output: path of its log, Slurm's patterns not filled in.
        name: whatever its user typed; escape it before showing it.
        eligible: epoch seconds since or from which it may start; None when unknown.
        dependency: what is left of its dependencies, in Slurm's words, or empty.
        features: the nodes' features it asks for (`--constraint`), or empty.
        requested_nodes: nodes it asks for by name, or empty.
        reservation: the one it asks for, or empty.
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
        """Whether the job has reached a state it does not leave."""
        return self.state in ENDED

    @property
    def waits(self) -> bool:
        """Whether the job is pending, whatever squeue calls that."""
        return self.state in WAITING

    @property
    def array_id(self) -> str | None:
        """`12` for `12_3` and `12_[4-9]`; None outside an array."""
        array, underscore, _ = self.job_id.partition("_")
        return array if underscore else None


class _Memo(dict[str, ValueT]):
    """Reads each distinct text once: most values repeat, and rows share them."""

    def __init__(self, read: Callable[[str], ValueT]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, text: str) -> ValueT:
        value = self[text] = self._read(text)
        return value


def record_mark() -> str:
    """Make a separator for one call: job names were chosen before it, so none can hold it.

    32 random bits in few characters, since squeue prints it after each field.
    """
    return f"\x1f{b2a_base64(os.urandom(4)).decode()[:6]}"


def squeue_format(mark: str) -> str:
    """Build the `-O` argument; a suffix without a width prints the field untruncated."""
    return ",".join(f"{field}:{mark}" for field in FIELDS.values())


def parse_queue(lines: Iterable[str], mark: str) -> tuple[QueueRow, ...]:
    """Read squeue's output while it arrives; a row may span lines, since names may.

    Args:
        lines: the output in pieces, line ends kept.
        mark: what follows each field.

    Raises:
        SlurmError: when the output does not consist of whole rows that can be read.
    """
    columns = _columns()
    rows: list[QueueRow] = []
    rest = ""
    pieces = iter(lines)
    while text := "".join(islice(pieces, _LINES)):
        parts = (rest + text).split(mark)
        whole = (len(parts) - 1) // len(FIELDS) * len(FIELDS)
        rows += _rows(parts[:whole], columns)
        rest = mark.join(parts[whole:])
    if rest.strip():
        raise SlurmError(f"squeue's answer broke off after {len(rows)} rows; try again")
    return tuple(rows)


def _columns() -> list[_Column]:
    """For each field of a row, where it stands in squeue's and what reads it."""
    readers: tuple[_Reader, ...] = (str, int, gpu_count, _time, _optional)
    memos = {read: _Memo(read).__getitem__ for read in readers}
    places = {name: at for at, name in enumerate(FIELDS)}
    places["gpus"] = places["tres"]
    return [(places[name], memos[_reader(name)]) for name in QueueRow.__struct_fields__]


def _reader(name: str) -> _Reader:
    if name == "gpus":
        return gpu_count
    if name in _NUMBERS:
        return int
    if name in _TIMES:
        return _time
    return _optional if name in _MAYBE else str


def _rows(parts: list[str], columns: list[_Column]) -> list[QueueRow]:
    """Column by column, so that the loops run in C: a job takes some microseconds."""
    step = len(FIELDS)
    parts[::step] = [job_id.lstrip("\n") for job_id in parts[::step]]
    try:
        return list(map(QueueRow, *(map(read, parts[at::step]) for at, read in columns)))
    except ValueError as error:
        raise SlurmError(f"squeue printed a job that cannot be read: {error}") from error


def _optional(text: str) -> str:
    return "" if text in {"(null)", "N/A"} else text


def _time(text: str) -> int | None:
    return None if text in _NO_TIME else int(text)


def epoch(text: str) -> int | None:
    """Read a time printed with SLURM_TIME_FORMAT=%s; `Unknown`, `N/A`, `None` and 0 are None."""
    return int(text) if text.isdigit() and text != "0" else None
