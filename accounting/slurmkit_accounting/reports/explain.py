"""`report explain`: the runs behind a cell of a report, and the sacct line behind a run."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from heapq import nsmallest
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Select, select, text

from slurmkit.errors import BadInput
from slurmkit.formats.sluid import format_sluid
from slurmkit_accounting.calendar import UNITS, WindowPart, split_window
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import DOUBTFUL as HAS_DOUBT
from slurmkit_accounting.ledger.schema.runs import OPEN, ingests, rejects, revisions, runs
from slurmkit_accounting.ledger.schema.usage import HOUR
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import Question
from slurmkit_accounting.reports.dimensions import Dimensions
from slurmkit_accounting.reports.model import Column, Meta, Report, Value
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.reports.selection import (
    RunSelection,
    Where,
    runs_measured_within,
    runs_overlapping,
    runs_started_within,
    usage_keys_of,
)
from slurmkit_accounting.reports.tally import is_lost
from slurmkit_accounting.usage.bins import UsageKey, UsageRun, parse_alloc_tres, usage_in_window
from slurmkit_accounting.usage.partial import load_last_ingests, load_runs_with_ends
from slurmkit_accounting.usage.query import SUM_INDEX
from slurmkit_accounting.usage.tables import load_eras

COLUMNS = (
    Column("job"),
    Column("user"),
    Column("account"),
    Column("cluster"),
    Column("state"),
    Column("redone"),
    Column("nodes"),
    Column("start", "time"),
    Column("end", "time"),
    Column("gpus", "count"),
    Column("gpu_hours", "hours", adds_up=True),
    Column("cpu_hours", "hours", adds_up=True),
    Column("pi"),
    Column("pi_by"),
    Column("doubt"),
    Column("row"),
)
# Which runs are listed, and which facts about them.
HELD, LOST, DOUBTFUL, STARTED = "held", "lost", "doubtful", "started"
MEASURED, WAITING = "measured", "waiting"
RUNS = {
    HELD: "",
    LOST: "runs: only those whose GPU-hours are lost",
    DOUBTFUL: "runs: only those whose number of GPUs cannot be trusted",
    STARTED: "runs: those that started in the window, as in report wait",
    MEASURED: (
        "runs: those that ended in the window and were measured, as in report efficiency, each with"
        " the GPU-hours of its whole time"
    ),
    WAITING: (
        "runs: those that waited when the ledger last read Slurm, whatever the window; gpus: asked"
        " for"
    ),
}
MOST_RUNS = 200_000  # runs; more explain nothing, and would fill the memory of the service
_LARGEST_ID = 2**63 - 1  # the largest id of a database
_MORE_COLUMNS = [
    runs.c[name] for name in ("id", "job_id", "start", "end", "gpus", "doubt", "node_list")
]
FIELDS = (
    ("DBIndex", "db_index"), ("JobIDRaw", "job_id_raw"), ("JobID", "job_id"), ("User", "user"),
    ("UID", "uid"), ("Account", "account"), ("Partition", "partition"), ("QOS", "qos"),
    ("State", "state"), ("Submit", "submit"), ("Eligible", "eligible"), ("Start", "start"),
    ("End", "end"), ("Suspended", "suspended"), ("AllocNodes", "nodes"), ("AllocCPUS", "cpus"),
    ("AllocTRES", "alloc_tres"), ("ReqTRES", "req_tres"), ("TimelimitRaw", "time_limit"),
    ("ExitCode", "exit_code"), ("NodeList", "node_list"), ("Reservation", "reservation"),
    ("JobName", "name"),
)  # fmt: skip


class Evidence(msgspec.Struct, frozen=True):
    """Everything that the ledger holds about one run.

    Attributes:
        row: the row of table `runs`, by column, and its `sluid`, which is `db_index` as Slurm 24.11
            and later write it.
        line: the last sacct line, fields separated by `|`, times as epoch seconds.
        fields: sacct's names of the fields of `line`.
        command: command that asks sacct for the line again.
        revisions: earlier values of changed columns, newest first, each with the time of the
            ingest that replaced them.
        rejects: sacct lines of the run that could not be read.
    """

    row: dict[str, Any]
    line: str
    fields: tuple[str, ...]
    command: str
    revisions: tuple[tuple[int, dict[str, Any]], ...]
    rejects: tuple[str, ...]


def explain_report(
    ledger: Ledger, question: Question, which: str = HELD, most: int | None = None
) -> Report:
    """Report the runs behind a cell of a report; the filters select the cell.

    The GPU-hours of `held` and `lost` runs add up to the cell of `report usage`. The largest runs
    come first; the runs of a single job come in the order in which they ran.

    Args:
        ledger: open for reading.
        question: window, filters and scope.
        which: one of `RUNS`.
        most: rows to return, of the first; the totals are of all runs. None for all rows.

    Raises:
        BadInput: for more than `MOST_RUNS` runs, unless only `most` rows of a job are wanted.
        LedgerError: when the ledger cannot be read.
    """
    with ledger.transaction() as connection:
        selection = RunSelection(connection, question)
        listed = _Listed(question.job is not None, most)
        if which == WAITING:
            listed.take(_found_waiting(connection, selection))
        else:
            listed.take(_found(connection, selection, which))
        meta = Meta(
            report="explain",
            filters=question.filters,
            job=question.job,
            runs=listed.count,
            total=listed.total,
            definitions=(
                *filter(None, (RUNS[which],)),
                "to see everything about one run: slurmkit report explain --row NUMBER",
            ),
            notes=(*listed.notes(), *(selection.unknown_names() if not listed.count else ())),
            **provenance.ledger_fields(ledger, connection, question.now, question.scope),
            **provenance.window_fields(connection, question.window, question.zone, question.now),
        )
        rows = tuple(_row(selection, each) for each in listed.first)
    return Report(meta, COLUMNS, rows)


class _Found(NamedTuple):
    """A run that a report lists; its row is made only if it is one of the first.

    Attributes:
        number: id of the run in table `runs`.
        key: its first usage key that counts.
        cluster: the name of its cluster.
        gpus: held; of a waiting run those that it asks for.
    """

    number: int
    job: str
    user: str
    account: str
    cluster: str
    state: str
    redone: bool
    nodes: str | None
    start: int | None
    end: int | None
    gpus: int | None
    doubt: str | None
    key: UsageKey
    gpu_hours: float
    cpu_hours: float

    def by_size(self) -> tuple[Any, ...]:
        """Return the sort key: biggest first."""
        return -self.gpu_hours, -self.cpu_hours, self.number

    def by_job(self) -> tuple[Any, ...]:
        """Return the sort key: by job and task, then by start."""
        numbers = [int(each) for each in re.findall(r"\d+", self.job)]
        return self.cluster, numbers, self.start is None, self.start, self.number


class _Listed:
    """The first runs of a report, and the totals of all.

    Attributes:
        first: in order.
        count: of all runs.
        total: of the columns that add up, and of `gpus`: each run counts, whenever it ran.
    """

    def __init__(self, of_job: bool, most: int | None) -> None:  # noqa: FBT001
        self._key = _Found.by_job if of_job else _Found.by_size
        self._most = most
        self._is_bounded = of_job and most is not None  # however many runs there are
        self.first: list[_Found] = []
        self.count = 0
        self.total: dict[str, Value] = {}
        self._gpus = 0
        self._redone: list[float] = []

    def take(self, found: Iterator[_Found]) -> None:
        """Take all runs; keep no more than the first of them.

        Raises:
            BadInput: for more than `MOST_RUNS` runs.
        """
        gpu_hours, cpu_hours = array("d"), array("d")

        def counted() -> Iterator[_Found]:
            for one in found:
                self.count += 1
                if self.count > MOST_RUNS and not self._is_bounded:
                    raise BadInput(
                        f"more than {MOST_RUNS:,} runs match;"
                        " choose a shorter window, or add filters such as --user"
                    )
                self._gpus += one.gpus or 0
                gpu_hours.append(one.gpu_hours)
                cpu_hours.append(one.cpu_hours)
                if one.redone:
                    self._redone.append(one.gpu_hours)
                yield one

        if self._most is None:
            self.first = sorted(counted(), key=self._key)
        else:
            self.first = nsmallest(self._most, counted(), key=self._key)
        hours = {"gpu_hours": gpu_hours, "cpu_hours": cpu_hours}
        self.total = {
            each.name: math.fsum(hours[each.name]) if self.count else 0
            for each in COLUMNS
            if each.adds_up
        }
        self.total["gpus"] = self._gpus

    def notes(self) -> Iterator[str]:
        """Yield a note on the runs whose work a later run of the same job completed."""
        if hours := self._redone:
            total = f"{len(hours):,} run{'s' * (len(hours) != 1)} with {sum(hours):,.2f} GPU-hours"
            yield f"redone: {total}, cut short; a later run of the same job completed the work"


def _found(connection: Connection, selection: RunSelection, which: str) -> Iterator[_Found]:
    """Yield the runs that held something within the window, ended ones first."""
    question = selection.question
    # `report wait` and `report efficiency` know no days and weeks.
    knows_units = which in {HELD, LOST, DOUBTFUL}
    units = frozenset(UNITS) & question.filters.keys() if knows_units else frozenset()
    spans = [
        part
        for part in split_window(question.window, question.zone, units)
        if all(part.labels[unit] in question.filters[unit] for unit in units)
    ]
    for conditions in _conditions(which, question.window):
        where = (*selection.where(), *conditions)
        with closing(load_runs_with_ends(connection, question.now, where, _MORE_COLUMNS)) as some:
            for more, run in some:
                if which != LOST or is_lost(run.state, redone=run.redone):
                    yield from _held_within(selection, more, run, spans, which)


def _conditions(which: str, window: tuple[int, int]) -> Iterator[list[Where]]:
    """Yield the conditions of disjoint sets of runs."""
    if which == STARTED:
        for started in runs_started_within(window):
            yield [*started, runs.c.nodes > 0]
    elif which == MEASURED:
        yield [*runs_measured_within(window)]
    else:
        more = [text(HAS_DOUBT)] if which == DOUBTFUL else []
        for overlapping in runs_overlapping(window):
            yield [*overlapping, *more]


def _found_waiting(connection: Connection, selection: RunSelection) -> Iterator[_Found]:
    """Yield the runs that waited when their cluster was last read."""
    last = load_last_ingests(connection, ingests.c.source == "sacct")
    columns = ("job_id", "req_tres", "last_seen", "id")
    waits = (text(OPEN), runs.c.start.is_(None), runs.c.gone_since.is_(None))
    for run, keys in selection.rows(columns, *waits):
        if run.last_seen is None or run.last_seen < last.get(run.cluster_id, 0):
            continue
        yield _Found(
            number=run.id,
            job=run.job_id,
            user=run.user,
            account=run.account,
            cluster=selection.dimensions.clusters[run.cluster_id],
            state=run.state,
            redone=False,
            nodes=None,
            start=None,
            end=None,
            gpus=sum(count for _, count in parse_alloc_tres(run.req_tres).gpus),
            doubt=None,
            key=keys[0],
            gpu_hours=0.0,
            cpu_hours=0.0,
        )


def load_evidence(ledger: Ledger, number: int, scope: Scope = EVERYTHING) -> Evidence:
    """Return everything that the ledger holds about one run.

    Args:
        ledger: open for reading.
        number: id of the run in table `runs`, as `report explain` lists it.
        scope: whose runs the reader may see.

    Raises:
        BadInput: if there is no such run that the reader may see.
        LedgerError: when the ledger cannot be read.
    """
    if abs(number) > _LARGEST_ID:
        raise _no_such_run(number)
    with ledger.transaction() as connection:
        query = select(runs).where(runs.c.id == number)
        run = connection.execute(query).one_or_none()
        dimensions = Dimensions(connection, Rates())
        known_eras = load_eras(connection)
        if run is None or not any(
            dimensions.shown(key, scope) for key in usage_keys_of(run, known_eras)
        ):
            raise _no_such_run(number)
        row = dict(connection.execute(query).mappings().one())
        return Evidence(
            row=_with_sluid(row),
            line="|".join("" if row[name] is None else str(row[name]) for _, name in FIELDS),
            fields=tuple(name for name, _ in FIELDS),
            command=_sacct_command(row),
            revisions=tuple(_revisions(connection, number)),
            rejects=tuple(connection.scalars(_rejects_query(row))),
        )


def _with_sluid(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of table `runs` with the SLUID beside the DBIndex."""
    made = {}
    for name, value in row.items():
        made[name] = value
        if name == "db_index":
            made["sluid"] = format_sluid(value)
    return made


