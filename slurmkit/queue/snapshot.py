"""The queue as typed rows, read with one `squeue` call."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

import msgspec

from slurmkit.errors import BadInput, Refused
from slurmkit.jobs.ids import check_job_id
from slurmkit.queue.check import bad_input, refuse_unknown
from slurmkit.queue.rows import QueueRow, parse_queue, record_mark, squeue_format
from slurmkit.slurm import Slurm

_SECONDS = 120.0  # squeue of the largest queues takes some seconds
_LISTS = {
    "users": "user",
    "partitions": "partition",
    "accounts": "account",
    "qos": "qos",
    "states": "states",
    "names": "name",
    "job_ids": "jobs",
}


class QueueFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to show, all conditions together; Slurm applies them.

    Attributes:
        users: login names or numbers.
        me: only the jobs of whoever asks.
        states: Slurm's names or short codes; `all` shows also those that ended and that slurmctld
            still remembers (MinJobAge).
        names: job names, by Slurm compared without case; one with a comma cannot be asked for.
        nodelist: jobs on any of these nodes, e.g. `c[1-3],c5`.
        reservation: jobs in it.
        job_ids: `12`, `12_3` or `12+1`; of an array all tasks.
        array: each pending task of an array is a row of its own.

    Raises:
        BadInput: for an empty value, which Slurm takes as no condition, and for one that squeue
            would read as several.
    """

    users: tuple[str, ...] = ()
    me: bool = False
    partitions: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    nodelist: str | None = None
    reservation: str | None = None
    job_ids: tuple[str, ...] = ()
    array: bool = False

    def __post_init__(self) -> None:
        """Refuse what Slurm would take for something else."""
        for field, option in _LISTS.items():
            for value in getattr(self, field):
                _check(option, value)
        for option in ("nodelist", "reservation"):
            value = getattr(self, option)
            if value is not None:
                _check(option, value, commas=option == "nodelist")
        if self.me and self.users:
            raise BadInput("give either --me or --user, not both")

    def options(self) -> list[str]:
        """The options of squeue."""
        lists = ((option, ",".join(getattr(self, field))) for field, option in _LISTS.items())
        singles = (("nodelist", self.nodelist), ("reservation", self.reservation))
        given = [f"--{option}={value}" for option, value in (*lists, *singles) if value]
        return [*given, *(["--me"] if self.me else []), *(["--array"] if self.array else [])]

    def named(self) -> dict[str, tuple[str, ...]]:
        """Names that squeue does not check, by its option."""
        reservation = (self.reservation,) if self.reservation else ()
        named = {"partition": self.partitions, "account": self.accounts, "qos": self.qos}
        return {**named, "reservation": reservation}


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
    only: QueueFilter | None = None,
    *,
    user: str | None = None,
    job_ids: Iterable[str] = (),
    ended: bool = False,
) -> Queue:
    """Ask squeue once; filters are applied by Slurm, rows are read while squeue prints.

    Args:
        slurm: the border to Slurm.
        only: which jobs.
        user: only this user's jobs; short for a filter, like the next two.
        job_ids: only these jobs.
        ended: also jobs that ended and that slurmctld still remembers (MinJobAge).

    Raises:
        BadInput: when the filter names what this cluster does not have.
        NoSuchJob: when the one job asked for is unknown.
        SlurmError: when Slurm does not answer or its answer cannot be read.
    """
    only = only or QueueFilter(
        users=(user,) if user else (),
        job_ids=tuple(job_ids),
        states=("all",) if ended else (),
    )
    mark = record_mark()
    argv = ["squeue", "--noheader", "-O", squeue_format(mark), *only.options()]
    taken = time.time()
    began = time.perf_counter()
    try:
        rows = parse_queue(slurm.stream(argv, timeout=_SECONDS), mark)
    except Refused as error:
        raise bad_input(error) from error
    seconds = time.perf_counter() - began
    refuse_unknown(slurm, only.named(), rows)
    return Queue(_just(rows, only.job_ids), taken, seconds)


def _check(option: str, value: str, *, commas: bool = False) -> None:
    where = "job id" if option == "jobs" else f"--{option}"
    if not value.strip():
        raise BadInput(f"{where} may not be empty; leave it out for all")
    if option == "jobs":
        check_job_id(value)
    elif not value.isprintable() or ("," in value and not commas):
        raise BadInput(f"{where} {value!r}: squeue cannot be asked for that")


def _just(rows: tuple[QueueRow, ...], job_ids: tuple[str, ...]) -> tuple[QueueRow, ...]:
    """Of a het job squeue shows all components, whichever was asked for."""
    if not any("+" in job_id for job_id in job_ids):
        return rows
    asked = set(job_ids)
    return tuple(r for r in rows if asked & {r.job_id, r.raw_id, *re.split("[_+]", r.job_id)[:1]})
