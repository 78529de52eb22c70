"""Find the configuration files and hand out their sections, checked.

Later wins: /etc/slurmkit/config.toml, $XDG_CONFIG_HOME/slurmkit/config.toml (~/.config), the file
named by SLURMKIT_CONFIG, then what a command takes from its environment and options. Each package
declares its own section once, as a `msgspec.Struct`: type, default and meaning stand there.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from slurmkit.errors import BadConfig

SECTIONS = {
    "gpu.*": "slurmkit.prices:GpuSettings",
    "cpu": "slurmkit.prices:CpuSettings",
    "memory": "slurmkit.prices:MemorySettings",
    "partition.*": "slurmkit.prices:PartitionSettings",
    "fabric.*": "slurmkit.fabric:FabricSection",
    "launch": "slurmkit.launchers.mpi:LaunchSection",
    "preflight": "slurmkit.preflight.lines:PreflightSection",
    "jupyter": "slurmkit.notebook.server:JupyterSection",
    "tunnel": "slurmkit.tunnel:TunnelSection",
    "clusters.*": "slurmkit.ssh.section:ClusterSection",
    "submit": "slurmkit.backends.choice:SubmitSection",
    "poll": "slurmkit.jobs.poller:PollSection",
    "containers": "slurmkit.runtimes:ContainersSection",
    "containers.catalogue.*": "slurmkit_containers.catalogue:CatalogueSection",
    "ledger": "slurmkit_accounting.config:LedgerSection",
    "ledger.service": "slurmkit_accounting.service.config:ServiceSection",
    "ledger.schedule": "slurmkit_accounting.service.config:ScheduleSection",
    "ldap": "slurmkit_accounting.config:LdapSection",
    "mail": "slurmkit_accounting.notify.config:MailSection",
    "webhook": "slurmkit_accounting.notify.config:WebhookSection",
    "notify": "slurmkit_accounting.notify.config:NotifySection",
    "tui": "slurmkit_tui.config:TuiSection",
    "gpu_metrics.prometheus": "slurmkit_plugins.prometheus:PrometheusSection",
    "policy.gpu_hours": "slurmkit_plugins.gpu_hours:GpuHoursSection",
}
"""Sections of our own packages, `module:Struct`, imported on use; `NAME.*` is a table for each
name. A plugin declares its section with an entry point `SECTION = "module:Struct"` in the group
`slurmkit.config`."""

SectionT = TypeVar("SectionT", bound=msgspec.Struct)
Table = dict[str, Any]


def config_paths() -> list[Path]:
    """Every place a configuration file may be, weakest first."""
    own = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not own.is_absolute():  # as XDG wants it; and a file that lies about is nobody's choice
        own = Path(os.path.expanduser("~")) / ".config"  # noqa: PTH111 - home() raises without one
    named = os.environ.get("SLURMKIT_CONFIG")
    found = [Path("/etc/slurmkit/config.toml"), own / "slurmkit" / "config.toml"]
    return [*filter(Path.is_absolute, found), *([Path(named)] if named else [])]


def load_section(name: str, section: type[SectionT]) -> SectionT:
    """Read section `[name]` from all configuration files, later files winning key by key.

    So do the keys of a table that is a value of it, as `[tui.keys]`.

    Args:
        name: as it stands in a file, `policy.gpu_hours` for a table in a table.
        section: what the section holds.

    Raises:
        BadConfig: naming the file and key, with the nearest valid key for an unknown one.
    """
    found = [(path, table_in(path, read_file(path), name)) for path in config_paths()]
    return _merged(name, [(path, own_keys(name, table or {})) for path, table in found], section)


def has_section(name: str) -> bool:
    """Whether any configuration file has section `[name]`; what is off by default asks this.

    Raises:
        BadConfig: when a file cannot be read.
    """
    return any(table_in(path, read_file(path), name) is not None for path in config_paths())


def load_tables(name: str, section: type[SectionT]) -> dict[str, SectionT]:
    """Read every table `[name.KEY]` of all configuration files, by KEY, later files winning.

    Raises:
        BadConfig: as `load_section`.
    """
    files = [(path, table_in(path, read_file(path), name) or {}) for path in config_paths()]
    keys = dict.fromkeys(key for _, tables in files for key in tables)
    return {
        key: _merged(
            f"{name}.{quoted(key)}",
            [(path, as_table(path, f"{name}.{key}", tables.get(key))) for path, tables in files],
            section,
        )
        for key in keys
    }


def read_file(path: Path) -> Table:
    """Parse one configuration file; one that does not exist is empty, unless it was named.

    Raises:
        BadConfig: when it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if str(path) == os.environ.get("SLURMKIT_CONFIG"):
            raise BadConfig(f"SLURMKIT_CONFIG names {path}, which does not exist") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfig(f"cannot read the configuration file {path}: {error}") from error


