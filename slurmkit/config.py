"""Find the configuration files and hand out one section, checked.

Later wins: /etc/slurmkit/config.toml, $XDG_CONFIG_HOME/slurmkit/config.toml (~/.config), the file
named by SLURMKIT_CONFIG, then what a command takes from its environment and options. Each package
declares its own section once, as a `msgspec.Struct`: type, default and meaning stand there.
"""

from __future__ import annotations

import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from slurmkit.errors import BadConfig

SectionT = TypeVar("SectionT", bound=msgspec.Struct)


def config_paths() -> list[Path]:
    """Every place a configuration file may be, weakest first."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    named = os.environ.get("SLURMKIT_CONFIG")
    paths = [Path("/etc/slurmkit/config.toml"), Path(home) / "slurmkit" / "config.toml"]
    return [*paths, Path(named)] if named else paths


def load_section(name: str, section: type[SectionT]) -> SectionT:
    """Read section `[name]` from all configuration files, later files winning key by key.

    Raises:
        BadConfig: naming the file and key, with the nearest valid key for an unknown one.
    """
    values: dict[str, Any] = {}
    sources: dict[str, Path] = {}
    for path in config_paths():
        found = _read(path).get(name, {})
        if not isinstance(found, dict):
            raise BadConfig(f"{path}: [{name}] must be a table, e.g. [{name}] on a line of its own")
        _refuse_unknown(path, name, found, section)
        values |= found
        sources |= dict.fromkeys(found, path)
    try:
        return msgspec.convert(values, section)
    except msgspec.ValidationError as error:
        blamed = next((path for key, path in sources.items() if f"$.{key}" in str(error)), None)
        raise BadConfig(f"{blamed or 'configuration'}: [{name}]: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if str(path) == os.environ.get("SLURMKIT_CONFIG"):
            raise BadConfig(f"SLURMKIT_CONFIG names {path}, which does not exist") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfig(f"cannot read the configuration file {path}: {error}") from error


def _refuse_unknown(
    path: Path, name: str, found: dict[str, Any], section: type[msgspec.Struct]
) -> None:
    known = [field.encode_name for field in msgspec.structs.fields(section)]
    for key in found:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise BadConfig(f"{path}: [{name}] has no key {key!r}; {hint}")
