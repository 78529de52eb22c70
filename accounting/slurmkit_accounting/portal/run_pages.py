"""Pages of a job and of a run: what became of it, what its GPUs did, and the line of sacct."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from flask import Blueprint, abort, g, render_template, request

from slurmkit.errors import BadInput
from slurmkit.state.gpu_use import GpuUseOfGpu, GpuUseOfRun
from slurmkit_accounting.portal.asked import ask_report
from slurmkit_accounting.portal.context import lines_about, portal, reader
from slurmkit_accounting.portal.identity import Account
from slurmkit_accounting.portal.view_log import (
    PortalView,
    Subject,
    owners_of_acts,
    owners_of_rows,
)
from slurmkit_accounting.render.format import format_utc, format_value
from slurmkit_accounting.render.html import Figure, figures_of, report_page
from slurmkit_accounting.reports.explain import Evidence
from slurmkit_accounting.reports.model import Panel, Report, Series

pages = Blueprint("runs", __name__)
_EVER = "1970-01-02"
_MOST_CURVES = 6  # lines of a chart that can be distinguished
_MOST_RUNS = 50  # runs of a job on its page
_MOST_NOTED = 2000  # runs of a job whose owners are written down, and of which one is the last
_TIMES = frozenset(("submit", "eligible", "start", "end", "last_seen", "gone_since", "retracted"))
_OUTCOMES = {
    "COMPLETED": "It completed.",
    "FAILED": "Its program ended with an error. Look at the end of its log.",
    "TIMEOUT": "It reached its time limit. Ask for more time, or write checkpoints.",
    "OUT_OF_MEMORY": "It needed more memory than it had asked for.",
    "NODE_FAIL": "A node failed. That is not the fault of the job; submit it again.",
    "BOOT_FAIL": "A node did not start. That is not the fault of the job; submit it again.",
    "CANCELLED": "Somebody cancelled it.",
    "PREEMPTED": "A job with a higher priority took its place.",
    "DEADLINE": "It could not end before its deadline.",
    "REQUEUED": "It was put back into the queue.",
    "RUNNING": "It runs, as of the last time the ledger read Slurm.",
    "PENDING": "It waits, as of the last time the ledger read Slurm.",
    "SUSPENDED": "It is suspended, as of the last time the ledger read Slurm.",
}


def describe_outcome(state: str) -> str:
    """Return what a state of sacct means, in a sentence."""
    return _OUTCOMES.get(state.partition(" ")[0], f"Slurm calls its state {state}.")


def note_owners(report: Report, page: str = "runs") -> None:
    """Write down that the reader saw the runs of a report `explain`."""
    note_rows([int(row["row"]) for row in report.rows], page)


def note_owners_of_job(arguments: Mapping[str, Any]) -> None:
    """Write down that the reader saw sums of single jobs: their runs, in the same window."""
    names = ("begin", "end", "timezone", "job", "filters", "now")
    asked = {name: arguments[name] for name in names if name in arguments}
    note_owners(ask_report("explain", **asked, most=_MOST_NOTED), "job")


def note_owners_of_acts(report: Report) -> None:
    """Write down that the reader saw what was done about the idle GPUs of some jobs."""
    jobs, users = ({str(row[name]) for row in report.rows} for name in ("job", "user"))
    with g.ledger.transaction() as connection:
        _note(owners_of_acts(connection, jobs, users, _viewer()), "idle GPUs")


def note_rows(numbers: Sequence[int], page: str) -> None:
    """Write down that the reader saw these rows of `runs`."""
    with g.ledger.transaction() as connection:
        _note(owners_of_rows(connection, numbers, _viewer()), page)


def _viewer() -> Account | None:
    """Return whose own runs do not count; nobody's if an operator sees as somebody."""
    return None if reader().seen_as else reader().account


def _note(owners: tuple[Subject, ...], page: str) -> None:
    who = reader()
    portal().views.add(PortalView(who.session.account, who.seen_as, page, owners, portal().now))


