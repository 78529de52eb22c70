"""Whether the service's account can use the database of `[ledger] db`.

`python -m slurmkit_accounting.site_setup.database` reads the URL from standard input and prints the
answer. setup runs this as the service's account, because PostgreSQL asks the system who connects to
its socket.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, text

from slurmkit.doctor.case import CheckFinding
from slurmkit.errors import LedgerError, SlurmkitError
from slurmkit_accounting.ledger.database import database_schema, open_database
from slurmkit_accounting.ledger.database_errors import translate_file_errors
from slurmkit_accounting.ledger.location import (
    is_default_path,
    is_sqlite,
    ledger_url,
    refuse_network_filesystem,
)
from slurmkit_accounting.ledger.schema import metadata
from slurmkit_accounting.site_setup.account import find_account, run_as

OLDEST_POSTGRES = 15
_SECONDS = 60
_UNUSABLE = 3  # exit code of this module: slurmkit ran, and found that the database cannot be used
# Nothing else of root's environment is for the service's account, such as passwords.
_ENVIRONMENT = frozenset(("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH"))


def check_database(db: str, account: str) -> Iterator[CheckFinding]:
    """Check that an account can use a database as a ledger.

    Args:
        db: URL of the database; empty for the file in the account's home.
        account: account that the service runs as.

    Raises:
        SlurmkitError: when this user cannot find out.
    """
    if _is_self(account):
        try:
            answer, works = describe_database(db), True
        except SlurmkitError as error:
            answer, works = str(error), False
    else:
        answer, works = _ask_as(account, db)
    if works:
        yield CheckFinding("ok", answer)
        return
    fix = "create the database as docs/install.md says, or name another with --db"
    yield CheckFinding("error", answer, "the service cannot start", fix, "as root")


def describe_database(db: str) -> str:
    """Return in words what is in a database; nothing is written.

    Raises:
        SlurmkitError: when it cannot be used as a ledger.
    """
    url = ledger_url(db or None)
    if is_sqlite(url):
        return _describe_file(Path(str(url.database)))
    with open_database(url) as ledger, ledger.transaction() as connection:
        (release,) = connection.execute(text("SHOW server_version_num")).one()
        (encoding,) = connection.execute(text("SHOW server_encoding")).one()
        schema = database_schema(connection, ledger.source)
        _require_rights(connection, ledger.source, is_empty=schema is None)
    if encoding != "UTF8":
        raise LedgerError(f"{ledger.source} has the encoding {encoding}; create it with UTF8")
    old = int(release) // 10000 < OLDEST_POSTGRES
    older = f"; releases before {OLDEST_POSTGRES} are not tested" if old else ""
    state = (
        f"a ledger with schema {schema}" if schema else "empty: the first ingest makes the tables"
    )
    return f"{ledger.source}: PostgreSQL {int(release) // 10000}{older}; {state}"


def _require_rights(connection: Connection, source: str, *, is_empty: bool) -> None:
    """Raise LedgerError if the first ingest could not make the tables, or write to them."""
    schema, user, may_create = connection.execute(
        text(
            "SELECT current_schema(), current_user,"
            " has_schema_privilege(current_schema(), 'CREATE')"
        )
    ).one()
    if is_empty and not may_create:
        raise LedgerError(
            f"{source}: {user} may not make tables in the schema {schema or 'public'}; as its"
            f" owner: GRANT CREATE, USAGE ON SCHEMA {schema or 'public'} TO {user}"
        )
    denied = connection.scalars(
        text(
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
            " AND relkind = 'r' AND relname = ANY(:names)"
            " AND NOT has_table_privilege(oid, 'INSERT') ORDER BY relname"
        ),
        {"names": [str(name) for name in metadata.tables]},
    ).first()
    if denied is not None:
        raise LedgerError(
            f"{source}: {user} may not write to the table {denied}; let {user} own the tables"
        )


def _describe_file(path: Path) -> str:
    refuse_network_filesystem(path)
    with translate_file_errors(path):
        is_there = path.exists()
        # The folder of the default file is made with it.
        folders = path.parents if is_default_path(path) else [path.parent]
        folder = next((each for each in folders if each.is_dir()), None)
    if folder is None:
        raise LedgerError(
            f"{path}: there is no folder {path.parent}; make it, with this account as its owner"
        )
    if is_there and not os.access(path, os.W_OK):
        raise LedgerError(f"{path}: this account may not write to it")
    if not os.access(folder, os.W_OK | os.X_OK):  # SQLite's WAL and the locks are there, too
        raise LedgerError(f"{path}: this account may not write to the folder {folder}")
    if is_there:
        url = ledger_url(f"sqlite:///{path}")
        with open_database(url) as ledger, ledger.transaction() as connection:
            schema = database_schema(connection, ledger.source)
        return f"{path}: SQLite; " + (f"a ledger with schema {schema}" if schema else "empty")
    return f"{path}: SQLite; the first ingest makes the file"


def _is_self(account: str) -> bool:
    if account.isdecimal():
        return int(account) == os.geteuid()
    try:
        return pwd.getpwnam(account).pw_uid == os.geteuid()  # getpwall lists none of a directory
    except KeyError:
        return False


def _ask_as(account: str, db: str) -> tuple[str, bool]:
    """Run this module as another account; return what it says, and whether the database works."""
    try:
        person = find_account(account)
    except KeyError as error:
        raise SlurmkitError(f"not checked: there is no account {account} on this host") from error
    if os.geteuid() != 0:
        raise SlurmkitError(f"not checked: only root and {account} can find out")
    own = {"HOME": person.pw_dir, "USER": person.pw_name, "LOGNAME": person.pw_name}
    environment = {k: v for k, v in os.environ.items() if k in _ENVIRONMENT} | own
    argv = [
        sys.executable,
        "-I" if sys.flags.isolated else "-P",
        "-m",
        "slurmkit_accounting.site_setup.database",
    ]
    try:
        done = run_as(
            person, argv, cwd="/", env=environment, input=db, capture_output=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"the database did not answer within {_SECONDS} s", False
    except OSError as error:
        raise SlurmkitError(f"not checked: cannot run {sys.executable} as {account}") from error
    output = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    last = output[-1] if output else f"exit code {done.returncode}"
    if done.returncode not in {0, _UNUSABLE}:
        raise SlurmkitError(
            f"not checked: {account} cannot run slurmkit ({last}); let the account read"
            f" {sys.prefix}"
        )
    return last, not done.returncode


def main() -> None:
    """Print what is in the database whose URL is on standard input."""
    try:
        sys.stdout.write(f"{describe_database(sys.stdin.read().strip())}\n")
    except SlurmkitError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(_UNUSABLE)


if __name__ == "__main__":
    main()
