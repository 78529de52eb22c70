"""`slurmkit config`: what holds, what is wrong, and what Slurm itself is to know."""

from __future__ import annotations

import click
import msgspec

from slurmkit.cli.show import table
from slurmkit.config import config_paths
from slurmkit.errors import BadConfig
from slurmkit.text import printable


@click.group("config")
def config_group() -> None:
    """Show and check the configuration.

    \b
    Example:
      slurmkit config check
    """


@config_group.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print the settings as JSON.")
def show_command(*, as_json: bool) -> None:
    """Show every section and key: its value, where that comes from, and what it means.

    \b
    Examples:
      slurmkit config show
      slurmkit config show --json | jq '.[] | select(.source != "default")'
    """
    from slurmkit.configcheck import survey  # noqa: PLC0415 - imports every package's sections

    found = survey()
    if found.problems:
        raise BadConfig(f"{found.problems[0]}; all that is wrong: slurmkit config check")
    settings = found.settings
    if as_json:
        click.echo(msgspec.json.encode(settings))
        return
    rows = [(s.section, s.key, _word(s.value), s.source, s.meaning) for s in settings]
    table(("SECTION", "KEY", "VALUE", "FROM", "MEANING"), rows)
    click.echo(f"files, the last wins: {_files()}", err=True)


@config_group.command("check")
@click.option("--json", "as_json", is_flag=True, help="Print the problems as JSON.")
def check_command(*, as_json: bool) -> None:
    """Check every configuration file: unknown sections and keys, wrong types and values.

    Ends with exit code 2 when something is wrong.

    \b
    Examples:
      slurmkit config check
      SLURMKIT_CONFIG=./new.toml slurmkit config check && sudo install new.toml /etc/slurmkit/
    """
    from slurmkit.configcheck import survey  # noqa: PLC0415 - imports every package's sections

    problems = survey().problems
    if as_json:
        click.echo(msgspec.json.encode(problems))
    else:
        for problem in problems:
            click.echo(printable(str(problem)))
    if problems:
        plural = "" if len(problems) == 1 else "s"
        raise BadConfig(f"{len(problems)} problem{plural} in the configuration")
    click.echo(f"nothing wrong in: {_files()}", err=True)


@config_group.command("slurm-lua")
def slurm_lua_command() -> None:
    """Print what job_submit.lua needs to know of this cluster: limits and words, as Lua.

    The limits are those of the nodes as they are now: run it again when nodes have changed.

    \b
    Example:
      slurmkit config slurm-lua > /etc/slurm/slurmkit_site.lua
    """
    from slurmkit.capabilities.read import read_capabilities  # noqa: PLC0415
    from slurmkit.slurm import LocalSlurm  # noqa: PLC0415
    from slurmkit.slurmlua import site_lua  # noqa: PLC0415

    click.echo(site_lua(read_capabilities(LocalSlurm())), nl=False)


def _word(value: object) -> str:
    return "not set" if value is None else msgspec.json.encode(value).decode()


def _files() -> str:
    shown = (f"{path}{'' if path.exists() else ' (absent)'}" for path in config_paths())
    return printable(", ".join(shown))
