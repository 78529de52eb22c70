"""The configuration files, read and checked section by section.

Later files win: /etc/slurmkit/config.toml, /etc/slurmkit/conf.d/*.toml by name, then
slurmkit/config.toml in each folder of $XDG_CONFIG_DIRS (/etc/xdg) from the last to the first and in
$XDG_CONFIG_HOME (~/.config), then the file named by SLURMKIT_CONFIG; then the environment and
options of a command. Each package declares its section as a `msgspec.Struct` with the type, default
and meaning of every key. Secrets are in files of their own, which a key names. The default cluster
of a process is set here, too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from slurmkit.config.paths import config_folder, shared_config_folders
from slurmkit.errors import BadConfig

SECTIONS = {
    "gpu.*": "slurmkit.config.prices:GpuSettings",
    "cpu": "slurmkit.config.prices:CpuSettings",
    "memory": "slurmkit.config.prices:MemorySettings",
    "grid": "slurmkit.config.prices:GridSettings",
    "partition.*": "slurmkit.config.prices:PartitionSettings",
    "fabric.*": "slurmkit.planning.fabric:FabricSection",
    "launch": "slurmkit.planning.launchers.mpi:LaunchSection",
    "preflight": "slurmkit.planning.preflight.lines:PreflightSection",
    "jupyter": "slurmkit.interactive.web_servers:ServerSection",
    "code-server": "slurmkit.interactive.web_servers:ServerSection",
    "tunnel": "slurmkit.interactive.tunnel:TunnelSection",
    "clusters.*": "slurmkit.slurm.ssh.hosts:ClusterSection",
    "submit": "slurmkit.jobs.backends.choice:SubmitSection",
    "poll": "slurmkit.jobs.poller:PollSection",
    "containers": "slurmkit.planning.containers:ContainersSection",
    "containers.catalogue.*": "slurmkit_containers.images:CatalogueSection",
    "ledger": "slurmkit_accounting.config:LedgerSection",
    "ledger.service": "slurmkit_accounting.config:ServiceSection",
    "ledger.schedule": "slurmkit_accounting.config:ScheduleSection",
    "ledger.portal": "slurmkit_accounting.portal.settings:PortalSection",
    "ledger.portal.oidc": "slurmkit_accounting.portal.settings:OidcSection",
    "gpu_use": "slurmkit_accounting.config:GpuUseSection",
    "reclaim.*": "slurmkit_accounting.reclaim.policy:ReclaimPolicy",
    "allocation": "slurmkit_accounting.config:AllocationSection",
    "coldfront": "slurmkit_accounting.config:ColdfrontSection",
    "project.*": "slurmkit_accounting.config:ProjectSection",
    "ldap": "slurmkit_accounting.config:LdapSection",
    "mail": "slurmkit_accounting.config:MailSection",
    "webhook": "slurmkit_accounting.config:WebhookSection",
    "notify": "slurmkit_accounting.config:NotifySection",
    "job_mail": "slurmkit_accounting.config:JobMailSection",
    "tui": "slurmkit_tui.app.startup:TuiSection",
    "gpu_metrics.prometheus": "slurmkit_plugins.prometheus:PrometheusSection",
    "policy.gpu_hours": "slurmkit_plugins.gpu_hours:GpuHoursSection",
}
"""Sections of our own packages as `module:Struct`, imported on use. `NAME.*` means one table per
name. A plugin declares its section with an entry point `SECTION = "module:Struct"` in the group
`slurmkit.config`."""

SectionT = TypeVar("SectionT", bound=msgspec.Struct)
Table = dict[str, Any]
_DEFAULT_CLUSTER: list[str] = []
SITE_FOLDER = Path("/etc/slurmkit")
"""Folder of the site's files."""


class _Configuration:
    """The configuration files as they were when they were read first."""

    def __init__(self) -> None:
        self.paths = _find_config_paths()
        self.tables: dict[Path, Table] = {}


_READ: ContextVar[_Configuration | None] = ContextVar("read", default=None)


@contextmanager
def one_configuration() -> Iterator[None]:
    """Read each configuration file once, so that all that is decided here rests on the same.

    Raises:
        BadConfig: when the folder of the site's further files cannot be read.
    """
    token = _READ.set(_READ.get() or _Configuration())
    try:
        yield
    finally:
        _READ.reset(token)


def config_paths() -> list[Path]:
    """List every path where a configuration file may be, weakest first.

    Raises:
        BadConfig: when the folder of the site's further files cannot be read.
    """
    known = _READ.get()
    return _find_config_paths() if known is None else known.paths


