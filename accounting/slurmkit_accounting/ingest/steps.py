"""Store steps, and compute from them what their runs really used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, select

from slurmkit_accounting.ingest.stored import find_runs
from slurmkit_accounting.ledger.bulk_write import in_values, replace_rows, update_rows
from slurmkit_accounting.ledger.schema.runs import runs, steps
from slurmkit_accounting.sacct.rows import RunKey
from slurmkit_accounting.sacct.steps import StepRow
from slurmkit_accounting.usage.bins import UsageRun
from slurmkit_accounting.usage.tables import IS_COUNTED, USAGE_RUN_COLUMNS, UsageChange, load_eras

MEASURED_COLUMNS = ("cpu_used_ms", "mem_peak_mib", "gpu_used_permille", "gpu_mem_peak_mib")
_START, _END, _GPUS = map(UsageRun._fields.index, ("start", "end", "gpus"))
_COUNTED = UsageRun._fields.index(
    MEASURED_COLUMNS[0]
)  # the usage tables have all but the last, in this order
_ALL = 1000
_Rows: TypeAlias = "dict[tuple[int, str], StepRow]"  # by run and name


class MeasuredUse(NamedTuple):
    """What all steps of a run used together; None if not measured."""

    cpu_used_ms: int | None
    mem_peak_mib: int | None
    gpu_used_permille: int | None
    gpu_mem_peak_mib: int | None


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


def update_measured_use(connection: Connection, run_ids: Sequence[int]) -> None:
    """Recompute what some runs used, from their stored steps."""
    if run_ids:
        _update_measured_use(connection, run_ids, _load_steps(connection, run_ids))


def _update_measured_use(connection: Connection, run_ids: Collection[int], rows: _Rows) -> None:
    """Update the measured use of runs, in table `runs` and in the usage tables."""
    of_run: dict[int, list[StepRow]] = defaultdict(list)
    for (whose, _), step in rows.items():
        of_run[whose].append(step)
    query = select(runs.c.id, runs.c.gpu_mem_peak_mib, IS_COUNTED, *USAGE_RUN_COLUMNS)
    known = in_values(connection, runs.c.id, sorted(run_ids))
    found = connection.execute(query.where(known)).all() if run_ids else []
    changed: list[tuple[int, MeasuredUse]] = []
    counted: list[tuple[Sequence[Any], MeasuredUse]] = []
    for run_id, gpu_mem, counts, *held in found:
        start, end, gpus = held[_START], held[_END], held[_GPUS]
        seconds = end - start if start is not None and end is not None else 0
        after = combine_steps(of_run[run_id], gpus * seconds)
        if after == (*held[_COUNTED:], gpu_mem):
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
    *whose, cpu, mem, gpu = zip(*(held for held, _ in found), strict=True)
    after = list(zip(*(facts for _, facts in found), strict=True))[:3]
    submits = whose[UsageRun._fields.index("submit")]
    change = UsageChange()
    change.use([*whose, *after, load_eras(connection).each(submits)], (cpu, mem, gpu))
    change.write(connection)


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
    return MeasuredUse(
        sum(cpu) if cpu else None,
        max(mem, default=None),
        min(sum(busy) // gpu_seconds, _ALL) if busy and gpu_seconds > 0 else None,
        max(gpu_mem, default=None),
    )


def _load_steps(connection: Connection, run_ids: Iterable[int]) -> _Rows:
    query = select(steps).where(in_values(connection, steps.c.run_id, sorted(run_ids)))
    return {(run, step[0]): StepRow(*step) for run, *step in connection.execute(query).all()}
