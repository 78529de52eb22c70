"""`slurmkit report`: GPU-hours, and what they cost, out of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import click

from slurmkit_accounting.cli import db_option
from slurmkit_accounting.cli.asking import (
    Names,
    filter_options,
    filters_of,
    format_options,
    window_options,
)
from slurmkit_accounting.cli.mailing import mail_command
from slurmkit_accounting.cli.reports import (
    budget_command,
    efficiency_command,
    explain_command,
    idle_command,
    reconcile_command,
    wait_command,
)
from slurmkit_accounting.cli.showing import show


@click.group("report")
def report_group() -> None:
    """GPU-hours, what they cost and what came of them, out of the ledger."""


report_group.add_command(mail_command)


for _command in (
    budget_command,
    efficiency_command,
    explain_command,
    idle_command,
    reconcile_command,
    wait_command,
):
    report_group.add_command(_command)


@report_group.command("usage")
@window_options
@click.option(
    "--by", metavar="NAME[,NAME...]", type=Names(), multiple=True, default=("pi",),
    help="One row for each: pi, group, department, user, account, cluster, partition, qos,"
    " gpu-type, state, hour (31 days at most), day, week, month.  [default: pi]",
)  # fmt: skip
@filter_options
@click.option("--job", metavar="JOB_ID", help="Only this job, with all its parts.")
@click.option(
    "--suspended", type=click.Choice(["charge", "skip"]), default="charge",
    help="Whether GPUs count that a suspended run holds; sreport charges them.  [default: charge]",
)  # fmt: skip
@format_options
@db_option
def usage_command(
    begin: str | None, end: str | None, by: Sequence[tuple[str, ...]], db: str | None, **asked: Any
) -> None:
    """Sum GPU-hours and what goes with them, by whatever is asked.

    Every run counts for as long as it held its GPUs within the window, whatever became of it;
    jobs still running count up to now. Without dates it is this month up to now.

    \b
    Examples:
      slurmkit report usage --from 2026-10-01 --to 2026-11-01 --by pi
      slurmkit report usage --month 2026-10 --by pi,gpu-type --output october.html
      slurmkit report usage --from 2026-01-01 --to 2027-01-01 --by month --pi vogel --format csv
      slurmkit report usage --from 2026-10-01 --to 2026-11-01 --by user --format json | jq .rows
      slurmkit report usage --from 2026-11-20T10:15:00 --to 2026-11-21 --by account --timezone UTC
      slurmkit report usage --by state --job 4711
    """
    from slurmkit_accounting import read  # noqa: PLC0415
    from slurmkit_accounting.cli import wholes  # noqa: PLC0415

    form = asked.pop("form")
    names = list(dict.fromkeys(chain.from_iterable(by)))
    more = read.More(
        timezone=asked["timezone"],
        filters=filters_of(asked),
        suspended=asked["suspended"],
        job=wholes.as_slurm_has(asked["job"], asked["cluster"]),
    )
    panels = form.name not in {"table", "csv", "json", "xlsx"}  # a site's own may have charts
    with read.ledger(db) as books:
        report = read.usage(books, begin, end, by=names, panels=panels, **more)
    show(report, form)
