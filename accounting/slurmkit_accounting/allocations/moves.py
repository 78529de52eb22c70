"""Waiting jobs that may use more than is left, and their move to a QOS that no allocation pays for.

Slurm says which jobs wait for the limit of a QOS. A job may also wait for it because running jobs
may use the rest, up to their time limits: such a job stays, for it may still start. Names of the
reasons: src/common/job_state_reason.c and slurm_protocol_defs.c, 22.05 to 26.05.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from slurmkit.errors import JobOver, NoSuchJob, SlurmError
from slurmkit.formats.job_ids import whole_id
from slurmkit.formats.tres import gpu_count
from slurmkit.jobs.backends.commands import CommandsBackend
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.queue import QueueFilter, read_queue
from slurmkit.state.queue_rows import QueueRow
from slurmkit_accounting.allocations.amounts import Unit
from slurmkit_accounting.allocations.limits import WantedLimit
from slurmkit_accounting.allocations.model import Holder
from slurmkit_accounting.allocations.site import SlurmSite
from slurmkit_accounting.allocations.uses import parse_billing
from slurmkit_accounting.sacct.values import parse_limit_seconds

_UNIT_OF_REASON: Mapping[str, Unit] = {
    "QOSGrpGRESMinutes": "gpu",
    "QOSGrpBillingMinutes": "billing",
}
_THROTTLE = re.compile(r"%\d+")
# Parts of the error of an update: the task has started or ended meanwhile; the others are changed.
_NOT_PENDING = "no longer pending"
_OTHERS_DONE = "other tasks are done"
_SCRONTAB = "scrontab"  # Slurm lets nobody change jobs of scrontab


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting job that moves to another QOS.

    Attributes:
        job_id: as scontrol takes it; `12_[4-9]` for the waiting tasks of an array.
        holder: whose balance it is beyond.
        before: its QOS.
        after: the QOS that it moves to.
        minutes: of the TRES that it, or each task, may use at most; None is no bound.
        left: minutes of it that the holder has left.
    """

    job_id: str
    user: str
    holder: Holder
    unit: Unit
    before: str
    after: str
    minutes: int | None
    left: int

    @property
    def command(self) -> tuple[str, ...]:
        """The command that moves it."""
        return ("scontrol", "update", f"JobId={self.job_id}", f"QOS={self.after}")


class DoneMove(msgspec.Struct, frozen=True):
    """What came of a move.

    Attributes:
        outcome: `moved`, `gone` (it has started or ended), `stays` (Slurm moves no job of
            scrontab), or `failed`; empty if it was not tried.
        why: why it stays or failed, and which tasks have started meanwhile.
    """

    move: Move
    outcome: str = ""
    why: str = ""


def find_moves(
    slurm: SlurmCommands, site: SlurmSite, wanted: Sequence[WantedLimit], lower_qos: str
) -> tuple[Move, ...]:
    """Find the jobs that wait for a balance, and may use more than is left of it.

    Args:
        slurm: runs squeue.
        site: what Slurm says.
        wanted: the limits of all balances.
        lower_qos: the QOS to move them to; empty for no move.

    Raises:
        SlurmError: when Slurm does not answer or its answer cannot be read.
    """
    limits = {
        (one.target, one.unit): one
        for one in wanted
        if one.holder is not None and one.is_due and not one.problem and one.after is not None
    }
    if not limits or not lower_qos or lower_qos not in site.qos_flags:
        return ()
    jobs = defaultdict(list)
    for row in read_queue(slurm, QueueFilter(states=("PENDING",), hidden=True)).rows:
        unit = _UNIT_OF_REASON.get(row.reason)
        # A job that waits has its QOS as its user typed it.
        if unit and (row.qos.lower(), unit) in limits:
            job_id = whole_id(row.job_id) if "+" in row.job_id else _THROTTLE.sub("", row.job_id)
            jobs[job_id, row.user, row.qos.lower(), unit].append(row)
    found = []
    for (job_id, user, qos, unit), rows in jobs.items():
        limit = limits[qos, unit]
        amounts = [_minutes(row, unit) for row in rows]  # Slurm adds those of a het job's parts
        minutes = None if None in amounts else sum(filter(None, amounts))
        if limit.holder is not None and (minutes is None or minutes > limit.left):
            found.append(
                Move(
                    job_id=job_id,
                    user=user,
                    holder=limit.holder,
                    unit=unit,
                    before=qos,
                    after=lower_qos,
                    minutes=minutes,
                    left=limit.left,
                )
            )
    return tuple(found)


def move_jobs(slurm: SlurmCommands, moves: Sequence[Move]) -> Iterator[DoneMove]:
    """Move jobs, and yield what came of each. A failed one does not stop others."""
    backend = CommandsBackend(slurm)
    for move in moves:
        try:
            backend.update(move.job_id, {"qos": move.after})
        except (JobOver, NoSuchJob):
            yield DoneMove(move, "gone")
        except SlurmError as error:
            yield DoneMove(move, *_outcome_of(str(error)))
        else:
            yield DoneMove(move, "moved")


def _outcome_of(message: str) -> tuple[str, str]:
    """Return the outcome of a move that Slurm refused, or refused for some tasks of an array."""
    parts = [part for part in message.split(";") if _OTHERS_DONE not in part]
    if all(_NOT_PENDING in part for part in parts):
        return ("moved", message) if _OTHERS_DONE in message else ("gone", "")
    if all(_SCRONTAB in part for part in parts):
        return "stays", message
    return "failed", message


def _minutes(row: QueueRow, unit: Unit) -> int | None:
    """Return the TRES-minutes that a job may use up to its time limit; None without a bound."""
    count = gpu_count(row.tres) if unit == "gpu" else parse_billing(row.tres)
    if count == 0:
        return 0
    seconds = parse_limit_seconds(row.time_limit)
    return None if seconds is None or count is None else -(-count * seconds // 60)
