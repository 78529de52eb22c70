"""What every report is: rows of named columns, and what they rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    import pandas

Kind = Literal["text", "count", "hours", "share", "money", "number", "time"]
Value: TypeAlias = str | int | float | bool | None


class Column(msgspec.Struct, frozen=True):
    """A column.

    Attributes:
        name: its key in a row.
        kind: of its values; `share` is a part of 1, `time` epoch seconds.
    """

    name: str
    kind: Kind = "text"


class Unmapped(msgspec.Struct, frozen=True):
    """Runs that map to no PI, whatever a report is by."""

    jobs: int
    gpu_hours: float


class Difference(msgspec.Struct, frozen=True):
    """GPU-hours of a report that sreport counts otherwise, by cause.

    Attributes:
        suspended: held while suspended; sreport charges these GPUs, sacct's Elapsed does not.
        running: of runs without an end; sreport knows them up to its last rollup.
        requeued: of runs that were requeued; sacct shows them with -D alone.
        command: how the whole difference is worked out.
    """

    suspended: float
    running: float
    requeued: float
    command: str


class Closed(msgspec.Struct, frozen=True):
    """A closed month that a report is about.

    Attributes:
        at: epoch seconds of its closing.
        gpu_hours: what the books said then, of all runs.
        corrected: what later corrections added or took away since.
        jobs: the jobs that caused them, the first few.
    """

    cluster: str
    month: str
    at: int
    gpu_hours: float
    corrected: float
    jobs: tuple[str, ...] = ()


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What a report is about and how far it can be trusted. Times are epoch seconds.

    Attributes:
        report: which one: `usage`, `budget`, ...
        by: what its rows are summed by.
        window: [from, to), as local times with offset.
        timezone: the zone in which the window was given, and days and months are meant.
        filters: only rows with one of these values, by name.
        job: the one job it is about, None for all.
        suspended: `charge` where held GPUs count while a run is suspended, `skip` where not.
        source: where the numbers are from.
        clusters: clusters in the ledger.
        gpus_not_tracked: those of them whose AccountingStorageTRES lacks gres/gpu.
        last_ingest: start of the last finished ingest of the cluster longest not ingested.
        data_age: seconds from then to `made`.
        missing_before: local time before which a cluster's books say nothing, where the window
            begins earlier than that.
        gaps: cluster, from and to, of what no ingest has read within the window.
        last_people_sync: None while no directory was read.
        total: all rows together, by column.
        runs: runs counted.
        running: those of them without an end, counted up to `running_until`; those that sacct
            does not show any more only up to the ingest that last saw them.
        doubtful: runs in the window whose GPU count cannot be trusted.
        unmapped: runs without a PI.
        rejects: lines of sacct, of any time, whose runs could not be read to this day; None for
            who may not see everything, since nobody knows whose they are.
        currency: of the prices in force; None without any.
        prices: what the money columns are made of, or why they are empty.
        weights: what one of a type counts in whole GPUs, where that is not 1; None is unknown
            and counts nothing.
        sreport: how the report differs from sreport.
        closed: closed months within the window, and what was corrected since.
        notes: what else a reader must know.
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
    unmapped: Unmapped | None = None
    rejects: int | None = None
    currency: str | None = None
    prices: str | None = None
    weights: dict[str, float | None] = {}
    sreport: Difference | None = None
    closed: tuple[Closed, ...] = ()
    notes: tuple[str, ...] = ()
    made: int


class Series(msgspec.Struct, frozen=True):
    """Numbers of a chart, one for each of its labels; None is unknown."""

    name: str
    values: tuple[float | None, ...]


class Panel(msgspec.Struct, frozen=True):
    """What a chart shows.

    Attributes:
        kind: how: bars over time on top of each other, bars side by side, or lines over time.
        unit: of the values.
        labels: days, weeks or months, or whose each bar is.
        note: what a reader must know of it.
    """

    kind: Literal["stacked", "bars", "lines"]
    title: str
    unit: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    note: str = ""


class Report(msgspec.Struct, frozen=True):
    """Rows, and what they rest on.

    Attributes:
        rows: values by column name, at full precision; None is unknown.
        panels: charts, where they were asked for.
    """

    meta: Meta
    columns: tuple[Column, ...]
    rows: tuple[dict[str, Any], ...]
    panels: tuple[Panel, ...] = ()

    def frame(self) -> pandas.DataFrame:
        """The rows as a DataFrame, for a notebook."""
        import pandas as pd  # noqa: PLC0415  a quarter of a second that only notebooks pay

        return pd.DataFrame(list(self.rows), columns=[column.name for column in self.columns])
