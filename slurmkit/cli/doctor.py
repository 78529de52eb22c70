"""`slurmkit doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import click
import msgspec

from slurmkit.cli.show import hanging
from slurmkit.cluster import Cluster
from slurmkit.doctor.checks import examine
from slurmkit.doctor.model import Diagnosis, Severity
from slurmkit.text import printable

_ORDER: tuple[Severity, ...] = ("error", "warning", "note", "unknown", "ok")
_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan", "unknown": "magenta"}


@click.command("doctor")
@click.option("--all", "everything", is_flag=True, help="Show also what is in order.")
@click.option("--json", "as_json", is_flag=True, help="Print what every check found as JSON.")
@click.pass_context
def doctor_command(ctx: click.Context, *, everything: bool, as_json: bool) -> None:
    """Say what of slurmkit and of this cluster's settings is missing or unwise.

    Each finding says what it means for people, the setting to change, and where. Ends with exit
    code 1 when there is an error. Nothing is changed, and no job is submitted.

    \b
    Examples:
      slurmkit doctor
      slurmkit doctor --json | jq -r '.[] | select(.severity == "error") | .fix'
    """
    found = sorted(examine(Cluster().slurm), key=lambda each: _ORDER.index(each.severity))
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        for each in found:
            if everything or each.severity != "ok":
                _show(each)
        click.echo(_summary(found), err=True)
    if any(each.severity == "error" for each in found):
        ctx.exit(1)


def _show(found: Diagnosis) -> None:
    word = click.style(found.severity.ljust(7), fg=_COLOURS.get(found.severity))
    hanging(f"{word}  ", f"{found.check}: {found.message}", indent=9)
    if found.meaning:
        hanging(" " * 11, found.meaning, indent=11)
    if found.fix:
        click.echo(f"           fix: {printable(found.fix)}   [{printable(found.where)}]")


def _summary(found: Iterable[Diagnosis]) -> str:
    counted = Counter(each.severity for each in found)
    return ", ".join(_counted(counted[each], each) for each in _ORDER if counted[each])


def _counted(count: int, severity: Severity) -> str:
    plural = "s" if count > 1 and severity in ("error", "warning", "note") else ""
    return f"{count} {severity}{plural}"
