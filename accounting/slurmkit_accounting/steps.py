"""Steps in the ledger, and what they say of how well their runs used what they held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, select

from slurmkit_accounting.bins import Held
from slurmkit_accounting.bulk import among, replace_rows, update_rows
from slurmkit_accounting.rows import Key
from slurmkit_accounting.schema import runs, steps
from slurmkit_accounting.steps_rows import Step
from slurmkit_accounting.stored import find
from slurmkit_accounting.upkeep import COUNTED, HELD, Change, eras

FACTS = ("cpu_used_ms", "mem_peak_mib", "gpu_used_permille", "gpu_mem_peak_mib")
_START, _END, _GPUS = map(Held._fields.index, ("start", "end", "gpus"))
_COUNTED = Held._fields.index(FACTS[0])  # in usage are all but the last, in the same order
_ALL = 1000
_Rows: TypeAlias = "dict[tuple[int, str], Step]"  # by run and name


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
    rows = {(known[key].id, name): step for (key, name), step in given.items() if key in known}
    stored = _stored(connection, {run for run, _ in rows})
    changed = {where: step for where, step in rows.items() if stored.get(where) != step}
    lines = [(run, *step) for (run, _), step in changed.items()]
    replace_rows(connection, steps, ("run_id", *Step._fields), lines)
    _measure(connection, {run for run, _ in changed}, stored | changed)


def measure(connection: Connection, numbers: Sequence[int]) -> None:
    """Work out anew what some runs used."""
    if numbers:
        _measure(connection, numbers, _stored(connection, numbers))


def _measure(connection: Connection, numbers: Collection[int], rows: _Rows) -> None:
    of_run: dict[int, list[Step]] = defaultdict(list)
    for (whose, _), step in rows.items():
        of_run[whose].append(step)
    query = select(runs.c.id, runs.c.gpu_mem_peak_mib, COUNTED, *HELD)
    known = among(connection, runs.c.id, sorted(numbers))
    found = connection.execute(query.where(known)).all() if numbers else []
    turned: list[tuple[int, Facts]] = []
    counted: list[tuple[Sequence[Any], Facts]] = []
    for number, gpu_mem, counts, *held in found:
        start, end, gpus = held[_START], held[_END], held[_GPUS]
        seconds = end - start if start is not None and end is not None else 0
        after = used(of_run[number], gpus * seconds)
        if after == (*held[_COUNTED:], gpu_mem):
            continue
        turned.append((number, after))
        if counts:
            counted.append((held, after))
    update_rows(connection, runs, ("id", *FACTS), [(number, *after) for number, after in turned])
    _count(connection, counted)


def _count(connection: Connection, found: Sequence[tuple[Sequence[Any], Facts]]) -> None:
    """Count in usage what some runs are now known to have used."""
    if not found:
        return
    *whose, cpu, mem, gpu = zip(*(held for held, _ in found), strict=True)
    after = list(zip(*(facts for _, facts in found), strict=True))[:3]
    submits = whose[Held._fields.index("submit")]
    change = Change()
    change.use([*whose, *after, eras(connection).each(submits)], (cpu, mem, gpu))
    change.write(connection, {})


def used(found: Sequence[Step], gpu_seconds: int) -> Facts:
    """What steps used: CPU added up, memory of the largest, GPUs over all the time held.

    Args:
        found: the steps of one run.
        gpu_seconds: what the run held; 0 while it runs.
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
    return Facts(
        sum(cpu) if cpu else None,
        max(mem, default=None),
        min(sum(busy) // gpu_seconds, _ALL) if busy and gpu_seconds > 0 else None,
        max(gpu_mem, default=None),
    )


def _stored(connection: Connection, numbers: Iterable[int]) -> _Rows:
    query = select(steps).where(among(connection, steps.c.run_id, sorted(numbers)))
    return {(run, step[0]): Step(*step) for run, *step in connection.execute(query).all()}