def table_in(path: Path, found: Table, name: str) -> Table | None:
    """The table `[name]` of a parsed file, None where it has none.

    Raises:
        BadConfig: when something else has that name.
    """
    table: Table | None = found
    walked: list[str] = []
    for part in name.split("."):
        walked.append(part)
        table = as_table(path, ".".join(walked), (table or {}).get(part))
    return table


def as_table(path: Path, name: str, value: object) -> Table | None:
    """Take a value as a table, None as none.

    Raises:
        BadConfig: when it is anything else.
    """
    if value is None or isinstance(value, dict):
        return value
    raise BadConfig(f"{path}: [{name}] must be a table, e.g. [{name}] on a line of its own")


def own_keys(name: str, table: Table, sections: Iterable[str] = SECTIONS) -> Table:
    """A section without the tables in it that are sections of their own, as `[ledger.service]`."""
    known = {each.removesuffix(".*") for each in sections}
    return {key: value for key, value in table.items() if f"{name}.{key}" not in known}


def unknown_keys(found: Table, section: type[msgspec.Struct]) -> dict[str, str]:
    """The keys a section does not have, each with what to write instead."""
    known = [field.encode_name for field in msgspec.structs.fields(section)]
    return {key: _instead(key, found[key], known) for key in found if key not in known}


def nearest(name: str, known: list[str], what: str = "") -> str:
    """A hint for a name that is not known: the nearest one, or all, which are `what`."""
    near = get_close_matches(name, known, n=1)
    every = f"{f'known {what}'.strip()}: {', '.join(known)}"
    return f"did you mean {near[0]!r}?" if near else every


def joined(before: Table, later: Table) -> Table:
    """What two files give a section; of a table in it, as `[tui.keys]`, each key by itself."""
    tables = {
        key: {**before[key], **value}
        for key, value in later.items()
        if isinstance(value, dict) and isinstance(before.get(key), dict)
    }
    return {**before, **later, **tables}


def quoted(key: str) -> str:
    """A key as TOML wants it in a header: quoted where it has a dot or another sign."""
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _instead(key: str, value: object, known: list[str]) -> str:
    if isinstance(value, dict) and "." not in key:
        return f"{nearest(key, known, 'keys')}; a name with a dot in it is quoted in the header"
    return nearest(key, known, "keys")


def _merged(name: str, files: list[tuple[Path, Table | None]], section: type[SectionT]) -> SectionT:
    values: Table = {}
    sources: dict[str, Path] = {}
    for path, found in files:
        for key, hint in unknown_keys(found or {}, section).items():
            raise BadConfig(f"{path}: [{name}] has no key {key!r}; {hint}")
        values = joined(values, found or {})
        sources |= dict.fromkeys(found or {}, path)
    try:
        return msgspec.convert(values, section)
    except msgspec.ValidationError as error:
        blamed = next((path for key, path in sources.items() if f"$.{key}" in str(error)), None)
        words = explained(error, section)
        raise BadConfig(f"{blamed or 'configuration'}: [{name}]: {words}") from error


def explained(error: msgspec.ValidationError, section: type[msgspec.Struct]) -> str:
    """What is wrong with a value; of one out of few, which there are, which msgspec leaves out."""
    words = str(error)
    said, _, key = words.rstrip("`").rpartition(" - at `$.")
    if not said.startswith("Invalid enum value "):
        return words
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(section)}
    allowed = [value for each in _literals(fields.get(key)) for value in get_args(each)]
    value = said.removeprefix("Invalid enum value ")
    return f"{key}: no value {value}; write one of {', '.join(map(repr, allowed))}"


def _literals(wanted: object) -> list[object]:
    return [each for each in (wanted, *get_args(wanted)) if get_origin(each) is Literal]
