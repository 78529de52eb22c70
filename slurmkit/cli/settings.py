"""`slurmkit config`, `plugins` and `doctor`: the settings, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import click
import msgspec

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.main import COMMANDS
from slurmkit.cli.tables import Fit, in_colour, print_table, print_wrapped
from slurmkit.cluster.cluster import Cluster
from slurmkit.config.check import check_named_files, inspect_configuration
from slurmkit.config.files import config_paths, did_you_mean
from slurmkit.config.plugins import (
    KINDS,
    OWN_DISTRIBUTION,
    UNREADABLE,
    Plugin,
    plugins,
    registered_plugins,
)
from slurmkit.doctor.case import Check, Diagnosis, Severity
from slurmkit.doctor.checks import CHECKS, run_checks
from slurmkit.doctor.containers import CHECKS as CONTAINER_CHECKS
from slurmkit.errors import BadConfig, BadInput, BrokenPlugin, SlurmkitError
from slurmkit.formats.display import printable
from slurmkit.planning.slurm_lua import site_lua
from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit.state.capabilities import read_capabilities

_ORDER: tuple[Severity, ...] = ("error", "warning", "note", "unknown", "ok")
_PLUGIN_ORDER: tuple[Severity, ...] = ("error", "warning", "unknown")
_PLUGIN_CODES: dict[Severity, int] = {"error": 2, "warning": 1, "unknown": 3}
_SHOWN_IN_LINE = 3
_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan", "unknown": "magenta"}


@click.group("config")
def config_group() -> None:
    """Show and check the configuration.

    \b
    Example:
      slurmkit config check
    """


@config_group.command("show")
@click.argument("sections", nargs=-1, metavar="[SECTION]...")
@json_option("slurmkit.config.show/1", text="Print the settings as JSON.")
def show_command(sections: tuple[str, ...], *, as_json: JsonOutput | None) -> None:
    """Show every setting with its value, source and meaning; or only those of some sections.

    A section is shown with those below it: ledger also shows ledger.service.

    \b
    Examples:
      slurmkit config show
      slurmkit config show tui
      slurmkit config show --json | jq '.rows[] | select(.source != "default")'
    """
    configuration = inspect_configuration()
    if configuration.problems:
        raise BadConfig(f"{configuration.problems[0]}; to see all problems: slurmkit config check")
    settings = [s for s in configuration.settings if _is_in(s.section, sections)]
    known = sorted({s.section for s in configuration.settings})
    for name in sections:
        if not any(_is_in(section, (name,)) for section in known):
            raise BadInput(f"there is no section {name!r}; {did_you_mean(name, known, 'sections')}")
    if as_json:
        as_json.print(settings)
        return
    rows = [(s.section, s.key, _word(s.value), s.source, s.meaning) for s in settings]
    fit = Fit(whole=("SECTION", "KEY"), wrapped=("VALUE", "FROM", "MEANING"))
    print_table(("SECTION", "KEY", "VALUE", "FROM", "MEANING"), rows, fit=fit)
    click.echo(f"files (the last one wins): {_files()}", err=True)


@config_group.command("check")
@json_option("slurmkit.config.check/1", text="Print the problems as JSON.")
def check_command(*, as_json: JsonOutput | None) -> None:
    """Check every configuration file.

    It finds unknown sections and keys, and wrong types and values, also in the files of budgets and
    overrides. The exit code is 2 when something is wrong.

    \b
    Examples:
      slurmkit config check
      SLURMKIT_CONFIG=./new.toml slurmkit config check && sudo install new.toml /etc/slurmkit/
    """
    problems = inspect_configuration().problems or tuple(check_named_files())
    if as_json:
        as_json.print(problems)
    else:
        for problem in problems:
            click.echo(printable(str(problem)))
    if problems:
        plural = "" if len(problems) == 1 else "s"
        raise BadConfig(f"{len(problems)} problem{plural} in the configuration")
    click.echo(f"nothing wrong in: {_files()}", err=True)


@config_group.command("slurm-lua")
def slurm_lua_command() -> None:
    """Print this cluster's limits as Lua, for job_submit.lua.

    The limits come from the nodes as they are now. Run the command again when nodes change.

    \b
    Example:
      slurmkit config slurm-lua > /etc/slurm/slurmkit_site.lua
    """
    click.echo(site_lua(read_capabilities(LocalSlurmCommands())), nl=False)


def _is_in(section: str, sections: Sequence[str]) -> bool:
    """Return whether a section is one of some sections, or below one; no sections mean all."""
    return not sections or any(f"{section}.".startswith(f"{name}.") for name in sections)


def _word(value: object) -> str:
    return "not set" if value is None else msgspec.json.encode(value).decode()


def _files() -> str:
    shown = (f"{path}{'' if path.exists() else ' (absent)'}" for path in config_paths())
    return printable(", ".join(shown))


@click.command("doctor")
@click.option(
    "--all", "everything", is_flag=True, help="Also show the checks that found no problem."
)
@click.option(
    "--containers", is_flag=True, help="Check pyxis and enroot on this machine, and only these."
)
@click.option(
    "--exit-code",
    "as_plugin",
    is_flag=True,
    help="Print one line, and exit with 0, 1, 2 or 3 as a plugin of Nagios or NHC does.",
)
@json_option("slurmkit.doctor/1", text="Print what every check found as JSON.")
@click.pass_context
def doctor_command(
    ctx: click.Context,
    *,
    everything: bool,
    containers: bool,
    as_plugin: bool,
    as_json: JsonOutput | None,
) -> None:
    """Check slurmkit's installation and this cluster's settings, and print what to improve.

    Each finding says what it means for users, which setting to change, and where. The exit code is
    1 when there is an error. The command changes nothing and submits no job.

    \b
    Examples:
      slurmkit doctor
      slurmkit doctor --containers
      srun --partition gpu slurmkit doctor --containers
      slurmkit doctor --exit-code
      slurmkit doctor --json | jq -r '.rows[] | select(.severity == "error") | .fix'
    """
    checks = CONTAINER_CHECKS if containers else CHECKS
    if as_plugin:
        if as_json or everything:
            raise BadInput("--exit-code prints one line; leave out --json and --all")
        ctx.exit(_print_for_monitoring(checks))
    found = run_checks(Cluster().slurm, checks)
    diagnoses = sorted(found, key=lambda each: _ORDER.index(each.severity))
    if as_json:
        as_json.print(diagnoses)
    else:
        for each in diagnoses:
            if everything or each.severity != "ok":
                print_diagnosis(each)
        click.echo(count_by_severity(diagnoses), err=True)
    if any(each.severity == "error" for each in diagnoses):
        ctx.exit(1)


def _print_for_monitoring(checks: Iterable[Check]) -> int:
    """Run the checks, print one line as a Nagios plugin does, and return its exit code."""
    try:
        found = list(run_checks(Cluster().slurm, checks))
    except SlurmkitError as error:  # as of a configuration that cannot be read
        found = [Diagnosis("slurmkit", "unknown", str(error))]
    severities = {each.severity for each in found}
    worst: Severity = next((each for each in _PLUGIN_ORDER if each in severities), "ok")
    bad = [f"{each.check}: {each.message}" for each in found if each.severity == worst]
    shown = bad[:_SHOWN_IN_LINE] if worst in _PLUGIN_CODES else []
    more = len(bad) - len(shown)
    parts = [count_by_severity(found), *shown, *([f"{more} more"] if shown and more else [])]
    words = "; ".join(parts).replace("|", "/")  # what follows a | would be performance data
    click.echo(printable(f"slurmkit {worst if worst in _PLUGIN_CODES else 'ok'}: {words}"))
    return _PLUGIN_CODES.get(worst, 0)


def print_diagnosis(diagnosis: Diagnosis, *, err: bool = False) -> None:
    """Print one diagnosis: the finding, its meaning and the fix; with `err` to standard error."""
    word = in_colour(diagnosis.severity.ljust(7), _COLOURS.get(diagnosis.severity))
    print_wrapped(f"{word}  ", f"{diagnosis.check}: {diagnosis.message}", indent=9, err=err)
    if diagnosis.meaning:
        print_wrapped(" " * 11, diagnosis.meaning, indent=11, err=err)
    if diagnosis.fix:
        fix = f"           fix: {printable(diagnosis.fix)}   [{printable(diagnosis.where)}]"
        click.echo(fix, err=err)


def count_by_severity(diagnoses: Iterable[Diagnosis]) -> str:
    """Count the findings by severity, as `1 error, 2 warnings, 30 ok`."""
    counted = Counter(each.severity for each in diagnoses)
    words = []
    for severity in _ORDER:
        if count := counted[severity]:
            plural = "s" if count > 1 and severity in ("error", "warning", "note") else ""
            words.append(f"{count} {severity}{plural}")
    return ", ".join(words)


class PluginStatus(msgspec.Struct, frozen=True):
    """One plugin in the list.

    Attributes:
        module: `module:object`, as it was registered.
        state: `not loaded`, `loaded`, `unused` or `failed`.
        why: why it is `unused` or `failed`.
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
@json_option("slurmkit.plugins/1", text="Print the list as JSON.")
def plugins_command(*, check: bool, as_json: JsonOutput | None) -> None:
    """List the installed plugins, by kind, and the packages they come from.

    \b
    Examples:
      slurmkit plugins
      slurmkit plugins --check
      slurmkit plugins --json | jq -r '.rows[] | select(.kind == "policies") | .name'
    """
    lines = [_plugin_status(plugin, check=check) for plugin in registered_plugins()]
    if as_json:
        as_json.print(lines)
    else:
        rows = [
            (
                line.kind,
                line.name,
                f"{line.distribution} {line.version}",
                line.module,
                f"{line.state}: {line.why}" if line.why else line.state,
            )
            for line in lines
        ]
        fit = Fit(whole=("KIND", "NAME"), wrapped=("STATE",), least=("MODULE", "FROM"))
        print_table(("KIND", "NAME", "FROM", "MODULE", "STATE"), rows, fit=fit)
    failed = [line for line in lines if line.state == "failed"]
    if check and failed:
        plural = "" if len(failed) == 1 else "s"
        raise BrokenPlugin(f"{len(failed)} broken plugin{plural}")


