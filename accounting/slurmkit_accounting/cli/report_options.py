"""Options that reports share (window, filters, format), and how a report is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from slurmkit.cli.tables import print_table, print_wrapped
from slurmkit.config.plugins import load_plugin, plugins
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit_accounting.render import render_report
from slurmkit_accounting.render.format import footer_lines
from slurmkit_accounting.render.text import filled_columns, table_columns, text_rows

if TYPE_CHECKING:
    from slurmkit_accounting.reports.model import Report

Command = Callable[..., Any]
# The same as `slurmkit_accounting.reports.dimensions.ALL_DIMENSIONS`, which is slow to import.
DIMENSIONS = (
    "pi", "group", "department", "user", "account", "cluster", "partition", "qos", "gpu-type",
    "state", "hour", "day", "week", "month",
)  # fmt: skip
_FILTER_WORDS = {
    "pi": "PI", "qos": "QOS", "gpu-type": "GPU type", "hour": "hour, as in '2026-10-05 13:00'",
    "day": "day, as in 2026-10-05", "week": "week, as in 2026-W41", "month": "month, as in 2026-10",
}  # fmt: skip
_BINARY_FORMATS = frozenset(("xlsx",))


class DimensionNames(click.ParamType[tuple[str, ...]]):
    """Parameter type: names of dimensions, separated by commas."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split and check the names; a mistake is a one-line error."""
        names = tuple(filter(None, value.split(",")))
        for name in names:
            if name not in DIMENSIONS:
                self.fail(f"{name!r} is not one of {', '.join(map(repr, DIMENSIONS))}", param, ctx)
        return names

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
    """

    name: str
    output: Path | None
    columns: tuple[str, ...]


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
    values_of = {name: asked[name.replace("-", "_")] for name in DIMENSIONS}
    return {name: values for name, values in values_of.items() if values}


def format_options(command: Command) -> Command:
    """Add `--format`, `--json`, `--output` and `--columns`; the command gets them as `form`."""

    def with_form(*args: Any, **options: Any) -> Any:
        output = options.pop("output")
        columns = tuple(filter(None, (options.pop("columns") or "").split(",")))
        name = _choose_format(options.pop("format_name"), options.pop("as_json"), output)
        if columns and name != "table":
            raise BadInput(f"--columns is for tables; {name} has all columns, so leave it out")
        return command(*args, form=OutputFormat(name, output, columns), **options)

    with_form.__doc__, with_form.__name__ = command.__doc__, command.__name__
    params = getattr(command, "__click_params__", [])
    with_form.__click_params__ = params  # type: ignore[attr-defined]
    wrapped: Command = with_form
    for option in (
        click.option(
            "--columns", metavar="NAME,...",
            help="Columns of the table; `all` shows every column.  [default: the main columns]",
        ),
        click.option(
            "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
            help="Write the report to this file; its ending may choose the format, as in x.html.",
        ),
        click.option("--json", "as_json", is_flag=True, help="The same as --format json."),
        click.option(
            "--format", "format_name", metavar="NAME",
            help="table, csv, json, xlsx, html, or the name of a plugin.  [default: table]",
        ),
    ):  # fmt: skip
        wrapped = option(wrapped)
    return wrapped


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
    if form.name == "table":
        _print_table(report, form)
    elif form.output is None:
        sys.stdout.buffer.write(render_report(report, form.name))
    else:
        _write_file(form.output, render_report(report, form.name))
    if form.name in {"table", "csv"}:
        if not report.rows and report.meta.filters:
            _print_no_match(report.meta.filters)
        for line in footer_lines(report.meta):
            print_wrapped("", line, indent=2, err=True)


def _print_no_match(filters: Mapping[str, Sequence[str]]) -> None:
    """Print that nothing matches the filters of a report, and how to see what would."""
    words = ", ".join(f"{name} {' or '.join(values)}" for name, values in filters.items())
    hint = f"to see the names of this window: slurmkit report usage --by {','.join(filters)}"
    print_wrapped("", f"nothing matches {words}; {hint}", indent=2, err=True)


def _print_table(report: Report, form: OutputFormat) -> None:
    columns = table_columns(report, form.columns)
    names = [column.name.upper() for column in columns]
    right = [name for name, one in zip(names, columns, strict=True) if one.kind != "text"]
    print_table(names, text_rows(report, columns), right=right)
    hidden = [one.name for one in filled_columns(report) if one not in columns]
    if hidden and report.rows and not form.columns:
        print_wrapped(
            "", f"not shown: {', '.join(hidden)}; --columns all shows them", indent=2, err=True
        )


def _write_file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SlurmkitError(
            f"cannot write {path}: {error.strerror}; name another --output"
        ) from error
    click.echo(f"written to {path}", err=True)
