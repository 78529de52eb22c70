"""Options that reports share (window, filters, format), and how a report is shown."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem
from msgspec.structs import replace

from slurmkit.cli.json_output import json_option
from slurmkit.cli.tables import Fit, print_table, print_wrapped
from slurmkit.config.plugins import load_plugin, plugins
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit_accounting.render import render_report
from slurmkit_accounting.render.format import footer_lines
from slurmkit_accounting.render.text import (
    filled_columns,
    table_columns,
    table_headings,
    text_rows,
    text_total,
)

if TYPE_CHECKING:
    from slurmkit_accounting.reports.model import Meta, Report

Command = Callable[..., Any]
# The same as `slurmkit_accounting.reports.dimensions.ALL_DIMENSIONS`, which is slow to import;
# options are spelt with a hyphen, columns with an underscore.
DIMENSIONS = (
    "pi", "group", "department", "user", "account", "cluster", "partition", "qos", "gpu-type",
    "state", "hour", "day", "week", "month",
)  # fmt: skip
_FILTER_WORDS = {
    "pi": "PI", "qos": "QOS", "gpu-type": "GPU type", "hour": "hour, as in '2026-10-05 13:00'",
    "day": "day, as in 2026-10-05", "week": "week, as in 2026-W41", "month": "month, as in 2026-10",
}  # fmt: skip
_BINARY_FORMATS = frozenset(("xlsx",))
RUN_SCHEMA = "slurmkit.report.run/1"
# What a table gives up first on a narrow terminal: names of columns, by report. The dimensions
# stay; of a report that is not named here, the last columns go first.
_FITS = {
    "usage": Fit(whole=("gpu_hours",)),
    "efficiency": Fit(
        wrapped=("asked", "would_have_fitted"),
        least=(
            "cpu_hours_wasted", "gpu_hours_wasted", "cpu_efficiency", "gpu_efficiency", "jobs",
            "smaller_gpu", "gpu_hours_smaller", "gpu_hours_idle",
        ),
    ),
    "explain": Fit(
        whole=("job", "state", "gpu_hours"),
        least=(
            "doubt", "cluster", "pi_by", "nodes", "cpu_hours", "account", "pi", "end", "gpus",
            "row",
        ),
    ),
    "benchmark": Fit(
        whole=("node", "gpu", "verdict", "median", "per_price"),
        wrapped=("trouble",),
        least=(
            "method", "torch", "driver", "highest", "lowest", "cloud_price", "per_cloud_price",
            "failed", "measured", "at", "spread",
        ),
    ),
    "budget": Fit(
        whole=("pi", "used", "runs_out", "notice"),
        least=("from", "gpu_hours_per_day", "to", "gpu_hours_budget", "gpu_hours_used"),
    ),
    "idle": Fit(
        whole=("node", "gpu", "job", "idle"),
        least=("account", "measured_minutes", "gpu_type", "held_hours", "busiest"),
    ),
    "reclaim": Fit(
        whole=("policy", "job", "unknown", "gpu_hours_won_back"),
        least=("account", "covered", "samples", "partition", "worked_again", "mails"),
    ),
    "reclaimed": Fit(
        whole=("at", "job", "user", "action", "outcome", "gpu_hours_at_most"),
        wrapped=("why",),
        least=("cluster", "covered", "samples", "window_minutes", "account", "partition", "pi"),
    ),
    "reconcile": Fit(whole=("what", "seconds"), wrapped=("why",), least=("hours",)),
}  # fmt: skip


class DimensionNames(click.ParamType[tuple[str, ...]]):
    """Parameter type: names of dimensions, separated by commas."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split and check the names; a mistake is a one-line error."""
        names = tuple(filter(None, value.split(",")))
        known = {dimension.replace("-", "_"): dimension for dimension in DIMENSIONS}
        for name in names:
            if name.replace("-", "_") not in known:
                self.fail(f"{name!r} is not one of {', '.join(map(repr, DIMENSIONS))}", param, ctx)
        return tuple(name.replace("-", "_") for name in names)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the text so far with each dimension that the last name could become."""
        del ctx, param
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + n) for n in DIMENSIONS if n.startswith(last)]


class OutputFormat(NamedTuple):
    """The output format of a report.

    Attributes:
        name: name of the format.
        output: the file to write; None for standard output.
        columns: columns of a table, or `all`; empty for the main columns.
        notes: whether the lines below a table say all there is to know.
        total: whether there is a row of totals; None leaves that to the format.
    """

    name: str
    output: Path | None
    columns: tuple[str, ...]
    notes: bool = False
    total: bool | None = None


def window_options(command: Command) -> Command:
    """Add `--from`, `--to` and `--timezone` to a command."""
    for option in (
        click.option(
            "--timezone", metavar="TZ", help="Time zone of the dates.  [default: the host's]"
        ),
        click.option("--to", "end", metavar="DATE", help="End of the window; not included."),
        click.option(
            "--from", "begin", metavar="DATE", help="Begin of the window: YYYY-MM-DD[THH:MM:SS]."
        ),
    ):
        command = option(command)
    return command


def filter_options(command: Command) -> Command:
    """Add an option for each dimension, which filters by its values, to a command."""
    for name in reversed(DIMENSIONS):
        text = f"Only this {_FILTER_WORDS.get(name, name)}; may be given several times."
        command = click.option(f"--{name}", metavar="NAME", multiple=True, help=text)(command)
    return command


def parse_filters(asked: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Return the filters that the options of `filter_options` set."""
    columns = [name.replace("-", "_") for name in DIMENSIONS]
    values_of = {name: asked[name] for name in columns}
    return {name: values for name, values in values_of.items() if values}


