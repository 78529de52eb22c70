"""GPUs held, measured and in use, by type and hour or day: the curve of utilization."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select, text

from slurmkit.errors import BadInput
from slurmkit.state.gpu_use import SPANS
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.gpu_use.recent import load_samples
from slurmkit_accounting.gpu_use.series import unpack_utilization
from slurmkit_accounting.gpu_use.store import RunTimes, find_run
from slurmkit_accounting.gpu_use.summaries import best_source
from slurmkit_accounting.ledger.bulk_write import in_values
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.gpu_use import NOT_LINKED, gpu_curves, gpu_use
from slurmkit_accounting.ledger.schema.runs import OPEN, clusters, runs
from slurmkit_accounting.reports.dimensions import Dimensions
from slurmkit_accounting.reports.question import Scope
from slurmkit_accounting.reports.rates import GPU_PARTS, Rates
from slurmkit_accounting.usage.bins import UsageRun, make_usage_key, parse_alloc_tres
from slurmkit_accounting.usage.partial import load_runs_with_ends

_OF_USE = [
    gpu_use.c[name] for name in (
        "id", "run_id", "source", "samples", "measured_seconds", "measured_samples",
        "utilization_sum", "interval",
    )
]  # fmt: skip
_OF_OPEN = [gpu_use.c[name] for name in ("id", "job_id_raw", "start", "first", "last", "interval")]


class GpuUseInTime(msgspec.Struct, frozen=True, kw_only=True):
    """Mean numbers of GPUs of one type in one stretch of time.

    Attributes:
        begin: epoch seconds.
        seconds: its length; the present stretch ends now.
        gpu_type: named as in reports.
        held: GPUs held by jobs, counted as in GPU-hours.
        measured: those of them that samples of utilization cover.
        used: those in use: utilization times `measured`; None where nothing is measured.
    """

    begin: int
    seconds: int
    gpu_type: str
    held: float
    measured: float
    used: float | None

    @property
    def measured_share(self) -> float:
        """Share of the held GPUs that is measured, 0 to 1; 0 where nothing is held."""
        return min(self.measured / self.held, 1.0) if self.held else 0.0


class GpuUseOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of one cluster over time.

    Attributes:
        cluster: its name.
        step: seconds of a stretch: of an hour or a day.
        everybody: whether the rows are of all users; False if only of those that the reader may
            see, or of the only user in the ledger.
        last_sample: epoch seconds of the last sample of a running job; None without one.
        begins: epoch seconds at which each stretch begins; the present one is the last.
        rows: by time and type; types that nobody held in a stretch have none.
    """

    cluster: str
    step: int
    begins: tuple[int, ...]
    everybody: bool
    last_sample: float | None
    rows: tuple[GpuUseInTime, ...]


class _Run(NamedTuple):
    """A run that the reader may see.

    Attributes:
        end: of a run that goes on, the time up to which it counts.
        held: its GPUs by type, in whole GPUs.
        gpus: how many it held; 0 if of several types, so that nobody knows which were measured.
        is_part: whether they are parts of GPUs (shard, MPS).
    """

    job: int
    start: int
    end: int
    held: tuple[tuple[str, float], ...]
    gpus: int
    is_part: bool


class _Curve(NamedTuple):
    """Seconds that are measured and used of one GPU, summed up to the edges of equal steps."""

    begin: int
    step: int
    measured: Sequence[float]
    used: Sequence[float]


