"""The work of the report commands: through the read API, or on the ledger itself.

`asked` is what a command got on its command line, by the name of the option.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click

from slurmkit.cli.json_output import JsonOutput
from slurmkit.cli.tables import print_key_values
from slurmkit.config.files import load_section
from slurmkit.errors import NotSent
from slurmkit.formats.display import printable
from slurmkit.slurm import commands
from slurmkit_accounting import read
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli import open_for_reading, open_for_writing
from slurmkit_accounting.cli.array_ids import to_slurm_ids, with_end_reasons, with_user_ids
from slurmkit_accounting.cli.report_options import RUN_SCHEMA, OutputFormat, parse_filters
from slurmkit_accounting.config import ScheduleSection
from slurmkit_accounting.notify.delivery import DeliveryOutcome
from slurmkit_accounting.notify.monthly_mail import PastMonth, mail_month, write_month_mails
from slurmkit_accounting.render.format import format_utc, format_value
from slurmkit_accounting.reports.idle import IdleBound, idle_report
from slurmkit_accounting.reports.model import ColumnKind, Report
from slurmkit_accounting.reports.question import report_window
from slurmkit_accounting.reports.reconcile import reconcile_report


def budget(
    db: str | None, _begin: str | None, _end: str | None, asked: Mapping[str, Any]
) -> Report:
    """Return the report of the budgets."""
    with read.ledger(db) as ledger:
        return read.budget(ledger, timezone=asked["timezone"])


def efficiency(
    db: str | None, begin: str | None, end: str | None, asked: Mapping[str, Any]
) -> Report:
    """Return the report of resources that were held but not used."""
    more = _more_of_job(asked)
    with read.ledger(db) as ledger:
        return read.efficiency(ledger, begin, end, by=_flatten(asked["by"]), **more)


def explain(db: str | None, begin: str | None, end: str | None, asked: Mapping[str, Any]) -> Report:
    """Return the runs behind a cell of a report, with the job ids that users know."""
    more = _more_of_job(asked)
    # Services of an older release know only the usual runs.
    which = {} if asked["runs"] == "held" else {"runs": asked["runs"]}
    with read.ledger(db) as ledger:
        report = read.explain(ledger, begin, end, **which, **more)
    return with_user_ids(with_end_reasons(report) if more["job"] else report)


def capacity(
    db: str | None, begin: str | None, end: str | None, asked: Mapping[str, Any]
) -> Report:
    """Return the report of capacity, use and waiting."""
    more = read.More(timezone=asked["timezone"], filters=parse_filters(asked))
    with read.ledger(db) as ledger:
        return read.capacity(ledger, begin, end, **more)


def nodes(db: str | None, begin: str | None, end: str | None, asked: Mapping[str, Any]) -> Report:
    """Return the report of nodes that were out of use."""
    filters = {name: asked[name] for name in ("month", "cluster") if asked[name]}
    more = read.More(timezone=asked["timezone"], filters=filters)
    with read.ledger(db) as ledger:
        return read.nodes(ledger, begin, end, by=asked["by"], node=asked["node"], **more)


def benchmark(
    db: str | None, begin: str | None, end: str | None, asked: Mapping[str, Any]
) -> Report:
    """Return the report of what `slurmkit benchmark` measured."""
    names = ("month", "cluster", "gpu_type")
    filters = {name: asked[name] for name in names if asked[name]}
    more = read.More(timezone=asked["timezone"], filters=filters)
    chosen = {name: asked[name] for name in ("by", "benchmarks", "below", "mads")}
    with read.ledger(db) as ledger:
        return read.benchmark(ledger, begin, end, **chosen, **more)


def reclaimed(
    db: str | None, begin: str | None, end: str | None, asked: Mapping[str, Any]
) -> Report:
    """Return the report of what was done about idle GPUs, with the job ids that users know."""
    more = _more_of_job(asked)
    with read.ledger(db) as ledger:
        return with_user_ids(read.reclaimed(ledger, begin, end, **more))


def wait(db: str | None, begin: str | None, end: str | None, asked: Mapping[str, Any]) -> Report:
    """Return the report of waiting times."""
    more = read.More(timezone=asked["timezone"], filters=parse_filters(asked))
    with read.ledger(db) as ledger:
        return read.wait(ledger, begin, end, by=_flatten(asked["by"]), **more)


def usage(db: str | None, begin: str | None, end: str | None, asked: Mapping[str, Any]) -> Report:
    """Return the report of usage and costs; the option `panels` adds the series for charts."""
    more = _more_of_job(asked)
    more["suspended"] = asked["suspended"]
    with read.ledger(db) as ledger:
        return read.usage(
            ledger, begin, end, by=_flatten(asked["by"]), panels=asked["panels"], **more
        )


REPORTS = {
    "benchmark": benchmark,
    "budget": budget,
    "capacity": capacity,
    "efficiency": efficiency,
    "nodes": nodes,
    "reclaimed": reclaimed,
    "usage": usage,
    "wait": wait,
}


def _more_of_job(asked: Mapping[str, Any]) -> read.More:
    """Return the zone, the filters and the job of a report; the job with Slurm's own ids."""
    job = to_slurm_ids(asked["job"], asked["cluster"])
    return read.More(timezone=asked["timezone"], filters=parse_filters(asked), job=job)