def format_options(command: Command) -> Command:
    """Add the options of the output; the command gets them as `form`."""

    def with_form(*args: Any, **options: Any) -> Any:
        output, notes, total = (options.pop(name) for name in ("output", "notes", "total"))
        named = (options.pop("columns") or "").replace("gpu-type", "gpu_type")
        columns = tuple(filter(None, named.split(",")))
        as_json = options.pop("as_json") is not None
        name = _choose_format(options.pop("format_name"), as_json, output)
        if columns and name != "table":
            raise BadInput(f"--columns is for tables; {name} has all columns, so leave it out")
        form = OutputFormat(name, output, columns, notes, total)
        return command(*args, form=form, **options)

    with_form.__doc__, with_form.__name__ = command.__doc__, command.__name__
    params = getattr(command, "__click_params__", [])
    with_form.__click_params__ = params  # type: ignore[attr-defined]
    wrapped: Command = with_form
    for option in (
        click.option(
            "--notes", is_flag=True,
            help="Below a table or CSV, say all about the numbers, also how columns are counted.",
        ),
        click.option(
            "--total/--no-total", default=None,
            help="End with a row of totals, or not; JSON has it as meta.total.  [default: a row,"
            " but none in CSV]",
        ),
        click.option(
            "--columns", metavar="NAME,...",
            help="Columns of the table; `all` shows every column.  [default: the main columns]",
        ),
        click.option(
            "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
            help="Write the report to this file; its ending may choose the format, as in x.html.",
        ),
        json_option(
            *_schemas(command), text="The same as --format json."
        ),
        click.option(
            "--format", "format_name", metavar="NAME",
            help="table, csv, json, xlsx, html, or the name of a plugin.  [default: table]",
        ),
    ):  # fmt: skip
        wrapped = option(wrapped)
    return wrapped


def _schemas(command: Command) -> tuple[str, ...]:
    """Return the JSON shapes of a report's command; `explain` also shows one run."""
    name = command.__name__.removesuffix("_command")
    return (f"slurmkit.report.{name}/1", *((RUN_SCHEMA,) if name == "explain" else ()))


def _choose_format(name: str | None, as_json: bool, output: Path | None) -> str:  # noqa: FBT001
    """Return the format from the options or the file's ending; check it before a slow query."""
    chosen = name or ("json" if as_json else _format_of_ending(output) if output else "table")
    if chosen == "table":
        if output:
            raise BadInput(
                "a table is for the terminal; give --output another --format"
                f" ({_known_formats()}), or redirect the table with >FILE"
            )
        return chosen
    load_plugin("renderers", chosen)
    if chosen in _BINARY_FORMATS and output is None and sys.stdout.isatty():
        raise BadInput(f"{chosen} is not for a terminal; write it with --output FILE.{chosen}")
    return chosen


