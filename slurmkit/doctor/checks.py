"""Every check, in the order they are shown; a new one is a function and a line in its module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slurmkit.doctor import accounting, daemons, hardware, here, people, scheduling
from slurmkit.doctor.case import Case
from slurmkit.doctor.model import Check, Diagnosis
from slurmkit.errors import SlurmkitError
from slurmkit.slurm import Slurm

CHECKS: tuple[Check, ...] = (
    *here.CHECKS[:1],
    *daemons.CHECKS,
    *accounting.CHECKS,
    *scheduling.CHECKS,
    *hardware.CHECKS,
    *people.CHECKS,
    *here.CHECKS[1:],
)


def examine(slurm: Slurm, checks: Iterable[Check] = CHECKS) -> Iterator[Diagnosis]:
    """Run every check; one that cannot look says `unknown` and why, and never stops the others."""
    case = Case(slurm)
    for check in checks:
        yield from _one(check, case)


def _one(check: Check, case: Case) -> list[Diagnosis]:
    try:
        found = list(check.look(case))
    except SlurmkitError as error:
        return [Diagnosis(check.name, "unknown", str(error))]
    except Exception as error:  # noqa: BLE001 - a check of ours that breaks is no reason to stop
        return [Diagnosis(check.name, "unknown", f"{type(error).__name__}: {error}")]
    if not found:
        return [Diagnosis(check.name, "ok", check.fine)]
    return [
        Diagnosis(check.name, each.severity, each.message, each.meaning, each.fix, each.where)
        for each in found
    ]
