"""The location of the ledger: --db, SLURMKIT_DB, `[ledger] db`, or a file in the user's home.

A SQLite file may not be on a network filesystem; its filesystem type shows whether it is.
"""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from slurmkit.config.files import load_section
from slurmkit.config.paths import data_folder, filesystem_type
from slurmkit.errors import BadInput, LedgerError
from slurmkit_accounting.config import LedgerSection

# Parts of names of secret libpq parameters; reports and errors show the URL.
_SECRETS = ("password", "passwd", "pwd", "secret", "scram_")
_FILE_NAME = "ledger.db"
_FORMS = "sqlite:////absolute/path.db or postgresql+psycopg://USER@HOST/DATABASE"
# Filesystem types, from the field after ` - ` of /proc/self/mountinfo, proc_pid_mountinfo(5).
_NETWORK = frozenset(
    "9p afs beegfs beegfs_nodev ceph cifs coda cvmfs gfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4"
    " ocfs2 orangefs panfs pvfs2 smb3 smbfs wekafs".split()
)
_LOCAL_FUSE = frozenset("fuse.fuse-overlayfs fuse.ntfs fuse.exfat fuseblk fuse.bindfs".split())


def ledger_url(given: str | None = None) -> URL:
    """Return the first URL that is set: `given`, SLURMKIT_DB, `[ledger] db`, the default file.

    Raises:
        BadInput: for an invalid URL, or a database that is not supported.
    """
    text = given or os.environ.get("SLURMKIT_DB") or load_section("ledger", LedgerSection).db
    return _parse(text) if text else URL.create("sqlite", database=str(default_ledger_path()))


def default_ledger_path() -> Path:
    """Return `$XDG_DATA_HOME/slurmkit/ledger.db`, by default under ~/.local/share.

    Raises:
        BadInput: when the user has no home directory.
    """
    folder = data_folder()
    if not folder.is_absolute():
        raise BadInput(
            "you have no home directory for a ledger; name a database with --db or SLURMKIT_DB"
        )
    return folder / _FILE_NAME


def is_default_path(path: Path) -> bool:
    """Return whether a path is `default_ledger_path`; also for a user without a home directory."""
    return path == data_folder() / _FILE_NAME


def is_default_ledger(url: URL) -> bool:
    """Return whether a URL is the user's default file."""
    return is_sqlite(url) and is_default_path(Path(str(url.database)))


def describe_url(url: URL) -> str:
    """Format a database URL to show: the path of a file, or the URL without its password."""
    return str(url.database) if is_sqlite(url) else url.render_as_string(hide_password=True)


def is_sqlite(url: URL) -> bool:
    """Return whether the database is a file."""
    return url.get_backend_name() == "sqlite"


def _parse(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:  # the text may hold a password: not shown
        raise BadInput(f"the ledger's URL is not valid; write {_FORMS}") from error
    for key in url.query:
        if any(sign in key.lower() for sign in _SECRETS):
            raise BadInput(
                f"the ledger's URL has {key} in its query, where everybody can see it; take it out"
                " and put the password in ~/.pgpass"
            )
    if url.drivername in {"postgresql", "postgresql+psycopg"}:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername not in {"sqlite", "sqlite+pysqlite"}:
        raise BadInput(f"a ledger cannot be stored in {url.drivername!r}; write {_FORMS}")
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise BadInput(f"the ledger's URL must name a file on disk; write {_FORMS}")
    return URL.create("sqlite", database=str(Path(url.database).expanduser().absolute()))


def refuse_network_filesystem(path: Path, mountinfo: str | None = None) -> None:
    """Raise LedgerError if `path` is, or would be, on a network filesystem.

    Args:
        path: a file that need not exist yet.
        mountinfo: text of /proc/self/mountinfo; read when left out.
    """
    kind = filesystem_type(path.resolve(), mountinfo)
    if is_network(kind):
        raise LedgerError(
            f"{path} is on a network filesystem ({kind}), where SQLite's locks are not reliable"
            " and the ledger could be damaged; name a file on a local disk with --db"
            " sqlite:////PATH or SLURMKIT_DB, or use PostgreSQL"
        )


def is_network(kind: str) -> bool:
    """Return whether a filesystem type is a network filesystem; unknown FUSE types count as one."""
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)
