"""Store steps, and compute what runs really used: from steps, and from samples of their GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, select

from slurmkit.state.gpu_use import LEAST_COVERED
from slurmkit_accounting.gpu_use.exporters import most_gpus
from slurmkit_accounting.gpu_use.jobstats import enter_blobs
from slurmkit_accounting.gpu_use.store import MeasuredGpus, load_measured_gpus
from slurmkit_accounting.ingest.stored import find_runs
from slurmkit_accounting.ledger.bulk_write import in_values, replace_rows, update_rows
from slurmkit_accounting.ledger.database_errors import is_overflow
from slurmkit_accounting.ledger.schema.runs import runs, steps
from slurmkit_accounting.sacct.rows import RunKey
from slurmkit_accounting.sacct.steps import StepRow
from slurmkit_accounting.usage.bins import IMPLAUSIBLE_AMOUNT, UsageRun
from slurmkit_accounting.usage.tables import (
    IS_COUNTED,
    MOST_STORED,
    USAGE_RUN_COLUMNS,
    UsageChange,
    load_eras,
)

MEASURED_COLUMNS = (
    "cpu_used_ms",
    "mem_peak_mib",
    "gpu_used_permille",
    "gpu_energy_joules",
    "gpu_mem_peak_mib",
    "gpu_idle_seconds",
)
_START, _END, _GPUS, _TRES = map(UsageRun._fields.index, ("start", "end", "gpus", "alloc_tres"))
_COUNTED = UsageRun._fields.index(MEASURED_COLUMNS[0])
_IN_USAGE = 4  # the usage tables have the first of `MEASURED_COLUMNS`, in their order
_ALL = 1000
_Rows: TypeAlias = "dict[tuple[int, str], StepRow]"  # by run and name


class MeasuredUse(NamedTuple):
    """What a run used; None if not measured."""

    cpu_used_ms: int | None
    mem_peak_mib: int | None
    gpu_used_permille: int | None
    gpu_energy_joules: int | None
    gpu_mem_peak_mib: int | None
    gpu_idle_seconds: int | None


def enter_steps(
    connection: Connection, cluster: int, found: Iterable[tuple[RunKey, StepRow]]
) -> None:
    """Upsert steps of runs that the ledger has; entering them again changes nothing."""
    given = {(key, step.step): step for key, step in found}
    known = find_runs(connection, cluster, {key for key, _ in given})
    rows = {(known[key].id, name): step for (key, name), step in given.items() if key in known}
    stored = _load_steps(connection, {run for run, _ in rows})
    changed = {where: step for where, step in rows.items() if stored.get(where) != step}
    lines = [(run, *step) for (run, _), step in changed.items()]
    replace_rows(connection, steps, ("run_id", *StepRow._fields), lines)
    _update_measured_use(connection, {run for run, _ in changed}, stored | changed)


def enter_summaries(
    connection: Connection, cluster: int, found: Iterable[tuple[RunKey, str]]
) -> None:
    """Enter jobstats' summaries of runs that the ledger has; again changes nothing."""
    by_key = dict(found)
    known = find_runs(connection, cluster, set(by_key))
    blobs = {known[key].id: text for key, text in by_key.items() if key in known}
    update_measured_use(connection, enter_blobs(connection, blobs))


def update_measured_use(connection: Connection, run_ids: Sequence[int]) -> None:
    """Recompute what some runs used, from their stored steps and the samples of their GPUs."""
    if run_ids:
        _update_measured_use(connection, run_ids, _load_steps(connection, run_ids))


