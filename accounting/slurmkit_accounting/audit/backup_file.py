"""The file of a backup: all tables of a ledger as text, the same for every database.

A backup is gzip (RFC 1952) over lines of JSON: `BackupHeader`; for each table an object with its
name and columns, then a list for each row; and an object with the sha256 of all lines before it.
Values are as the database stores them: numbers of 64 bits are signed, binary values are base64.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from slurmkit.config.paths import describe_write_error
from slurmkit.errors import BadInput, LedgerError
from slurmkit_accounting.ledger.schema.types import REVISION

FORMAT = "slurmkit ledger backup"
FORMAT_VERSION = 1
# Level 6 makes the file of 200,000 runs 13 % smaller, and takes 2.8 times as long to compress it.
_LEVEL = 3
_MANY = 20_000
_LONGEST_HEADER = 1 << 20  # bytes; it holds a name and a number for each table
_DECODER = msgspec.json.Decoder(list[Any])


class BackupHeader(msgspec.Struct, frozen=True):
    """First line of a backup.

    Attributes:
        format: `FORMAT`.
        format_version: `FORMAT_VERSION`.
        slurmkit: version of slurmkit that wrote the file.
        schema: revision of the ledger's schema.
        taken: epoch seconds; the ledger is stored as it was then.
        ledger: path or URL of the ledger, without a password.
        checksum: checksum of the ledger, see `slurmkit_accounting.audit.verify`.
        rows: number of rows of each table.
    """

    format: str
    format_version: int
    slurmkit: str
    schema: str
    taken: int
    ledger: str
    checksum: str
    rows: dict[str, int]


class BackupTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Line before the rows of a table."""

    table: str
    columns: list[str]


class BackupRows(NamedTuple):
    """Some rows of a table, at least one; each has a value for each column."""

    table: BackupTable
    rows: list[list[Any]]


class _BackupEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str


