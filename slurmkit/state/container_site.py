"""How pyxis and enroot are set up on this machine, from their own configuration files.

Slurm does not show the options of its plugins. plugstack.conf(5) has them on the machine that runs
srun, and on each node. enroot's settings are those of its doc/configuration.md.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

ENROOT_FOLDER = Path("/etc/enroot")
"""Folder of enroot.conf and hooks.d, unless enroot was built with another."""

_PYXIS = re.compile(r"(?:.*/)?(?:spank_)?pyxis\.so")
_YES = ("1", "y", "yes", "t", "true", "on")
_MOST_INCLUDES = 8  # plugstack.conf may include itself
_SETTING = re.compile(r"(ENROOT_[A-Z_]+)[ \t=]+(.*)")


class PyxisSettings(msgspec.Struct, frozen=True):
    """The options of pyxis in plugstack.conf (its config.c).

    Attributes:
        runtime_path: folder on each node for images while pyxis imports them.
        container_scope: `global` if containers with a name outlive their job, else `job`.
        importer: program of the site that fetches images instead of enroot; since 0.23.
        use_squashfuse: images are mounted, not unpacked; since 0.23.
    """

    runtime_path: str = "/run/pyxis"
    container_scope: str = "global"
    importer: str = ""
    use_squashfuse: bool = False


def read_pyxis_settings(config: Mapping[str, str]) -> PyxisSettings | None:
    """Read the options of pyxis; None if plugstack.conf here does not name it, or is not readable.

    Args:
        config: settings of slurm.conf, as `scontrol show config` names them.
    """
    default_path = Path(config.get("SLURM_CONF") or "/etc/slurm/slurm.conf").with_name(
        "plugstack.conf"
    )
    named = config.get("PlugStackConfig") or ""
    lines = _plugin_lines(named if named.startswith("/") else str(default_path), _MOST_INCLUDES)
    for plugin, *options in (line.split()[1:] for line in lines):
        if _PYXIS.fullmatch(plugin):
            given = dict(each.partition("=")[::2] for each in options)
            default = PyxisSettings()
            return PyxisSettings(
                runtime_path=given.get("runtime_path", default.runtime_path),
                container_scope=given.get("container_scope", default.container_scope),
                importer=given.get("importer", ""),
                use_squashfuse=given.get("use_squashfuse", "").lower() in _YES,
            )
    return None


def _plugin_lines(file: str, includes: int) -> Iterator[str]:
    """Yield the lines of plugstack.conf that load a plugin, also of the files it includes."""
    try:
        text = Path(file).read_text("utf-8", "replace")
    except OSError:
        return
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if len(words) > 1 and words[0] in ("required", "optional"):
            yield " ".join(words)
        elif len(words) > 1 and words[0] == "include" and includes:
            pattern = os.path.join(os.path.dirname(file), words[1])  # noqa: PTH118, PTH120 - glob
            for each in sorted(glob.glob(pattern)):  # noqa: PTH207 - the pattern may be absolute
                yield from _plugin_lines(each, includes - 1)


def read_enroot_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Read enroot's settings by name; the environment goes first, then the file read last.

    enroot lets a shell expand the values. Here only variables and `$(id -u)` are expanded.
    """
    home = environment.get("HOME") or str(Path.home())
    known = {
        "HOME": home,
        "XDG_DATA_HOME": f"{home}/.local/share",
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_RUNTIME_DIR": "/run",
        **environment,
    }
    found = {
        "ENROOT_RUNTIME_PATH": "$XDG_RUNTIME_DIR/enroot",
        "ENROOT_DATA_PATH": "$XDG_DATA_HOME/enroot",
        "ENROOT_CACHE_PATH": "$XDG_CACHE_HOME/enroot",
        "ENROOT_TEMP_PATH": known.get("TMPDIR") or "/tmp",  # noqa: S108 - enroot's default
    }
    first: dict[str, str] = {}
    files = [ENROOT_FOLDER / "enroot.conf", *sorted(ENROOT_FOLDER.glob("enroot.conf.d/*.conf"))]
    for file in files:
        try:
            text = file.read_text("utf-8", "replace")
        except OSError:
            continue
        for match in filter(None, map(_SETTING.match, text.splitlines())):
            first.setdefault(match[1], match[2].strip().strip("\"'"))
    found |= first | {
        name: value for name, value in environment.items() if value and name[:7] == "ENROOT_"
    }
    return {name: _expanded(value, known) for name, value in found.items()}


def _expanded(value: str, known: Mapping[str, str]) -> str:
    value = re.sub(r"\$\(id -u\)|\$\{?(?:E?UID)\b\}?", str(os.getuid()), value)
    return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda name: known.get(name[1], name[0]), value)
