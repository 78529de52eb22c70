"""`slurmkit benchmark`: measure nodes and GPUs in low-priority jobs, and keep the results."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmkit.cli.completion import CachedNames
from slurmkit.cli.jobs import print_notice, show_progress
from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import Fit, print_table
from slurmkit.cli.workflow_tables import print_workflow_findings
from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.workflow_plan import plan_workflow
from slurmkit.errors import BadInput, NotAllowed, SlurmError, SlurmkitError
from slurmkit.formats.display import format_time, printable
from slurmkit.formats.memory import parse_mib
from slurmkit.formats.scontrol import fold_nodes
from slurmkit.state.nodes import NodeChoice, read_nodes
from slurmkit.state.queue_rows import FINAL_STATES
from slurmkit_accounting.benchmarks.inside import LEAST_DISK_MIB, MOST_DISK_MIB
from slurmkit_accounting.benchmarks.jobs import (
    TESTS,
    BenchmarkRequest,
    benchmark_workflow,
    choose_nodes,
    new_record,
)
from slurmkit_accounting.benchmarks.results import RunFolder, find_run, run_folders
from slurmkit_accounting.benchmarks.store import store_all, store_benchmarks
from slurmkit_accounting.cli import db_option, open_for_writing
from slurmkit_accounting.remote.client import configured_remote

if TYPE_CHECKING:
    from slurmkit.cluster.workflow import SentWorkflow, WorkflowJobStatus
    from slurmkit.cluster.workflow_plan import WorkflowPlan
    from slurmkit_accounting.benchmarks.results import Measurement
    from slurmkit_accounting.benchmarks.store import StoredCount
    from slurmkit_accounting.remote.served import AnyLedger

_RUNS_SCHEMA = "slurmkit.benchmark.runs/1"
_COLUMNS = ("BENCHMARK", "NODES", "GPU", "VALUE", "UNIT", "JOBID", "METHOD")
_RUNS = ("RUN", "CLUSTER", "SENT", "JOBS", "WITH_RESULTS", "VALUES", "STORED")


@click.group("benchmark")
def benchmark_group() -> None:
    """Measure how fast nodes and GPUs are, in short low-priority jobs.

    One job for each node holds the whole node, and measures its GPUs (matrix multiplication and
    memory bandwidth, by PyTorch) and its disk; NCCL is measured between nodes where nccl-tests
    is there. The results go into the ledger: see `slurmkit report benchmark`.

    \b
    Examples:
      slurmkit benchmark run --dry-run
      slurmkit benchmark run --gpu-type h100 --limit 4
      slurmkit benchmark show
      slurmkit benchmark collect
    """


@benchmark_group.command("run")
@click.option(
    "--nodes", metavar="LIST", default="", help="Only these nodes, e.g. c[1-3],c7.  [default: all]"
)
@click.option(
    "-p", "--partition", metavar="NAME", type=CachedNames("partition"),
    help="Only nodes of this partition, and submit to it.",
)  # fmt: skip
@click.option("--gpu-type", metavar="TYPE", help="Only nodes with GPUs of this type.")
@click.option(
    "--drained", is_flag=True,
    help="Also for nodes that are down or drained; their jobs wait until the node is back.",
)  # fmt: skip
@click.option(
    "--test", "tests", type=click.Choice(TESTS), multiple=True,
    help="Only this test; may be given several times. `cpu` also measures nodes without GPUs."
    "  [default: gpu and disk; and nccl if [preflight] program is set]",
)  # fmt: skip
@click.option(
    "--group", type=click.IntRange(1, 1024), default=2, show_default=True,
    help="Measure NCCL between so many nodes.",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(1), default=8, show_default=True,
    help="Run at most so many jobs at a time.",
)  # fmt: skip
@click.option(
    "--nice", type=click.IntRange(0, 2**31 - 4), default=10_000, show_default=True,
    help="Lower the priority of the jobs by this, as sbatch does.",
)  # fmt: skip
@click.option("-q", "--qos", metavar="NAME", type=CachedNames("qos"), help="QOS of the jobs.")
@click.option("-A", "--account", metavar="NAME", help="Account of the jobs.")
@click.option("--reservation", metavar="NAME", help="Reservation of the jobs.")
@click.option(
    "-t", "--time", metavar="TIME", default="15", show_default=True,
    help="Time limit of each job; minutes, or as sbatch takes it.",
)  # fmt: skip
@click.option(
    "--deadline", metavar="TIME", default="now+2days", show_default=True,
    help="Remove jobs that cannot end before; `none` keeps them.",
)  # fmt: skip
@click.option(
    "--python", metavar="PATH", default="python3", show_default=True,
    help="Python of the jobs; it needs PyTorch to measure GPUs.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0.1, 60), default=2.0, show_default=True,
    help="Length of each measurement of a GPU.",
)  # fmt: skip
@click.option(
    "--disk", metavar="FOLDER", default="/tmp", show_default=True,  # noqa: S108 - a nameless file
    help="The folder of each node whose disk is measured.",
)  # fmt: skip
@click.option(
    "--disk-size", metavar="SIZE", default="1G", show_default=True,
    help="Size of the file there, from 64M to 16G, and at most a tenth of what is free.",
)  # fmt: skip
@click.option(
    "--folder", metavar="PATH", type=click.Path(path_type=Path),
    help="Keep results below this folder, which all nodes share.  [default: below"
    " ~/.local/state/slurmkit]",
)  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Do not wait; store the results later with collect.")
@click.option("-n", "--dry-run", is_flag=True, help="Only show the jobs, and what they cost.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option(
    "slurmkit.benchmark.run/1", text="Print the jobs as JSON; needs --yes or --dry-run.",
)  # fmt: skip
@db_option
def run_command(
    *,
    dry_run: bool,
    yes: bool,
    no_wait: bool,
    db: str | None,
    folder: Path | None,
    as_json: JsonOutput | None,
    **asked: Any,
) -> int:
    """Submit the jobs, wait for them, and store what they measured.

    It first shows the jobs and the GPU-hours they cost at most, and asks. Nodes that are down or
    drained get none. Ctrl-C ends only the wait: the jobs go on, and `collect` stores their results.
    The exit code is 1 if something could not be measured.

    \b
    Examples:
      slurmkit benchmark run --dry-run
      slurmkit benchmark run --nodes c[1-4] --yes
      slurmkit benchmark run --gpu-type h100 --qos low --python /opt/torch/bin/python
      slurmkit benchmark run --test nccl --group 4 --partition gpu
      slurmkit benchmark run --test disk --disk /scratch --disk-size 4G
      slurmkit benchmark run --no-wait --yes
    """
    if as_json and not (yes or dry_run):
        raise BadInput("--json does not ask for confirmation; add --yes or --dry-run")
    cluster = Cluster()
    request = _request(asked)
    run, planned = _plan(cluster, request, folder)
    try:
        _show_plan(planned, request, as_json=as_json)
        is_stored = dry_run or _may_store(run, db)
        if dry_run or not _confirm(planned, yes=yes):
            run.remove()
            if as_json:
                _print_jobs(as_json, run, {})
            return 0
        sent = cluster.submit_workflow(planned)
    except BaseException:
        run.remove()
        raise
    name = str(run.path) if folder else run.record.name
    if as_json:
        _print_jobs(as_json, run, {job: each.ids for job, each in sent.record.jobs.items()})
    else:
        jobs = len(planned.plans)
        click.echo(f"submitted {jobs} job{'s' * (jobs != 1)} of {name}")
    if no_wait:
        click.echo(f"later: {_what_to_do_later(name, is_stored=is_stored)}", err=True)
        return 0
    click.echo(
        f"waiting for them; Ctrl-C ends only the wait; to see what they wait for: slurmkit workflow"
        f" show {run.record.name}",
        err=True,
    )
    if not _wait(sent, run.record.name, _what_to_do_later(name, is_stored=is_stored)):
        return 128 + signal.SIGINT
    return _finish(run, sent, db, name, is_stored=is_stored, quiet=as_json is not None)


def _request(asked: Mapping[str, Any]) -> BenchmarkRequest:
    """Return the request of a command line."""
    mib = parse_mib(asked["disk_size"], rounding="down")
    if not mib:
        raise BadInput(f"--disk-size {asked['disk_size']!r} is not a size; write e.g. 512M or 2G")
    if not LEAST_DISK_MIB <= mib <= MOST_DISK_MIB:
        raise BadInput(f"--disk-size {asked['disk_size']} is not between 64M and 16G")
    if not asked["disk"].startswith("/"):
        raise BadInput(f"--disk {asked['disk']!r} must be the whole path of a folder")
    partition = asked["partition"]
    names = ("account", "qos", "reservation", "time", "nice", "partition")
    deadline = None if asked["deadline"] == "none" else asked["deadline"]
    return BenchmarkRequest(
        choice=NodeChoice(partitions=(partition,) if partition else (), nodelist=asked["nodes"]),
        gpu_type=asked["gpu_type"],
        tests=asked["tests"] or None,
        group=asked["group"],
        limit=asked["limit"],
        drained=asked["drained"],
        python=asked["python"],
        seconds=asked["seconds"],
        disk=asked["disk"],
        disk_mib=mib,
        options={name: asked[name] for name in names} | {"deadline": deadline},
    )


def _plan(
    cluster: Cluster, request: BenchmarkRequest, base: Path | None
) -> tuple[RunFolder, WorkflowPlan]:
    """Return the folder of a new run, and the plan of its jobs."""
    capabilities = cluster.capabilities()
    chosen = choose_nodes(read_nodes(cluster.slurm).rows, request)
    if chosen.closed:
        names = fold_nodes(row.name for row in chosen.closed)
        click.echo(f"left out, down or drained: {names} (--drained takes them, too)", err=True)
    record = new_record(capabilities.cluster_name, request, chosen.rows)
    run = RunFolder.create(record, base.absolute() if base else None)
    try:
        workflow = benchmark_workflow(run, request, chosen.rows, capabilities)
        return run, plan_workflow(workflow, cluster)
    except BaseException:
        run.remove()
        raise


def _show_plan(
    planned: WorkflowPlan, request: BenchmarkRequest, *, as_json: JsonOutput | None
) -> None:
    if as_json is None:
        rows = []
        for name, plan in planned.plans.items():
            options = dict(plan.submissions[0].options)
            gpus = next((options[n] for n in ("gpus-per-node", "gpus", "gres") if n in options), "")
            shown = (options.get("nodelist", ""), options.get("partition", ""), gpus)
            rows.append((name, *shown, options.get("time", "")))
        print_table(("NAME", "NODES", "PARTITION", "GPUS", "LIMIT"), rows, fit=Fit(("NAME",)))
    print_workflow_findings(planned)
    if len(planned.plans) > request.limit:
        click.echo(f"at most {request.limit} at a time (--limit)", err=True)


def _confirm(planned: WorkflowPlan, *, yes: bool) -> bool:
    """Ask whether to submit; raises BadInput for errors, and if there is no terminal to ask on."""
    if planned.errors:
        raise BadInput("nothing submitted: see the errors above")
    if yes:
        return True
    if not sys.stdin.isatty():
        raise BadInput("no terminal to ask for confirmation on; to submit without asking: --yes")
    jobs = len(planned.plans)
    return click.confirm(f"submit {jobs} job{'s' * (jobs != 1)}?", err=True)


def _print_jobs(as_json: JsonOutput, run: RunFolder, ids: Mapping[str, Sequence[str]]) -> None:
    record = run.record
    rows = [
        {"name": name, "nodes": job.nodes, "gpu_type": job.gpu_type, "gpus": job.gpus}
        | {"ids": list(ids.get(name, ()))}
        for name, job in record.jobs.items()
    ]
    further = {"run": record.name, "tests": record.tests, "folder": str(run.path) if ids else None}
    as_json.print(rows, further=further)


def _what_to_do_later(name: str, *, is_stored: bool) -> str:
    """Return the command that has to do with the results of a run, and what it does."""
    if is_stored:
        return f"slurmkit benchmark collect {name} stores the results"
    return f"slurmkit benchmark show {name} shows the results"


def _wait(sent: SentWorkflow, workflow: str, later: str) -> bool:
    """Wait until all jobs have ended; return False after Ctrl-C.

    Raises:
        SlurmError: when Slurm does not say what became of the jobs.

    Args:
        sent: the workflow.
        workflow: its name.
        later: what to do with the results later.
    """
    try:
        with sent.cluster.poller.watch(sent.record.ids) as watch:
            show_progress(watch, None)
    except KeyboardInterrupt:
        _say_how_to_go_on(workflow, later)
        return False
    except SlurmError:
        _say_how_to_go_on(workflow, later)
        raise
    return True


def _say_how_to_go_on(workflow: str, later: str) -> None:
    print_notice(
        f"no longer waiting; the jobs go on. {later}; slurmkit workflow cancel {workflow} cancels"
        " them"
    )


def _may_store(run: RunFolder, db: str | None) -> bool:
    """Return whether this user may store results; say before the jobs run if they may not.

    The service is asked to store nothing. Where it does not answer, that is said after the jobs.
    """
    if db or os.environ.get("SLURMKIT_DB") or (remote := configured_remote()) is None:
        return True
    try:
        store_benchmarks(remote, run.record.cluster, run.record.name, ())
    except NotAllowed:
        print_notice(
            f"the results stay in {run.path}: only Slurm's operators store them in the site's"
            " ledger, with slurmkit benchmark collect"
        )
        return False
    except SlurmkitError:
        pass
    return True


def _finish(
    run: RunFolder, sent: SentWorkflow, db: str | None, name: str, *, is_stored: bool, quiet: bool
) -> int:
    """Print and store the results of a run whose jobs have ended; return the exit code.

    The states come first: a job that is over then writes nothing after its file was read.
    """
    statuses = sent.look()
    found, wrong = _read(run)
    if not quiet:
        _print_measurements(found)
    bad = _print_troubles(run, statuses, found)
    _print_unfinished(statuses, _what_to_do_later(name, is_stored=is_stored))
    if not is_stored:
        click.echo(f"the results are in {printable(str(run.path))}", err=True)
        return 1 if bad or wrong else 0
    try:
        with _open_to_store(db) as ledger:
            count = _store(ledger, run, found)
    except SlurmkitError:
        click.echo(f"not stored; the results stay in {printable(str(run.path))}", err=True)
        raise
    click.echo(f"stored {count.stored} values; see: slurmkit report benchmark", err=True)
    return 1 if bad or wrong else 0


def _read(run: RunFolder) -> tuple[list[Measurement], list[str]]:
    """Read the results of a run; warn of lines that cannot be read."""
    found, wrong = run.measurements()
    for line in wrong:
        click.echo(f"warning: not read: {printable(line)}", err=True)
    return found, wrong


def _print_measurements(found: Sequence[Measurement]) -> None:
    rows = [
        (
            each.benchmark,
            each.nodes,
            printable(each.gpu_serial or each.gpu),
            "?" if each.value is None else f"{each.value:,.4g}",
            each.unit,
            printable(each.job_id),
            printable(each.trouble or each.method),
        )
        for each in sorted(found, key=lambda each: (each.benchmark, each.nodes, each.gpu))
    ]
    fit = Fit(whole=("BENCHMARK", "NODES", "GPU"), wrapped=("METHOD",), least=("JOBID",))
    print_table(_COLUMNS, rows, right={"VALUE"}, fit=fit)


def _print_unfinished(statuses: Mapping[str, WorkflowJobStatus], later: str) -> None:
    """Say what to do about jobs that are not over."""
    left = sum(status.state not in FINAL_STATES for status in statuses.values())
    if left:
        click.echo(
            f"{left} of {len(statuses)} jobs are not known to be over; later: {later}", err=True
        )


def _print_troubles(
    run: RunFolder, statuses: Mapping[str, WorkflowJobStatus], found: Sequence[Measurement]
) -> int:
    """Say which jobs have not done all, and why; return how much could not be measured."""
    states = {name: status.state for name, status in statuses.items()}
    bad = 0
    for name in run.record.jobs:
        has_result, state = run.results_of(name).exists(), states.get(name, "unknown")
        if has_result and state == "COMPLETED":
            continue
        bad += 1
        words = f"{name}: {'' if has_result else 'no result, '}the job is {state}"
        click.echo(printable(f"{words}; its log: {run.log_of(name)}"), err=True)
    failed = sum(each.value is None for each in found)
    if failed:
        click.echo(f"{failed} values could not be measured; the reason is in METHOD", err=True)
    return bad + failed


@contextmanager
def _open_to_store(db: str | None) -> Iterator[AnyLedger]:
    """Open the ledger that results go into: the named one, the site's, or the user's own."""
    named = db or os.environ.get("SLURMKIT_DB")
    if not named and (remote := configured_remote()):
        yield remote
        return
    with open_for_writing(db) as ledger:
        yield ledger


def _store(ledger: AnyLedger, run: RunFolder, found: Sequence[Measurement]) -> StoredCount:
    count = store_all(ledger, run.record.cluster, run.record.name, found)
    run.note_stored(len(found))
    return count


def _complete_run(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    names = (folder.record.name for folder in run_folders())
    return [name for name in names if name.startswith(incomplete)]


@benchmark_group.command("collect")
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=_complete_run)
@json_option("slurmkit.benchmark.collect/1", text="Print the runs as JSON.")
@db_option
def collect_command(runs: Sequence[str], db: str | None, *, as_json: JsonOutput | None) -> None:
    """Store the results of runs in the ledger.

    RUN is the name of a run, or the path of its folder; without one, it is each of your runs that
    has new results. Each value is stored once, however often this runs, also while jobs still run.
    Only Slurm's operators may store results in the site's ledger.

    \b
    Examples:
      slurmkit benchmark collect
      slurmkit benchmark collect benchmark-20261124-021500
      slurmkit benchmark collect /scratch/bob/benchmark-20261124-021500
    """
    folders = list(map(find_run, runs)) if runs else list(run_folders())
    read = [(run, _read(run)[0]) for run in folders]
    due = [(run, found) for run, found in read if runs or len(found) != run.stored]
    rows = []
    if due:
        with _open_to_store(db) as ledger:
            for run, found in due:
                _warn_of_others(run)
                count = _store(ledger, run, found)
                rows.append({"run": run.record.name, "stored": count.stored, "known": count.known})
                if not as_json:
                    name = printable(run.record.name)
                    click.echo(f"{name}: {count.stored} values stored, {count.known} known before")
    if as_json:
        as_json.print(rows)
    elif not due:
        click.echo("there are no new results", err=True)


def _warn_of_others(run: RunFolder) -> None:
    """Say that somebody else could have written the results, also by hand."""
    owner = run.path.stat().st_uid
    if owner != os.getuid():
        path = printable(str(run.path))
        click.echo(
            f"warning: {path} is of uid {owner}, who can have written any result there", err=True
        )


@benchmark_group.command("show")
@click.argument("run", required=False, shell_complete=_complete_run)
@json_option("slurmkit.benchmark.show/1", _RUNS_SCHEMA, text="Print it as JSON.")
def show_command(run: str | None, *, as_json: JsonOutput | None) -> None:
    """Show what a run has measured so far, or list your runs.

    It reads the folder of the run, not the ledger.

    \b
    Examples:
      slurmkit benchmark show
      slurmkit benchmark show benchmark-20261124-021500
    """
    if run is None:
        _list_runs(list(run_folders()), as_json)
        return
    folder = find_run(run)
    found, _ = _read(folder)
    if as_json:
        as_json.print(found, further={"run": folder.record.name})
        return
    _print_measurements(found)
    _print_jobs_without_results(folder)


def _print_jobs_without_results(folder: RunFolder) -> None:
    """Say which jobs have no result, with their states if Slurm says them."""
    silent = [name for name in folder.record.jobs if not folder.results_of(name).exists()]
    if not silent:
        return
    try:
        states = {
            name: status.state
            for name, status in Cluster().workflow(folder.record.name).look().items()
        }
    except (BadInput, SlurmError):
        states = {}
    for name in silent:
        state = states.get(name, "state unknown")
        click.echo(
            printable(f"{name}: no result yet ({state}); log: {folder.log_of(name)}"), err=True
        )


def _list_runs(folders: Sequence[RunFolder], as_json: JsonOutput | None) -> None:
    rows: list[dict[str, Any]] = []
    for run in folders:
        record, found = run.record, run.measurements()[0]
        with_results = sum(run.results_of(name).exists() for name in record.jobs)
        rows.append(
            {
                "run": record.name,
                "cluster": record.cluster,
                "sent": record.created,
                "jobs": len(record.jobs),
                "with_results": with_results,
                "values": len(found),
                "stored": run.stored,
            }
        )
    if as_json:
        as_json.of(_RUNS_SCHEMA).print(rows)
    elif rows:
        lines = [
            [format_time(value) if name == "sent" else str(value) for name, value in row.items()]
            for row in rows
        ]
        print_table(_RUNS, lines, right={"JOBS", "WITH_RESULTS", "VALUES", "STORED"})
    else:
        click.echo("there is no run yet; see: slurmkit benchmark run --help", err=True)
