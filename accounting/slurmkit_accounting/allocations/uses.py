"""What was used, is running and waits, by who ran it; in thousandths of a unit-second.

GPU-seconds of ended runs come from the usage tables; billing is worked out run by run, because the
usage tables do not have it. Use counts as Slurm counts it for limits: also while a run is
suspended. Runs in a QOS of `[allocation] free_qos` count as 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, select, text

from slurmkit.config.files import load_section
from slurmkit.formats.job_ids import count_tasks
from slurmkit.formats.tres import parse_tres
from slurmkit_accounting.allocations.amounts import SECOND_MS, Unit
from slurmkit_accounting.allocations.model import Holder, load_projects
from slurmkit_accounting.config import AllocationSection
from slurmkit_accounting.ledger.schema.runs import OPEN, clusters, runs
from slurmkit_accounting.people.pi import Owner, People
from slurmkit_accounting.reports.question import Scope
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.sacct.values import parse_limit_seconds
from slurmkit_accounting.usage.bins import NO_GPU, UNKNOWN_UID, Eras, UsageKey, parse_alloc_tres
from slurmkit_accounting.usage.partial import is_of_job, load_runs_with_ends
from slurmkit_accounting.usage.query import SUM_INDEX, UsageQuery, query_single_runs
from slurmkit_accounting.usage.tables import load_eras

_GPU_SECONDS = SUM_INDEX["gpu_seconds"]


class Runner(NamedTuple):
    """Whose runs, under which account; within an era nothing about people changed."""

    cluster_id: int
    account: str
    user: str
    uid: int
    era: int


class Uses(msgspec.Struct, frozen=True):
    """What was used.

    Attributes:
        edges: begin and end of the parts of the time, epoch seconds.
        ended: for each part what ended runs used, by runner.
        running: the same of runs that have not ended, up to now.
        notes: what could not be counted, in words.
    """

    edges: tuple[int, ...]
    ended: tuple[dict[Runner, int], ...]
    running: tuple[dict[Runner, int], ...]
    notes: tuple[str, ...] = ()

    def by_part(self, wanted: Callable[[Runner], bool]) -> list[int]:
        """Return what was used in each part by the runners that are wanted."""
        return [
            sum(amount for part in parts for runner, amount in part.items() if wanted(runner))
            for parts in zip(self.ended, self.running, strict=True)
        ]

    def by_runner(self, begin: int, finish: int) -> Counter[Runner]:
        """Return what each runner used in the parts between two edges."""
        total: Counter[Runner] = Counter()
        for number, (first, last) in enumerate(pairwise(self.edges)):
            if begin <= first and last <= finish:
                total.update(self.ended[number])
                total.update(self.running[number])
        return total

    def still_running(self, wanted: Callable[[Runner], bool]) -> int:
        """Return what runs that have not ended used so far."""
        return sum(n for part in self.running for runner, n in part.items() if wanted(runner))


class Claims(msgspec.Struct, frozen=True):
    """What jobs may still use at most: amounts times time limits, as of the last ingest.

    Attributes:
        running: by runner, what running jobs may use from now on.
        waiting: by runner, what waiting jobs may use.
        without_limit: by runner, the jobs for which no bound is known.
    """

    running: dict[Runner, int]
    waiting: dict[Runner, int]
    without_limit: dict[Runner, int]


def load_free_qos() -> tuple[str, ...]:
    """Return the QOS whose jobs no allocation pays for, in lower case as Slurm stores them.

    Raises:
        BadConfig: for a wrong section `[allocation]`.
    """
    section = load_section("allocation", AllocationSection)
    return tuple(name.lower() for name in section.free_qos)


def load_uses(
    connection: Connection,
    unit: Unit,
    edges: tuple[int, ...],
    now: int,
    *,
    job: str | None = None,
) -> Uses:
    """Load what was used in each part of a time.

    Args:
        connection: to the ledger.
        unit: `gpu` or `billing`.
        edges: epoch seconds, in order; at least two.
        now: epoch seconds up to which runs without an end count.
        job: only the runs of this job.
    """
    if unit == "billing":
        return _load_billing(connection, edges, now, job)
    weigh = _Weights(Rates(), load_free_qos())
    ended = [Counter[Runner]() for _ in edges[1:]]
    running = [Counter[Runner]() for _ in edges[1:]]
    exact: list[dict[tuple[bool, Runner], Fraction]] = [{} for _ in edges[1:]]
    if job is None:
        cells = _ended_cells(connection, edges)
        for part, key, seconds in cells:
            _add(exact[part], (False, _runner(key)), weigh(key) * seconds)
        singles = query_single_runs(connection, UsageQuery(edges, now))
    else:
        singles = query_single_runs(connection, UsageQuery(edges, now, job=job))
    for part, key, sums in singles:
        _add(exact[part], (job is None, _runner(key)), weigh(key) * sums[_GPU_SECONDS])
    for part, amounts in enumerate(exact):
        for (is_running, runner), amount in amounts.items():
            (running if is_running else ended)[part][runner] = int(amount * SECOND_MS)
    return Uses(edges, tuple(map(dict, ended)), tuple(map(dict, running)), tuple(weigh.notes()))


def _ended_cells(
    connection: Connection, edges: tuple[int, ...]
) -> Iterator[tuple[int, UsageKey, int]]:
    from slurmkit_accounting.usage import held  # noqa: PLC0415  numpy takes 0.1 s

    ended = held.EndedUsage(connection, edges)
    for part, table in enumerate(ended.by_key()):
        for place, sums in held.rows_in_use(table):
            yield part, ended.keys[place], sums[_GPU_SECONDS]


def _add(
    exact: dict[tuple[bool, Runner], Fraction], key: tuple[bool, Runner], amount: Fraction
) -> None:
    exact[key] = exact.get(key, Fraction(0)) + amount


def _runner(key: UsageKey) -> Runner:
    return Runner(key.cluster_id, key.account, key.user, key.uid, key.era)


class _Weights:
    """Weights of GPU types; those that are unknown count as 0, and are noted."""

    def __init__(self, rates: Rates, free_qos: Collection[str]) -> None:
        self._rates = rates
        self._free_qos = frozenset(free_qos)
        self._unknown: set[str] = set()

    def __call__(self, key: UsageKey) -> Fraction:
        if key.qos in self._free_qos:
            return Fraction(0)
        return self.of(key.gpu_type, key.partition)

    def of(self, gpu_type: str, partition: str) -> Fraction:
        kind = self._rates.kind(gpu_type, partition)
        if kind.weight is None:
            self._unknown.add(kind.name)
        return kind.weight or Fraction(0)

    def notes(self) -> Iterator[str]:
        for name in sorted(self._unknown):
            yield (
                f"use of {name} is not counted: its weight is unknown; set shard_weight or"
                " mps_weight in [gpu.TYPE]"
            )


def _load_billing(
    connection: Connection, edges: tuple[int, ...], now: int, job: str | None
) -> Uses:
    where = [runs.c.start < edges[-1], (runs.c.end > edges[0]) | runs.c.end.is_(None)]
    if job is not None:
        where.append(is_of_job(job))
    ended = [Counter[Runner]() for _ in edges[1:]]
    running = [Counter[Runner]() for _ in edges[1:]]
    unknown, free_qos = 0, load_free_qos()
    for (end,), run in load_runs_with_ends(connection, now, where, (runs.c.end,)):
        billing = 0 if run.qos in free_qos else parse_billing(run.alloc_tres)
        unknown += billing is None and bool(run.alloc_tres)
        uid = UNKNOWN_UID if run.uid is None else run.uid
        runner = Runner(run.cluster_id, run.account, run.user, uid, run.era)
        into = running if end is None else ended
        begin, finish = run.start or 0, run.end or 0
        for part in range(max(bisect_right(edges, begin) - 1, 0), len(edges) - 1):
            if edges[part] >= finish:
                break
            seconds = min(finish, edges[part + 1]) - max(begin, edges[part])
            if seconds > 0:
                into[part][runner] += (billing or 0) * seconds * SECOND_MS
    notes = (f"{unknown} runs have no billing in AllocTRES and count as 0",) if unknown else ()
    return Uses(edges, tuple(map(dict, ended)), tuple(map(dict, running)), notes)


@lru_cache(maxsize=65536)
def parse_billing(tres: str) -> int | None:
    """Return the billing units of a TRES text; None if it has none."""
    value = parse_tres(tres).get("billing", "")
    return int(value) if value.isdecimal() else None


def load_claims(connection: Connection, unit: Unit, now: int) -> Claims:
    """Load what running and waiting jobs may still use, at most."""
    free_qos, eras = load_free_qos(), load_eras(connection)
    weigh = _Weights(Rates(), free_qos)
    running, waiting, unlimited = Counter[Runner](), Counter[Runner](), Counter[Runner]()
    columns = (
        "cluster_id", "account", "user", "uid", "submit", "start", "job_id", "partition", "qos",
        "alloc_tres", "req_tres", "time_limit",
    )  # fmt: skip
    query = select(*(runs.c[name] for name in columns)).where(
        text(OPEN), runs.c.retracted.is_(None), runs.c.gone_since.is_(None)
    )
    for row in connection.execute(query):
        if row.qos in free_qos:
            continue
        uid = UNKNOWN_UID if row.uid is None else row.uid
        runner = Runner(row.cluster_id, row.account, row.user, uid, eras.of(row.submit))
        started = row.start is not None
        rate = _rate(unit, row.alloc_tres if started else row.req_tres, row.partition, weigh)
        seconds = parse_limit_seconds(row.time_limit)
        if rate == 0:
            continue
        if rate is None or seconds is None:
            unlimited[runner] += 1
        elif started:
            running[runner] += int(rate * max(row.start + seconds - now, 0) * SECOND_MS)
        else:
            waiting[runner] += int(rate * seconds * SECOND_MS) * count_tasks(row.job_id)
    return Claims(dict(running), dict(waiting), dict(unlimited))


def _rate(unit: Unit, tres: str, partition: str, weigh: _Weights) -> Fraction | None:
    """Return what a job takes per second; None if unknown."""
    if unit == "billing":
        billing = parse_billing(tres)
        return None if billing is None else Fraction(billing)
    held = parse_alloc_tres(tres).gpus
    return sum((weigh.of(kind, partition) * n for kind, n in held if kind != NO_GPU), Fraction(0))


class Holders:
    """Decides whose runs count for a holder, and who may see them."""

    def __init__(self, connection: Connection) -> None:
        self.people = People.load(connection)
        self._projects: Mapping[str, frozenset[str]] = load_projects()
        self.clusters: dict[int, str] = {
            row[0]: row[1] for row in connection.execute(select(clusters.c.id, clusters.c.name))
        }
        self.eras: Eras = load_eras(connection)

    def runs_of(self, holder: Holder) -> Callable[[Runner], bool]:
        """Return whether the runs of a runner count for a holder, as a function."""
        if holder.kind == "pi":
            return cache(lambda runner: self.pi_of(runner).name == holder.name)
        accounts = self.accounts_of(holder)
        return lambda runner: runner.account.lower() in accounts

    def accounts_of(self, holder: Holder) -> frozenset[str]:
        """Return the accounts of a holder that is no PI; empty for an unknown project."""
        if holder.kind == "project":
            return self._projects.get(holder.name, frozenset())
        return frozenset((holder.name,))

    def pis_of(self, holder: Holder, now: int) -> list[frozenset[int]]:
        """Return the known PIs of each account of a holder; of a PI, themselves.

        PIs are ids in table `people`.
        """
        if holder.kind == "pi":
            person = self.people.person(holder.name, None, now)
            return [frozenset(() if person is None else (person,))]
        accounts = sorted(self.accounts_of(holder))
        return [self.people.pis_of_account(account, self.clusters, now) for account in accounts]

    def pi_of(self, runner: Runner) -> Owner:
        """Return the PI who is charged for the runs of a runner."""
        uid = None if runner.uid == UNKNOWN_UID else runner.uid
        return self.people.pi(runner.cluster_id, runner.account, runner.user, uid, runner.era)

    def person_of(self, runner: Runner) -> int | None:
        """Return the person who ran them; None if unknown."""
        uid = None if runner.uid == UNKNOWN_UID else runner.uid
        return self.people.person(runner.user, uid, runner.era)

    def shows(self, scope: Scope, runner: Runner) -> bool:
        """Return whether a reader may see whose runs these are."""
        return scope.shows(self.person_of(runner), self.pi_of(runner).person_id, runner.uid)

    def person_with_uid(self, uid: int, now: int) -> int | None:
        """Return the person who has a uid now; None if the directory does not know it."""
        return self.people.person("", uid, now)

    def accounts_now(self, person: int | None, now: int) -> Iterable[str]:
        """Return the groups, which are accounts, that a person is in now; in lower case."""
        if person is None:
            return ()
        return {name.lower() for name in self.people.groups(person, now)}


def used_by_job(
    connection: Connection, unit: Unit, job: str, span: tuple[int, int], now: int
) -> dict[Runner, int]:
    """Return what the runs of a job used in a span of time, by runner."""
    uses = load_uses(connection, unit, span, now, job=job)
    return dict(uses.by_runner(*span))