def load_gpu_use_over_time(
    ledger: Ledger, span: str, cluster: str | None, zone: Zone, scope: Scope, now: int
) -> GpuUseOverTime:
    """Load how many GPUs were held, measured and in use.

    A run that is no longer than a stretch counts with its mean; of a longer one, the curve says
    when its GPUs were in use.

    Args:
        ledger: open for reading.
        span: one of `SPANS`.
        cluster: name of the cluster; None for the only one.
        zone: in which hours and days begin.
        scope: whose runs the reader may see.
        now: epoch seconds.

    Raises:
        BadInput: when the ledger has no such cluster, or several and none is named.
        LedgerError: when the ledger cannot be read.
    """
    step, begins = SPANS[span].step, SPANS[span].begins(now, zone.rules)
    window = begins[0], now
    with ledger.transaction() as connection:
        number, name = _find_cluster(connection, cluster)
        seconds = _GpuSeconds((*begins, now))
        shown = _ShownRuns(connection, Rates(), scope)
        ended = shown.load(number, now, runs.c.end > window[0], runs.c.start < now)
        running = shown.load(number, now, text(OPEN), runs.c.start < now)
        for run in (*ended.values(), *running.values()):
            for gpu_type, gpus in run.held:
                seconds.add_held(run.start, run.end, gpu_type, gpus)
        _add_ended(connection, seconds, ended, number, window, step)
        last = _add_running(connection, seconds, running, number, window[0])
        only_user = connection.scalar(select(clusters.c.only_user).where(clusters.c.id == number))
    return GpuUseOverTime(
        cluster=name,
        step=step,
        begins=begins,
        everybody=scope.is_everything and not only_user,
        last_sample=last,
        rows=tuple(seconds.rows()),
    )


def _find_cluster(connection: Connection, name: str | None) -> tuple[int, str]:
    known = {row.name: row.id for row in connection.execute(select(clusters))}
    if name is None and len(known) == 1:
        (name,) = known
    if name is None or name not in known:
        which = "name a cluster" if name is None else f"the ledger has no cluster {name!r}"
        names = f"it has {', '.join(sorted(known))}" if known else "it has none yet"
        raise BadInput(f"{which}: {names}")
    return known[name], name


class _ShownRuns:
    """The runs with GPUs that a reader may see."""

    def __init__(self, connection: Connection, rates: Rates, scope: Scope) -> None:
        self._connection = connection
        self._rates = rates
        self._scope = scope
        self._dimensions = None if scope.is_everything else Dimensions(connection, rates)
        self._seen: dict[tuple[object, ...], bool] = {}
        self._held: dict[tuple[str, str], tuple[tuple[tuple[str, float], ...], int, bool]] = {}

    def load(self, cluster: int, now: int, *where: Any) -> dict[int, _Run]:
        """Load runs of a cluster by row id."""
        mine = (runs.c.cluster_id == cluster, runs.c.alloc_tres.contains("gres/"), *where)
        further = (runs.c.id, runs.c.job_id_raw)
        return {
            run_id: _Run(job, run.start or 0, run.end or 0, *self._gpus(run))
            for (run_id, job), run in load_runs_with_ends(self._connection, now, mine, further)
            if self._is_shown(run)
        }

    def _gpus(self, run: UsageRun) -> tuple[tuple[tuple[str, float], ...], int, bool]:
        """Return `held`, `gpus` and `is_part` of a run."""
        key = run.alloc_tres, run.partition
        if key not in self._held:
            types = parse_alloc_tres(run.alloc_tres).gpus
            kinds = [(self._rates.kind(name, run.partition), count) for name, count in types]
            held = tuple((kind.name, float((kind.weight or 0) * count)) for kind, count in kinds)
            is_part = any(name.partition(":")[0] in GPU_PARTS for name, _ in types)
            self._held[key] = held, types[0][1] if len(types) == 1 else 0, is_part
        return self._held[key]

    def _is_shown(self, run: UsageRun) -> bool:
        if self._dimensions is None:
            return True
        whose = (run.user, run.uid, run.account, run.era)
        if whose not in self._seen:
            self._seen[whose] = self._dimensions.shown(make_usage_key(run, ""), self._scope)
        return self._seen[whose]