def _plugin_status(plugin: Plugin, *, check: bool) -> PluginStatus:
    state, why = _state_and_reason(plugin, check=check)
    return PluginStatus(
        plugin.kind, plugin.name, plugin.distribution, plugin.version, plugin.target, state, why
    )


def _state_and_reason(plugin: Plugin, *, check: bool) -> tuple[str, str]:
    """Return the state of a plugin, and why it is unused or failed."""
    if plugin.kind == UNREADABLE:
        return "failed", "its list of entry points cannot be read; reinstall the package"
    if why := _unused_reason(plugin):
        return "unused", why
    if not check:
        return "not loaded", ""
    try:
        plugin.load()
    except BrokenPlugin as error:
        return "failed", str(error)
    return "loaded", ""


def _unused_reason(plugin: Plugin) -> str:
    """Return why a plugin is never used; empty if it is."""
    if plugin.kind not in KINDS:
        return f"no such kind of plugin: {plugin.kind!r}; the kinds are {', '.join(KINDS)}"
    if plugin.kind == "commands" and plugin.name in COMMANDS:
        return f"the name is taken by {OWN_DISTRIBUTION}"
    taken_by = plugins(plugin.kind)[plugin.name]
    return "" if taken_by == plugin else f"the name is taken by {taken_by.distribution}"
