"""`slurmkit report`: reports from the ledger, shown, written to files, or mailed to PIs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import click

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.state.gpu_metrics import IDLE_BELOW
from slurmkit_accounting.benchmarks.inside import UNITS
from slurmkit_accounting.cli import db_option
from slurmkit_accounting.cli.report_options import (
    Command,
    DimensionNames,
    OutputFormat,
    filter_options,
    format_options,
    show_report,
    window_options,
)
from slurmkit_accounting.config import BUDGETS_LAST_RELEASE


def _reports() -> ModuleType:
    from slurmkit_accounting.cli import ledger_reports

    return ledger_reports


def _ask_and_show(
    name: Literal[
        "benchmark", "budget", "capacity", "efficiency", "nodes", "reclaimed", "usage", "wait"
    ],
    form: OutputFormat,
    db: str | None,
    asked: Mapping[str, Any],
    begin: str | None = None,
    end: str | None = None,
) -> None:
    """Ask the read API for a report, and show it."""
    show_report(_reports().REPORTS[name](db, begin, end, asked), form)


_job_option = click.option(
    "--job", metavar="JOB_ID",
    help="Only this job; for an array, all its tasks. A SLUID of Slurm 24.11 or later is one run.",
)  # fmt: skip


def _by_option(usual: str) -> Callable[[Command], Command]:
    """Return the option `--by` for a report that cannot be split by time."""
    text = f"Make one row for each; names as in `report usage`, without times.  [default: {usual}]"
    return click.option(
        "--by",
        metavar="NAME[,NAME...]",
        type=DimensionNames(),
        multiple=True,
        default=(usual,),
        help=text,
    )


def _month_and_cluster_options(command: Command) -> Command:
    """Add `--month` and `--cluster` to a report that does not have `filter_options`."""
    for name, metavar in (("cluster", "NAME"), ("month", "YYYY-MM")):
        text = f"Only this {name}; may be given several times."
        command = click.option(f"--{name}", metavar=metavar, multiple=True, help=text)(command)
    return command


@click.group("report")
def report_group() -> None:
    """Report GPU-hours, costs, budgets, wait times and efficiency from the ledger.

    \b
    Examples:
      slurmkit report usage
      slurmkit report usage --month 2026-10 --by user --output october.html
      slurmkit report budget
      slurmkit report explain --job 4711
    """


@report_group.command("usage")
@window_options
@click.option(
    "--by", metavar="NAME[,NAME...]", type=DimensionNames(), multiple=True, default=("pi",),
    help="Make one row for each: pi, group, department, user, account, cluster, partition, qos,"
    " gpu-type, state, hour (31 days at most), day, week, month.  [default: pi]",
)  # fmt: skip
@filter_options
@_job_option
@click.option(
    "--suspended", type=click.Choice(["charge", "skip"]), default="charge",
    help="Count (charge) or leave out (skip) GPUs of suspended runs; sreport counts them."
    "  [default: charge]",
)  # fmt: skip
@format_options
@db_option
def usage_command(
    begin: str | None, end: str | None, form: OutputFormat, db: str | None, **asked: Any
) -> None:
    """Sum GPU-hours, other usage and costs by any dimensions.

    Every run counts for the time it held its GPUs within the window, whatever its outcome. Jobs
    that still run count up to now. Without dates, the window is this month up to now.

    \b
    Examples:
      slurmkit report usage --from 2026-10-01 --to 2026-11-01 --by pi
      slurmkit report usage --month 2026-10 --by pi,gpu-type --output october.html
      slurmkit report usage --from 2026-01-01 --to 2027-01-01 --by month --pi vogel --format csv
      slurmkit report usage --from 2026-10-01 --to 2026-11-01 --by user --format json | jq .rows
      slurmkit report usage --from 2026-11-20T10:15:00 --to 2026-11-21 --by account --timezone UTC
      slurmkit report usage --by state --job 4711
    """
    panels = form.name not in {"table", "csv", "json", "xlsx"}  # a site's own may have charts
    _ask_and_show("usage", form, db, {**asked, "panels": panels}, begin, end)


@click.command("wait")
@window_options
@_by_option("partition,gpu-type")
@filter_options
@format_options
@db_option
def wait_command(
    begin: str | None, end: str | None, form: OutputFormat, db: str | None, **asked: Any
) -> None:
    """Show how long runs waited from submission to start.

    \b
    Examples:
      slurmkit report wait --month 2026-10
      slurmkit report wait --month 2026-10 --by qos,partition --user alice
    """
    _ask_and_show("wait", form, db, asked, begin, end)


@click.command("nodes")
@window_options
@click.option(
    "--by", type=click.Choice(["node", "gpu", "check", "outage"]), default="node",
    help="Make one row for each node, GPU (by serial number), check or outage."
    "  [default: node]",
)  # fmt: skip
@click.option("--node", metavar="NAME", help="Only this node.")
@_month_and_cluster_options
@format_options
@db_option
def nodes_command(
    begin: str | None, end: str | None, form: OutputFormat, db: str | None, **asked: Any
) -> None:
    """Show which nodes and GPUs were out of use, why, how often, and what that cost.

    The reasons are those of slurmdbd. GPUs are known where node_check.py drains nodes.

    \b
    Examples:
      slurmkit report nodes --from 2026-01-01
      slurmkit report nodes --month 2026-10 --by gpu --output gpus.xlsx
      slurmkit report nodes --month 2026-10 --by check
      slurmkit report nodes --from 2026-01-01 --by outage --node gpu07
    """
    _ask_and_show("nodes", form, db, asked, begin, end)


@click.command("benchmark")
@window_options
@click.option(
    "--by", type=click.Choice(["gpu", "node", "gpu-type", "day", "month"]), default="gpu",
    help="Make one row for each GPU (or node without one), node, GPU type, day or month, and"
    " benchmark.  [default: gpu]",
)  # fmt: skip
@click.option(
    "--benchmark", "benchmarks", metavar="NAME", multiple=True,
    type=click.Choice((*UNITS, "nccl_all_reduce")),
    help="Only this benchmark, e.g. matmul_bf16; may be given several times.",
)  # fmt: skip
@click.option(
    "--below", type=click.FloatRange(0, 100, max_open=True), default=5.0, metavar="PERCENT",
    help="A value is slow if it is more than this below the median of its type,  [default: 5]",
)  # fmt: skip
@click.option(
    "--mads", type=click.FloatRange(0, 1000), default=3.0, metavar="NUMBER",
    help="and more than so many median absolute deviations.  [default: 3]",
)  # fmt: skip
@click.option(
    "--gpu-type", metavar="NAME", multiple=True,
    help="Only this GPU type; may be given several times.",
)  # fmt: skip
@_month_and_cluster_options
@format_options
@db_option
def benchmark_command(
    begin: str | None, end: str | None, form: OutputFormat, db: str | None, **asked: Any
) -> None:
    """Show how fast nodes and GPUs are, which ones are slow, and what a price buys.

    The values are what `slurmkit benchmark` measured. Without dates, they are those of the last
    twelve months. The slowest come first.

    \b
    Examples:
      slurmkit report benchmark
      slurmkit report benchmark --by gpu-type --benchmark matmul_bf16
      slurmkit report benchmark --by node --gpu-type h100 --output benchmark.html
      slurmkit report benchmark --by month --from 2026-01-01
    """
    _ask_and_show("benchmark", form, db, asked, begin, end)


@click.command("capacity")
@window_options
@filter_options
@format_options
@db_option
def capacity_command(
    begin: str | None, end: str | None, form: OutputFormat, db: str | None, **asked: Any
) -> None:
    """Show GPUs that were there, held, used and waited for, by month.

    One page for the question which GPUs to buy. Without dates, it is of the last twelve months.

    \b
    Examples:
      slurmkit report capacity
      slurmkit report capacity --from 2026-01-01 --gpu-type a100 --output capacity.html
    """
    _ask_and_show("capacity", form, db, asked, begin, end)


@click.command("efficiency")
@window_options
@_by_option("user,partition")
@filter_options
@_job_option
@format_options
@db_option
def efficiency_command(
    begin: str | None, end: str | None, form: OutputFormat, db: str | None, **asked: Any
) -> None:
    """Show resources that were held but not used.

    Also show the request that would have fitted.

    \b
    Examples:
      slurmkit report efficiency --month 2026-10 --pi vogel
      slurmkit report efficiency --job 4711
    """
    _ask_and_show("efficiency", form, db, asked, begin, end)


@click.command("budget")
@click.option("--timezone", metavar="TZ", help="Time zone of the dates.  [default: the host's]")
@format_options
@db_option
def budget_command(timezone: str | None, form: OutputFormat, db: str | None) -> None:
    """Show how much of each budget is used, and when it runs out.

    Budgets are read from budgets.toml next to the configuration, or from the file that
    `[ledger] budgets` names. This release is the last one that reads them: slurmkit allocation
    import grants them as allocations, and slurmkit balance shows what is left.

    \b
    Examples:
      slurmkit report budget
      slurmkit report budget --output budgets.html
    """
    _ask_and_show("budget", form, db, {"timezone": timezone})
    click.echo(BUDGETS_LAST_RELEASE, err=True)


@click.command("explain")
@window_options
@filter_options
@_job_option
@click.option(
    "--runs", type=click.Choice(["held", "lost", "doubtful", "started", "measured", "waiting"]),
    default="held",
    help="Runs that held something in the window, those of `lost`, those whose number of GPUs is"
    " doubtful, those that `wait` or `efficiency` counts, or those that wait now.  [default: held]",
)  # fmt: skip
@click.option(
    "--row", type=int, metavar="NUMBER", help="Show all that the ledger has about one run."
)
@format_options
@db_option
def explain_command(
    begin: str | None, end: str | None, form: OutputFormat, db: str | None, **asked: Any
) -> None:
    """List the runs behind a number, or everything about one run.

    Give the same filters as for the number in a report: then the GPU-hours of the runs add up to
    it. A large sweep may be several arrays in Slurm. If you submitted it from this home directory,
    its tasks have the ids that slurmkit gave you.

    \b
    Examples:
      slurmkit report explain --month 2026-10 --pi vogel --gpu-type a100 --state FAILED
      slurmkit report explain --job 4711 --from 2026-01-01
      slurmkit report explain --month 2026-10 --partition gpu --runs started
      slurmkit report explain --row 1234
    """
    if asked["row"] is not None:
        _reports().print_evidence(db, asked["row"], form)
    else:
        show_report(_reports().explain(db, begin, end, asked), form)


@click.command("idle")
@click.option(
    "--source",
    metavar="NAME",
    help="Who measures the GPUs: ledger, prometheus, slurm, or a plugin.  [default: the one that"
    " knows most of them]",
)
@click.option(
    "--below", type=click.FloatRange(0, 100), default=IDLE_BELOW, metavar="PERCENT",
    help=f"A GPU is idle if its utilization stays below this.  [default: {IDLE_BELOW:g}]",
)  # fmt: skip
@click.option(
    "--minutes", type=click.IntRange(1), default=30,
    help="Minutes for which a GPU must be idle.  [default: 30]",
)  # fmt: skip
@format_options
def idle_command(source: str | None, below: float, minutes: int, form: OutputFormat) -> None:
    """Show GPUs that are allocated now and idle.

    The ledger has the GPUs of the jobs that you may see, Prometheus every GPU. Slurm measures
    only if AccountingStorageTRES has gres/gpuutil, and then jobs with one GPU and jobs that use
    none of theirs. Below the table stands who measured. `?` means unknown.

    \b
    Examples:
      slurmkit report idle
      slurmkit report idle --source prometheus --below 10 --minutes 120
    """
    show_report(_reports().idle(source, below, minutes * 60), form)


@click.command("reclaimed")
@window_options
@filter_options
@click.option("--job", metavar="JOB_ID", help="Only this job; for an array, all its tasks.")
@format_options
@db_option
def reclaimed_command(
    begin: str | None, end: str | None, form: OutputFormat, db: str | None, **asked: Any
) -> None:
    """Show what was done about idle GPUs, why, and what was won back.

    Each row is one act: a warning, a requeue, a cancellation, or that a user had a job left alone.
    It has the samples that caused it. `gpu_hours_at_most` goes up to the end of the time limit.

    \b
    Examples:
      slurmkit report reclaimed
      slurmkit report reclaimed --month 2026-10 --pi vogel --output reclaimed.xlsx
      slurmkit report reclaimed --job 12 --from 2026-10-01
    """
    _ask_and_show("reclaimed", form, db, asked, begin, end)


@click.command("reconcile")
@click.option("--month", metavar="YYYY-MM", help="The month, up to sreport's last rollup.")
@window_options
@click.option("--tres", default="gres/gpu", help="Compare gres/gpu or cpu.  [default: gres/gpu]")
@format_options
@db_option
def reconcile_command(
    begin: str | None, end: str | None, tres: str, form: OutputFormat, db: str | None, **asked: Any
) -> None:
    """Compare the ledger with sreport, by cause of the difference.

    Run it where sreport runs, after an ingest, as the account that keeps the ledger: it reads the
    ledger itself, not through its service. Without dates, the window is this month. sreport has
    only whole hours, up to its last rollup. It shows the current hour (after `sacctmgr -i roll`)
    only if the window is that hour alone.

    \b
    Examples:
      slurmkit report reconcile --month 2026-10
      slurmkit report reconcile --month 2026-10 --tres cpu --timezone Europe/Berlin
      slurmkit report reconcile --from 2026-11-20 --to 2026-11-21
    """
    month, timezone = asked["month"], asked["timezone"]
    show_report(
        _reports().reconcile(db, begin, end, month=month, timezone=timezone, tres=tres), form
    )


@click.command("mail")
@click.option("--month", metavar="YYYY-MM", required=True, help="The month; it must be over.")
@click.option("--timezone", metavar="TZ", help="Time zone of the month.  [default: the service's]")
@click.option(
    "--dry-run",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Write the mails as .eml files into this folder; send nothing.",
)
@click.option("--again", is_flag=True, help="Also send mails that may already have arrived.")
@json_option("slurmkit.report.mail/1", text="Print what became of each as JSON.")
@db_option
def mail_command(
    month: str,
    timezone: str | None,
    dry_run: Path | None,
    db: str | None,
    *,
    again: bool,
    as_json: JsonOutput | None,
) -> None:
    """Mail each PI the report of their month.

    The mail goes to the address in the directory. Each PI gets a month once, however often the
    command runs. A mail that was cut off during the handover to the mail server may have arrived,
    so it is only sent again with --again. Section [mail] of the configuration names the mail
    server. The command reads the ledger itself, not through its service.

    \b
    Examples:
      slurmkit report mail --month 2026-10 --dry-run ./mails
      slurmkit report mail --month 2026-10
    """
    _reports().mail_reports(month, timezone, dry_run, db, again=again, as_json=as_json)


report_group.add_command(mail_command)


for _command in (
    benchmark_command,
    budget_command,
    capacity_command,
    efficiency_command,
    explain_command,
    idle_command,
    nodes_command,
    reclaimed_command,
    reconcile_command,
    wait_command,
):
    report_group.add_command(_command)
