"""The jobs that hold nodes now: what a map of nodes or GPUs needs of the queue, and no more."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from slurmkit.capabilities.nodes import node_names
from slurmkit.errors import SlurmError
from slurmkit.queue.rows import epoch, record_mark
from slurmkit.slurm import Slurm

_FIELDS = tuple("JobID JobArrayID UserName Account State NodeList StartTime tres-alloc".split())
# Suspended, stopped and completing jobs still hold what they have.
_STATES = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,RESIZING,SIGNALING,STAGE_OUT"


class Holder(msgspec.Struct, frozen=True, gc=False):
    """A job on its nodes.

    Attributes:
        raw_id: Slurm's own number for it.
        job_id: as people name it: `12`, `12_3`.
        nodes: their names.
        started: epoch seconds; None when unknown.
        tres: allocated TRES as squeue prints it.
    """

    raw_id: str
    job_id: str
    user: str
    account: str
    state: str
    nodes: tuple[str, ...]
    started: int | None
    tres: str


def read_holders(slurm: Slurm) -> tuple[Holder, ...]:
    """Ask squeue for all jobs that hold nodes.

    Raises:
        SlurmError: when Slurm does not answer or its answer cannot be read.
    """
    mark = record_mark()
    return parse_holders(slurm.run(holders_asked(mark)), mark)


def holders_asked(mark: str) -> list[str]:
    """The command; `--all` shows also the jobs in partitions that are hidden."""
    fields = ",".join(f"{field}:{mark}" for field in _FIELDS)
    return ["squeue", "--all", "--noheader", f"--states={_STATES}", "-O", fields]


def parse_holders(text: str, mark: str) -> tuple[Holder, ...]:
    """Read squeue's answer, the oldest job first; jobs without nodes are left out.

    Raises:
        SlurmError: when the answer does not consist of whole rows.
    """
    parts = text.split(mark)
    size = len(_FIELDS)
    count, rest = divmod(len(parts) - 1, size)
    if rest or parts[-1].strip():
        raise SlurmError(f"squeue's answer broke off after {count} rows; try again")
    rows = (_holder(parts[at : at + size]) for at in range(0, count * size, size))
    holders = [row for row in rows if row.nodes]
    return tuple(sorted(holders, key=lambda row: (len(row.raw_id), row.raw_id)))


def _holder(parts: list[str]) -> Holder:
    raw_id, job_id, user, account, state, nodes, started, tres = parts
    return Holder(raw_id.strip(), job_id, user, account, state, _names(nodes), epoch(started), tres)


@lru_cache(maxsize=4096)
def _names(text: str) -> tuple[str, ...]:
    return node_names(text) if "[" in text or "," in text else tuple(filter(None, [text]))
