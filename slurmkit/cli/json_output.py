"""`--json`: one JSON shape for every command; `--json=0.1` prints the shapes of slurmkit 0.1.

Each output is one object with the keys `schema`, `taken` and `rows`. What is no row is a key beside
them. docs/json.md lists the commands and their keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

OLD_SHAPE = "0.1"
# What was added since 0.1: name of an object -> its new keys.
_ADDED_KEYS = {
    "clusters": frozenset(("reused",)),
    "launch": frozenset(("cpu-bind",)),
    "meta": frozenset(("definitions",)),
    "outcome": frozenset(("exit_codes", "part", "part_words")),
    "reject": frozenset(("dismissed", "dismissed_because", "dismissed_by")),
    "verify result": frozenset(("notes",)),
    "why": frozenset(("compared", "running")),
}
_NEW_SHAPE = "newest"  # no text after `=` reads like this


class JsonOutput(msgspec.Struct, frozen=True):
    """The JSON that `--json` asks a command for.

    Attributes:
        schema: name and version of the shape, e.g. `slurmkit.queue/1`.
        is_old: whether the shape of slurmkit 0.1 is wanted.
    """

    schema: str
    is_old: bool = False

    def of(self, schema: str) -> JsonOutput:
        """Return the output for another schema, of a command whose options choose the rows."""
        return msgspec.structs.replace(self, schema=schema)

    def encode(
        self,
        rows: Iterable[object],
        *,
        taken: float | None = None,
        beside: Mapping[str, object] | None = None,
        old: object = None,
    ) -> str:
        """Return the output as one line.

        Args:
            rows: the rows.
            taken: when the data was read, epoch seconds; None for now.
            beside: what is no row, by key.
            old: the value that slurmkit 0.1 printed, or a function that returns its text.
        """
        if self.is_old:
            return str(old()) if callable(old) else msgspec.json.encode(in_old_shape(old)).decode()
        return encode_rows(self.schema, rows, taken=taken, beside=beside)

    def print(
        self,
        rows: Iterable[object],
        *,
        taken: float | None = None,
        beside: Mapping[str, object] | None = None,
        old: object = None,
    ) -> None:
        """Print the output; see `encode`."""
        click.echo(self.encode(rows, taken=taken, beside=beside, old=old))


def indented(value: object, name: str = "") -> str:
    """Return a value as indented JSON, as slurmkit 0.1 printed the ledger's."""
    return msgspec.json.format(msgspec.json.encode(in_old_shape(value, name)), indent=2).decode()


def in_old_shape(value: object, name: str = "") -> object:
    """Return a value as plain data without the keys that slurmkit 0.1 did not have.

    Args:
        value: the value.
        name: its name in `_ADDED_KEYS`.
    """
    return _without_added_keys(msgspec.to_builtins(value), name)


def _without_added_keys(data: Any, name: str) -> Any:
    if isinstance(data, dict):
        added = _ADDED_KEYS.get(name, frozenset())
        old = {k: _without_added_keys(v, k) for k, v in data.items() if k not in added}
        if name == "outcome" and old.get("exit_code") is None and data.get("exit_codes"):
            old["exit_code"] = data["exit_codes"][0]
        return old
    if isinstance(data, list | tuple):
        return [_without_added_keys(each, name) for each in data]
    if name == "exit_code" and isinstance(data, str) and " or " in data:
        return f"{data.partition(' or ')[0]}:0"  # as sacct says it, perhaps without its 128
    return data


def encode_rows(
    schema: str,
    rows: Iterable[object],
    *,
    taken: float | None = None,
    beside: Mapping[str, object] | None = None,
) -> str:
    """Return rows as one line of JSON in the shape of every command; see `JsonOutput.encode`."""
    at = datetime.fromtimestamp(int(time.time() if taken is None else taken), UTC)
    when = f"{at:%Y-%m-%dT%H:%M:%SZ}"
    envelope = {"schema": schema, "taken": when, "rows": list(rows), **(beside or {})}
    return msgspec.json.encode(envelope).decode()


class JsonOption(click.Option):
    """The option `--json`, a flag that may have a value after `=`.

    Attributes:
        schemas: the shapes that the command prints.
        has_old: whether slurmkit 0.1 had `--json` for this command.
    """

    def __init__(self, *args: Any, schemas: tuple[str, ...], has_old: bool, **more: Any) -> None:
        self.schemas, self.has_old = schemas, has_old
        super().__init__(*args, **more)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser take a value after `=` alone.

        click would take the next word for the value of an option that may have one.
        """
        super().add_to_parser(parser, ctx)
        match = parser._match_long_opt  # noqa: SLF001 - click has no other way

        def match_json(opt: str, value: str | None, state: Any) -> None:
            if opt not in self.opts or value is None:
                match(opt, value, state)
                return
            state.opts[self.name] = f"={value}"
            state.order.append(self)

        parser._match_long_opt = match_json  # noqa: SLF001

    def type_cast_value(self, ctx: click.Context, value: Any) -> JsonOutput | None:
        """Return what is asked for; None without `--json`."""
        if value is None or isinstance(value, JsonOutput):
            return value
        if value == _NEW_SHAPE:
            return JsonOutput(self.schemas[0])
        if value == f"={OLD_SHAPE}" and self.has_old:
            return JsonOutput(self.schemas[0], is_old=True)
        allowed = f"--json or --json={OLD_SHAPE}" if self.has_old else "--json"
        raise click.BadParameter(f"--json{value} is not known here; give {allowed}", ctx, self)


def json_option(
    *schemas: str, text: str, has_old: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `--json` as a decorator; the command gets a `JsonOutput` as `as_json`.

    Args:
        schemas: the shapes that the command prints; the first one unless it chooses another.
        text: the help text.
        has_old: whether slurmkit 0.1 had `--json` for this command.
    """
    return click.option(
        "--json",
        "as_json",
        cls=JsonOption,
        is_flag=True,
        flag_value=_NEW_SHAPE,
        type=str,
        schemas=schemas,
        has_old=has_old,
        help=text,
    )
