"""`--json`: one JSON shape for every command.

Each output is one object with the keys `schema`, `taken` and `rows`. Facts about the
answer as a whole are further keys. docs/json.md lists the commands and their keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import click
import msgspec


class JsonOutput(msgspec.Struct, frozen=True):
    """The JSON that `--json` asks a command for.

    Attributes:
        schema: name and version of the shape, e.g. `slurmkit.queue/1`.
    """

    schema: str

    def of(self, schema: str) -> JsonOutput:
        """Return the output for another schema, of a command whose options choose the rows."""
        return msgspec.structs.replace(self, schema=schema)

    def encode(
        self,
        rows: Iterable[object],
        *,
        taken: float | None = None,
        further: Mapping[str, object] | None = None,
    ) -> str:
        """Return the output as one line.

        Args:
            rows: the rows.
            taken: when the data was read, epoch seconds; None for now.
            further: further keys of the object and their values.
        """
        return encode_rows(self.schema, rows, taken=taken, further=further)

    def print(
        self,
        rows: Iterable[object],
        *,
        taken: float | None = None,
        further: Mapping[str, object] | None = None,
    ) -> None:
        """Print the output; see `encode`."""
        click.echo(self.encode(rows, taken=taken, further=further))


def encode_rows(
    schema: str,
    rows: Iterable[object],
    *,
    taken: float | None = None,
    further: Mapping[str, object] | None = None,
) -> str:
    """Return rows as one line of JSON in the shape of every command; see `JsonOutput.encode`."""
    at = datetime.fromtimestamp(int(time.time() if taken is None else taken), UTC)
    when = f"{at:%Y-%m-%dT%H:%M:%SZ}"
    envelope = {"schema": schema, "taken": when, "rows": list(rows), **(further or {})}
    return msgspec.json.encode(envelope).decode()


class JsonOption(click.Option):
    """The flag `--json`.

    Attributes:
        schemas: the shapes that the command prints.
    """

    def __init__(self, *args: Any, schemas: tuple[str, ...], **more: Any) -> None:
        self.schemas = schemas
        super().__init__(*args, **more)

    def type_cast_value(self, ctx: click.Context, value: Any) -> JsonOutput | None:  # noqa: ARG002
        """Return what is asked for; None without `--json`."""
        return JsonOutput(self.schemas[0]) if value else None


def json_option(*schemas: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `--json` as a decorator; the command gets a `JsonOutput` as `as_json`.

    Args:
        schemas: the shapes that the command prints; the first one unless it chooses another.
        text: the help text.
    """
    return click.option(
        "--json", "as_json", cls=JsonOption, is_flag=True, schemas=schemas, help=text
    )
