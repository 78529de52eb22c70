"""Options that reports share: their window, whose usage, and in which format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from slurmkit.errors import BadInput
from slurmkit.plugins import load, plugins

Command = Callable[..., Any]
# As `slurmkit_accounting.reports.dimensions.ALL`, which is not imported before it is used.
NAMES = (
    "pi", "group", "department", "user", "account", "cluster", "partition", "qos", "gpu-type",
    "state", "hour", "day", "week", "month",
)  # fmt: skip
_BINARY = frozenset(("xlsx",))


class Names(click.ParamType[tuple[str, ...]]):
    """Dimensions, by comma."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """See that there are such; a mistake is one line."""
        names = tuple(filter(None, value.split(",")))
        for name in names:
            if name not in NAMES:
                self.fail(f"{name!r} is not one of {', '.join(map(repr, NAMES))}", param, ctx)
        return names


class Form(NamedTuple):
    """How a report is to be shown.

    Attributes:
        name: of the format.
        output: the file to write; None for standard output.
        columns: of a table, or `all`; empty for those that one looks at first.
    """

    name: str
    output: Path | None
    columns: tuple[str, ...]


def window_options(command: Command) -> Command:
    """Give a command `--from`, `--to` and `--timezone`."""
    for option in (
        click.option(
            "--timezone", metavar="TZ", help="What the dates mean.  [default: the host's]"
        ),
        click.option("--to", "end", metavar="DATE", help="Likewise; not included."),
        click.option("--from", "begin", metavar="DATE", help="YYYY-MM-DD[THH:MM:SS]."),
    ):
        command = option(command)
    return command


def filter_options(command: Command) -> Command:
    """Give a command an option for each dimension, which leaves everything else out."""
    for name in reversed(NAMES):
        text = f"Only this {name.replace('-', ' ')}; may be given several times."
        command = click.option(f"--{name}", metavar="NAME", multiple=True, help=text)(command)
    return command


def filters_of(asked: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """What the options of `filter_options` say."""
    found = {name: asked[name.replace("-", "_")] for name in NAMES}
    return {name: values for name, values in found.items() if values}


def format_options(command: Command) -> Command:
    """Give a command `--format`, `--json`, `--output` and `--columns`, together as `form`."""

    def made(*args: Any, **asked: Any) -> Any:
        output = asked.pop("output")
        columns = tuple(filter(None, (asked.pop("columns") or "").split(",")))
        name = _format(asked.pop("format_name"), asked.pop("as_json"), output)
        if columns and name != "table":
            raise BadInput(f"--columns is for tables; {name} has all columns, so leave it out")
        return command(*args, form=Form(name, output, columns), **asked)

    made.__doc__, made.__name__ = command.__doc__, command.__name__
    made.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    wrapped: Command = made
    for option in (
        click.option(
            "--columns", metavar="NAME,...",
            help="Of a table; all for every one.  [default: those one looks at first]",
        ),
        click.option(
            "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
            help="Write it there; its ending may say the format.",
        ),
        click.option("--json", "as_json", is_flag=True, help="The same as --format json."),
        click.option(
            "--format", "format_name", metavar="NAME",
            help="table, csv, json, xlsx, html, or that of a plugin.  [default: table]",
        ),
    ):  # fmt: skip
        wrapped = option(wrapped)
    return wrapped


def _format(name: str | None, as_json: bool, output: Path | None) -> str:  # noqa: FBT001
    """The format that options and the ending of a file say; refused before the ledger is asked."""
    chosen = name or ("json" if as_json else _ending(output) if output else "table")
    if chosen == "table":
        if output:
            raise BadInput(
                f"a table is for the terminal; write {_known()}, or send it there with >"
            )
        return chosen
    load("renderers", chosen)
    if chosen in _BINARY and output is None and sys.stdout.isatty():
        raise BadInput(f"{chosen} is not for a terminal; write it with --output FILE.{chosen}")
    return chosen


def _ending(output: Path) -> str:
    ending = output.suffix.removeprefix(".")
    if ending not in plugins("renderers"):
        raise BadInput(
            f"the ending of {output.name} says no format; end it with {_known()}, or name one with"
            " --format"
        )
    return ending


def _known() -> str:
    return ", ".join(plugins("renderers"))
