"""The read API of the ledger, for screens and notebooks. It does not import pandas.

>>> from slurmkit_accounting import read
>>> with read.ledger() as ledger:
...     report = read.usage(ledger, "2026-10-01", "2026-11-01", by=["pi", "gpu_type"])
>>> report.rows[0]["gpu_hours"]
>>> report.frame()
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

import msgspec

from slurmkit.errors import BadInput
from slurmkit.formats.job_ids import check_job_id
from slurmkit.formats.sluid import parse_sluid
from slurmkit.state.gpu_metrics import RunBesideEarlier
from slurmkit.state.gpu_use import SPANS, CurvePoint, GpuUseNow, GpuUseOfGpu, GpuUseOfRun
from slurmkit.state.past_waits import PastWaits
from slurmkit_accounting.allocations.balance import (
    AllocationHistory,
    Balance,
    Balances,
    allocation_history,
    balances,
)
from slurmkit_accounting.calendar import find_zone, months_back
from slurmkit_accounting.config import BUDGETS_LAST_RELEASE
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.remote.served import also_remote
from slurmkit_accounting.remote.served import open_any_ledger as ledger
from slurmkit_accounting.reports.benchmark import Bounds, benchmark_report
from slurmkit_accounting.reports.budget import budget_report
from slurmkit_accounting.reports.capacity import capacity_report
from slurmkit_accounting.reports.counted import Question, check_dimensions
from slurmkit_accounting.reports.dimensions import ALL_DIMENSIONS, KEY_DIMENSIONS, dimension_name
from slurmkit_accounting.reports.earlier_runs import load_run_beside_earlier
from slurmkit_accounting.reports.efficiency import efficiency_report
from slurmkit_accounting.reports.explain import RUNS, Evidence, explain_report
from slurmkit_accounting.reports.explain import load_evidence as evidence_of
from slurmkit_accounting.reports.gpu_use import load_gpu_use
from slurmkit_accounting.reports.gpu_use_now import NowQuestion, load_gpu_use_now
from slurmkit_accounting.reports.gpu_use_over_time import (
    GpuUseInTime,
    GpuUseOverTime,
    load_gpu_use_over_time,
)
from slurmkit_accounting.reports.model import Column, Meta, Panel, Report
from slurmkit_accounting.reports.nodes import nodes_report
from slurmkit_accounting.reports.past_waits import load_past_waits
from slurmkit_accounting.reports.question import EVERYTHING, Scope, report_window
from slurmkit_accounting.reports.reclaimed import reclaimed_report
from slurmkit_accounting.reports.usage import usage_report
from slurmkit_accounting.reports.wait import wait_report
from slurmkit_accounting.sacct.values import LATEST_TIME

__all__ = [
    "BUDGETS_LAST_RELEASE", "AllocationHistory", "Balance", "Balances", "Column", "CurvePoint",
    "Evidence", "GpuUseInTime", "GpuUseNow", "GpuUseOfGpu", "GpuUseOfRun", "GpuUseOverTime",
    "Ledger", "Meta", "More", "Panel", "Report", "RunBesideEarlier", "Scope", "allocation_history",
    "balances", "benchmark", "budget", "capacity", "efficiency", "evidence", "explain",
    "gpu_use_now", "gpu_use_of", "gpu_use_over_time", "ledger", "nodes", "past_waits",
    "reclaimed", "run_beside_earlier", "usage", "wait",
]  # fmt: skip

SUSPENDED = ("charge", "skip")
# The database compares each run with each of them. SQLite refuses some hundred job ids.
MOST_JOBS = 200
MOST_FILTER_VALUES = 1000
NOW_SECONDS = (60, 7 * 86400)  # how far back one looks for what GPUs do now


class More(TypedDict, total=False):
    """Further arguments of all reports.

    Attributes:
        timezone: IANA name; the host's zone when left out.
        filters: only usage with one of these values, by dimension; at most 1,000 values in all.
        suspended: `charge` (like sreport) counts GPUs that a suspended run holds, `skip` does not.
        job: only this job, `12` (with all its parts), `12_3` or `12+1`, or a run by its SLUID;
            several are separated by commas, at most 200.
        now: epoch seconds up to which runs without an end are counted; the current time when left
            out.
    """

    timezone: str | None
    filters: Mapping[str, Sequence[str]]
    suspended: str
    job: str | None
    now: int | None


@also_remote
def usage(
    ledger: Ledger,
    begin: str | None = None,
    end: str | None = None,
    *,
    by: str | Sequence[str] = ("pi",),
    panels: bool = False,
    scope: Scope = EVERYTHING,
    **more: Unpack[More],
) -> Report:
    """Report GPU-hours and all other usage of the window [begin, end).

    Args:
        ledger: an open ledger.
        begin: date or date-time; the begin of this month when left out.
        end: date or date-time, not included; now when left out.
        by: names of dimensions, as a list or by comma: pi, group, department, user, account,
            cluster, partition, qos, gpu_type (or gpu-type), state, hour (of 31 days at most),
            day, week, month.
        panels: whether to add the data of charts.
        scope: which usage the reader may see.
        **more: see `More`.

    Raises:
        BadInput: for an invalid date, zone, dimension or job id.
        LedgerError: when the ledger cannot be read.
    """
    return usage_report(ledger, _question(begin, end, scope, more), _names(by), panels=panels)


@also_remote
def budget(ledger: Ledger, *, scope: Scope = EVERYTHING, **more: Unpack[More]) -> Report:
    """Report how much of their current budgets PIs have used, and when these run out.

    Args:
        ledger: an open ledger.
        scope: which usage the reader may see; a PI sees the budget of their own groups.
        **more: see `More`; filters and a job have no effect.

    Raises:
        BadConfig: for a budgets file that cannot be read.
        LedgerError: when the ledger cannot be read.
    """
    return budget_report(ledger, _question(None, None, scope, more))


@also_remote
def wait(
    ledger: Ledger,
    begin: str | None = None,
    end: str | None = None,
    *,
    by: str | Sequence[str] = ("partition", "gpu_type"),
    scope: Scope = EVERYTHING,
    **more: Unpack[More],
) -> Report:
    """Report the waiting times of the runs that started in the window.

    Args:
        ledger: an open ledger.
        begin: as in `usage`, like `end` and `scope`.
        end: see `usage`.
        by: names of dimensions, without hour, day, week and month.
        scope: see `usage`.
        **more: see `More`.

    Raises:
        BadInput: as in `usage`.
        LedgerError: when the ledger cannot be read.
    """
    return wait_report(ledger, _question(begin, end, scope, more), _names(by, KEY_DIMENSIONS))


@also_remote
def efficiency(
    ledger: Ledger,
    begin: str | None = None,
    end: str | None = None,
    *,
    by: str | Sequence[str] = ("user", "partition"),
    scope: Scope = EVERYTHING,
    **more: Unpack[More],
) -> Report:
    """Report the resources that runs held but did not use, of runs that ended in the window.

    Args:
        ledger: an open ledger.
        begin: as in `usage`, like `end` and `scope`.
        end: see `usage`.
        by: names of dimensions, without hour, day, week and month.
        scope: see `usage`.
        **more: see `More`.

    Raises:
        BadInput: as in `usage`.
        LedgerError: when the ledger cannot be read.
    """
    return efficiency_report(ledger, _question(begin, end, scope, more), _names(by, KEY_DIMENSIONS))


@also_remote
def capacity(
    ledger: Ledger,
    begin: str | None = None,
    end: str | None = None,
    *,
    scope: Scope = EVERYTHING,
    **more: Unpack[More],
) -> Report:
    """Report the GPUs that were there, held, used and waited for, by month and GPU type.

    Args:
        ledger: an open ledger.
        begin: as in `usage`, like `end` and `scope`; without dates, this month and the 11 before.
        end: see `usage`.
        scope: see `usage`.
        **more: see `More`.

    Raises:
        BadInput: as in `usage`.
        LedgerError: when the ledger cannot be read.
    """
    question = _question(begin, end, scope, more)
    if begin is None and "month" not in question.filters:
        first = months_back(question.window[0], 11, question.zone)
        question = msgspec.structs.replace(question, window=(first, question.window[1]))
    return capacity_report(ledger, question)


@also_remote
def nodes(
    ledger: Ledger,
    begin: str | None = None,
    end: str | None = None,
    *,
    by: str = "node",
    node: str | None = None,
    scope: Scope = EVERYTHING,
    **more: Unpack[More],
) -> Report:
    """Report which nodes and GPUs were out of use within the window, and why.

    Args:
        ledger: an open ledger.
        begin: as in `usage`, like `end`.
        end: see `usage`.
        by: `node`, `gpu` (by serial number, where a reason names it), `check`, or `outage` for the
            history: a row for each outage, the newest first.
        node: only outages of this node.
        scope: whose usage the reader may see; outages have no owner, so everybody sees them. Only
            who sees everything sees the texts of reasons.
        **more: see `More`; of the filters only `cluster` has an effect.

    Raises:
        BadInput: for an invalid date, zone or `by`.
        LedgerError: when the ledger cannot be read.
    """
    return nodes_report(ledger, _question(begin, end, scope, more), by, node)


@also_remote
def benchmark(
    ledger: Ledger,
    begin: str | None = None,
    end: str | None = None,
    *,
    by: str = "gpu",
    benchmarks: Sequence[str] = (),
    below: float = 5.0,
    mads: float = 3.0,
    scope: Scope = EVERYTHING,
    **more: Unpack[More],
) -> Report:
    """Report what `slurmkit benchmark` measured: values, trends, slow nodes and GPUs, prices.

    Args:
        ledger: an open ledger.
        begin: as in `usage`, like `end`; without dates, this month and the 11 before.
        end: see `usage`.
        by: `gpu`, `node`, `gpu_type`, `day` or `month`.
        benchmarks: only these, e.g. `matmul_bf16`; all when left out.
        below: a value is slow if it is more than so many percent below the median of its type,
        mads: and more than so many median absolute deviations.
        scope: whose usage the reader may see; benchmarks have no owner, so everybody sees them.
        **more: see `More`; of the filters only `cluster` and `gpu_type` have an effect.

    Raises:
        BadInput: for an invalid date, zone, `by`, `below` or `mads`.
        BadConfig: for prices that cannot be used.
        LedgerError: when the ledger cannot be read.
    """
    question = _question(begin, end, scope, more)
    if begin is None and "month" not in question.filters:
        first = months_back(question.window[0], 11, question.zone)
        question = msgspec.structs.replace(question, window=(first, question.window[1]))
    bounds = Bounds(below, mads)
    name = by.replace("-", "_")
    return benchmark_report(ledger, question, name, benchmarks=benchmarks, bounds=bounds)


@also_remote
def reclaimed(
    ledger: Ledger,
    begin: str | None = None,
    end: str | None = None,
    *,
    scope: Scope = EVERYTHING,
    **more: Unpack[More],
) -> Report:
    """Report what was done about idle GPUs, the samples that caused it, and what was won back.

    Args:
        ledger: an open ledger.
        begin: as in `usage`, like `end` and `scope`.
        end: see `usage`.
        scope: see `usage`.
        **more: see `More`.

    Raises:
        BadInput: as in `usage`, and for a SLUID.
        LedgerError: when the ledger cannot be read.
    """
    asked = _question(begin, end, scope, more)
    if asked.job is not None and any(map(parse_sluid, asked.job.split(","))):
        raise BadInput("what was done about idle GPUs is kept by job id; give the id, not a SLUID")
    return reclaimed_report(ledger, asked)


@also_remote
def explain(
    ledger: Ledger,
    begin: str | None = None,
    end: str | None = None,
    *,
    runs: str = "held",
    most: int | None = None,
    scope: Scope = EVERYTHING,
    **more: Unpack[More],
) -> Report:
    """List the runs that make up a cell of `usage`; the filters select the cell.

    Args:
        ledger: an open ledger.
        begin: as in `usage`, like `end` and `scope`.
        end: see `usage`.
        runs: `held` are those that held resources in the window, `lost` those of the column
            `gpu_hours_lost`, `doubtful` those whose number of GPUs cannot be trusted, `started`
            those that `wait` counts, `measured` those that `efficiency` counts, `waiting` those
            that waited at the last ingest.
        most: rows to return, the first ones; the totals are of all runs. All when left out.
        scope: see `usage`.
        **more: see `More`.

    Raises:
        BadInput: as in `usage`, and for other `runs`.
        LedgerError: when the ledger cannot be read.
    """
    if runs not in RUNS:
        raise BadInput(f"runs must be {', '.join(RUNS)}; not {runs!r}")
    if most is not None and most < 1:
        raise BadInput(f"most must be 1 or more; not {most}")
    return explain_report(ledger, _question(begin, end, scope, more), runs, most)


@also_remote
def evidence(ledger: Ledger, row: int, *, scope: Scope = EVERYTHING) -> Evidence:
    """Return all stored data of one run: the row, its revisions, the sacct row.

    Args:
        ledger: an open ledger.
        row: row id, as `explain` gives it.
        scope: which runs the reader may see.

    Raises:
        BadInput: when there is no such row, or the reader may not see it.
        LedgerError: when the ledger cannot be read.
    """
    return evidence_of(ledger, row, scope)


@also_remote
def gpu_use_of(
    ledger: Ledger, job: str, *, cluster: str | None = None, scope: Scope = EVERYTHING
) -> tuple[GpuUseOfRun, ...]:
    """Return what the GPUs of a job did, for each run of the job, oldest first.

    Each `GpuUseOfRun` has `gpus`, a tuple of `GpuUseOfGpu`: mean and 95th-percentile utilization,
    memory, energy, the share of the run that was measured, and `points`, the curve. None is
    unknown. A running job is as of the last sample (`last`), an ended one stays as it is.

    Args:
        ledger: an open ledger.
        job: `12` (with all its parts), `12_3`, `12+1` or a SLUID; several are separated by commas.
        cluster: only runs on this cluster; all clusters when left out.
        scope: which runs the reader may see.

    Raises:
        BadInput: when there is no run of the job that the reader may see, or there are too many.
        LedgerError: when the ledger cannot be read.
    """
    return load_gpu_use(ledger, _check_job_ids(job), cluster=cluster, scope=scope)


@also_remote
def run_beside_earlier(
    ledger: Ledger,
    job: str,
    *,
    started: int | None = None,
    ended: int | None = None,
    scope: Scope = EVERYTHING,
) -> RunBesideEarlier:
    """Return one run of a job, and the completed runs of the same user and job name before it.

    `earlier` are at most ten, which ended in the 30 days before the run began, newest first. Tasks
    of the same array are left out. Each `MeasuredRun` has what the run held and what was measured;
    None is unknown.

    Args:
        ledger: an open ledger.
        job: one job: `12`, `12_3` or `12+1`.
        started: epoch seconds at which the run began; the last run when left out.
        ended: epoch seconds at which it ended.
        scope: which runs the reader may see.

    Raises:
        BadInput: when there is no such run that the reader may see.
        LedgerError: when the ledger cannot be read.
    """
    return load_run_beside_earlier(
        ledger, check_job_id(job), started=started, ended=ended, scope=scope
    )


@also_remote
def past_waits(ledger: Ledger, cluster: str, *, scope: Scope = EVERYTHING) -> PastWaits:
    """Return how long the jobs waited that started in the last 30 days, by kind of job.

    A kind is reported if it had at least 20 jobs. A reader who may not see sums over all runs gets
    less. Then a kind is reported only if its jobs were of at least three users, and not more than
    half of them of one user; and the number of jobs is rounded down to a multiple of 20.

    Args:
        ledger: an open ledger.
        cluster: name of the cluster.
        scope: which runs the reader may see.

    Raises:
        LedgerError: when the ledger cannot be read.
    """
    return load_past_waits(ledger, cluster, scope, int(time.time()))


@also_remote
def gpu_use_now(
    ledger: Ledger,
    *,
    jobs: Sequence[str] | None = None,
    nodes: Sequence[str] | None = None,
    cluster: str | None = None,
    seconds: int = 1800,
    scope: Scope = EVERYTHING,
) -> tuple[GpuUseNow, ...]:
    """Return what each GPU of the running jobs does now, as of its last sample (`last`).

    >>> with read.ledger() as ledger:
    ...     for gpu in read.gpu_use_now(ledger, jobs=["41"]):
    ...         print(gpu.node, gpu.index, gpu.utilization, gpu.age, gpu.recent)

    Args:
        ledger: an open ledger.
        jobs: only these, as squeue shows them; `12` is also all tasks of the array 12. All jobs
            that the reader may see when left out; at most 1,000.
        nodes: only GPUs of these nodes; all nodes when left out.
        cluster: only jobs of this cluster; all clusters when left out.
        seconds: how far back `busiest`, `since`, `idle_since` and `recent` look, from 60 to
            604,800; `recent` an hour at most. GPUs without a sample since then are left out.
        scope: which runs the reader may see.

    Raises:
        BadInput: for an invalid job id, too many jobs, or a time that is too short or too long.
        LedgerError: when the ledger cannot be read.
    """
    least, most = NOW_SECONDS
    if not least <= seconds <= most:
        raise BadInput(f"seconds must be from {least} to {most:,}; not {seconds}")
    if jobs is not None and len(jobs) > MOST_FILTER_VALUES:
        raise BadInput(f"{len(jobs):,} jobs are too many; ask for {MOST_FILTER_VALUES:,} at a time")
    asked = NowQuestion(
        jobs=None if jobs is None else frozenset(map(check_job_id, jobs)),
        nodes=None if nodes is None else frozenset(nodes),
        cluster=cluster,
        seconds=seconds,
        scope=scope,
    )
    return load_gpu_use_now(ledger, asked, time.time())


@also_remote
def gpu_use_over_time(
    ledger: Ledger,
    span: str = "24h",
    *,
    cluster: str | None = None,
    timezone: str | None = None,
    scope: Scope = EVERYTHING,
) -> GpuUseOverTime:
    """Return how many GPUs of a cluster were held, measured and in use, by type and time.

    `used` is of the measured GPUs only; it is not scaled up to all that were held.

    >>> with read.ledger() as ledger:
    ...     for row in read.gpu_use_over_time(ledger, "24h", cluster="lab").rows:
    ...         print(row.begin, row.gpu_type, row.held, row.used, row.measured_share)

    Args:
        ledger: an open ledger.
        span: `24h` and `7d` are by hour, `30d` is by day; each up to now.
        cluster: name of the cluster; needed where the ledger has several.
        timezone: IANA name of the zone in which hours and days begin; the host's when left out.
        scope: which runs the reader may see; with totals, those of everybody.

    Raises:
        BadInput: for another span, an unknown zone, or a cluster that the ledger does not have.
        LedgerError: when the ledger cannot be read.
    """
    if span not in SPANS:
        raise BadInput(f"span must be {', '.join(SPANS)}; not {span!r}")
    zone = find_zone(timezone)
    return load_gpu_use_over_time(ledger, span, cluster, zone, scope.of_totals, int(time.time()))


def _names(by: str | Sequence[str], known: Sequence[str] = ALL_DIMENSIONS) -> tuple[str, ...]:
    """Check names of dimensions, given as a list or separated by commas."""
    given = filter(None, by.split(",")) if isinstance(by, str) else by
    names = dict.fromkeys(map(dimension_name, given))
    check_dimensions(tuple(names), known)
    return tuple(names)


def _question(begin: str | None, end: str | None, scope: Scope, more: More) -> Question:
    only = {dimension_name(name): tuple(values) for name, values in more.get("filters", {}).items()}
    check_dimensions(tuple(only))
    _check_number_of_values(only)
    where, job, now = find_zone(more.get("timezone")), more.get("job"), more.get("now")
    moment = int(time.time()) if now is None else now
    if not 0 <= moment <= LATEST_TIME:
        raise BadInput(f"now must be in epoch seconds, from 0 to {LATEST_TIME}; not {moment}")
    suspended = more.get("suspended", "charge")
    if suspended not in SUSPENDED:
        raise BadInput(f"suspended must be {' or '.join(SUSPENDED)}; not {suspended!r}")
    return Question(
        window=report_window(begin, end, where, only, moment),
        is_until_now=end is None and "month" not in only,
        zone=where,
        filters=only,
        suspended=suspended,
        job=None if job is None else _check_job_ids(job),
        scope=scope,
        now=moment,
    )


def _check_number_of_values(filters: Mapping[str, Sequence[str]]) -> None:
    count = sum(map(len, filters.values()))
    if count > MOST_FILTER_VALUES:
        raise BadInput(
            f"the filters have {count:,} values; at most {MOST_FILTER_VALUES:,} are allowed;"
            " leave filters out, and choose from the rows of the report"
        )


def _check_job_ids(job: str) -> str:
    """Check job ids and SLUIDs separated by commas; return them, each once."""
    job_ids = dict.fromkeys(job.split(","))
    if len(job_ids) > MOST_JOBS:
        raise BadInput(
            f"{len(job_ids):,} job ids are too many; at most {MOST_JOBS} are allowed in one report;"
            " ask for some of them at a time"
        )
    return ",".join(each if parse_sluid(each) else check_job_id(each) for each in job_ids)
