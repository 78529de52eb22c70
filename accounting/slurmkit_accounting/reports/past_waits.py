"""How long jobs of each kind waited lately, for all who plan a job: sums that name nobody."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, func, literal_column, select

from slurmkit.state.past_waits import DAYS, FEWEST_JOBS, JobKind, PastWaits, WaitsOfKind, job_kind
from slurmkit_accounting.ledger.coverage import load_spans
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import clusters, runs
from slurmkit_accounting.ledger.schema.usage import DAY
from slurmkit_accounting.reports.question import Scope
from slurmkit_accounting.reports.rates import GPU_PARTS
from slurmkit_accounting.reports.selection import runs_started_within
from slurmkit_accounting.reports.wait import wait_not_exceeded_by
from slurmkit_accounting.sacct.values import parse_limit_seconds
from slurmkit_accounting.usage.bins import parse_alloc_tres

FEWEST_USERS = 3
"""Fewest users of a kind of jobs that is reported to a reader without totals."""

_CACHED_SECONDS = 1800  # one reading serves all who plan a job
# Literal, so that the database sees that SELECT and GROUP BY hold the same expressions. The text of
# CPUs and memory differs from run to run, and says nothing here.
_GRES: ColumnElement[str] = literal_column(
    "CASE WHEN alloc_tres LIKE '%gres/%' THEN alloc_tres ELSE '' END"
)
# A run waits from when nothing of its own held it: neither a dependency nor a begin time.
_WAIT: ColumnElement[int] = literal_column(
    "CASE WHEN eligible BETWEEN submit AND start THEN start - eligible"
    " WHEN start > submit THEN start - submit ELSE 0 END"
)
_SHAPE = (
    runs.c.user, runs.c.partition, runs.c.qos, _GRES, runs.c.nodes, runs.c.time_limit,
)  # fmt: skip


class _Waits:
    """Waits of jobs, by seconds, and how many jobs were whose."""

    def __init__(self) -> None:
        self.seconds: Counter[int] = Counter()
        self.users: Counter[str] = Counter()

    def add(self, other: _Waits) -> None:
        self.seconds.update(other.seconds)
        self.users.update(other.users)

    @property
    def names_nobody(self) -> bool:
        """Whether they are jobs of several users, none of whom has more than half of them."""
        most = max(self.users.values())
        return len(self.users) >= FEWEST_USERS and 2 * most <= self.users.total()


class _Answers(NamedTuple):
    """What was read, for readers who may see sums over all runs, and for the others."""

    with_totals: PastWaits
    without_totals: PastWaits


_answers: dict[tuple[str, str], _Answers] = {}
_asking = threading.Lock()


def load_past_waits(ledger: Ledger, cluster: str, scope: Scope, now: int) -> PastWaits:
    """Load how long the jobs waited that started in the last 30 days, by kind of job.

    Runs in a reservation are left out. A reading is cached for half an hour. While it is read
    again, the old one is returned.

    Args:
        ledger: open for reading.
        cluster: name of the cluster.
        scope: a reader who may not see sums over all runs gets less, see `read.past_waits`.
        now: epoch seconds.

    Raises:
        LedgerError: when the ledger cannot be read.
    """
    known = _answers.get((ledger.source, cluster))
    if known is None or not _is_fresh(known, now):
        known = _read_in_turn(ledger, cluster, known, now)
    return known.with_totals if scope.of_totals.is_everything else known.without_totals


def _read_in_turn(ledger: Ledger, cluster: str, old: _Answers | None, now: int) -> _Answers:
    """Read in one thread at a time; the others get what was read before, or wait for it."""
    if old is not None and not _asking.acquire(blocking=False):
        return old
    if old is None:
        _asking.acquire()
    try:
        known = _answers.get((ledger.source, cluster))
        if known is None or not _is_fresh(known, now):
            with ledger.transaction() as connection:
                known = _read(connection, cluster, now)
            if not known.with_totals.problem:
                _answers[ledger.source, cluster] = known
        return known
    finally:
        _asking.release()


def _is_fresh(known: _Answers, now: int) -> bool:
    return now - _CACHED_SECONDS < known.with_totals.asked <= now


def _read(connection: Connection, name: str, now: int) -> _Answers:
    row = connection.execute(select(clusters).where(clusters.c.name == name)).one_or_none()
    covered = load_spans(connection, row.id) if row is not None else []
    if row is None or not covered:
        none = PastWaits(problem=f"the ledger has no runs of cluster {name}", asked=now)
        return _Answers(none, none)
    end = min(now, covered[-1].finish)
    begin = max(end - DAYS * DAY, covered[-1].begin)
    by_kind = {
        kind: waits
        for kind, waits in _sums_by_kind(connection, row.id, (begin, end)).items()
        if waits.seconds.total() >= FEWEST_JOBS
    }
    all_kinds = tuple(_waits_of_kind(kind, waits.seconds) for kind, waits in by_kind.items())
    answer = PastWaits(
        kinds=all_kinds, begin=begin, end=end, only_user=row.only_user or "", asked=now
    )
    some_kinds = tuple(
        msgspec.structs.replace(each, jobs=each.jobs // FEWEST_JOBS * FEWEST_JOBS)
        for each in all_kinds
        if by_kind[each.kind].names_nobody
    )
    return _Answers(answer, msgspec.structs.replace(answer, kinds=some_kinds))


def _sums_by_kind(
    connection: Connection, cluster: int, window: tuple[int, int]
) -> Mapping[JobKind, _Waits]:
    exact: dict[JobKind, _Waits] = defaultdict(_Waits)
    own = (runs.c.cluster_id == cluster, runs.c.retracted.is_(None), runs.c.nodes > 0)
    for started in runs_started_within(window):
        query = select(*_SHAPE, _WAIT, func.count()).where(*started, *own, runs.c.reservation == "")
        with connection.execute(
            query.group_by(*_SHAPE, _WAIT).execution_options(yield_per=10_000)
        ) as rows:
            for user, *shape, wait, count in rows:
                if (kind := _kind(*shape)) is not None:
                    exact[kind].seconds[wait] += count
                    exact[kind].users[user] += count
    summed: dict[JobKind, _Waits] = defaultdict(_Waits)
    for kind, waits in exact.items():
        for wider in kind.wider():
            summed[wider].add(waits)
    return summed


@lru_cache(maxsize=65536)  # many runs have the same shape
def _kind(partition: str, qos: str, gres: str, nodes: int, time_limit: str) -> JobKind | None:
    """Return the kind of a run; None for one with parts of GPUs."""
    gpus = parse_alloc_tres(gres).gpus
    if any(name.partition(":")[0] in GPU_PARTS for name, _ in gpus):
        return None
    tres = {f"gres/gpu:{name}" if name else "gres/gpu": count for name, count in gpus}
    return job_kind(partition, qos, {**tres, "node": nodes}, parse_limit_seconds(time_limit))


def _waits_of_kind(kind: JobKind, seconds: Counter[int]) -> WaitsOfKind:
    jobs, ordered = seconds.total(), sorted(seconds.items())
    return WaitsOfKind(
        kind=kind,
        jobs=jobs,
        half=wait_not_exceeded_by(ordered, jobs * 0.5),
        nine_in_ten=wait_not_exceeded_by(ordered, jobs * 0.9),
    )
