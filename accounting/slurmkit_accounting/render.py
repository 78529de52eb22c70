"""Reports as table, CSV or JSON: the same numbers, hours with four decimals but in JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import msgspec

from slurmkit.durations import format_duration
from slurmkit.text import printable
from slurmkit_accounting.report import Meta, Report, Row

NOT_TRACKED = "not tracked"
_COLUMNS = ("jobs", "gpu_hours", "cpu_hours")


def header(report: Report) -> tuple[str, ...]:
    """Names of the columns."""
    return (report.meta.by, *_COLUMNS)


def cells(row: Row) -> tuple[str, ...]:
    """One row as text."""
    gpu_hours = NOT_TRACKED if row.gpu_hours is None else f"{row.gpu_hours:.4f}"
    return (row.key, str(row.jobs), gpu_hours, f"{row.cpu_hours:.4f}")


def as_csv(report: Report) -> str:
    """CSV with a header; what came from outside is escaped as on a screen."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header(report))
    writer.writerows([map(printable, cells(row)) for row in report.rows])
    return out.getvalue()


def as_json(report: Report) -> str:
    """An object of `meta` and `rows`; hours at full precision, null where not tracked."""
    whole = {"meta": report.meta, "rows": report.records()}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()


def footer(meta: Meta) -> Iterator[str]:
    """What the rows rest on, in a few lines; not escaped yet."""
    only = f"; only job {meta.job}" if meta.job else ""
    yield f"window: {meta.window[0]} to {meta.window[1]} (not included), {meta.timezone}{only}"
    names = ", ".join(meta.clusters) or "no cluster yet"
    yield f"source: {meta.source}, {names}; {_age(meta)}"
    yield f"counted: {', '.join(_counted(meta))}"
    if meta.missing_before:
        yield (
            f"the books begin at {meta.missing_before}, so what ran before is missing; to read it:"
            " slurmkit ledger ingest --since DATE"
        )
    for name in meta.gpus_not_tracked:
        yield (
            f"GPUs of {name} are not tracked: its AccountingStorageTRES lacks gres/gpu, so sacct"
            " cannot say what was used"
        )
    if meta.by == "pi" and meta.last_people_sync is None:
        yield "no people yet, so nobody's PI is known; run: slurmkit ledger people sync"


def several(number: int, what: str) -> str:
    """Write `1 run`, `2 runs`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _counted(meta: Meta) -> Iterator[str]:
    yield several(meta.runs, "run")
    yield several(meta.rejects, "rejected line")
    if meta.unmapped is not None:
        yield f"{several(meta.unmapped, 'run')} unmapped"
    if meta.running:
        yield f"{meta.running} still running, counted up to {meta.running_until}"
    if meta.unseen:
        yield f"{meta.unseen} open but gone from sacct, counted up to when it last showed them"


def _age(meta: Meta) -> str:
    if meta.data_age is None:
        return "no ingest has been finished yet; run: slurmkit ledger ingest"
    return f"last ingest {format_duration(max(meta.data_age, 0))} ago"