def _no_such_run(number: int) -> BadInput:
    return BadInput(
        f"there is no row {number} that you may see; slurmkit report explain lists rows"
    )


def _held_within(
    selection: RunSelection,
    more: tuple[Any, ...],
    run: UsageRun,
    spans: list[WindowPart],
    which: str,
) -> Iterator[_Found]:
    """Yield a run with what it held within the spans; nothing if that is nothing.

    Args:
        selection: decides which of the run's usage keys count.
        more: the run's values of `_MORE_COLUMNS`.
        run: the run.
        spans: the parts of the window that count.
        which: one of `RUNS`.
    """
    gpu_seconds, cpu_seconds = Fraction(0), 0
    whole_run = list(usage_in_window(run, run.start or 0, (run.end or 0) + 1))
    keys = [key for key, _ in whole_run if selection.keeps(key)]
    if which in {STARTED, MEASURED} and keys:
        # They count a run under the first of several GPU types.
        keys = [key for key, _ in whole_run] if keys[0] == whole_run[0][0] else []
    parts = (usage_in_window(run, part.begin, part.end) for part in spans)
    held = [
        (key, sums)
        for part in ([whole_run] if which == MEASURED else parts)
        for key, sums in part
        if key in keys
    ]
    if not held:
        return
    for key, sums in held:
        weight = selection.rates.kind(key.gpu_type, key.partition).weight or 0
        gpu_seconds += weight * sums[SUM_INDEX["gpu_seconds"]]
        cpu_seconds += sums[SUM_INDEX["cpu_seconds"]]
    number, job, start, end, gpus, doubt, nodes = more
    yield _Found(
        number=number,
        job=job,
        user=run.user,
        account=run.account,
        cluster=selection.dimensions.clusters[run.cluster_id],
        state=run.state,
        redone=run.redone,
        nodes=nodes,
        start=start,
        end=end,
        gpus=gpus,
        doubt=doubt,
        key=keys[0],
        gpu_hours=float(gpu_seconds / HOUR),
        cpu_hours=cpu_seconds / HOUR,
    )