def _update_measured_use(connection: Connection, run_ids: Collection[int], rows: _Rows) -> None:
    """Update the measured use of runs, in table `runs` and in the usage tables.

    A run whose use does not fit to the sums that are stored keeps what it had. It is found by
    halving, so that it keeps no other run from being measured.
    """
    savepoint = connection.begin_nested()
    try:
        _write_measured_use(connection, run_ids, rows)
    except Exception as error:
        if not is_overflow(error):
            raise  # the whole transaction is rolled back
        savepoint.rollback()
        if len(run_ids) > 1:
            each = sorted(run_ids)
            for half in (each[: len(each) // 2], each[len(each) // 2 :]):
                own = set(half)
                some = {where: step for where, step in rows.items() if where[0] in own}
                _update_measured_use(connection, half, some)
        return
    savepoint.commit()


def _write_measured_use(connection: Connection, run_ids: Collection[int], rows: _Rows) -> None:
    """Compute and store the measured use of runs.

    Raises:
        Exception: if a sum does not fit, see `is_overflow`.
    """
    of_run: dict[int, list[StepRow]] = defaultdict(list)
    for (whose, _), step in rows.items():
        of_run[whose].append(step)
    others = [runs.c[name] for name in MEASURED_COLUMNS[_IN_USAGE:]]
    query = select(runs.c.id, *others, IS_COUNTED, *USAGE_RUN_COLUMNS)
    known = in_values(connection, runs.c.id, sorted(run_ids))
    found = connection.execute(query.where(known)).all() if run_ids else []
    sampled = load_measured_gpus(connection, run_ids)
    changed: list[tuple[int, MeasuredUse]] = []
    counted: list[tuple[Sequence[Any], MeasuredUse]] = []
    for run_id, gpu_mem, gpu_idle, counts, *held in found:
        start, end, gpus = held[_START], held[_END], held[_GPUS]
        seconds = end - start if start is not None and end is not None else 0
        after = combine_steps(of_run[run_id], gpus * seconds)
        if run_id in sampled:
            most = most_gpus(held[_TRES])
            after = _prefer_samples(after, sampled[run_id], gpus, seconds, most)
        if after == (*held[_COUNTED:], gpu_mem, gpu_idle):
            continue
        changed.append((run_id, after))
        if counts:
            counted.append((held, after))
    update_rows(
        connection, runs, ("id", *MEASURED_COLUMNS), [(run_id, *after) for run_id, after in changed]
    )
    _update_usage(connection, counted)


def _update_usage(
    connection: Connection, found: Sequence[tuple[Sequence[Any], MeasuredUse]]
) -> None:
    """Update the usage tables with the new measured use of some runs."""
    if not found:
        return
    *whose, cpu, mem, gpu, joules = zip(*(held for held, _ in found), strict=True)
    after = list(zip(*(facts for _, facts in found), strict=True))[:_IN_USAGE]
    submits = whose[UsageRun._fields.index("submit")]
    change = UsageChange()
    change.use([*whose, *after, load_eras(connection).each(submits)], (cpu, mem, gpu, joules))
    change.write(connection, most=MOST_STORED)


def combine_steps(found: Sequence[StepRow], gpu_seconds: int) -> MeasuredUse:
    """Combine steps: sum of CPU, largest memory, GPU use over all GPU-seconds held.

    Args:
        found: the steps of one run.
        gpu_seconds: GPU-seconds that the run held; 0 while it runs.
    """
    cpu, mem, gpu_mem, busy = [], [], [], []
    for step in found:
        _, _, _, start, end, _, cpu_ms, mem_mib, permille, gpu_mib, _ = step
        if cpu_ms is not None:
            cpu.append(cpu_ms)
        if mem_mib is not None:
            mem.append(mem_mib)
        if gpu_mib is not None:
            gpu_mem.append(gpu_mib)
        if permille is not None and start is not None and end is not None:
            busy.append(permille * (end - start))
    cpu_ms = sum(cpu)
    return MeasuredUse(
        cpu_ms if cpu and cpu_ms < IMPLAUSIBLE_AMOUNT else None,
        max(mem, default=None),
        min(sum(busy) // gpu_seconds, _ALL) if busy and gpu_seconds > 0 else None,
        None,
        max(gpu_mem, default=None),
        None,
    )


def _prefer_samples(
    steps_use: MeasuredUse, sampled: MeasuredGpus, gpus: int, seconds: int, most: int
) -> MeasuredUse:
    """Take from the samples what they cover at least half of; the rest stays as the steps say.

    One rule for use, idle time and energy: what was measured stands for all of the run's GPUs and
    all of its time.
    Samples of more GPUs than the run held are wrong about some of them, so none is believed.
    Of parts of GPUs (shard, MPS) only the memory counts: the run held no whole GPU-seconds.

    Args:
        steps_use: what the steps say.
        sampled: what the samples say.
        gpus: number of whole GPUs that the run held.
        seconds: its run time; 0 while it runs.
        most: on how many GPUs it may have been, also with parts of GPUs.
    """
    gpu_seconds = gpus * seconds
    if sampled.gpus > max(gpus, most):
        return steps_use
    changed = {}
    if sampled.measured_seconds >= LEAST_COVERED * gpu_seconds > 0:
        changed["gpu_used_permille"] = min(round(sampled.mean * 10), _ALL)
        whole = max(gpu_seconds / sampled.measured_seconds, 1.0)
        changed["gpu_idle_seconds"] = round(sampled.idle_seconds * whole)
    if sampled.energy_seconds >= LEAST_COVERED * gpu_seconds > 0:
        whole = max(gpu_seconds / sampled.energy_seconds, 1.0)
        changed["gpu_energy_joules"] = round(sampled.joules * whole)
    if sampled.memory_mib is not None:
        changed["gpu_mem_peak_mib"] = sampled.memory_mib
    return steps_use._replace(**changed)


def _load_steps(connection: Connection, run_ids: Iterable[int]) -> _Rows:
    query = select(steps).where(in_values(connection, steps.c.run_id, sorted(run_ids)))
    return {(run, step[0]): StepRow(*step) for run, *step in connection.execute(query).all()}
