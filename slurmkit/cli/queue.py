"""`slurmkit queue`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click
import msgspec

from slurmkit import arrays, states
from slurmkit.cli.show import table, table_lines
from slurmkit.cli.watch import watch
from slurmkit.errors import NoSuchJob, SlurmError
from slurmkit.facts import clock
from slurmkit.logical import tag_of
from slurmkit.queue.cells import COLUMNS, NUMERIC, counts_gpus
from slurmkit.queue.order import KEYS, ordered
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import Queue, QueueFilter

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster

_COLOURS: dict[states.Kind, str] = {
    "running": "green",
    "waiting": "yellow",
    "moving": "cyan",
    "halted": "magenta",
    "bad": "red",
}
_STATES = {code: state for state, code in states.CODES.items()}


@click.command("queue")
@click.argument("job_ids", nargs=-1, metavar="[JOB_ID]...")
@click.option("-u", "--user", metavar="NAMES", help="Only these users' jobs.")
@click.option("--me", is_flag=True, help="Only my jobs.")
@click.option("-p", "--partition", metavar="NAMES", help="Only jobs in, or waiting for, these.")
@click.option("-A", "--account", metavar="NAMES", help="Only jobs of these accounts.")
@click.option("-q", "--qos", metavar="NAMES", help="Only jobs of these QOS.")
@click.option(
    "-t", "--states", "--state", metavar="STATES", help="Only these (PD,R); all: ended ones, too."
)
@click.option("-n", "--name", metavar="NAMES", help="Only jobs of these names.")
@click.option("-w", "--nodelist", metavar="NODES", help="Only jobs on these, e.g. c[1-3],c5.")
@click.option("-R", "--reservation", metavar="NAME", help="Only jobs in this reservation.")
@click.option("-r", "--array", is_flag=True, help="Each task of an array in a row of its own.")
@click.option("--sort", metavar="COLUMNS", help=f"Of {', '.join(KEYS)}; -gpus: most first.")
@click.option("--json", "as_json", is_flag=True, help="Print rows as JSON, as squeue gives them.")
@click.option(
    "--watch",
    "seconds",
    is_flag=False,
    flag_value=10.0,
    type=float,
    metavar="[SECONDS]",
    help="Look again every 10 s, or as often as you say and this site allows.",
)
def queue_command(job_ids: tuple[str, ...], **given: Any) -> None:
    """List the jobs in the queue: all of them, or those that meet every condition given.

    A job array is one row: TIME is the longest of its tasks, NODES and GPUS are those of all its
    tasks together. A job that waits shows why where others show their nodes.

    \b
    Examples:
      slurmkit queue
      slurmkit queue --me --watch
      slurmkit queue --partition gpu --states PENDING --sort=-priority
      slurmkit queue 12 13_4 --array
      slurmkit queue --json | jq '.rows[] | select(.gpus > 0) | .job_id'
    """
    from slurmkit.cluster import Cluster  # noqa: PLC0415 - bad input is told without it

    looker = _Looker(Cluster(), _filter(job_ids, given), given["sort"])
    if given["seconds"] is not None:
        picture = looker.json_picture if given["as_json"] else looker.picture
        watch(picture, given["seconds"], in_place=not given["as_json"])
        return
    queue = looker.look()
    if given["as_json"]:
        click.echo(msgspec.json.encode(queue))
    else:
        table(COLUMNS, looker.cells(queue), right=NUMERIC, paint=_paint)
        click.echo(_source(queue), err=True)
    missing = looker.missing(queue.rows)
    if missing:
        raise NoSuchJob(missing)


class _Looker:
    """Reads the queue as often as asked, and the cluster's habits at most once."""

    def __init__(self, cluster: Cluster, only: QueueFilter, sort: str | None) -> None:
        self._cluster = cluster
        self._only = only
        self._asked = self._unseen = only.job_ids
        self._sort = sort

    def look(self) -> Queue:
        queue = self._cluster.queue(self._only)
        if self._is_more(queue.rows):
            queue = self._cluster.queue(self._only)
        if not queue.rows and self._only.job_ids:
            raise NoSuchJob(self.missing(()))
        if self._sort is None:
            return queue
        return msgspec.structs.replace(queue, rows=tuple(ordered(queue.rows, self._sort)))

    def _is_more(self, rows: Sequence[QueueRow]) -> bool:
        """Whether an id that was asked for stands for several of Slurm's arrays: then ask for all.

        They stay the same: what is seen once is known for the next look.
        """
        ids, self._unseen = self._unseen, ()
        if not ids or not (any(tag_of(row.comment) for row in rows) or self._remembers(ids)):
            return False
        parts = (part.id for job in self._cluster.handles(ids) for part in job.parts)
        before, now = self._only.job_ids, tuple(dict.fromkeys(parts))
        self._only = msgspec.structs.replace(self._only, job_ids=now)
        return now != before

    def _remembers(self, ids: Sequence[str]) -> bool:
        from slurmkit.sweeps.finding import remembered  # noqa: PLC0415 - few name a job

        return any(remembered(self._cluster, job_id.partition("_")[0]) for job_id in ids)

    def cells(self, queue: Queue) -> list[tuple[str, ...]]:
        known = self._counts_gpus(queue.rows)
        each = ((row,) for row in queue.rows) if self._only.array else arrays.collapse(queue.rows)
        return [arrays.array_cells(rows, gpus_known=known) for rows in each]

    def picture(self) -> tuple[Sequence[str], str]:
        queue = self.look()
        lines = table_lines(COLUMNS, self.cells(queue), right=NUMERIC, paint=_paint)
        return list(lines), "; ".join(filter(None, [_source(queue), self.missing(queue.rows)]))

    def json_picture(self) -> tuple[Sequence[str], str]:
        queue = self.look()
        return [msgspec.json.encode(queue).decode()], _source(queue)

    def missing(self, rows: Sequence[QueueRow]) -> str:
        """Of several jobs squeue shows those it knows, and says nothing of the others."""
        ids = self._asked
        gone = [job_id for job_id in ids if not any(arrays.covers(row, job_id) for row in rows)]
        others = msgspec.structs.replace(self._only, job_ids=())
        alone = others == QueueFilter(array=self._only.array)
        there = "in the queue" if alone else "in the queue under these conditions"
        return f"not {there}: {', '.join(gone)}; see: slurmkit job {gone[0]}" if gone else ""

    def _counts_gpus(self, rows: Sequence[QueueRow]) -> bool:
        """Ask slurmctld only where the rows do not tell."""
        unsaid = any("=" in row.tres for row in rows) and not any(row.gpus for row in rows)
        return counts_gpus(rows, tracked=self._tracked if unsaid else None)

    @cached_property
    def _tracked(self) -> bool | None:
        from slurmkit.site import read_site  # noqa: PLC0415 - most queues have a GPU in them

        try:
            return read_site(self._cluster.slurm).tracks_gpus
        except SlurmError:
            return None


def _filter(job_ids: tuple[str, ...], given: dict[str, Any]) -> QueueFilter:
    def several(option: str) -> tuple[str, ...]:
        text: str | None = given[option]
        return () if text is None else tuple(part.strip() for part in text.split(","))

    return QueueFilter(
        users=several("user"),
        me=given["me"],
        partitions=several("partition"),
        accounts=several("account"),
        qos=several("qos"),
        states=several("states"),
        names=several("name"),
        nodelist=given["nodelist"],
        reservation=given["reservation"],
        job_ids=job_ids,
        array=given["array"],
    )


def _source(queue: Queue) -> str:
    jobs = sum(map(arrays.count, queue.rows))
    plural = "" if jobs == 1 else "s"
    return f"{jobs} job{plural}, from squeue at {clock(queue.taken)}, in {queue.seconds:.2g} s"


def _paint(column: str, text: str) -> str | None:
    """By the first state of a tally, like that of a single job."""
    if column != "STATE" or text == column:
        return None
    first = text.partition(" ")[0]
    return _COLOURS.get(states.kind(_STATES.get(first, first)))
