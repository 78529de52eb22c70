"""slurmkit's optional dependencies, and the command that installs them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from slurmkit.config.plugins import OWN_DISTRIBUTION
from slurmkit.errors import MissingExtra

EXTRAS = {
    "tui": ("plotext", "textual"),
    "accounting": tuple(
        "alembic apscheduler jinja2 ldap3 openpyxl pandas prometheus_client sqlalchemy"
        " waitress".split()
    ),
    "ssh": ("paramiko",),
    "gpu-exporter": ("pynvml", "prometheus_client"),
    "postgres": ("psycopg",),
}
"""Each extra of pyproject.toml -> the modules that it installs."""


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
    """Return the command that installs an extra from where slurmkit itself was installed."""
    return f"pip install '{install_source(extra)}'"


def install_source(extra: str) -> str:
    """Return the requirement for slurmkit with an extra, as pip takes it.

    pip notes in direct_url.json where a package came from, unless it was a package index:
    packaging.python.org, "Recording the Direct URL Origin of installed distributions".
    """
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415 - slow, only errors need it

    origin = _read_origin()
    if origin is None:
        return f"{OWN_DISTRIBUTION}[{extra}]"
    if not origin.startswith("file:"):
        return f"{OWN_DISTRIBUTION}[{extra}] @ {origin}"
    path = Path(unquote(urlsplit(origin).path))
    here = "." if not path.exists() or path == Path.cwd() else str(path)
    return f"{here}[{extra}]"


def _read_origin() -> str | None:
    """Return the URL that slurmkit was installed from; None for a package index.

    A copy that was never installed counts as a checkout that is not known.
    """
    from importlib.metadata import (  # noqa: PLC0415 - slow, only errors need it
        PackageNotFoundError,
        distribution,
    )

    try:
        text = distribution(OWN_DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return "file:"
    if text is None:
        return None
    noted = msgspec.json.decode(text)
    vcs = noted.get("vcs_info", {}).get("vcs")
    return f"{vcs}+{noted['url']}" if vcs else str(noted["url"])
