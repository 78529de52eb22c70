"""slurmkit's optional dependencies, and the command that installs them."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slurmkit.config.plugins import OWN_DISTRIBUTION
from slurmkit.errors import MissingExtra

if TYPE_CHECKING:
    from importlib.metadata import Distribution

EXTRAS = {
    "tui": ("plotext", "textual"),
    "accounting": tuple(
        "alembic apscheduler authlib flask jinja2 joserfc ldap3 openpyxl pandas prometheus_client"
        " sqlalchemy waitress".split()
    ),
    "ssh": ("paramiko",),
    "gpu-exporter": ("pynvml", "prometheus_client"),
    "postgres": ("psycopg",),
}
"""Each extra of pyproject.toml -> the modules that it installs."""
_REINSTALL_COMMANDS = {
    "dpkg": "apt-get install --reinstall ./slurmkit_*.deb",
    "rpm": "dnf reinstall ./slurmkit-[0-9]*.rpm",
    "dpkg, slurmkit-node": "apt-get install --reinstall ./slurmkit-node_*.deb",
    "rpm, slurmkit-node": "dnf reinstall ./slurmkit-node-*.rpm",
}
"""What packaging/inside writes into INSTALLER -> the command that brings a package's files back.

The package is a file, as `make packages` leaves it: no repository of a distribution has it.
"""
_COMPLETE_COMMANDS = _REINSTALL_COMMANDS | {
    "dpkg, slurmkit-node": "apt-get install ./slurmkit_*.deb",
    "rpm, slurmkit-node": "dnf remove slurmkit-node && dnf install ./slurmkit-[0-9]*.rpm",
}
"""The same -> the command that installs all extras: slurmkit takes the place of slurmkit-node."""


def extra_of(module: str) -> str | None:
    """Return the extra that installs a module; None if no extra does."""
    top = module.partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if top in modules), None)


def missing_extra(module: str, extra: str, what: str = "this command") -> MissingExtra:
    """Return the error for a module that is not installed.

    Args:
        module: the module, or a submodule.
        extra: the extra that installs the module.
        what: what needs the module.
    """
    return MissingExtra(
        f"{what} needs {module.partition('.')[0]}, which is not installed; run:"
        f" {install_command(extra)}"
    )


def install_command(extra: str) -> str:
    """Return the command that installs an extra from where slurmkit itself was installed.

    The package slurmkit has all extras: there it is the command that repairs the package.
    Installers note their name in INSTALLER: packaging.python.org, "Recording installed projects".
    """
    if complete := _COMPLETE_COMMANDS.get(_read_installer()):
        return complete
    return f"{_pip('install')} {shlex.quote(install_source(extra))}"


def overwritten_by(other: str) -> str | None:
    """Return what to do about another distribution that has our import name; None if there is none.

    Args:
        other: its name, as pip knows it.
    """
    found = _find_distribution(other)
    if found is None:
        return None
    repair = _REINSTALL_COMMANDS.get(_read_installer()) or (
        f"{_pip('install')} --force-reinstall --no-deps {shlex.quote(install_source(''))}"
    )
    return (
        f"{other} {found.version}, an unrelated package with the same import name, has overwritten"
        f" files of {OWN_DISTRIBUTION} in {found.locate_file(other)}; run:"
        f" {_pip('uninstall')} {other} && {repair}"
    )


def _pip(command: str) -> str:
    """Return pip's command as this Python's environment needs it."""
    if _read_installer() == "uv":
        return f"uv pip {command} --python {shlex.quote(sys.executable)}"
    if str(Path(sys.executable).parent) in os.environ.get("PATH", "").split(os.pathsep):
        return f"pip {command}"
    # slurmkit was started by a link or its path: plain pip would be another Python's
    return f"{shlex.quote(sys.executable)} -m pip {command}"


def _read_installer() -> str:
    """Return the name of the program that installed slurmkit; empty if it left none."""
    return (_read_metadata("INSTALLER") or "").strip()


def install_source(extra: str) -> str:
    """Return the requirement for slurmkit with an extra, or with none if that is empty.

    pip notes in direct_url.json where a package came from, unless it was a package index:
    packaging.python.org, "Recording the Direct URL Origin of installed distributions".
    """
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415 - slow, only errors need it

    origin, extras = _read_origin(), f"[{extra}]" if extra else ""
    if origin is None:
        return f"{OWN_DISTRIBUTION}{extras}"
    if not origin.startswith("file:"):
        return f"{OWN_DISTRIBUTION}{extras} @ {origin}"
    path = Path(unquote(urlsplit(origin).path))
    if path.suffix == ".whl" and not path.exists():
        return f"{path.name}{extras}"  # it was moved: its name says which file is meant
    here = "." if not path.exists() or path == Path.cwd() else str(path)
    return f"{here}{extras}"


def _read_origin() -> str | None:
    """Return the URL that slurmkit was installed from; None for a package index.

    A copy that was never installed counts as a checkout that is not known.
    """
    if _read_metadata("METADATA") is None:
        return "file:"
    text = _read_metadata("direct_url.json")
    if text is None:
        return None
    noted = msgspec.json.decode(text)
    vcs = noted.get("vcs_info", {}).get("vcs")
    return f"{vcs}+{noted['url']}" if vcs else str(noted["url"])


def _read_metadata(name: str) -> str | None:
    """Return a file of slurmkit's own metadata; None if it, or all of it, is not there."""
    own = _find_distribution(OWN_DISTRIBUTION)
    return None if own is None else own.read_text(name)


def _find_distribution(name: str) -> Distribution | None:
    from importlib import metadata  # noqa: PLC0415 - slow, only errors need it

    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