def _find_config_paths() -> list[Path]:
    named = os.environ.get("SLURMKIT_CONFIG")
    folders = (*reversed(shared_config_folders()), config_folder())
    below_home = [folder / "config.toml" for folder in folders if folder.is_absolute()]
    site = [SITE_FOLDER / "config.toml", *_further_site_files()]
    return [*site, *below_home, *([Path(named)] if named else [])]


def further_site_folder() -> Path:
    """Return the folder whose `*.toml` are read after the site's `config.toml`."""
    return SITE_FOLDER / "conf.d"


def _further_site_files() -> list[Path]:
    """List the files of `further_site_folder` by name; hidden ones do not count.

    Raises:
        BadConfig: when the folder cannot be read.
    """
    folder = further_site_folder()
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - runs for each section that is read
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise BadConfig(
            f"cannot read the folder of configuration files {folder}: {error}"
        ) from error
    return [folder / name for name in names if name.endswith(".toml") and name[0] != "."]


def load_section(name: str, section: type[SectionT]) -> SectionT:
    """Read section `[name]` from all configuration files; later files win key by key.

    A table inside the section, e.g. `[tui.keys]`, is also merged key by key.

    Args:
        name: as it stands in a file; `policy.gpu_hours` for a table in a table.
        section: the section's Struct.

    Raises:
        BadConfig: naming the file and key, with the nearest valid key for an unknown one.
    """
    files = [(path, find_table(path, load_config_file(path), name)) for path in config_paths()]
    return _convert_section(
        name, [(path, without_subsections(name, table or {})) for path, table in files], section
    )


def has_section(name: str) -> bool:
    """Tell whether any file has section `[name]`; without it, some features stay off.

    Raises:
        BadConfig: when a file cannot be read.
    """
    return any(
        find_table(path, load_config_file(path), name) is not None for path in config_paths()
    )


def load_tables(
    name: str, section: type[SectionT], paths: Iterable[Path] | None = None
) -> dict[str, SectionT]:
    """Read every table `[name.KEY]` of all configuration files, by KEY; later files win.

    Args:
        name: the tables' common part.
        section: the Struct of one table.
        paths: only these files; all configuration files when left out.

    Raises:
        BadConfig: as `load_section`.
    """
    chosen = config_paths() if paths is None else paths
    files = [(path, find_table(path, load_config_file(path), name) or {}) for path in chosen]
    keys = dict.fromkeys(key for _, tables in files for key in tables)
    return {
        key: _convert_section(
            f"{name}.{quote_key(key)}",
            [
                (path, require_table(path, f"{name}.{key}", tables.get(key)))
                for path, tables in files
            ],
            section,
        )
        for key in keys
    }


def load_config_file(path: Path) -> Table:
    """Parse one configuration file; a missing file counts as empty.

    Raises:
        BadConfig: when it cannot be read or is not TOML, or SLURMKIT_CONFIG names a missing file.
    """
    known = _READ.get()
    if known is None:
        return _read_config_file(path)
    if path not in known.tables:
        known.tables[path] = _read_config_file(path)
    return known.tables[path]


def _read_config_file(path: Path) -> Table:
    try:
        return parse_config_text(path, path.read_text("utf-8"))
    except FileNotFoundError:
        if str(path) == os.environ.get("SLURMKIT_CONFIG"):
            raise BadConfig(f"SLURMKIT_CONFIG names {path}, which does not exist") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"cannot read the configuration file {path}: {error}") from error


def parse_config_text(path: Path, text: str) -> Table:
    """Parse the text of a configuration file.

    Raises:
        BadConfig: naming the file, when it is not TOML.
    """
    import tomllib  # noqa: PLC0415 - `slurmkit queue` starts without it

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"cannot read the configuration file {path}: {error}") from error


def find_table(path: Path, contents: Table, name: str) -> Table | None:
    """Return the table `[name]` of a parsed file; None if it has none.

    Raises:
        BadConfig: when the name belongs to something other than a table.
    """
    table: Table | None = contents
    walked: list[str] = []
    for part in name.split("."):
        walked.append(part)
        table = require_table(path, ".".join(walked), (table or {}).get(part))
    return table


def require_table(path: Path, name: str, value: object) -> Table | None:
    """Return a value that must be a table or None.

    Raises:
        BadConfig: when it is anything else.
    """
    if value is None or isinstance(value, dict):
        return value
    raise BadConfig(f"{path}: [{name}] must be a table, e.g. [{name}] on a line of its own")


def without_subsections(name: str, table: Table, sections: Iterable[str] = SECTIONS) -> Table:
    """Return a section without tables that are their own sections, e.g. `[ledger.service]`."""
    known = {each.removesuffix(".*") for each in sections}
    return {key: value for key, value in table.items() if f"{name}.{key}" not in known}


