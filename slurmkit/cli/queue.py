"""`slurmkit queue`, once or again and again with `--watch`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import click
import msgspec

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import Fit, format_table, print_table
from slurmkit.cli.watch import show_repeatedly, watch_option
from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import NoSuchJob, SlurmError
from slurmkit.formats import job_states
from slurmkit.formats.display import format_time
from slurmkit.state import arrays
from slurmkit.state.arrays import parse_array_tag
from slurmkit.state.queue import Queue, QueueFilter
from slurmkit.state.queue_rows import (
    NUMERIC_QUEUE_COLUMNS,
    QUEUE_COLUMNS,
    SORT_KEYS,
    QueueRow,
    counts_gpus,
    sort_rows,
)

_COLOURS: dict[job_states.StateKind, str] = {
    "running": "green",
    "waiting": "yellow",
    "moving": "cyan",
    "halted": "magenta",
    "bad": "red",
}
# Who looks at the queue looks for a job by its name, and for what it waits for.
_FIT = Fit(
    whole=("JOBID",),
    wrapped=("WHERE", "NAME"),
    least=("ACCOUNT", "NODES", "LIMIT", "PARTITION", "TIME"),
)
_STATE_OF_CODE = {code: state for state, code in job_states.STATE_CODES.items()}


@click.command("queue")
@click.argument("job_ids", nargs=-1, metavar="[JOB_ID]...")
@click.option("-u", "--user", metavar="NAMES", help="Only these users' jobs.")
@click.option("--me", is_flag=True, help="Only your jobs.")
@click.option(
    "-p", "--partition", metavar="NAMES", help="Only jobs that run in or wait for these partitions."
)
@click.option("-A", "--account", metavar="NAMES", help="Only jobs of these accounts.")
@click.option("-q", "--qos", metavar="NAMES", help="Only jobs of these QOS.")
@click.option(
    "-t",
    "--states",
    "--state",
    metavar="STATES",
    help="Only jobs in these states, e.g. PD,R; all: also ended jobs.",
)
@click.option("-n", "--name", metavar="NAMES", help="Only jobs of these names.")
@click.option("-w", "--nodelist", metavar="NODES", help="Only jobs on these nodes, e.g. c[1-3],c5.")
@click.option("-R", "--reservation", metavar="NAME", help="Only jobs in this reservation.")
@click.option("-r", "--array", is_flag=True, help="Show each task of an array in its own row.")
@click.option(
    "--sort", metavar="COLUMNS", help=f"Sort by {', '.join(SORT_KEYS)}; -gpus: highest first."
)
@json_option("slurmkit.queue/1", text="Print rows as JSON, as squeue gives them.")
@watch_option
def queue_command(job_ids: tuple[str, ...], **given: Any) -> None:
    """List the jobs in the queue: all of them, or those that match every option.

    A job array is one row: TIME is the time of its longest task, NODES and GPUS are sums over its
    tasks. WHERE shows the nodes of a running job, and why a pending job waits. Without --sort the
    order is squeue's: by partition, jobs that wait before those that run, highest priority first.

    \b
    Examples:
      slurmkit queue
      slurmkit queue --me --watch
      slurmkit queue --partition gpu --states PENDING --sort=-priority
      slurmkit queue 12 13_4 --array
      slurmkit queue --json | jq '.rows[] | select(.gpus > 0) | .job_id'
    """
    looker = _QueueReader(Cluster(), _filter(job_ids, given), given["sort"])
    as_json: JsonOutput | None = given["as_json"]
    if given["seconds"] is not None:
        picture = partial(looker.read_json, as_json) if as_json else looker.picture
        show_repeatedly(picture, given["seconds"], in_place=not as_json)
        return
    queue = looker.look()
    if as_json:
        click.echo(_queue_json(queue, as_json))
    else:
        print_table(
            QUEUE_COLUMNS,
            looker.cells(queue),
            right=NUMERIC_QUEUE_COLUMNS,
            paint=_paint,
            fit=_FIT,
        )
        click.echo(_source(queue), err=True)
    missing = looker.missing(queue.rows)
    if missing:
        raise NoSuchJob(missing)


class _QueueReader:
    """Reads the queue again and again, and the cluster's settings at most once."""

    def __init__(self, cluster: Cluster, only: QueueFilter, sort: str | None) -> None:
        self._cluster = cluster
        self._only = only
        self._asked = self._unseen = only.job_ids
        self._sort = sort

    def look(self) -> Queue:
        """Read the queue; raises NoSuchJob if none of the jobs asked for is in it."""
        queue = self._cluster.queue(self._only)
        if self._add_array_parts(queue.rows):
            queue = self._cluster.queue(self._only)
        if not queue.rows and self._only.job_ids:
            raise NoSuchJob(self.missing(()))
        if self._sort is None:
            return queue
        return msgspec.structs.replace(queue, rows=tuple(sort_rows(queue.rows, self._sort)))

    def _add_array_parts(self, rows: Sequence[QueueRow]) -> bool:
        """Replace an id that stands for several of Slurm's arrays by all their ids.

        It is done once, as the arrays of a job never change. Returns whether the ids changed.
        """
        ids, self._unseen = self._unseen, ()
        if not ids or not (
            any(parse_array_tag(row.comment) for row in rows) or self._is_split_array(ids)
        ):
            return False
        parts = (part.id for job in self._cluster.handles(ids) for part in job.parts)
        before, now = self._only.job_ids, tuple(dict.fromkeys(parts))
        self._only = msgspec.structs.replace(self._only, job_ids=now)
        return now != before

    def _is_split_array(self, ids: Sequence[str]) -> bool:
        """Return whether one of the ids is a split array that was submitted from here."""
        from slurmkit.cluster.sweeps import has_array_record

        return any(has_array_record(self._cluster, job_id.partition("_")[0]) for job_id in ids)

    def cells(self, queue: Queue) -> list[tuple[str, ...]]:
        """Return the cells of the table, an array in one row unless --array is given."""
        # slurmctld is asked only if the rows do not show whether GPUs are counted.
        unclear = any("=" in row.tres for row in queue.rows) and not any(
            row.gpus for row in queue.rows
        )
        known = counts_gpus(queue.rows, tracked=self._tracked if unclear else None)
        each = (
            ((row,) for row in queue.rows)
            if self._only.array
            else arrays.group_by_array(queue.rows)
        )
        return [arrays.array_cells(rows, gpus_known=known) for rows in each]

    def picture(self) -> tuple[Sequence[str], str]:
        """Read the queue; return the lines of the table and its source."""
        queue = self.look()
        lines = format_table(
            QUEUE_COLUMNS, self.cells(queue), right=NUMERIC_QUEUE_COLUMNS, paint=_paint, fit=_FIT
        )
        return list(lines), "; ".join(filter(None, [_source(queue), self.missing(queue.rows)]))

    def read_json(self, as_json: JsonOutput) -> tuple[Sequence[str], str]:
        """Read the queue; return it as one line of JSON, and its source."""
        queue = self.look()
        return [_queue_json(queue, as_json)], _source(queue)

    def missing(self, rows: Sequence[QueueRow]) -> str:
        """Return a message about jobs asked for that have no row; squeue skips them silently."""
        ids = self._asked
        gone = [
            job_id for job_id in ids if not any(arrays.matches_job_id(row, job_id) for row in rows)
        ]
        others = msgspec.structs.replace(self._only, job_ids=())
        alone = others == QueueFilter(array=self._only.array)
        there = "in the queue" if alone else "in the queue with these filters"
        return f"not {there}: {', '.join(gone)}; see: slurmkit job {gone[0]}" if gone else ""

    @cached_property
    def _tracked(self) -> bool | None:
        """Whether GPUs are tracked TRES; None if unknown."""
        from slurmkit.state.capabilities import read_slurm_config

        try:
            return read_slurm_config(self._cluster.slurm).tracks_gpus
        except SlurmError:
            return None


def _filter(job_ids: tuple[str, ...], given: dict[str, Any]) -> QueueFilter:
    """Return the filter that the options describe."""

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


def _queue_json(queue: Queue, as_json: JsonOutput) -> str:
    further = {"seconds": queue.seconds}
    return as_json.encode(queue.rows, taken=queue.taken, further=further)


def _source(queue: Queue) -> str:
    """Return a line with the number of jobs, and the source and age of the data."""
    jobs = sum(map(arrays.count_tasks, queue.rows))
    plural = "" if jobs == 1 else "s"
    return (
        f"{jobs} job{plural}, from squeue at {format_time(queue.taken)}, in {queue.seconds:.2g} s"
    )


def _paint(column: str, text: str) -> str | None:
    """Return the colour of a state; several states have the colour of the first."""
    if column != "STATE" or text == column:
        return None
    first = text.partition(" ")[0]
    return _COLOURS.get(job_states.state_kind(_STATE_OF_CODE.get(first, first)))
