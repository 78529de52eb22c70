"""Where the ledger is: --db, SLURMKIT_DB, `[ledger] db`, or a file of one's own."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from slurmkit.config import load_section
from slurmkit.errors import BadInput
from slurmkit_accounting.config import LedgerSection

# Parts of libpq's parameters that are secrets; the URL is shown in reports and errors.
_SECRETS = ("password", "passwd", "pwd", "secret", "scram_")
_FORMS = "sqlite:////absolute/path.db or postgresql+psycopg://USER@HOST/DATABASE"


def ledger_url(given: str | None = None) -> URL:
    """Decide which database to use; the first that is set wins, in the order above.

    Raises:
        BadInput: for a URL that is none, or of a database that is not supported.
    """
    text = given or os.environ.get("SLURMKIT_DB") or load_section("ledger", LedgerSection).db
    return _parse(text) if text else URL.create("sqlite", database=str(default_path()))


def default_path() -> Path:
    """`$XDG_DATA_HOME/slurmkit/ledger.db`, by default under ~/.local/share."""
    home = Path(os.environ.get("XDG_DATA_HOME", ""))
    home = home if home.is_absolute() else Path.home() / ".local" / "share"
    return home / "slurmkit" / "ledger.db"


def is_own(url: URL) -> bool:
    """Whether it is the file that a person has without naming any."""
    return is_sqlite(url) and Path(str(url.database)) == default_path()


def describe(url: URL) -> str:
    """Name a database for a reader: the path of a file, or a URL without its password."""
    return str(url.database) if is_sqlite(url) else url.render_as_string(hide_password=True)


def is_sqlite(url: URL) -> bool:
    """Whether the database is a file."""
    return url.get_backend_name() == "sqlite"


def _parse(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:  # the text may hold a password: not shown
        raise BadInput(f"the ledger's URL is not one; write {_FORMS}") from error
    _refuse_secrets(url)
    if url.drivername in {"postgresql", "postgresql+psycopg"}:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername not in {"sqlite", "sqlite+pysqlite"}:
        raise BadInput(f"a ledger cannot be kept in {url.drivername!r}; write {_FORMS}")
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise BadInput(f"the ledger's URL names no file, and the books must last; write {_FORMS}")
    return URL.create("sqlite", database=str(Path(url.database).expanduser().absolute()))


def _refuse_secrets(url: URL) -> None:
    for key in url.query:
        if any(sign in key.lower() for sign in _SECRETS):
            raise BadInput(
                f"the ledger's URL has {key} in its query, where everybody would see it; put the"
                " password in ~/.pgpass"
            )
