"""A workflow whose record is not here, by the tag that each of its jobs has in its comment."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from slurmkit.capabilities.standing import me
from slurmkit.errors import SlurmError
from slurmkit.jobs.ids import whole_id
from slurmkit.jobs.sacct import read_submit_lines, since_argument
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import QueueFilter
from slurmkit.workflows.model import KINDS, Edge
from slurmkit.workflows.record import TAG, Phase, Record, SentJob

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

_DAYS = 14  # of sacct's past
_TAG = re.compile(rf"\b{TAG}:(?P<token>[0-9a-f]{{8}}):(?P<name>[\w.\-]+)", re.ASCII)
_CLAUSE = re.compile(r"(?P<word>after[a-z]*):(?P<id>\d+)")
_WORDS = {word: kind for kind, word in KINDS.items()}


def recovered(cluster: Cluster, token: str) -> Record | None:
    """What Slurm still knows of a workflow; None when that is nothing.

    What a job waits for is known of those that wait. It can be looked at and cancelled, but not
    resumed, since no file is known.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    rows = {whole_id(row.job_id): row for row in _own_rows(cluster) if _token(row) == token}
    names = {job_id: match["name"] for job_id, row in rows.items() if (match := _tag(row))}
    last = {name: job_id for job_id, name in _past(cluster, token)}  # of several runs
    names |= {job_id: name for name, job_id in last.items() if name not in names.values()}
    if not names:
        return None
    jobs: dict[str, SentJob] = {}
    for job_id in sorted(names, key=int):  # what a job waits for was sent before it
        jobs[names[job_id]] = _sent(job_id, jobs.get(names[job_id]), rows.get(job_id), names)
    times = [row.submitted for row in rows.values() if row.submitted]
    phase: Phase = "sending" if any(job.held for job in jobs.values()) else "sent"
    return Record(token, token, "", "", min(times, default=0), phase, jobs)


def _sent(
    job_id: str, before: SentJob | None, row: QueueRow | None, names: dict[str, str]
) -> SentJob:
    """A job, or one more part of it."""
    ids = (*(before.ids if before else ()), job_id)
    if row is None:
        return SentJob((), "", ids)
    return SentJob(tuple(_edges(row, names)), "", ids, row.waits and row.priority == 0)


def tokens(cluster: Cluster) -> list[str]:
    """Of workflows with jobs in the queue."""
    return list(dict.fromkeys(token for row in _own_rows(cluster) if (token := _token(row))))


def _own_rows(cluster: Cluster) -> Iterable[QueueRow]:
    return cluster.backend.queue(QueueFilter(me=True)).rows


def _tag(row: QueueRow) -> re.Match[str] | None:
    return _TAG.search(row.comment)


def _token(row: QueueRow) -> str:
    match = _tag(row)
    return match["token"] if match else ""


def _past(cluster: Cluster, token: str) -> Iterator[tuple[str, str]]:
    """Ids and names in the order of submission; slurmdbd may be away."""
    since = since_argument(int(time.time()) - _DAYS * 86400)
    with suppress(SlurmError):
        for line in read_submit_lines(cluster.slurm, f"--user={me(cluster.slurm)}", since):
            match = _TAG.search(line.text)
            if match and match["token"] == token:
                yield whole_id(line.job_id), match["name"]


def _edges(row: QueueRow, names: dict[str, str]) -> Iterator[str]:
    for match in _CLAUSE.finditer(row.dependency):
        if match["id"] in names and match["word"] in _WORDS:
            yield str(Edge(names[match["id"]], _WORDS[match["word"]]))
