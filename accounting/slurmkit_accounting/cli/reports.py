"""`slurmkit report` beside usage: budget, wait, efficiency, explain, idle, reconcile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from slurmkit.cli.show import key_values
from slurmkit.errors import LedgerError
from slurmkit_accounting.cli import db_option
from slurmkit_accounting.cli.asking import (
    Command,
    Form,
    Names,
    filter_options,
    filters_of,
    format_options,
    window_options,
)
from slurmkit_accounting.cli.showing import show

if TYPE_CHECKING:
    from slurmkit_accounting.read import Evidence
    from slurmkit_accounting.reports.model import Kind


def _by_option(usual: str) -> Callable[[Command], Command]:
    text = f"One row for each; names as in `report usage`, no times.  [default: {usual}]"
    return click.option(
        "--by", metavar="NAME[,NAME...]", type=Names(), multiple=True, default=(usual,), help=text
    )


@click.command("budget")
@click.option("--timezone", metavar="TZ", help="Of the budgets' days.  [default: the host's]")
@format_options
@db_option
def budget_command(timezone: str | None, form: Form, db: str | None) -> None:
    """What PIs have used of their GPU-hours, and when these run out.

    Budgets stand in budgets.toml beside the configuration, or where `[ledger] budgets` says.

    \b
    Examples:
      slurmkit report budget
      slurmkit report budget --output budgets.html
    """
    from slurmkit_accounting import read  # noqa: PLC0415

    with read.ledger(db) as books:
        show(read.budget(books, timezone=timezone), form)


@click.command("wait")
@window_options
@_by_option("partition,gpu-type")
@filter_options
@format_options
@db_option
def wait_command(
    begin: str | None, end: str | None, form: Form, db: str | None, **asked: Any
) -> None:
    """How long runs waited from submission to start.

    \b
    Examples:
      slurmkit report wait --month 2026-10
      slurmkit report wait --month 2026-10 --by qos,partition --user alice
    """
    from slurmkit_accounting import read  # noqa: PLC0415

    more = read.More(timezone=asked["timezone"], filters=filters_of(asked))
    with read.ledger(db) as books:
        show(read.wait(books, begin, end, by=_flat(asked["by"]), **more), form)


@click.command("efficiency")
@window_options
@_by_option("user,partition")
@filter_options
@click.option("--job", metavar="JOB_ID", help="Only this job, with all its parts.")
@format_options
@db_option
def efficiency_command(
    begin: str | None, end: str | None, form: Form, db: str | None, **asked: Any
) -> None:
    """Who held what and did not use it, and the request that would have fitted.

    \b
    Examples:
      slurmkit report efficiency --month 2026-10 --pi vogel
      slurmkit report efficiency --job 4711
    """
    from slurmkit_accounting import read  # noqa: PLC0415
    from slurmkit_accounting.cli import wholes  # noqa: PLC0415

    job = wholes.as_slurm_has(asked["job"], asked["cluster"])
    more = read.More(timezone=asked["timezone"], filters=filters_of(asked), job=job)
    with read.ledger(db) as books:
        show(read.efficiency(books, begin, end, by=_flat(asked["by"]), **more), form)


@click.command("explain")
@window_options
@filter_options
@click.option("--job", metavar="JOB_ID", help="Only this job, with all its parts.")
@click.option("--row", type=int, metavar="NUMBER", help="Everything the books have of one run.")
@format_options
@db_option
def explain_command(
    begin: str | None, end: str | None, form: Form, db: str | None, **asked: Any
) -> None:
    """The runs that a cell of a report is made of, and what sacct said of one.

    The filters are the cell's; the GPU-hours of the runs add up to it. A task of a sweep in several
    of Slurm's arrays has the id that you know, where you submitted it from here.

    \b
    Examples:
      slurmkit report explain --month 2026-10 --pi vogel --gpu-type a100 --state FAILED
      slurmkit report explain --job 4711 --from 2026-01-01
      slurmkit report explain --row 1234
    """
    from slurmkit_accounting import read  # noqa: PLC0415
    from slurmkit_accounting.cli import wholes, whyended  # noqa: PLC0415

    job = wholes.as_slurm_has(asked["job"], asked["cluster"])
    more = read.More(timezone=asked["timezone"], filters=filters_of(asked), job=job)
    with read.ledger(db) as books:
        if asked["row"] is not None:
            _show_evidence(read.evidence(books, asked["row"]), form)
        else:
            found = read.explain(books, begin, end, **more)
            show(wholes.named(whyended.with_reasons(found) if job else found), form)


@click.command("reconcile")
@click.option("--month", metavar="YYYY-MM", help="Up to sreport's last rollup.")
@window_options
@click.option("--tres", default="gres/gpu", help="gres/gpu or cpu.  [default: gres/gpu]")
@format_options
@db_option
def reconcile_command(
    begin: str | None, end: str | None, tres: str, form: Form, db: str | None, **asked: Any
) -> None:
    """The books beside sreport, and the difference split by cause.

    Run it where sreport runs, after an ingest, as the account that keeps the ledger: it reads the
    ledger itself, not through its service. Without a window: this month. sreport knows whole
    hours up to its last rollup; of the hour that goes on it tells (after `sacctmgr -i roll`) only
    when that hour is all that is asked for.

    \b
    Examples:
      slurmkit report reconcile --month 2026-10
      slurmkit report reconcile --month 2026-10 --tres cpu --timezone Europe/Berlin
      slurmkit report reconcile --from 2026-11-20 --to 2026-11-21
    """
    from slurmkit.slurm import LocalSlurm  # noqa: PLC0415
    from slurmkit_accounting.ledger import open_for_reading  # noqa: PLC0415
    from slurmkit_accounting.reports.reconcile import reconcile_report  # noqa: PLC0415
    from slurmkit_accounting.reports.window import window_of  # noqa: PLC0415
    from slurmkit_accounting.zones import zone  # noqa: PLC0415

    where, now = zone(asked["timezone"]), int(time.time())
    months = {"month": (asked["month"],)} if asked["month"] else {}
    with ExitStack() as stack:
        with _told_of_the_service(db):
            ledger = stack.enter_context(open_for_reading(db))
        span = window_of(begin, end, where, months, now)
        report = reconcile_report(ledger, LocalSlurm(), span, zone=where, tres=tres, now=now)
    show(report, form)


@contextmanager
def _told_of_the_service(db: str | None) -> Iterator[None]:
    """Whoever has no ledger of their own is told where the site's is."""
    from slurmkit_accounting.service.client import configured_remote  # noqa: PLC0415

    try:
        yield
    except LedgerError as error:
        if db or not configured_remote():
            raise
        raise LedgerError(
            "this reads the ledger itself: run it where the ledger's service runs, as its account,"
            f" or name one with --db ({error})"
        ) from error


