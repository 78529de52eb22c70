"""`report explain`: the runs behind a cell of a report, and the sacct line behind a run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, select

from slurmkit.errors import BadInput
from slurmkit_accounting.calendar import UNITS, WindowPart, split_window
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import ingests, rejects, revisions, runs
from slurmkit_accounting.ledger.schema.usage import HOUR
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import Question
from slurmkit_accounting.reports.dimensions import Dimensions
from slurmkit_accounting.reports.model import Column, Meta, Report, sum_columns
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.reports.selection import RunSelection, overlapping_runs, usage_keys_of
from slurmkit_accounting.usage.bins import UsageRun, usage_in_window
from slurmkit_accounting.usage.partial import load_runs_with_ends
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
        row: the row of table `runs`, by column.
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


def explain_report(ledger: Ledger, question: Question) -> Report:
    """Report the runs behind a cell of `report usage`; the filters select the cell.

    Their GPU-hours add up to the cell. The largest runs come first; the runs of a single
    job come in the order in which they ran.

    Raises:
        BadInput: for more than `MOST_RUNS` runs.
        LedgerError: when the ledger cannot be read.
    """
    units = frozenset(UNITS) & question.filters.keys()
    spans = [
        part
        for part in split_window(question.window, question.zone, units)
        if all(part.labels[unit] in question.filters[unit] for unit in units)
    ]
    with ledger.transaction() as connection:
        selection = RunSelection(connection, question)
        where = (*selection.where(), *overlapping_runs(question.window))
        with closing(load_runs_with_ends(connection, question.now, where, _MORE_COLUMNS)) as found:
            rows = _check_number(
                row for more, run in found for row in _row(selection, more, run, spans)
            )
        meta = Meta(
            report="explain",
            filters=question.filters,
            job=question.job,
            runs=len(rows),
            total=sum_columns(COLUMNS, rows),
            definitions=("to see everything about one run: slurmkit report explain --row NUMBER",),
            notes=(*_redone_note(rows), *(selection.unknown_names() if not rows else ())),
            **provenance.ledger_fields(ledger, connection, question.now, question.scope),
            **provenance.window_fields(connection, question.window, question.zone, question.now),
        )
    rows.sort(key=_by_job_and_start if question.job else _biggest_first)
    return Report(meta, COLUMNS, tuple(rows))


def _biggest_first(row: dict[str, Any]) -> tuple[Any, ...]:
    return -row["gpu_hours"], -row["cpu_hours"], row["row"]


def _by_job_and_start(row: dict[str, Any]) -> tuple[Any, ...]:
    """Sort by job and task, then by start."""
    job = [int(number) for number in re.findall(r"\d+", row["job"])]
    return row["cluster"], job, row["start"] is None, row["start"], row["row"]


def _redone_note(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return a note on the runs whose work a later run of the same job completed."""
    hours = [row["gpu_hours"] for row in rows if row["redone"]]
    if not hours:
        return ()
    total = f"{len(hours):,} run{'s' * (len(hours) != 1)} with {sum(hours):,.2f} GPU-hours"
    return (f"redone: {total}, cut short; a later run of the same job completed the work",)


def _check_number(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    listed = list(islice(rows, MOST_RUNS + 1))
    if len(listed) > MOST_RUNS:
        raise BadInput(
            f"more than {MOST_RUNS:,} runs match;"
            " choose a shorter window, or add filters such as --user"
        )
    return listed


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
            row=row,
            line="|".join("" if row[name] is None else str(row[name]) for _, name in FIELDS),
            fields=tuple(name for name, _ in FIELDS),
            command=_sacct_command(row),
            revisions=tuple(_revisions(connection, number)),
            rejects=tuple(connection.scalars(_rejects_query(row))),
        )


def _no_such_run(number: int) -> BadInput:
    return BadInput(
        f"there is no row {number} that you may see; slurmkit report explain lists rows"
    )


def _row(
    selection: RunSelection, more: tuple[Any, ...], run: UsageRun, spans: list[WindowPart]
) -> Iterator[dict[str, Any]]:
    """Yield the row of a run; nothing if the run held nothing within the spans.

    Args:
        selection: decides which of the run's usage keys count.
        more: the run's values of `_MORE_COLUMNS`.
        run: the run.
        spans: the parts of the window that count.
    """
    gpu_seconds, cpu_seconds = Fraction(0), 0
    whole_run = usage_in_window(run, run.start or 0, (run.end or 0) + 1)
    keys = [key for key, _ in whole_run if selection.keeps(key)]
    held = [
        (key, sums)
        for part in spans
        for key, sums in usage_in_window(run, part.begin, part.end)
        if key in keys
    ]
    if not held:
        return
    for key, sums in held:
        weight = selection.rates.kind(key.gpu_type, key.partition).weight or 0
        gpu_seconds += weight * sums[SUM_INDEX["gpu_seconds"]]
        cpu_seconds += sums[SUM_INDEX["cpu_seconds"]]
    number, job, start, end, gpus, doubt, nodes = more
    pi = selection.dimensions.owner(keys[0]).pi
    yield {
        "job": job,
        "user": run.user,
        "account": run.account,
        "cluster": selection.dimensions.clusters[run.cluster_id],
        "state": run.state,
        "redone": "yes" if run.redone else "",
        "nodes": nodes or "",
        "start": start,
        "end": end,
        "gpus": gpus,
        "gpu_hours": float(gpu_seconds / HOUR),
        "cpu_hours": cpu_seconds / HOUR,
        "pi": pi.name,
        "pi_by": pi.via,
        "doubt": doubt or "",
        "row": number,
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
