"""`slurmkit report`: GPU-hours and CPU-hours out of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slurmkit.cli.show import table
from slurmkit.text import printable
from slurmkit_accounting.cli import db_option

if TYPE_CHECKING:
    from slurmkit_accounting.report import Report

_RIGHT = frozenset(("JOBS", "GPU_HOURS", "CPU_HOURS"))


@click.group("report")
def report_group() -> None:
    """GPU-hours and CPU-hours out of the ledger."""


@report_group.command("usage")
@click.option("--from", "begin", metavar="DATE", required=True, help="YYYY-MM-DD[THH:MM:SS].")
@click.option("--to", "end", metavar="DATE", required=True, help="Likewise; not included.")
@click.option(
    "--by", type=click.Choice(["pi", "account", "user"]), required=True, help="One row for each."
)
@click.option("--job", metavar="JOB_ID", help="Only this job, with all its parts.")
@click.option("--timezone", metavar="TZ", help="What the dates mean.  [default: the host's]")
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json"]), default="table",
    help="How to print it.  [default: table]",
)  # fmt: skip
@db_option
def usage_command(begin: str, end: str, form: str, db: str | None, **asked: Any) -> None:
    """Sum GPU-hours and CPU-hours by PI, account or user.

    Every run counts for as long as it held its GPUs within the window, whatever became of it;
    jobs still running count up to now.

    \b
    Examples:
      slurmkit report usage --from 2026-10-01 --to 2026-11-01 --by pi
      slurmkit report usage --from 2026-10-01 --to 2026-11-01 --by user --format csv > oct.csv
      slurmkit report usage --from 2026-10-01 --to 2026-11-01 --by pi --job 4711
      slurmkit report usage --from 2026-11-20T10:15:00 --to 2026-11-21 --by account --timezone UTC
    """
    from slurmkit_accounting import read  # noqa: PLC0415

    with read.ledger(db) as books:
        report = read.usage(books, begin, end, **asked)
    _show_report(report, form)


def _show_report(report: Report, form: str) -> None:
    from slurmkit_accounting import render  # noqa: PLC0415

    if form == "json":
        click.echo(render.as_json(report))
        return
    if form == "csv":
        click.echo(render.as_csv(report), nl=False)
    else:
        names = render.header(report)
        table([name.upper() for name in names], map(render.cells, report.rows), right=_RIGHT)
    for line in render.footer(report.meta):
        click.echo(printable(line), err=True)