def unknown_keys(table: Table, section: type[msgspec.Struct]) -> dict[str, str]:
    """Return the keys a section does not have, each with a hint what to write instead."""
    known = [field.encode_name for field in msgspec.structs.fields(section)]
    return {key: _key_hint(key, table[key], known) for key in table if key not in known}


def did_you_mean(name: str, known: list[str], what: str = "") -> str:
    """Return a hint for an unknown name: the nearest known name, or all of them.

    Args:
        name: the unknown name.
        known: all valid names.
        what: what they are, e.g. `keys`, for a hint that lists them.
    """
    near = similar_names(name, known)[:1]
    every = f"{f'known {what}'.strip()}: {', '.join(known)}"
    return f"did you mean {near[0]!r}?" if near else every


def similar_names(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return at most three known names that are like an unknown one, the nearest first.

    Args:
        name: the unknown name.
        known: all valid names.
        cutoff: how like they are at least, from 0 to 1.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - after a mistake only

    return get_close_matches(name, list(known), cutoff=cutoff)


def merge_tables(before: Table, later: Table) -> Table:
    """Merge a section of two files; a table inside it, e.g. `[tui.keys]`, key by key."""
    tables = {
        key: {**before[key], **value}
        for key, value in later.items()
        if isinstance(value, dict) and isinstance(before.get(key), dict)
    }
    return {**before, **later, **tables}


def quote_key(key: str) -> str:
    """Quote a key for a TOML table header if it has a dot or another special character."""
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _key_hint(key: str, value: object, known: list[str]) -> str:
    if isinstance(value, dict) and "." not in key:
        return (
            f"{did_you_mean(key, known, 'keys')}; in a header, put a name that has a dot in quotes"
        )
    return did_you_mean(key, known, "keys")


def _convert_section(
    name: str, files: list[tuple[Path, Table | None]], section: type[SectionT]
) -> SectionT:
    values: Table = {}
    sources: dict[str, Path] = {}
    for path, table in files:
        for key, hint in unknown_keys(table or {}, section).items():
            raise BadConfig(f"{path}: [{name}] has no key {key!r}; {hint}")
        values = merge_tables(values, table or {})
        sources |= dict.fromkeys(table or {}, path)
    try:
        return msgspec.convert(values, section)
    except msgspec.ValidationError as error:
        blamed = next((path for key, path in sources.items() if f"$.{key}" in str(error)), None)
        words = explain_validation_error(error, section)
        raise BadConfig(f"{blamed or 'configuration'}: [{name}]: {words}") from error


def explain_validation_error(error: msgspec.ValidationError, section: type[msgspec.Struct]) -> str:
    """Return msgspec's message; for a wrong choice, list the allowed ones, which it leaves out."""
    message = str(error)
    reason, _, key = message.rstrip("`").rpartition(" - at `$.")
    if not reason.startswith("Invalid enum value "):
        return message
    wanted = {field.encode_name: field.type for field in msgspec.structs.fields(section)}.get(key)
    literals = [each for each in (wanted, *get_args(wanted)) if get_origin(each) is Literal]
    allowed = [value for each in literals for value in get_args(each)]
    value = reason.removeprefix("Invalid enum value ")
    return f"{key}: {value} is not allowed; write one of {', '.join(map(repr, allowed))}"


def read_secret_file(key: str, name: str) -> str:
    """Read a secret from its file; empty when no file is named.

    Args:
        key: the configuration key that names the file, for the error.
        name: path of the file.

    Raises:
        BadConfig: when the file cannot be read, or everybody on this machine can read it.
    """
    if not name:
        return ""
    path = Path(name)
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or "") if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadConfig(f"{key}: cannot read {path}: {why}") from error
    if mode & stat.S_IRWXO:
        raise BadConfig(f"{key}: everybody can read {path}; run: chmod o= {path}")
    return text.removesuffix("\n")


def set_default_cluster(name: str | None) -> None:
    """Set which cluster `Cluster()` is, as `slurmkit --cluster` does.

    Args:
        name: of a cluster in the configuration, stronger than SLURMKIT_CLUSTER; empty for the
            cluster of this machine; None takes the choice back.
    """
    _DEFAULT_CLUSTER[:] = [] if name is None else [name]


def default_cluster_name() -> str:
    """Return the name of the cluster that `Cluster()` is; empty for this machine's own."""
    return _DEFAULT_CLUSTER[0] if _DEFAULT_CLUSTER else os.environ.get("SLURMKIT_CLUSTER", "")
