"""All checks in the order shown. A new check is a function and a line in its module's CHECKS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slurmkit.doctor import accounting, daemons, hardware, installation, scheduling
from slurmkit.doctor.case import Check, CheckContext, Diagnosis
from slurmkit.errors import SlurmkitError
from slurmkit.slurm.commands import SlurmCommands

CHECKS: tuple[Check, ...] = (
    *installation.CHECKS[:1],
    *daemons.CHECKS,
    *accounting.CHECKS,
    *scheduling.CHECKS,
    *hardware.CHECKS,
    *accounting.PEOPLE_CHECKS,
    *installation.CHECKS[1:],
)


def run_checks(slurm: SlurmCommands, checks: Iterable[Check] = CHECKS) -> Iterator[Diagnosis]:
    """Run every check; a check that fails yields `unknown` and why, and the others go on."""
    case = CheckContext(slurm)
    for check in checks:
        yield from _run_check(check, case)


def _run_check(check: Check, case: CheckContext) -> list[Diagnosis]:
    """Run one check; return `ok` if it finds nothing."""
    try:
        findings = list(check.look(case))
    except SlurmkitError as error:
        return [Diagnosis(check.name, "unknown", str(error))]
    except Exception as error:  # noqa: BLE001 - a bug in one check must not stop the others
        return [Diagnosis(check.name, "unknown", f"{type(error).__name__}: {error}")]
    if not findings:
        return [Diagnosis(check.name, "ok", check.fine)]
    return [
        Diagnosis(check.name, each.severity, each.message, each.meaning, each.fix, each.where)
        for each in findings
    ]
