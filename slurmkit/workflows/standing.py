"""How far each job of a workflow is, and what of it is still to be done."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from slurmkit.jobs.ids import whole_id
from slurmkit.jobs.info import UNKNOWN, JobInfo
from slurmkit.jobs.lookup import look_up_all, summary
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import QueueFilter
from slurmkit.workflows.model import Edge
from slurmkit.workflows.record import Record, tag

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

Verdict = Literal["done", "live", "skipped", "unknown", "due"]
"""What resuming makes of a job: it has completed; it waits or runs; it was only for the case that
did not come; nobody knows how it ended; it is to be sent (again)."""

NOT_SENT = "NOT SENT"


class Standing(msgspec.Struct, frozen=True):
    """One job of a workflow now.

    Attributes:
        name: in the workflow.
        ids: of Slurm's jobs.
        info: what Slurm says of them together; None where they are not sent, or unknown.
        edges: what it waits for.
    """

    name: str
    ids: tuple[str, ...]
    info: JobInfo | None
    edges: tuple[Edge, ...]

    @property
    def state(self) -> str:
        """Slurm's word, or NOT SENT."""
        if not self.ids:
            return NOT_SENT
        return self.info.state if self.info else UNKNOWN

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.info is not None and self.info.is_over

    @property
    def is_live(self) -> bool:
        """Whether it waits or runs."""
        return self.info is not None and not self.info.is_over

    def has_broken(self, edge: Edge) -> bool:
        """Whether it ended so that what waits for it in this way can never run."""
        well = self.state == "COMPLETED"
        return self.is_over and {"ok": not well, "corr": not well, "notok": well}.get(
            edge.kind, False
        )


def look(cluster: Cluster, record: Record) -> dict[str, Standing]:
    """Ask Slurm about all jobs of a workflow together.

    Raises:
        SlurmError: when slurmctld, or of what is not in the queue slurmdbd, does not answer.
    """
    ids = record.ids
    infos = look_up_all(cluster.backend, cluster.slurm, ids) if ids else {}
    return standings(record, infos)


def standings(record: Record, infos: Mapping[str, JobInfo | None]) -> dict[str, Standing]:
    """How far each job is, by what is known of Slurm's jobs."""
    return {
        name: Standing(name, job.ids, _together(job.ids, infos), tuple(map(Edge.parse, job.after)))
        for name, job in record.jobs.items()
    }


def _together(ids: Sequence[str], infos: Mapping[str, JobInfo | None]) -> JobInfo | None:
    known = {job_id: info for job_id in ids if (info := infos.get(job_id))}
    if len(known) < len(ids) or not known:
        return None
    return next(iter(known.values())) if len(known) == 1 else summary(",".join(ids), known)


def verdicts(found: Mapping[str, Standing], again: Collection[str] = ()) -> dict[str, Verdict]:
    """What resuming makes of each job; `found` has each after those it waits for.

    Args:
        found: how far they are.
        again: names of jobs to be sent again though they have completed, or are unknown.
    """
    made: dict[str, Verdict] = {}
    for name, one in found.items():
        made[name] = "due" if name in again else _verdict(one, made)
    return made


def _verdict(one: Standing, made: Mapping[str, Verdict]) -> Verdict:
    if one.state == "COMPLETED":
        return "done"
    renewed = any(made.get(edge.name) == "due" for edge in one.edges)
    if one.is_live:
        return "due" if renewed and one.state == "PENDING" else "live"
    if any(_never(edge, made) for edge in one.edges):
        return "skipped"
    return "unknown" if one.state == UNKNOWN else "due"


def _never(edge: Edge, made: Mapping[str, Verdict]) -> bool:
    """Whether what it waits for cannot come any more, as it was meant."""
    before = made.get(edge.name)
    return (before, edge.kind) in {("done", "notok"), ("skipped", "ok"), ("skipped", "corr")}


def strays(cluster: Cluster, record: Record) -> list[str]:
    """Ids of jobs in the queue that have the workflow's tag, and that its record does not know.

    Their sender was killed before it could note them; they are held.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    found = (whole_id(row.job_id) for row in tagged(cluster, record.token))
    return list(dict.fromkeys(job_id for job_id in found if job_id not in record.ids))


def tagged(cluster: Cluster, token: str) -> list[QueueRow]:
    """One's own jobs in the queue that have the tag of a workflow."""
    rows = cluster.backend.queue(QueueFilter(me=True)).rows
    return [row for row in rows if any(w.startswith(tag(token)) for w in row.comment.split())]
