"""Steps in the ledger, and what they say of how well their runs used what they held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, select

from slurmkit_accounting.bins import Held
from slurmkit_accounting.bulk import among, replace_rows, update_rows
from slurmkit_accounting.rows import Key
from slurmkit_accounting.schema import runs, steps
from slurmkit_accounting.steps_rows import Step
from slurmkit_accounting.stored import find
from slurmkit_accounting.upkeep import HELD, change, eras

FACTS = ("cpu_used_ms", "mem_peak_mib", "gpu_used_permille", "gpu_mem_peak_mib")
_COUNTED = FACTS[:3]  # in usage
_ALL = 1000
_Rows: TypeAlias = "dict[tuple[int, str], tuple[Any, ...]]"  # of steps, by run and name


class Facts(NamedTuple):
    """What the steps of a run used together; None where nothing was measured."""

    cpu_used_ms: int | None
    mem_peak_mib: int | None
    gpu_used_permille: int | None
    gpu_mem_peak_mib: int | None


def enter_steps(connection: Connection, cluster: int, found: Iterable[tuple[Key, Step]]) -> None:
    """Enter steps of runs that the ledger has; entering them again changes nothing."""
    given = {(key, step.step): step for key, step in found}
    known = find(connection, cluster, {key for key, _ in given})
    rows = {
        (known[key].id, name): (known[key].id, *step)
        for (key, name), step in given.items()
        if key in known
    }
    stored = _stored(connection, {run for run, _ in rows})
    changed = {where: row for where, row in rows.items() if stored.get(where) != row}
    replace_rows(connection, steps, ("run_id", *Step._fields), list(changed.values()))
    _measure(connection, {run for run, _ in changed}, stored | changed)


def measure(connection: Connection, numbers: Sequence[int]) -> None:
    """Work out anew what some runs used."""
    if numbers:
        _measure(connection, numbers, _stored(connection, numbers))


def _measure(connection: Connection, numbers: Collection[int], rows: _Rows) -> None:
    of_run: dict[int, list[Step]] = defaultdict(list)
    for whose, *step in rows.values():
        of_run[whose].append(Step(*step))
    columns = (runs.c.id, runs.c.retracted, runs.c.gpu_mem_peak_mib, *HELD)
    query = select(*columns).where(among(connection, runs.c.id, sorted(numbers)))
    known, turned, old, new = eras(connection), [], [], []
    for number, retracted, gpu_mem, *facts in connection.execute(query) if numbers else ():
        run = Held(*facts)
        seconds = run.end - run.start if run.start is not None and run.end is not None else 0
        after = used(of_run[number], run.gpus * seconds)
        if after == (run.cpu_used_ms, run.mem_peak_mib, run.gpu_used_permille, gpu_mem):
            continue
        turned.append((number, *after))
        if retracted is None:
            run = run._replace(era=known.of(run.submit))
            old.append(run)
            new.append(run._replace(**{name: getattr(after, name) for name in _COUNTED}))
    update_rows(connection, runs, ("id", *FACTS), turned)
    change(connection, old, new)


def used(found: Sequence[Step], gpu_seconds: int) -> Facts:
    """What steps used: CPU added up, memory of the largest, GPUs over all the time held.

    Args:
        found: the steps of one run.
        gpu_seconds: what the run held; 0 while it runs.
    """
    busy = [
        step.gpu_used_permille * (step.end - step.start)
        for step in found
        if step.gpu_used_permille is not None and step.start is not None and step.end is not None
    ]
    return Facts(
        _over(sum, (step.cpu_used_ms for step in found)),
        _over(max, (step.mem_peak_mib for step in found)),
        min(sum(busy) // gpu_seconds, _ALL) if busy and gpu_seconds > 0 else None,
        _over(max, (step.gpu_mem_peak_mib for step in found)),
    )


def _over(combine: Callable[[list[int]], int], values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return combine(known) if known else None


def _stored(connection: Connection, numbers: Iterable[int]) -> _Rows:
    query = select(steps).where(among(connection, steps.c.run_id, sorted(numbers)))
    return {(row[0], row[1]): tuple(row) for row in connection.execute(query)}
