"""`report explain`: from a cell of a report to its runs, and from a run to what sacct said."""

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
from slurmkit_accounting.bins import Held, within
from slurmkit_accounting.held import with_ends
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.query import AT
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.counted import Question
from slurmkit_accounting.reports.dimensions import Dimensions
from slurmkit_accounting.reports.model import Column, Meta, Report
from slurmkit_accounting.reports.periods import UNITS, Part, parts
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.reports.scope import EVERYTHING, Scope
from slurmkit_accounting.reports.selected import Selection, keys_of, overlapping
from slurmkit_accounting.schema import HOUR, ingests, rejects, revisions, runs
from slurmkit_accounting.upkeep import eras

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
    Column("gpu_hours", "hours"),
    Column("cpu_hours", "hours"),
    Column("pi"),
    Column("pi_by"),
    Column("doubt"),
    Column("row"),
)
MOST = 200_000  # runs: more are no explanation, and would fill the memory of a service
_BIGGEST = 2**63 - 1  # number that a database has
_BESIDE = [runs.c[name] for name in ("id", "job_id", "start", "end", "gpus", "doubt", "node_list")]
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
    """Everything the books have of one run.

    Attributes:
        row: of table `runs`, by column.
        line: what sacct said last, its fields by `|`, times as epoch seconds.
        fields: of that line.
        command: asks sacct for it again.
        revisions: what it said before, the newest first, with the time of the ingest that
            replaced it.
        rejects: lines that spoke of it and could not be read.
    """

    row: dict[str, Any]
    line: str
    fields: tuple[str, ...]
    command: str
    revisions: tuple[tuple[int, dict[str, Any]], ...]
    rejects: tuple[str, ...]


def explain_report(ledger: Ledger, question: Question) -> Report:
    """The runs that a cell of `report usage` is made of; its filters choose the cell.

    Their GPU-hours add up to the cell's. Of single jobs they are in the order in which they ran.

    Raises:
        BadInput: when they are more than `MOST`.
        LedgerError: when the ledger cannot be read.
    """
    units = frozenset(UNITS) & question.filters.keys()
    spans = [
        part
        for part in parts(question.window, question.zone, units)
        if all(part.labels[unit] in question.filters[unit] for unit in units)
    ]
    with ledger.transaction() as connection:
        chosen = Selection(connection, question)
        where = (*chosen.where(), *overlapping(question.window))
        with closing(with_ends(connection, question.now, where, _BESIDE)) as found:
            rows = _listed(row for told, run in found for row in _row(chosen, told, run, spans))
        meta = Meta(
            report="explain",
            filters=question.filters,
            job=question.job,
            runs=len(rows),
            notes=("everything of one run: slurmkit report explain --row NUMBER", *_redone(rows)),
            **provenance.of_books(ledger, connection, question.now, question.scope),
            **provenance.of_window(connection, question.window, question.zone, question.now),
        )
    rows.sort(key=_in_order if question.job else _biggest_first)
    return Report(meta, COLUMNS, tuple(rows))


def _biggest_first(row: dict[str, Any]) -> tuple[Any, ...]:
    return -row["gpu_hours"], -row["cpu_hours"], row["row"]


def _in_order(row: dict[str, Any]) -> tuple[Any, ...]:
    """By job and task, then in the order in which its runs began."""
    job = [int(number) for number in re.findall(r"\d+", row["job"])]
    return row["cluster"], job, row["start"] is None, row["start"], row["row"]


def _redone(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """What the runs took whose work a later run of the same job completed."""
    hours = [row["gpu_hours"] for row in rows if row["redone"]]
    if not hours:
        return ()
    counted = f"{len(hours):,} run{'s' * (len(hours) != 1)} with {sum(hours):,.2f} GPU-hours"
    return (f"redone: {counted} cut short, and completed by a later run of the same job",)


def _listed(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    found = list(islice(rows, MOST + 1))
    if len(found) > MOST:
        raise BadInput(
            f"these are more than {MOST:,} runs; ask for a shorter window, or with more filters"
        )
    return found


def evidence(ledger: Ledger, number: int, scope: Scope = EVERYTHING) -> Evidence:
    """Everything the books have of the run with a number.

    Raises:
        BadInput: when there is none that the reader may see.
        LedgerError: when the ledger cannot be read.
    """
    if abs(number) > _BIGGEST:
        raise _none(number)
    with ledger.transaction() as connection:
        only = select(runs).where(runs.c.id == number)
        found = connection.execute(only).one_or_none()
        people = Dimensions(connection, Rates())
        known = eras(connection)
        if found is None or not any(people.shown(key, scope) for key in keys_of(found, known)):
            raise _none(number)
        row = dict(connection.execute(only).mappings().one())
        return Evidence(
            row=row,
            line="|".join(_text(row[column]) for _, column in FIELDS),
            fields=tuple(name for name, _ in FIELDS),
            command=_command(row),
            revisions=tuple(_revisions(connection, number)),
            rejects=tuple(connection.scalars(_rejects(row))),
        )


def _none(number: int) -> BadInput:
    return BadInput(f"there is no row {number}; report explain lists them")


def _row(
    chosen: Selection, told: tuple[Any, ...], run: Held, spans: list[Part]
) -> Iterator[dict[str, Any]]:
    gpu_seconds, cpu_seconds = Fraction(0), 0
    keys = [key for key, _ in within(run, run.start or 0, (run.end or 0) + 1) if chosen.keeps(key)]
    held = [
        (key, sums)
        for part in spans
        for key, sums in within(run, part.begin, part.end)
        if key in keys
    ]
    if not held:
        return
    for key, sums in held:
        weight = chosen.rates.kind(key.gpu_type, key.partition).weight or 0
        gpu_seconds += weight * sums[AT["gpu_seconds"]]
        cpu_seconds += sums[AT["cpu_seconds"]]
    number, job, start, end, gpus, doubt, nodes = told
    pi = chosen.dimensions.owner(keys[0])[1]
    yield {
        "job": job,
        "user": run.user,
        "account": run.account,
        "cluster": chosen.dimensions.clusters[run.cluster_id],
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


def _command(row: dict[str, Any]) -> str:
    names = ",".join(name for name, _ in FIELDS)
    return (
        f"SLURM_TIME_FORMAT=%s sacct -D -X -P --noconvert -j {row['job_id_raw']} --format={names}"
    )


def _revisions(connection: Connection, number: int) -> Iterator[tuple[int, dict[str, Any]]]:
    query = select(ingests.c.started, revisions.c.old).join_from(revisions, ingests)
    newest = query.where(revisions.c.run_id == number).order_by(revisions.c.id.desc())
    for at, old in connection.execute(newest):
        yield at, msgspec.json.decode(old)


def _rejects(row: dict[str, Any]) -> Select[str]:
    by_submit = f"{row['job_id_raw']}@{row['submit']}"
    names = [by_submit] if row["db_index"] is None else [str(row["db_index"]), by_submit]
    # Another cluster has other runs under the same numbers.
    ours = (ingests.c.cluster_id == row["cluster_id"], rejects.c.identity.in_(names))
    query = select(rejects.c.line).join(ingests, ingests.c.id == rejects.c.ingest_id)
    return query.where(*ours).order_by(rejects.c.id)


def _text(value: object) -> str:
    return "" if value is None else str(value)
