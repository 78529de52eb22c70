"""`report usage`: GPU-hours and everything beside them, by whatever is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection

from slurmkit.errors import BadInput
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.budget import burn_downs
from slurmkit_accounting.reports.corrections import closed_months
from slurmkit_accounting.reports.counted import Counted, Labels, Question
from slurmkit_accounting.reports.dimensions import UNMAPPED
from slurmkit_accounting.reports.model import Column, Difference, Meta, Report, Unmapped
from slurmkit_accounting.reports.panels import panels_of, unit_of
from slurmkit_accounting.reports.periods import UNITS
from slurmkit_accounting.reports.selected import doubtful
from slurmkit_accounting.reports.tally import COLUMNS, Tally, outcome_of


def usage_report(
    ledger: Ledger, question: Question, by: Sequence[str], *, panels: bool = False
) -> Report:
    """Sum what runs held within a window, whatever became of them.

    GPU-seconds of a run are its GPUs times the overlap of [Start, End) with the window; a run
    without an end counts up to `question.now`, or to when sacct last showed it.

    Args:
        ledger: open for reading.
        question: which window, of whom.
        by: dimensions, in the order of the rows' keys; none for one row of everything.
        panels: whether to add what charts show.

    Raises:
        BadInput: for an empty window.
        BadConfig: for prices that cannot be used.
        LedgerError: when the ledger cannot be read.
    """
    if question.window[0] >= question.window[1]:
        begin, end = map(question.zone.show, question.window)
        raise BadInput(f"--to {end} must be after --from {begin}; it is not included itself")
    unit = unit_of(question.window)
    units = {name for name in by if name in UNITS} | ({unit} if panels else set())
    with ledger.transaction() as connection:
        counted = Counted(connection, replace(question, units=frozenset(units)))
        rows = _ordered(counted.rows(by), by, counted)
        corrections = counted.corrected(by)
        meta = _meta(ledger, connection, counted, by)
        shown = (*panels_of(counted, unit), *burn_downs(connection, question)) if panels else ()
    keys = [Column(name) for name in by]
    if corrections:
        # What a closed month said stays as it was; what was corrected since has rows of its own.
        keys.append(Column("correction"))
        rows = [{**row, "correction": ""} for row in rows]
        rows += _ordered(corrections, [*by, "correction"], counted)
    return Report(meta, (*keys, *COLUMNS), tuple(rows), shown)


def _ordered(
    rows: Mapping[Labels, Tally], by: Sequence[str], counted: Counted
) -> list[dict[str, Any]]:
    """By time, then the largest first, and what is unmapped last."""
    rates = counted.rates
    weights: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for labels, tally in rows.items():
        for name, label in zip(by, labels, strict=True):
            weights[name, label] += tally.gpu_hours(rates)

    def rank(labels: Labels) -> list[tuple[object, ...]]:
        return [
            (label,) if name in UNITS else (label == UNMAPPED, -weights[name, label], label)
            for name, label in zip(by, labels, strict=True)
        ]

    return [
        {**dict(zip(by, labels, strict=True)), **rows[labels].values(rates, counted.parts)}
        for labels in sorted(rows, key=rank)
    ]


def _meta(ledger: Ledger, connection: Connection, counted: Counted, by: Sequence[str]) -> Meta:
    question, rates, total = counted.question, counted.rates, counted.total()
    unmapped = counted.total(counted.dimensions.is_unmapped)
    running = counted.total(lambda key: outcome_of(key.state) == "running")
    of_window = provenance.of_window(connection, question.window, question.zone, question.now)
    return Meta(
        report="usage",
        by=tuple(by),
        filters=question.filters,
        job=question.job,
        suspended=question.suspended,
        total=counted.everything().values(rates, counted.parts),
        runs=total.jobs,
        running=running.jobs,
        doubtful=doubtful(connection, counted),
        unmapped=Unmapped(unmapped.jobs, float(unmapped.gpu_hours(rates))),
        currency=rates.currency,
        prices=_prices(counted),
        weights=_weights(counted),
        closed=closed_months(connection, counted),
        sreport=_difference(connection, counted, running),
        **provenance.of_books(ledger, connection, question.now, question.scope),
        **of_window,
    )


def _prices(counted: Counted) -> str:
    rates = counted.rates
    if rates.currency is None:
        return "none are configured: write [gpu.TYPE] prices"
    beside = [name for name, of in (("CPU", rates.of_cpus), ("memory", rates.of_memory)) if of]
    priced = " and ".join(["GPU", *beside])
    kinds = {
        (kind.name, part)
        for part, key, _ in counted.cells
        for kind in [rates.kind(key.gpu_type, key.partition)]
        if kind.weight != 0 and rates.gpu_hour(kind, counted.parts[part].day).on_premises is None
    }
    lacking = sorted({name for name, _ in kinds})
    without = f"; unknown for {', '.join(lacking)}" if lacking else ""
    return f"{priced} hours, each at the price of its day{without}"


def _weights(counted: Counted) -> dict[str, float | None]:
    kinds = {counted.rates.kind(key.gpu_type, key.partition) for _, key, _ in counted.cells}
    return {
        kind.name: None if kind.weight is None else float(kind.weight)
        for kind in sorted(kinds, key=lambda kind: kind.name)
        if kind.weight not in {0, 1}
    }


def _difference(connection: Connection, counted: Counted, running: Tally) -> Difference:
    requeued = counted.total(lambda key: key.redone or key.state == "REQUEUED")
    return Difference(
        suspended=float(counted.suspended_gpu_hours(connection)),
        running=float(running.gpu_hours(counted.rates)),
        requeued=float(requeued.gpu_hours(counted.rates)),
        command="slurmkit report reconcile --month YYYY-MM",
    )
