"""The files of an image's archive or folder, whatever it is compressed with."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

from slurmkit.errors import ImageError

_SMALL = 16 << 20  # bytes; no manifest or configuration is larger
_ZSTD = b"\x28\xb5\x2f\xfd"


def _gunzipped(file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(file))


def _unxzed(file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", lzma.open(file))


_COMPRESSED: tuple[tuple[bytes, Callable[[IO[bytes]], IO[bytes]]], ...] = (
    (b"\x1f\x8b", _gunzipped),
    (b"\xfd7zXZ\0", _unxzed),
)


class Blobs:
    """The files of an archive or folder, by their names in it."""

    def __init__(self, source: Path, stack: ExitStack, scratch: Path) -> None:
        self._source, self._stack, self._scratch = source, stack, scratch
        self.archive: tarfile.TarFile | None = None
        self._members: dict[str, tarfile.TarInfo] = {}
        if not source.is_dir():
            plain = self.plain(stack.enter_context(source.open("rb")))
            self.archive = stack.enter_context(tarfile.TarFile(fileobj=plain))
            self._members = {m.name.removeprefix("./"): m for m in self.archive}

    def open(self, name: str) -> IO[bytes]:
        """Open one of them.

        Raises:
            ImageError: when there is none of that name.
        """
        found: IO[bytes] | None = None
        if self.archive is not None and name in self._members:
            member = self._meant(name)
            found = None if member is None else self.archive.extractfile(member)
        elif self.archive is None and _is_below(self._source, name):
            found = (self._source / name).open("rb")
        if found is None:
            raise ImageError(f"{self._source} is damaged: it has no file {name!r}")
        return self._stack.enter_context(found)

    def _meant(self, name: str) -> tarfile.TarInfo | None:
        """Docker's older archives have layers that are links to files of the archive."""
        member = self._members[name]
        if not member.issym():
            return member
        base = name.rpartition("/")[0].split("/") if "/" in name else []
        for part in member.linkname.split("/"):
            base = base[:-1] if part == ".." else [*base, part]
        found = self._members.get("/".join(base))
        return found if found is not None and found.isreg() else None

    def has(self, name: str) -> bool:
        """Whether there is one of that name."""
        if self.archive is None:
            return _is_below(self._source, name)
        return name in self._members

    def small(self, name: str) -> bytes:
        """The bytes of one that is a manifest or configuration."""
        return self.open(name).read(_SMALL)

    def table(self, name: str, digest: str | None = None) -> Any:
        """Read one that is JSON, and compare it with its digest."""
        data = self.small(name)
        if digest is not None and f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            raise ImageError(f"{self._source} is damaged: {name} has not the digest {digest}")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ImageError(f"{self._source} is damaged: {name} is no JSON: {error}") from error

    def plain(self, file: IO[bytes]) -> IO[bytes]:
        """The same without compression; what is compressed is unpacked into a nameless file."""
        head = file.read(6)
        file.seek(0)
        if head.startswith(_ZSTD):
            raise ImageError(
                f"{self._source} is compressed with zstd, which is not read; unpack it with"
                " zstd -d, or save it again with gzip"
            )
        for magic, opener in _COMPRESSED:
            if head.startswith(magic):
                nameless = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115 - see next
                bare = self._stack.enter_context(nameless)
                shutil.copyfileobj(opener(file), bare, 1 << 20)
                bare.seek(0)
                return cast("IO[bytes]", bare)
        return file


def _is_below(folder: Path, name: str) -> bool:
    path = (folder / name).resolve()
    return path.is_relative_to(folder.resolve()) and path.is_file()
