"""Images kept as squashfs files, each content once: found by reference, checked before use.

A folder holds for each image `ADDRESS.sqsh` and `ADDRESS.json`, an `Entry`; the address is the
image's digest, or the file's SHA-256 where it has none. A file appears by a rename, whole.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from slurmkit.errors import ImageError
from slurmkit_containers.locks import held
from slurmkit_containers.trust import Report, check_folder, opened, sha256_of, silent

LOCAL = "local#"
"""What names begin with that people gave themselves; no registry is ever asked for these."""

_OURS = re.compile(r"sha256-[0-9a-f]{64}\.sqsh", re.ASCII)
_SQUASHFS = b"hsqs"
_USED_AT = 40  # bytes_used of the superblock, 8 bytes, little-endian


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What an importer knows of the image it wrote.

    Attributes:
        source: where it comes from, in words.
        digest: `sha256:…` of its manifest or configuration; None when not known.
        architecture: as Docker names it, `amd64`; None when not known.
        begun: epoch seconds; 0 where it is not known.
    """

    source: str
    digest: str | None = None
    architecture: str | None = None
    begun: float = 0.0


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded of a file.

    Attributes:
        address: its name without `.sqsh`.
        references: what it is called, each as `images.canonical` writes it.
        sha256: of the file.
        size: bytes of the file.
        modified: nanoseconds; as `changed`, which no user can set, when the file was hashed.
        imported: epoch seconds.
    """

    address: str
    references: tuple[str, ...]
    made: Made
    sha256: str
    size: int
    modified: int
    changed: int
    imported: float

    @property
    def of_path(self) -> bool:
        """Whether it was made from a file or folder, which no registry can give again."""
        return self.made.source.startswith("/")


class Cached(msgspec.Struct, frozen=True):
    """An entry, where its file is, and when it was last used, in epoch seconds."""

    entry: Entry
    path: Path
    used: float


class Cache:
    """One folder of images.

    Args:
        folder: absolute; made, for its owner alone, when the first image is kept.
        owners: user ids whose files are used; by default one's own and root's.
    """

    def __init__(self, folder: Path, owners: Collection[int] | None = None) -> None:
        self.folder = folder
        self.owners = frozenset((os.getuid(), 0) if owners is None else owners)

    def entries(self) -> list[Cached]:
        """All images, the last used first; what is not one's own or not readable is left out.

        Raises:
            ImageError: when others may write into the folder, or it is foreign.
        """
        try:
            check_folder(self.folder, self.owners)
        except FileNotFoundError:
            return []
        found = filter(None, map(self._read, self.folder.glob("*.json")))
        return sorted(found, key=lambda each: each.used, reverse=True)

    def find(self, reference: str) -> Cached | None:
        """The image of that name; not checked. Raises as `entries`."""
        return next((c for c in self.entries() if reference in c.entry.references), None)

    def check(self, cached: Cached, *, full: bool = False, report: Report = silent) -> None:
        """Make sure that a file is the one that was imported.

        It is read and hashed only where `full` says so or its times are not those recorded: no
        user can write a file and keep the time of its change.

        Raises:
            ImageError: when it is a link, foreign, writable by others, or not what was recorded.
        """
        entry = cached.entry
        handle = opened(cached.path, self.owners)
        try:
            found = os.fstat(handle)
            same = (found.st_mtime_ns, found.st_ctime_ns) == (entry.modified, entry.changed)
            if found.st_size == entry.size and same and not full:
                return None
            if found.st_size != entry.size or sha256_of(handle, report) != entry.sha256:
                now = self._now(entry.address)
                if now is not None and now.entry != entry:  # imported anew meanwhile
                    return self.check(now, full=full, report=report)
                raise ImageError(
                    f"{cached.path} is not what was imported: its size or SHA-256 is not that"
                    f" recorded; run: slurmkit image import --again {_what(entry)}"
                )
            if not same:
                self._record_times(cached, found)
        finally:
            os.close(handle)

    def used(self, cached: Cached) -> None:
        """Note that an image is used now; in a folder that one may not write, nothing is noted."""
        with suppress(OSError):
            os.utime(self._record(cached.entry.address))

    def make_folder(self) -> None:
        """Make the folder where there is none. Raises as `entries`."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_folder(self.folder, self.owners)

    def keep(self, file: Path, reference: str, made: Made, report: Report = silent) -> Cached:
        """Move a finished file of the same file system in; it takes its name from others.

        Raises:
            ImageError: when it is no whole squashfs file.
        """
        check_whole(file)
        file.chmod(0o644)
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            os.fsync(handle)
            digest = sha256_of(handle, report)
            address = (made.digest or f"sha256:{digest}").replace(":", "-")
            path = self.folder / f"{address}.sqsh"
            with held(self.folder / "lock"):
                others = self._names_of(address)
                file.rename(path)
                found = os.fstat(handle)
                entry = Entry(
                    address=address,
                    references=tuple(dict.fromkeys((reference, *others))),
                    made=made,
                    sha256=digest,
                    size=found.st_size,
                    modified=found.st_mtime_ns,
                    changed=found.st_ctime_ns,
                    imported=time.time(),
                )
                self._write(entry)
                self._take(reference, but=address)
        finally:
            os.close(handle)
        return Cached(entry, path, entry.imported)

    def remove(self, cached: Iterable[Cached]) -> None:
        """Delete images; a job that was sent and has not started yet would miss its one."""
        with held(self.folder / "lock"):
            for each in cached:
                self._record(each.entry.address).unlink(missing_ok=True)
                each.path.unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove files without a record: who moved one in was killed before writing it."""
        with held(self.folder / "lock"):
            for path in self.folder.glob("sha256-*.sqsh"):
                # The folder may be one in which people keep files of their own, too.
                if _OURS.fullmatch(path.name) and not path.with_suffix(".json").exists():
                    path.unlink()

    def _record_times(self, cached: Cached, found: os.stat_result) -> None:
        """Spare the next look the hashing, where one may write."""
        times = {"modified": found.st_mtime_ns, "changed": found.st_ctime_ns}
        with suppress(OSError, ImageError), held(self.folder / "lock"):
            now = self._read(self._record(cached.entry.address))
            if now is not None and now.entry == cached.entry:
                self._write(msgspec.structs.replace(cached.entry, **times), cached.used)

    def _now(self, address: str) -> Cached | None:
        """What is recorded now, with the file that belongs to it; None where one may not look."""
        with suppress(OSError, ImageError), held(self.folder / "lock"):
            return self._read(self._record(address))
        return None

    def _names_of(self, address: str) -> tuple[str, ...]:
        found = self._read(self._record(address)) if self._record(address).exists() else None
        return found.entry.references if found else ()

    def _take(self, reference: str, but: str) -> None:
        """Take a name from the images that had it; one without a name stays, to be pruned."""
        for each in self.entries():
            if each.entry.address != but and reference in each.entry.references:
                left = tuple(name for name in each.entry.references if name != reference)
                self._write(msgspec.structs.replace(each.entry, references=left), each.used)

    def _record(self, address: str) -> Path:
        return self.folder / f"{address}.json"

    def _write(self, entry: Entry, used: float | None = None) -> None:
        path = self._record(entry.address)
        draft = path.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(entry))
        draft.chmod(0o644)
        if used is not None:
            os.utime(draft, (used, used))
        draft.rename(path)

    def _read(self, record: Path) -> Cached | None:
        try:
            handle = opened(record, self.owners)
            with os.fdopen(handle, "rb") as file:
                entry = msgspec.json.decode(file.read(), type=Entry)
                used = os.fstat(handle).st_mtime
        except (OSError, ImageError, msgspec.MsgspecError):
            return None
        path = record.with_suffix(".sqsh")
        right = entry.address == record.stem and os.path.lexists(path)
        return Cached(entry, path, used) if right else None


def over(cached: Iterable[Cached], limit: float) -> Iterator[Cached]:
    """Those to remove so that the others take no more than `limit` bytes: the longest unused."""
    room = limit
    for each in sorted(cached, key=lambda one: one.used, reverse=True):
        room -= each.entry.size
        if room < 0:
            yield each


def check_whole(file: Path) -> None:
    """Refuse what is no squashfs file, or was cut off.

    Raises:
        ImageError: saying which.
    """
    with file.open("rb") as opened_file:
        head = opened_file.read(_USED_AT + 8)
    if len(head) < _USED_AT + 8 or head[:4] != _SQUASHFS:
        raise ImageError(f"{file} is no squashfs file; the import of it failed")
    if file.stat().st_size < int.from_bytes(head[_USED_AT:], "little"):
        raise ImageError(f"{file} is cut off: it is shorter than its own header says")


def _what(entry: Entry) -> str:
    """The words that import it anew."""
    name = next(iter(entry.references), entry.address)
    if not name.startswith(LOCAL):
        return name.removeprefix("docker.io#").replace("#", "/", 1)
    return shlex.join([entry.made.source, "--as", name.removeprefix(LOCAL)])