class _GpuSeconds:
    """GPU-seconds held, measured and used, in each part of a window and by GPU type.

    Args:
        edges: epoch seconds at which the parts begin, and at which the last one ends.
    """

    def __init__(self, edges: Sequence[int]) -> None:
        self._parts = list(pairwise(edges))
        self._begins = edges[:-1]
        self._sums: list[dict[str, list[float]]] = [{} for _ in self._parts]

    def rows(self) -> Iterator[GpuUseInTime]:
        """Yield the mean numbers of GPUs."""
        for (begin, end), of_part in zip(self._parts, self._sums, strict=True):
            length = end - begin
            for gpu_type, (held, measured, used) in sorted(of_part.items()):
                yield GpuUseInTime(
                    begin=begin,
                    seconds=length,
                    gpu_type=gpu_type,
                    held=held / length,
                    measured=measured / length,
                    used=used / length if measured else None,
                )

    def add_held(self, begin: int, end: int, gpu_type: str, gpus: float) -> None:
        """Add GPUs that were held in [begin, end)."""
        for place, seconds in self._overlaps(begin, end):
            self._of(place, gpu_type)[0] += seconds * gpus

    def add_mean(self, begin: float, end: float, measured: float, share: float, run: _Run) -> None:
        """Add measured seconds of one GPU that lie evenly in [begin, end), and its utilization."""
        length = max(end - begin, 1.0)
        for place, seconds in self._overlaps(begin, end):
            within = measured * min(seconds / length, 1.0)
            self._add(place, run, within, within * share)

    def add_curve(self, curve: _Curve, run: _Run) -> None:
        """Add what the curve of one GPU says."""
        end = curve.begin + curve.step * (len(curve.measured) - 1)
        for place, _ in self._overlaps(curve.begin, end):
            begin, end_of_part = self._parts[place]
            measured, used = (
                _until(curve, sums, end_of_part) - _until(curve, sums, begin)
                for sums in (curve.measured, curve.used)
            )
            if measured > 0:
                self._add(place, run, measured, used)

    def _overlaps(self, begin: float, end: float) -> Iterator[tuple[int, float]]:
        """Yield the parts that overlap [begin, end), and for how many seconds."""
        for place in range(max(bisect_right(self._begins, begin) - 1, 0), len(self._parts)):
            begin_of_part, end_of_part = self._parts[place]
            if begin_of_part >= end:
                return
            if (seconds := min(end, end_of_part) - max(begin, begin_of_part)) > 0:
                yield place, seconds

    def _add(self, place: int, run: _Run, measured: float, used: float) -> None:
        ((gpu_type, held),) = run.held
        weight = held / run.gpus
        measured *= weight
        # Of a part of a GPU, the use is the job's share of the whole GPU.
        used = min(used, measured) if run.is_part else used * weight
        sums = self._of(place, gpu_type)
        sums[1] += measured
        sums[2] += used

    def _of(self, place: int, gpu_type: str) -> list[float]:
        return self._sums[place].setdefault(gpu_type, [0.0, 0.0, 0.0])


def _add_ended(
    connection: Connection,
    seconds: _GpuSeconds,
    ended: dict[int, _Run],
    cluster: int,
    window: tuple[int, int],
    step: int,
) -> None:
    """Add what was measured of ended runs; curves are read of those longer than `step` seconds."""
    query = select(*_OF_USE).join(runs, gpu_use.c.run_id == runs.c.id)
    query = query.where(
        runs.c.end > window[0], runs.c.start < window[1], runs.c.cluster_id == cluster
    )
    by_run: dict[int, list[Any]] = defaultdict(list)
    for row in connection.execute(query.execution_options(yield_per=10_000)):
        if row.run_id in ended:
            by_run[row.run_id].append(row)
    long: dict[int, tuple[Any, _Run]] = {}
    for run_id, rows in by_run.items():
        best = best_source(rows)
        run = _believed(ended[run_id], best)
        if run is None:
            continue
        for row in best:
            if run.end - run.start > step:
                long[row.id] = row, run
            else:
                _add_summary(seconds, row, run)
    curves = _load_curves(connection, long, window[0])
    for number, (row, run) in long.items():
        if number in curves:
            seconds.add_curve(_summed(curves[number], row.interval, row.measured_seconds), run)
        else:
            _add_summary(seconds, row, run)


