"""`slurmkit plugins`."""

from __future__ import annotations

import click
import msgspec

from slurmkit.cli.show import table
from slurmkit.cli.table import COMMANDS
from slurmkit.errors import BrokenPlugin
from slurmkit.plugins import KINDS, OURS, UNREADABLE, Plugin, plugins, registered


class Line(msgspec.Struct, frozen=True):
    """One plugin as it is listed.

    Attributes:
        module: `module:object`, as it was registered.
        state: `not loaded`, `loaded`, `unused` or `failed`.
        why: for the last two.
    """

    kind: str
    name: str
    distribution: str
    version: str
    module: str
    state: str
    why: str = ""


@click.command("plugins")
@click.option("--check", is_flag=True, help="Import every plugin; exit code 1 if one is broken.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def plugins_command(*, check: bool, as_json: bool) -> None:
    """List what plugins are installed, by kind, and who ships them.

    \b
    Examples:
      slurmkit plugins
      slurmkit plugins --check
      slurmkit plugins --json | jq -r '.[] | select(.kind == "policies") | .name'
    """
    lines = [_line(plugin, check=check) for plugin in registered()]
    if as_json:
        click.echo(msgspec.json.encode(lines))
    else:
        rows = [(*_words(line), _state(line)) for line in lines]
        table(("KIND", "NAME", "FROM", "MODULE", "STATE"), rows)
    failed = [line for line in lines if line.state == "failed"]
    if check and failed:
        plural = "" if len(failed) == 1 else "s"
        raise BrokenPlugin(f"{len(failed)} broken plugin{plural}")


def _line(plugin: Plugin, *, check: bool) -> Line:
    state, why = _looked_at(plugin, check=check)
    return Line(
        plugin.kind, plugin.name, plugin.distribution, plugin.version, plugin.target, state, why
    )


def _looked_at(plugin: Plugin, *, check: bool) -> tuple[str, str]:
    if plugin.kind == UNREADABLE:
        return "failed", "its list of entry points cannot be read; install it anew"
    if why := _unused(plugin):
        return "unused", why
    if not check:
        return "not loaded", ""
    try:
        plugin.load()
    except BrokenPlugin as error:
        return "failed", str(error)
    return "loaded", ""


def _unused(plugin: Plugin) -> str:
    if plugin.kind not in KINDS:
        return f"there is no kind {plugin.kind!r}; there are {', '.join(KINDS)}"
    if plugin.kind == "commands" and plugin.name in COMMANDS:
        return f"the name is taken by {OURS}"
    taken_by = plugins(plugin.kind)[plugin.name]
    return "" if taken_by == plugin else f"the name is taken by {taken_by.distribution}"


def _words(line: Line) -> tuple[str, ...]:
    return line.kind, line.name, f"{line.distribution} {line.version}", line.module


def _state(line: Line) -> str:
    return f"{line.state}: {line.why}" if line.why else line.state