def _format_of_ending(output: Path) -> str:
    ending = output.suffix.removeprefix(".")
    if ending not in plugins("renderers"):
        raise BadInput(
            f"the ending of {output.name} is not a known format;"
            f" use one of {_known_formats()}, or choose one with --format"
        )
    return ending


def _known_formats() -> str:
    return ", ".join(plugins("renderers"))


def show_report(report: Report, form: OutputFormat) -> None:
    """Print or write a report in a format.

    Raises:
        BadInput: for an unknown column or format.
        SlurmkitError: when the file cannot be written.
    """
    report = replace(report, total_row=form.total)
    if form.name == "table":
        _print_table(report, form)
    elif form.output is None:
        sys.stdout.buffer.write(_render(report, form))
    else:
        _write_file(form.output, _render(report, form))
    if not report.rows and (form.output or form.name in {"table", "csv"}):
        for line in _why_no_rows(report.meta):
            print_wrapped("", line, indent=2, err=True)
    if form.name in {"table", "csv"}:
        for line in footer_lines(report.meta, brief=not form.notes):
            print_wrapped("", line, indent=2, err=True)
        if form.name == "table" and report.rows and (more := list(_more(report, form))):
            print_wrapped("", f"more: {', '.join(more)}", indent=2, err=True)


def _render(report: Report, form: OutputFormat) -> bytes:
    return render_report(report, form.name)


def _why_no_rows(meta: Meta) -> Iterator[str]:
    """Yield that nothing matches what a report was asked for, and how to see what would."""
    if meta.filters:
        words = ", ".join(f"{name} {' or '.join(values)}" for name, values in meta.filters.items())
        known = ",".join(
            name.replace("_", "-") for name in meta.filters if name not in {"benchmark", "month"}
        )
        command = f"slurmkit report usage --by {known}{_window_asked()}"
        hint = f"; to see the names of this window: {command}" if known else ""
        yield f"nothing matches {words}{hint}"
    if meta.job:
        yield (
            f"nothing of job {meta.job} in this window (another: --from DATE), or the ledger has"
            " not read its end yet, or you may not see it"
        )


def _window_asked() -> str:
    """Return the options of the window that the command was given."""
    context = click.get_current_context(silent=True)
    given = context.params if context else {}
    options = {"begin": "from", "end": "to", "timezone": "timezone", "month": "month"}
    parts = [
        f" --{option} {shlex.quote(value)}"
        for name, option in options.items()
        for value in ([given[name]] if isinstance(given.get(name), str) else given.get(name) or ())
    ]
    return "".join(parts)


def _print_table(report: Report, form: OutputFormat) -> None:
    columns = table_columns(report, form.columns)
    headings = table_headings(report, columns)
    heading_of = {one.name: heading for one, heading in zip(columns, headings, strict=True)}
    total = text_total(report, columns)
    print_table(
        headings,
        [*text_rows(report, columns), *([total] if total else [])],
        right=[heading_of[one.name] for one in columns if one.kind != "text"],
        fit=_fit(report, heading_of),
    )


def _fit(report: Report, heading_of: Mapping[str, str]) -> Fit:
    """Return what matters most in a report, by the headings of the columns that are shown."""
    fit = _FITS.get(report.meta.report, Fit())

    def headings(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(heading_of[name] for name in names if name in heading_of)

    whole = headings((*report.meta.by, *fit.whole))
    return Fit(whole, headings(fit.wrapped), headings(fit.least))


def _more(report: Report, form: OutputFormat) -> Iterator[str]:
    """Yield what a table does not show, and the options that show it."""
    shown = table_columns(report, form.columns)
    hidden = [one.name for one in filled_columns(report) if one not in shown]
    if hidden and not form.columns:
        number = "1 column" if len(hidden) == 1 else f"{len(hidden)} columns"
        named = f" ({', '.join(hidden)})" if form.notes else ""
        yield f"{number} with --columns all{named}"
    if not form.notes and list(footer_lines(report.meta)) != list(
        footer_lines(report.meta, brief=True)
    ):
        yield "how this is counted with --notes"


def _write_file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SlurmkitError(
            f"cannot write {path}: {error.strerror}; name another --output"
        ) from error
    click.echo(f"written to {path}", err=True)