@click.command("idle")
@click.option(
    "--source", metavar="NAME", help="Who knows: slurm, prometheus, a plugin.  [default: slurm]"
)
@click.option(
    "--below", type=click.FloatRange(0, 100), default=5.0, metavar="PERCENT",
    help="Idle is a GPU less busy than that.  [default: 5]",
)  # fmt: skip
@click.option("--minutes", type=click.IntRange(1), default=30, help="For so long.  [default: 30]")
@format_options
def idle_command(source: str | None, below: float, minutes: int, form: Form) -> None:
    """GPUs that are held now and do nothing.

    Slurm knows what GPUs do where AccountingStorageTRES has gres/gpuutil: of jobs with one GPU, and
    of those that have used none. Prometheus knows each. `?` is unknown.

    \b
    Examples:
      slurmkit report idle
      slurmkit report idle --source prometheus --below 10 --minutes 120
    """
    from slurmkit.slurm import LocalSlurm  # noqa: PLC0415
    from slurmkit_accounting.reports.idle import Bound, idle_report  # noqa: PLC0415

    show(idle_report(LocalSlurm(), source, Bound(below, minutes * 60)), form)


def _flat(by: Sequence[tuple[str, ...]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(by)))


def _show_evidence(found: Evidence, form: Form) -> None:
    import msgspec  # noqa: PLC0415

    if form.name == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    from slurmkit_accounting.render.words import moment  # noqa: PLC0415

    facts = [(name, _fact(name, value)) for name, value in found.row.items()]
    before = [
        (
            f"until {moment(at)}",
            ", ".join(f"{name} {_fact(name, was)}" for name, was in old.items()),
        )
        for at, old in found.revisions
    ]
    lines = [("sacct said", found.line), ("fields", "|".join(found.fields)), ("ask", found.command)]
    key_values([*facts, *before, *(("rejected", line) for line in found.rejects), *lines])


_MOMENTS = frozenset(("submit", "eligible", "start", "end", "last_seen", "gone_since", "retracted"))


def _fact(name: str, value: Any) -> str:
    from slurmkit_accounting.render.words import shown  # noqa: PLC0415

    kind: Kind = "time" if name in _MOMENTS and isinstance(value, int) else "text"
    return shown(value, kind)