def _add_running(
    connection: Connection,
    seconds: _GpuSeconds,
    running: dict[int, _Run],
    cluster: int,
    begin: int,
) -> float | None:
    """Add what was measured of runs that go on; return the time of the last sample."""
    uses = _uses_of_running(connection, running, cluster)
    for number, curve in _load_curves(connection, uses, begin).items():
        row, run = uses[number]
        seconds.add_curve(_summed(curve, row.interval), run)
    last = {number: row.last or 0.0 for number, (row, _) in uses.items()}
    stored = (row.last or row.first or 0.0 for row, _ in uses.values())
    since = max(min(stored, default=0.0), begin)
    for number, _, reading in load_samples(connection, since, cluster=cluster) if uses else ():
        if number not in uses or reading.at <= last[number]:
            continue
        row, run = uses[number]
        passed = reading.at - max(last[number], float(run.start))
        last[number] = reading.at
        if reading.utilization is not None:
            covered = min(max(passed, 0.0), float(row.interval))
            seconds.add_mean(
                reading.at - covered, reading.at, covered, reading.utilization / 100, run
            )  # fmt: skip
    return max(last.values(), default=0.0) or None


def _uses_of_running(
    connection: Connection, running: dict[int, _Run], cluster: int
) -> dict[int, tuple[Any, _Run]]:
    """Return the summaries of runs that go on, each with its run, by row id."""
    known: dict[int, list[RunTimes]] = defaultdict(list)
    for run_id, run in running.items():
        known[run.job].append(RunTimes(run_id, run.start, None))
    query = select(*_OF_OPEN).where(
        text(NOT_LINKED),
        gpu_use.c.cluster_id == cluster,
        in_values(connection, gpu_use.c.job_id_raw, known),
    )
    by_run: dict[int, list[Any]] = defaultdict(list)
    for row in connection.execute(query) if known else ():
        found = find_run(row.start, row.first, known[row.job_id_raw])
        if found is not None:
            by_run[found.id].append(row)
    return {
        row.id: (row, run)
        for run_id, rows in by_run.items()
        for run in [_believed(running[run_id], rows)]
        if run is not None
        for row in rows
    }


def _believed(run: _Run, measured: Sequence[Any]) -> _Run | None:
    """Return a run whose summaries can be counted; None for any other.

    It is not known which GPUs were measured of a run with several types. Of one with more summaries
    than GPUs, some are not its own. Parts of GPUs count by the GPUs that they were on.
    """
    if not run.gpus or (len(measured) > run.gpus and not run.is_part):
        return None
    return run._replace(gpus=len(measured)) if run.is_part else run


def _add_summary(seconds: _GpuSeconds, row: Any, run: _Run) -> None:
    if row.measured_samples:
        mean = row.utilization_sum / row.measured_samples / 100
        seconds.add_mean(run.start, run.end, row.measured_seconds, mean, run)


def _load_curves(connection: Connection, numbers: Iterable[int], begin: int) -> dict[int, Any]:
    """Load the curves of some summaries that reach into a window, by row id."""
    wanted = list(numbers)
    columns = [gpu_curves.c[name] for name in ("use_id", "begin", "step", "points")]
    query = select(*columns).where(
        in_values(connection, gpu_curves.c.use_id, wanted), gpu_curves.c.last > begin
    )
    return {row.use_id: row for row in connection.execute(query)} if wanted else {}


def _summed(stored: Any, interval: int, measured_seconds: float | None = None) -> _Curve:
    """Return the curve of a stored one.

    Args:
        stored: row of `gpu_curves`.
        interval: seconds that a sample covers.
        measured_seconds: what the curve covers altogether, if that is known.
    """
    counts, permilles = unpack_utilization(stored.points)
    step = stored.step
    covered = [
        0 if permille is None else min(count * interval, step)
        for count, permille in zip(counts, permilles, strict=True)
    ]
    total = sum(covered)
    factor = measured_seconds / total if measured_seconds and total else 1.0
    used = (each * permille if permille else 0
            for each, permille in zip(covered, permilles, strict=True))  # fmt: skip
    return _Curve(stored.begin, step, _sums(covered, factor), _sums(used, factor / 1000))


def _sums(values: Iterable[int], factor: float) -> list[float]:
    return [factor * each for each in accumulate(values, initial=0)]


def _until(curve: _Curve, sums: Sequence[float], at: float) -> float:
    """Return the sum up to a time, which may lie within a step."""
    steps = min(max((at - curve.begin) / curve.step, 0.0), len(sums) - 1.0)
    place = int(steps)
    if place + 1 >= len(sums):
        return sums[-1]
    return sums[place] + (sums[place + 1] - sums[place]) * (steps - place)