@pages.get("/run/<int:row>")
def evidence(row: int) -> str:
    """Show everything that the ledger has of one run."""
    try:
        found: Evidence = reader().ask(g.ledger, "evidence", row=row)
    except BadInput:
        abort(404, "The ledger has no such run that you may see.")
    note_rows([row], "evidence")
    return render_template(
        "run.html",
        title=f"Run {row}",
        facts=[(name, _fact(name, value)) for name, value in found.row.items()],
        before=[
            (format_utc(at), ", ".join(f"{name} {_fact(name, was)}" for name, was in old.items()))
            for at, old in found.revisions
        ],
        found=found,
        pairs=list(zip(found.fields, found.line.split("|", len(found.fields) - 1), strict=False)),
        job=found.row["job_id"],
        outcome=describe_outcome(str(found.row["state"])),
        about=lines_about("window: none; this is all that the ledger has about the run"),
    )


def _fact(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_value(value, "time" if name in _TIMES and isinstance(value, int) else "text")


@pages.get("/job/<job>")
def job(job: str) -> str:
    """Show a job: its runs, what it used of what it asked for, and what its GPUs did."""
    cluster = request.args.get("cluster") or None
    filters = {"cluster": [cluster]} if cluster else {}
    asked: dict[str, Any] = {"begin": _EVER, "timezone": "UTC", "job": job, "filters": filters}
    asked["now"] = portal().now
    found = ask_report("explain", **asked, most=_MOST_NOTED)
    if not found.rows:
        abort(404, f"The ledger has no job {job} that you may see. It may not have started yet.")
    note_owners(found, "job")
    by_job = ask_report("efficiency", **asked, by=["user"])
    usage = ask_report("usage", **asked, by=["user"])
    uses = _gpu_use(job, cluster)
    last = max(found.rows, key=lambda row: (row["start"] or 0, row["row"]))
    return render_template(
        "job.html",
        title=f"Job {job}",
        report=found,
        rows=found.rows[:_MOST_RUNS],
        hidden=max((found.meta.runs or 0) - _MOST_RUNS, 0),
        last=last,
        outcome=describe_outcome(last["state"]),
        fits=by_job.rows[0] if len(by_job.rows) == 1 else None,
        uses=uses,
        figures=list(_curves(uses)),
        total=found.meta.total,
        tiles=report_page(usage).tiles,
        about=report_page(usage),
        value=format_value,
    )


def _gpu_use(job: str, cluster: str | None) -> tuple[GpuUseOfRun, ...]:
    """Return what the GPUs of a job did; nothing if it has too many runs for one page."""
    try:
        uses: tuple[GpuUseOfRun, ...] = reader().ask(
            g.ledger, "gpu_use_of", job=job, cluster=cluster
        )
    except BadInput:
        return ()
    return uses


def _curves(uses: Sequence[GpuUseOfRun]) -> Iterator[Figure]:
    """Yield a chart for each run with curves, of the GPUs that did least."""
    panels = []
    for use in uses[-3:]:
        with_points = [gpu for gpu in use.gpus if gpu.points]
        chosen = sorted(with_points, key=_least_used)[:_MOST_CURVES]
        if not chosen:
            continue
        times = sorted({point.at for gpu in chosen for point in gpu.points})
        begun = format_utc(use.start)
        left_out = len(with_points) - len(chosen)
        note = f"The {_MOST_CURVES} GPUs that did least; {left_out} more are in the table below."
        panels.append(
            Panel(
                "lines",
                f"Utilization of the GPUs of the run from {begun}",
                "percent",
                tuple(f"{datetime.fromtimestamp(at, UTC):%H:%M}" for at in times),
                tuple(_curve(gpu, times) for gpu in chosen),
                f"{note} Times in UTC." if left_out else "Times in UTC.",
            )
        )
    yield from figures_of(panels)


def _curve(gpu: GpuUseOfGpu, times: Sequence[int]) -> Series:
    by_time = {point.at: point.utilization for point in gpu.points}
    name = f"{gpu.node} GPU {'?' if gpu.index is None else gpu.index}"
    return Series(name, tuple(by_time.get(at) for at in times))


def _least_used(gpu: GpuUseOfGpu) -> tuple[float, str, int]:
    return (gpu.utilization if gpu.utilization is not None else 101.0, gpu.node, gpu.index or 0)
