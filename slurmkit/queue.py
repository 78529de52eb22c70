"""The queue as typed rows, read with one `squeue` call."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm
from slurmkit.tres import gpu_count

# squeue -O field for each row field, in order. Text a user chooses comes last.
_FIELDS = {
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
    "started": "StartTime",
    "time_used": "TimeUsed",
    "time_limit": "TimeLimit",
    "node_list": "NodeList",
    "reason": "Reason",
    "workdir": "WorkDir",
    "output": "STDOUT",
    "comment": "Comment",
    "name": "Name",
}
_SLICE = 1 << 18  # characters
_NUMBERS = {"nodes", "cpus", "priority"}
_TIMES = {"submitted", "started"}
ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED"
    " TIMEOUT".split()
)


class QueueRow(msgspec.Struct, frozen=True, gc=False):
    """One job or pending array as slurmctld shows it.

    Attributes:
        job_id: `12`, `12_3`, or `12_[4-9]` for a pending array.
        raw_id: Slurm's own number for it, different for each array task.
        tres: allocated TRES; for a pending job what it asks for, where the release says so.
        gpus: whole GPUs in `tres`.
        submitted: epoch seconds.
        started: epoch seconds; an estimate while pending; None when unknown.
        time_used: as squeue prints it, e.g. `1:02:03`.
        time_limit: as squeue prints it, e.g. `10:00` or `UNLIMITED`.
        output: path of its log, Slurm's patterns not filled in.
        name: whatever its user typed; escape it before showing it.
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

    @property
    def ended(self) -> bool:
        """Whether the job has reached a state it does not leave."""
        return self.state in ENDED


class Queue(msgspec.Struct, frozen=True):
    """A snapshot of the queue.

    Attributes:
        rows: in squeue's order.
        taken: epoch seconds at which squeue was asked.
        seconds: how long squeue and parsing took.
    """

    rows: tuple[QueueRow, ...]
    taken: float
    seconds: float


def read_queue(
    slurm: Slurm,
    *,
    user: str | None = None,
    job_ids: Iterable[str] = (),
    ended: bool = False,
) -> Queue:
    """Ask squeue once; filters are applied by Slurm.

    Args:
        slurm: the border to Slurm.
        user: only this user's jobs.
        job_ids: only these jobs.
        ended: also jobs that ended and that slurmctld still remembers (MinJobAge).

    Raises:
        SlurmError: when Slurm does not answer or its answer cannot be read.
    """
    mark = record_mark()
    argv = ["squeue", "--noheader", "-O", squeue_format(mark)]
    argv += ["--states=all"] if ended else []
    argv += [f"--user={user}"] if user else []
    ids = ",".join(job_ids)
    argv += [f"--jobs={ids}"] if ids else []
    taken = time.time()
    started = time.perf_counter()
    rows = parse_queue(slurm.run(argv), mark)
    return Queue(rows, taken, time.perf_counter() - started)


def record_mark() -> str:
    """Make a separator for one call: job names were chosen before it, so none can hold it."""
    return f"\x1f{secrets.token_hex(4)}"


def squeue_format(mark: str) -> str:
    """Build the `-O` argument; a suffix without a width prints the field untruncated."""
    return ",".join(f"{field}:{mark}" for field in _FIELDS.values())


def parse_queue(text: str, mark: str) -> tuple[QueueRow, ...]:
    """Read squeue's output; a row may span lines, since names may hold line breaks.

    Raises:
        SlurmError: when the output does not consist of whole rows.
    """
    parts = _split(text, mark)
    count = len(_FIELDS)
    rows, rest = divmod(len(parts) - 1, count)
    if rest or parts[-1].strip():
        raise SlurmError(f"squeue's answer broke off after {rows} rows; try again")
    return tuple(_row(parts[at : at + count]) for at in range(0, rows * count, count))


def _split(text: str, mark: str) -> list[str]:
    """Split in slices: one `str.split` of 50,000 jobs would hold the interpreter for 100 ms."""
    parts: list[str] = []
    start = 0
    while (end := text.find(mark, start + _SLICE)) >= 0:
        parts += text[start:end].split(mark)
        start = end + len(mark)
    return parts + text[start:].split(mark)


def _row(parts: list[str]) -> QueueRow:
    values: dict[str, Any] = dict(zip(_FIELDS, parts, strict=True))
    values["job_id"] = values["job_id"].lstrip("\n")
    values["comment"] = "" if values["comment"] == "(null)" else values["comment"]
    try:
        values |= {name: int(values[name]) for name in _NUMBERS}
        values |= {name: epoch(values[name]) for name in _TIMES}
        return QueueRow(**values, gpus=gpu_count(values["tres"]))
    except ValueError as error:
        raise SlurmError(f"squeue printed a job that cannot be read: {error}") from error


def epoch(text: str) -> int | None:
    """Read a time printed with SLURM_TIME_FORMAT=%s; `Unknown`, `N/A`, `None` and 0 are None."""
    return int(text) if text.isdigit() and text != "0" else None
