"""Data types of a report: rows of named columns, metadata, and the panels of its charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    import pandas

ColumnKind = Literal["text", "count", "hours", "share", "money", "number", "time"]
Value: TypeAlias = str | int | float | bool | None


class Column(msgspec.Struct, frozen=True):
    """A column of a report.

    Attributes:
        name: the column's key in a row.
        kind: kind of the values; `share` is a fraction of 1, `time` is epoch seconds. A time that
            is None has not come yet.
        adds_up: whether the rows can be added up. A mean cannot, nor a number of users, who may
            be in several rows.
        known_of: for a share, the column of which so much is known; the rest of it is unknown.
    """

    name: str
    kind: ColumnKind = "text"
    adds_up: bool = False
    known_of: str = ""


class UnmappedTotal(msgspec.Struct, frozen=True):
    """Total of the runs that map to no PI, whatever a report is grouped by."""

    jobs: int
    gpu_hours: float


class SreportDifference(msgspec.Struct, frozen=True):
    """GPU-hours of a report that sreport or sacct may count differently, by cause.

    Attributes:
        suspended: held while suspended; sreport counts these GPUs too, sacct's Elapsed does not.
        running: of runs without an end; sreport counts them up to its last rollup.
        requeued: of requeued runs; sreport counts them too, sacct shows them only with -D.
        command: command that works out the whole difference.
    """

    suspended: float
    running: float
    requeued: float
    command: str


class ClosedMonthSummary(msgspec.Struct, frozen=True):
    """A closed month within the window of a report.

    Attributes:
        at: when the month was closed, epoch seconds.
        gpu_hours: GPU-hours of all runs, as stored when the month was closed.
        corrected: GPU-hours that later corrections added, or (negative) took away.
        jobs: the first few jobs that caused the corrections.
    """

    cluster: str
    month: str
    at: int
    gpu_hours: float
    corrected: float
    jobs: tuple[str, ...] = ()


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a report: its question, its sources and their limits. Times are epoch seconds.

    Attributes:
        report: name of the report: `usage`, `budget`, ...
        by: dimensions by which rows are summed.
        window: [from, to), as local times with offset.
        timezone: time zone of the window and of its days and months.
        filters: only usage with one of these values, by dimension.
        job: the only job counted; None for all jobs.
        suspended: `charge` counts GPUs held while a run is suspended, `skip` does not.
        source: the ledger or daemon that the numbers come from.
        clusters: clusters in the ledger.
        gpus_not_tracked: clusters whose AccountingStorageTRES lacks gres/gpu.
        last_ingest: start of the last finished ingest; with several clusters, the oldest such time.
        data_age: seconds from `last_ingest` to `made`.
        missing_before: local time before which a cluster has no data, if the window begins
            earlier.
        gaps: (cluster, from, to) of the times in the window that no ingest has read.
        last_people_sync: None if no directory was read yet.
        total: the values of all rows together, by column; None is unknown. Empty if the rows
            cannot be added up.
        runs: number of runs counted.
        running: number of them without an end, counted up to `running_until`; a run that sacct
            no longer shows is counted up to the ingest that last saw it.
        doubtful: number of runs in the window whose GPU count cannot be trusted.
        unmapped: runs without a PI.
        rejects: number of sacct lines, of any time, whose runs still could not be read. None for
            a reader who may not see everything, since the owners of such lines are unknown.
        currency: currency of the prices in force; None without prices.
        prices: what the money columns include, or why they are empty.
        weights: whole GPUs that one GPU (or part) of a type counts as, where not 1; None is
            unknown and counts as 0.
        sreport: how the report differs from sreport.
        closed: closed months within the window, and their corrections.
        definitions: what the columns mean, for a reader who asks.
        notes: everything else that a reader must know.
        made: when the report was made.
    """

    report: str
    by: tuple[str, ...] = ()
    window: tuple[str, str] | None = None
    timezone: str
    filters: dict[str, tuple[str, ...]] = {}
    job: str | None = None
    suspended: str | None = None
    source: str
    clusters: tuple[str, ...]
    gpus_not_tracked: tuple[str, ...] = ()
    last_ingest: int | None
    data_age: int | None
    missing_before: str | None = None
    gaps: tuple[tuple[str, str, str], ...] = ()
    last_people_sync: int | None = None
    total: dict[str, Value] = {}
    runs: int | None = None
    running: int | None = None
    running_until: str | None = None
    doubtful: int | None = None
    unmapped: UnmappedTotal | None = None
    rejects: int | None = None
    currency: str | None = None
    prices: str | None = None
    weights: dict[str, float | None] = {}
    sreport: SreportDifference | None = None
    closed: tuple[ClosedMonthSummary, ...] = ()
    definitions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    made: int


class Series(msgspec.Struct, frozen=True):
    """A named series of a chart: one value for each label; None is unknown.

    Attributes:
        look: empty for a colour of its own; `faint` for what is less than the series before it,
            `hatched` for what is unknown.
    """

    name: str
    values: tuple[float | None, ...]
    look: Literal["", "faint", "hatched"] = ""


class Panel(msgspec.Struct, frozen=True):
    """The data of one chart.

    Attributes:
        kind: `stacked` bars over time, `bars` of one value each, or of the parts of one value
            (several series), or `lines` over time.
        unit: unit of the values.
        labels: days, weeks or months; for `bars`, the name of each bar.
        note: remark for the reader.
    """

    kind: Literal["stacked", "bars", "lines"]
    title: str
    unit: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    note: str = ""


class Report(msgspec.Struct, frozen=True):
    """A report: metadata, columns and rows.

    Attributes:
        rows: values by column name, at full precision; None is unknown.
        panels: charts, if they were requested.
        total_row: whether a file ends with a row of totals; None leaves that to the format.
    """

    meta: Meta
    columns: tuple[Column, ...]
    rows: tuple[dict[str, Any], ...]
    panels: tuple[Panel, ...] = ()
    total_row: bool | None = None

    @property
    def sums(self) -> dict[str, Value]:
        """The sums of the columns that add up, and how much of them is known; None is unknown."""
        total = self.meta.total
        return {
            one.name: total[one.name]
            for one in self.columns
            if (one.adds_up or one.known_of) and one.name in total
        }

    def frame(self) -> pandas.DataFrame:
        """Return the rows as a DataFrame, for a notebook."""
        import pandas as pd  # noqa: PLC0415  a quarter of a second that only notebooks pay

        return pd.DataFrame(list(self.rows), columns=[column.name for column in self.columns])


def sum_columns(columns: Iterable[Column], rows: Iterable[Mapping[str, Any]]) -> dict[str, Value]:
    """Return the sum of each column that adds up; None where a value is unknown."""
    listed = list(rows)
    return {
        column.name: _sum([row[column.name] for row in listed])
        for column in columns
        if column.adds_up
    }


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(known) if all(isinstance(value, int) for value in known) else math.fsum(known)