class BackupWriter:
    """Writer of the lines of a backup."""

    def __init__(self, file: gzip.GzipFile, header: BackupHeader) -> None:
        self._file, self._hash = file, hashlib.sha256()
        self._encoder = msgspec.json.Encoder()
        self._write_lines([header])

    def begin_table(self, name: str, columns: Sequence[str]) -> None:
        """Begin a table; its rows follow."""
        # SQLAlchemy's names are of a subclass of str, which msgspec does not encode.
        self._write_lines([BackupTable(str(name), list(map(str, columns)))])

    def write_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write rows of the table that was begun last."""
        self._write_lines(rows)

    def end(self) -> None:
        """Write the last line."""
        self._write_lines([_BackupEnd(self._hash.hexdigest())])

    def _write_lines(self, lines: Sequence[Any]) -> None:
        text = self._encoder.encode_lines(lines)
        self._hash.update(text)
        self._file.write(text)


@contextmanager
def new_backup_file(path: Path, header: BackupHeader) -> Iterator[BackupWriter]:
    """Write a backup of mode 0600 next to `path`, and rename it to `path` at the end.

    Whatever goes wrong, an older backup at `path` stays, and nothing else is left. A link
    stays: the backup is the file that it leads to.

    Raises:
        BadInput: when `path` exists and is no backup.
        LedgerError: when the file cannot be written.
    """
    require_replaceable(path)
    target = Path(os.path.realpath(path))
    aside = None
    try:
        number, name = tempfile.mkstemp(".unfinished", f".{target.name}-", target.parent)
        aside = Path(name)
        with os.fdopen(number, "wb") as file:
            # Neither a name nor a time: the same ledger makes the same bytes but for the header.
            with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as zipped:
                writer = BackupWriter(zipped, header)
                yield writer
                writer.end()
            file.flush()
            os.fsync(file.fileno())
        _publish(aside, target)
        aside = None
    except OSError as error:
        more = "; make its folder" if isinstance(error, FileNotFoundError) else ""
        raise LedgerError(
            f"cannot write the backup {path}: {describe_write_error(error)}{more}"
        ) from error
    finally:
        if aside is not None:
            with suppress(OSError):
                aside.unlink()


def require_replaceable(path: Path) -> None:
    """Raise BadInput if there is something at `path` that is neither a backup nor an empty file."""
    if not os.path.lexists(path):
        return
    try:
        if not (path.is_file() and path.stat().st_size == 0):
            read_header(path)
    except LedgerError as error:
        raise BadInput(
            f"{path} exists, and a backup replaces only a backup: {error}; name another file"
        ) from error


def _publish(aside: Path, target: Path) -> None:
    """Give a finished file its name; do not replace what appeared there meanwhile."""
    try:
        target.hardlink_to(aside)
    except OSError:  # there is a file, or the filesystem has no hard links
        require_replaceable(target)
        aside.replace(target)
    else:
        aside.unlink()


def read_header(path: Path) -> BackupHeader:
    """Return the header of a backup.

    Raises:
        LedgerError: when the file cannot be read, or is not a backup that this release can read.
    """
    with _open_backup(path) as (header, _, _):
        return header


def read_rows(path: Path) -> Iterator[BackupRows]:
    """Yield the rows of all tables.

    Raises:
        LedgerError: when the file turns out to be cut off, damaged or altered. That it is not is
            only known after the last rows.
    """
    with _open_backup(path) as (header, first, file):
        digest = hashlib.sha256(first)
        table, end = None, None
        counts: dict[str, int] = {}
        for lines in _group_lines(file):
            text = b"".join(lines)
            if end is not None:
                raise _damaged(path, "there is more after its last line")
            if text.startswith(b'{"sha256"'):
                end = msgspec.json.decode(text, type=_BackupEnd)
                continue
            digest.update(text)
            if text.startswith(b"{"):
                table = msgspec.json.decode(text, type=BackupTable)
                counts.setdefault(table.table, 0)
                continue
            if table is None:
                raise _damaged(path, "it has rows of no table")
            rows = _DECODER.decode_lines(text)
            if any(len(row) != len(table.columns) for row in rows):
                raise _damaged(path, f"a row of {table.table} has too many or too few values")
            counts[table.table] += len(rows)
            yield BackupRows(table, rows)
        if end is None:
            raise _damaged(path, "its end is missing")
        if end.sha256 != digest.hexdigest():
            raise _damaged(path, "its content has another sha256 than its last line says")
        if counts != header.rows:
            raise _damaged(path, "it has other numbers of rows than its first line says")


def _group_lines(file: gzip.GzipFile) -> Iterator[list[bytes]]:
    """Yield lines of rows, `_MANY` together, and every other line alone."""
    some: list[bytes] = []
    for line in file:
        is_row = line.startswith(b"[")
        if some and (not is_row or len(some) == _MANY):
            yield some
            some = []
        if is_row:
            some.append(line)
        else:
            yield [line]
    if some:
        yield some


@contextmanager
def _open_backup(path: Path) -> Iterator[tuple[BackupHeader, bytes, gzip.GzipFile]]:
    """Open a backup; yield its header, its first line, and the file after it.

    Errors of the file inside the `with` become LedgerErrors.
    """
    try:
        with gzip.open(path) as file:
            first = _read_first_line(path, file)
            header = msgspec.json.decode(first, type=BackupHeader)
            if header.format_version > FORMAT_VERSION or header.schema > REVISION:
                raise LedgerError(
                    f"the backup {path} was made by a newer slurmkit ({header.slurmkit}, schema"
                    f" {header.schema}; this one knows {REVISION}); upgrade slurmkit"
                )
            yield header, first, file
    except EOFError as error:
        raise _damaged(path, "its end is missing") from error
    except (gzip.BadGzipFile, zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise LedgerError(f"cannot read the backup {path}: {error.strerror or error}") from error


def _read_first_line(path: Path, file: gzip.GzipFile) -> bytes:
    """Return the first line, if the file is a backup."""
    try:
        first = file.readline(_LONGEST_HEADER)
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _foreign(path) from error
    if not first.startswith(b'{"format":"' + FORMAT.encode()):
        raise _foreign(path)
    return first


def _foreign(path: Path) -> LedgerError:
    return LedgerError(f"{path} is not a backup by: slurmkit ledger backup {path}")


def _damaged(path: Path, why: str) -> LedgerError:
    return LedgerError(
        f"the backup {path} is cut off, damaged or altered: {why}; nothing of it was restored; take"
        " another copy of it"
    )
