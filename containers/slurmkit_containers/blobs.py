"""The files of an image's archive or folder, whatever it is compressed with."""

from __future__ import annotations

import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

from slurmkit.errors import ImageError
from slurmkit_containers.manifests import digest_of, parsed
from slurmkit_containers.unpacking import MAGIC, unpacker

_SMALL = 16 << 20  # bytes; no manifest or configuration is larger


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
        if digest is not None and digest_of(data) != digest:
            raise ImageError(f"{self._source} is damaged: {name} has not the digest {digest}")
        try:
            return parsed(data)
        except ValueError as error:
            raise ImageError(f"{self._source} is damaged: {name} is no JSON: {error}") from error

    def plain(self, file: IO[bytes]) -> IO[bytes]:
        """The same without compression; what is compressed is unpacked into a nameless file."""
        head = file.read(MAGIC)
        file.seek(0)
        if (unpack := unpacker(head)) is None:
            return file
        nameless = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115 - see next
        bare = cast("IO[bytes]", self._stack.enter_context(nameless))
        unpack(file, bare, self._source)
        bare.seek(0)
        return bare


def _is_below(folder: Path, name: str) -> bool:
    path = (folder / name).resolve()
    return path.is_relative_to(folder.resolve()) and path.is_file()