def _row(selection: RunSelection, found: _Found) -> dict[str, Any]:
    pi = selection.dimensions.owner(found.key).pi
    return {
        "job": found.job,
        "user": found.user,
        "account": found.account,
        "cluster": found.cluster,
        "state": found.state,
        "redone": "yes" if found.redone else "",
        "nodes": found.nodes or "",
        "start": found.start,
        "end": found.end,
        "gpus": found.gpus,
        "gpu_hours": found.gpu_hours,
        "cpu_hours": found.cpu_hours,
        "pi": pi.name,
        "pi_by": pi.via,
        "doubt": found.doubt or "",
        "row": found.number,
    }


def _sacct_command(row: dict[str, Any]) -> str:
    names = ",".join(name for name, _ in FIELDS)
    return (
        f"SLURM_TIME_FORMAT=%s sacct -D -X -P --noconvert -j {row['job_id_raw']} --format={names}"
    )


def _revisions(connection: Connection, number: int) -> Iterator[tuple[int, dict[str, Any]]]:
    query = select(ingests.c.started, revisions.c.old).join_from(revisions, ingests)
    newest = query.where(revisions.c.run_id == number).order_by(revisions.c.id.desc())
    for at, old in connection.execute(newest):
        yield at, msgspec.json.decode(old)


def _rejects_query(row: dict[str, Any]) -> Select[str]:
    by_submit = f"{row['job_id_raw']}@{row['submit']}"
    names = [by_submit] if row["db_index"] is None else [str(row["db_index"]), by_submit]
    # Other clusters have other runs with the same ids.
    ours = (ingests.c.cluster_id == row["cluster_id"], rejects.c.identity.in_(names))
    query = select(rejects.c.line).join(ingests, ingests.c.id == rejects.c.ingest_id)
    return query.where(*ours).order_by(rejects.c.id)
