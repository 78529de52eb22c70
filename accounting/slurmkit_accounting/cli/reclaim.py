"""`slurmkit reclaim`: what policies for idle GPUs would have done, and a user's "leave it"."""

from __future__ import annotations

import time
from pathlib import Path

import click

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.config.files import load_section
from slurmkit.errors import BadConfig, BadInput
from slurmkit.formats.display import format_time, printable
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli import db_option, open_for_reading, show_progress
from slurmkit_accounting.cli.array_ids import to_slurm_ids
from slurmkit_accounting.cli.report_options import OutputFormat, format_options, show_report
from slurmkit_accounting.config import ScheduleSection
from slurmkit_accounting.reclaim.policy import load_policies
from slurmkit_accounting.remote.client import configured_remote


@click.group("reclaim")
def reclaim_group() -> None:
    """Give idle GPUs back: check policies, or have a job left alone.

    The site's ledger service watches the GPUs of running jobs. Its policies, `[reclaim.NAME]` in
    the configuration, say what it does about idle ones; without a policy, nothing.

    \b
    Examples:
      slurmkit reclaim check --month 2026-10
      slurmkit reclaim keep 12 --reason "reads its data until noon"
    """


@reclaim_group.command("check")
@click.option("--month", metavar="YYYY-MM", required=True, help="Runs that ended in this month.")
@click.option(
    "--policy",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A file with policies, [reclaim.NAME].  [default: the configuration]",
)
@click.option("--runs", "by_run", is_flag=True, help="Make a row for each run, not each policy.")
@click.option("--timezone", metavar="TZ", help="Time zone of the month.  [default: the service's]")
@format_options
@db_option
def reclaim_command(
    month: str,
    file: Path | None,
    timezone: str | None,
    form: OutputFormat,
    db: str | None,
    *,
    by_run: bool,
) -> None:
    """Show what policies would have done about the runs of a month.

    It looks at the recorded curves of the runs' GPUs, and does nothing to jobs. The ledger does not
    know which jobs survive. Run it as the account that keeps the ledger: it reads the ledger
    itself, not through its service.

    \b
    Examples:
      slurmkit reclaim check --month 2026-10
      slurmkit reclaim check --month 2026-10 --policy stricter.toml --runs
    """
    from slurmkit_accounting.reclaim.check import check_report

    zone = find_zone(timezone or load_section("ledger.schedule", ScheduleSection).timezone or None)
    policies = load_policies(file)
    if not policies:
        raise BadConfig(
            "the configuration has no policy: write one, e.g. [reclaim.idle] with minutes = 60, or"
            " try one with --policy FILE"
        )
    with open_for_reading(db) as ledger, show_progress("checking runs") as progress:
        report = check_report(
            ledger,
            policies,
            month,
            zone=zone,
            now=int(time.time()),
            by_run=by_run,
            progress=progress,
        )
    show_report(report, form)


@reclaim_group.command("keep")
@click.argument("job_id")
@click.option("--reason", required=True, help="Why; the PI and the operators see it.")
@json_option("slurmkit.reclaim.keep/1", text="Print the job as JSON.")
def keep_command(job_id: str, reason: str, *, as_json: JsonOutput | None) -> None:
    """Have the idle GPUs of your job left alone for a while.

    This works once for each job, after a mail about it. The policy says for how long.

    \b
    Examples:
      slurmkit reclaim keep 12 --reason "reads its data until noon"
    """
    from slurmkit_accounting.reclaim.keep import keep_job

    service = configured_remote()
    if service is None:
        raise BadInput(
            "this site has no ledger service; ask your administrator, or set [ledger.service] url"
        )
    left_alone = keep_job(service, str(to_slurm_ids(job_id)), reason=reason)
    if as_json:
        as_json.print([left_alone])
        return
    until = "" if left_alone.until is None else f" until {format_time(left_alone.until)}"
    click.echo(f"job {printable(left_alone.job_id)} is left alone{until}")
