"""`report usage`: GPU-hours, other usage and costs, by any dimensions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection

from slurmkit.errors import BadInput
from slurmkit_accounting.calendar import UNITS
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.budget import burn_down_panels
from slurmkit_accounting.reports.counted import CountedUsage, Labels, Question
from slurmkit_accounting.reports.dimensions import UNMAPPED
from slurmkit_accounting.reports.model import Column, Meta, Report, SreportDifference, UnmappedTotal
from slurmkit_accounting.reports.panels import usage_panels
from slurmkit_accounting.reports.provenance import closed_months
from slurmkit_accounting.reports.selection import count_doubtful_runs, unknown_names
from slurmkit_accounting.reports.tally import COLUMNS, Tally, run_outcome
from slurmkit_accounting.usage.partial import open_runs_counted_until

_DEFINITION = (
    "wait_hours: the sum over the runs that started in the window; their mean and median:"
    " slurmkit report wait"
)
_MEASURED = (
    "gpu_hours_used: of gpu_hours_measured, by samples of the GPUs or Slurm's gres/gpuutil; runs"
    " that were measured for less than half of their time are in neither; of the others, what was"
    " measured stands for the whole run, here and in gpu_energy_kwh"
)
_ENERGY = (
    "energy_kwh: measured by Slurm, whole nodes; gpu_energy_kwh: measured by the GPUs, where Slurm"
    " measured nothing; co2_kg: of both; energy_kwh_estimated: GPUs under full load"
)
_CORRECTION = "correction"  # the column that names the closed month that a row corrects


def usage_report(
    ledger: Ledger, question: Question, by: Sequence[str], *, panels: bool = False
) -> Report:
    """Report what all runs held within a window, whatever their outcome.

    GPU-seconds of a run are its GPUs times the overlap of [Start, End) with the window; a run
    without an end counts up to `question.now`, or up to when sacct last showed it.

    Args:
        ledger: open for reading.
        question: window, filters and scope.
        by: dimensions, in the order of the columns; empty for one row of everything.
        panels: whether to add the panels of charts.

    Raises:
        BadInput: for an empty window.
        BadConfig: for prices that cannot be used.
        LedgerError: when the ledger cannot be read.
    """
    _check_window(question)
    with ledger.transaction() as connection:
        asked = replace(question, units=frozenset(name for name in by if name in UNITS))
        counted = CountedUsage(connection, asked, by)
        rows = _sorted_rows(counted.rows(by), by, counted)
        corrections = _sorted_rows(counted.corrected(by), [*by, _CORRECTION], counted)
        meta = _meta(ledger, connection, counted, by)
        charts = usage_panels(connection, question, counted, by) if panels else ()
        burn_down = burn_down_panels(connection, question) if panels else ()
    keys = [Column(name) for name in by]
    if corrections:
        # Rows of closed months keep their numbers; corrections have rows of their own.
        keys.append(Column(_CORRECTION))
        rows = [*({**row, _CORRECTION: ""} for row in rows), *corrections]
    columns = (*keys, *_columns_of(by))
    return Report(meta, columns, tuple(rows), (*charts, *burn_down))


def _columns_of(by: Sequence[str]) -> Iterator[Column]:
    """Yield the columns; a job that overlaps two days is in two rows, so those do not add up."""
    by_time = any(name in UNITS for name in by)
    for column in COLUMNS:
        yield replace(column, adds_up=False) if by_time and column.name == "jobs" else column


def _check_window(question: Question) -> None:
    if question.window[0] >= question.window[1]:
        begin, end = map(question.zone.show, question.window)
        raise BadInput(f"--to {end} must be after --from {begin}; --to itself is not included")


def _sorted_rows(
    rows: Mapping[Labels, Tally], by: Sequence[str], counted: CountedUsage
) -> list[dict[str, Any]]:
    """Return rows in order: by time, else most GPU-hours first and unmapped last."""
    rates = counted.rates
    gpu_hours: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for labels, tally in rows.items():
        for name, label in zip(by, labels, strict=True):
            gpu_hours[name, label] += tally.gpu_hours(rates)

    def rank(labels: Labels) -> list[tuple[object, ...]]:
        return [
            (label,) if name in UNITS else (label == UNMAPPED, -gpu_hours[name, label], label)
            for name, label in zip(by, labels, strict=True)
        ]

    return [
        {**dict(zip(by, labels, strict=True)), **rows[labels].values(rates, counted.parts)}
        for labels in sorted(rows, key=rank)
    ]


def _meta(ledger: Ledger, connection: Connection, counted: CountedUsage, by: Sequence[str]) -> Meta:
    question, rates, total = counted.question, counted.rates, counted.total()
    unmapped = counted.total(counted.dimensions.is_unmapped)
    running = counted.total(lambda key: run_outcome(key.state) == "running")
    of_window = provenance.window_fields(connection, question.window, question.zone, question.now)
    if running.jobs:
        numbers = {
            key.cluster_id for _, key, _ in counted.cells if run_outcome(key.state) == "running"
        }
        until = open_runs_counted_until(connection, numbers, question.now)
        of_window["running_until"] = question.zone.show(min(until, question.window[1]))
    return Meta(
        report="usage",
        by=tuple(by),
        filters=question.filters,
        job=question.job,
        suspended=question.suspended,
        total=counted.total_with_corrections().values(rates, counted.parts),
        runs=total.jobs,
        running=running.jobs,
        doubtful=count_doubtful_runs(connection, counted),
        unmapped=UnmappedTotal(unmapped.jobs, float(unmapped.gpu_hours(rates))),
        currency=rates.currency,
        prices=_price_note(counted),
        weights=_weights(counted),
        closed=closed_months(connection, counted),
        definitions=(_DEFINITION, _MEASURED, _ENERGY),
        notes=() if counted.cells else unknown_names(connection, question, counted.dimensions),
        sreport=_sreport_difference(connection, counted, running),
        **provenance.ledger_fields(ledger, connection, question.now, question.scope),
        **of_window,
    )


def _price_note(counted: CountedUsage) -> str:
    rates = counted.rates
    if rates.currency is None:
        return "none are configured; set them as [gpu.TYPE] prices"
    others = [
        name for name, priced in (("CPU", rates.of_cpus), ("memory", rates.of_memory)) if priced
    ]
    resources = " and ".join(["GPU", *others])
    without_price = {
        kind.name
        for part, key, _ in counted.cells
        for kind in [rates.kind(key.gpu_type, key.partition)]
        if kind.weight != 0 and rates.gpu_hour(kind, counted.parts[part].day).on_premises is None
    }
    unknown = f"; unknown for {', '.join(sorted(without_price))}" if without_price else ""
    return f"{resources} hours, each at the price of its day{unknown}"


def _weights(counted: CountedUsage) -> dict[str, float | None]:
    kinds = {counted.rates.kind(key.gpu_type, key.partition) for _, key, _ in counted.cells}
    return {
        kind.name: None if kind.weight is None else float(kind.weight)
        for kind in sorted(kinds, key=lambda kind: kind.name)
        if kind.weight not in {0, 1}
    }


def _sreport_difference(
    connection: Connection, counted: CountedUsage, running: Tally
) -> SreportDifference:
    requeued = counted.total(lambda key: key.redone or key.state == "REQUEUED")
    return SreportDifference(
        suspended=float(counted.suspended_gpu_hours(connection)),
        running=float(running.gpu_hours(counted.rates)),
        requeued=float(requeued.gpu_hours(counted.rates)),
        command="slurmkit report reconcile --month YYYY-MM",
    )