def _flatten(by: Sequence[tuple[str, ...]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(by)))


def print_evidence(db: str | None, row: int, form: OutputFormat) -> None:
    """Print everything that the ledger has of one run.

    Args:
        db: URL of the ledger's database; None for the usual one.
        row: number of the run in the ledger.
        form: the output; JSON, or else names and values.
    """
    with read.ledger(db) as ledger:
        evidence = read.evidence(ledger, row)
    if form.name == "json":
        JsonOutput(RUN_SCHEMA).print([evidence])
        return
    absent = _words_if_absent(evidence.row)
    facts = [(name, _format_fact(name, value, absent)) for name, value in evidence.row.items()]
    before = [
        (
            f"until {format_utc(at)}",
            ", ".join(f"{name} {_format_fact(name, was, absent)}" for name, was in old.items()),
        )
        for at, old in evidence.revisions
    ]
    lines = [
        ("sacct line", evidence.line),
        ("fields", "|".join(evidence.fields)),
        ("ask again", evidence.command),
    ]
    print_key_values([*facts, *before, *(("rejected", line) for line in evidence.rejects), *lines])


_TIME_COLUMNS = frozenset(
    ("submit", "eligible", "start", "end", "last_seen", "gone_since", "retracted")
)
_NO_IF_ABSENT = ("cancelled_by", "gone_since", "retracted", "doubt")


def _words_if_absent(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what to show for a column without a value, if that is not unknown."""
    words = dict.fromkeys(_NO_IF_ABSENT, "no")
    if row["db_index"] is not None:
        words["sluid"] = "none before Slurm 24.11"
    if row["end"] is not None:
        words |= {"start": "never", "last_seen": ""}
    elif row["gone_since"] is None:
        words |= {"start": "not yet", "end": "not yet"}
    return words


def _format_fact(name: str, value: Any, absent: Mapping[str, str]) -> str:
    if value is None and name in absent:
        return absent[name]
    if isinstance(value, bool):
        return "yes" if value else "no"
    kind: ColumnKind = "time" if name in _TIME_COLUMNS and isinstance(value, int) else "text"
    return format_value(value, kind)


def mail_reports(
    month: str,
    timezone: str | None,
    dry_run: Path | None,
    db: str | None,
    *,
    again: bool,
    as_json: JsonOutput | None = None,
) -> None:
    """Mail each PI the report of a month; with a folder `dry_run`, write the mails there instead.

    Args:
        month: YYYY-MM.
        timezone: of the month; None for the service's time zone.
        dry_run: folder for .eml files.
        db: URL of the ledger's database; None for the usual one.
        again: send mails again that may have arrived.
        as_json: print what became of each mail as JSON.
    """
    where = timezone or load_section("ledger.schedule", ScheduleSection).timezone
    which = PastMonth(month, find_zone(where or None), int(time.time()))
    if dry_run:
        _write_mails(which, dry_run, db, as_json)
    else:
        _send_mails(which, db, as_json, again=again)


def reconcile(
    db: str | None,
    begin: str | None,
    end: str | None,
    *,
    month: str | None,
    timezone: str | None,
    tres: str,
) -> Report:
    """Return the report that compares the ledger with sreport.

    Args:
        db: URL of the ledger's database; None for the usual one.
        begin: date at which the window begins.
        end: date at which the window ends.
        month: YYYY-MM, instead of the dates.
        timezone: of the dates; None for the host's.
        tres: `gres/gpu` or `cpu`.
    """
    where, now = find_zone(timezone), int(time.time())
    months = {"month": (month,)} if month else {}
    with open_for_reading(db) as ledger:
        span = report_window(begin, end, where, months, now)
        return reconcile_report(
            ledger, commands.LocalSlurmCommands(), span, zone=where, tres=tres, now=now
        )


def idle(source: str | None, below: float, seconds: int) -> Report:
    """Return the report of GPUs whose utilization stays below some percent for some seconds."""
    return idle_report(commands.LocalSlurmCommands(), source, IdleBound(below, seconds))


def _write_mails(
    month: PastMonth, folder: Path, db: str | None, as_json: JsonOutput | None
) -> None:
    rows = []
    with open_for_reading(db) as ledger:
        for pi, path in write_month_mails(ledger, month, folder):
            rows.append({"pi": pi.name, "outcome": "written", "why": "", "file": str(path)})
            if not as_json:
                click.echo(f"{printable(pi.name)}: {printable(str(path))}")
    if as_json:
        as_json.print(rows)


def _send_mails(
    month: PastMonth, db: str | None, as_json: JsonOutput | None, *, again: bool
) -> None:
    missed, rows = 0, []
    with open_for_writing(db) as ledger:
        for result in mail_month(ledger, month, again=again):
            name, outcome = result.pi.name, result.outcome.value
            rows.append({"pi": name, "outcome": outcome, "why": result.why, "file": None})
            if not as_json:
                why = f": {printable(result.why)}" if result.why else ""
                click.echo(f"{printable(name)}: {outcome}{why}")
            missed += result.outcome in {DeliveryOutcome.FAILED, DeliveryOutcome.DOUBTFUL}
    if as_json:
        as_json.print(rows)
    if missed:
        raise NotSent(
            f"{missed} mails were not sent, or may not have arrived; the reasons are above. Run the"
            " command again; add --again to also repeat mails that may have arrived"
        )
