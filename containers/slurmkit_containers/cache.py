"""A cache of images as squashfs files, found by reference and checked before use.

For each image the folder has `ADDRESS.sqsh` and its record `ADDRESS.json`. The address is the
image's digest, or the file's SHA-256 if there is no digest, so each content is stored once. Files
are written under another name and renamed, so no process sees half a file. A lock file keeps
processes on all machines apart.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

import msgspec

from slurmkit.config.paths import lock_file, open_lock_file
from slurmkit.errors import ImageError
from slurmkit_containers.trust import (
    ReportProgress,
    check_folder,
    ignore_progress,
    open_trusted,
    sha256_of,
)

LOCAL_PREFIX = "local#"
"""Prefix of names that users gave to their own images; no registry is ever asked for these."""

_OURS = re.compile(r"sha256-[0-9a-f]{64}\.sqsh", re.ASCII)
_SQUASHFS = b"hsqs"
_BYTES_USED_OFFSET = 40  # bytes_used of the superblock, 8 bytes, little-endian


class ImageOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """What the importer knows about the image it wrote.

    Attributes:
        source: a reference, or the path it was made from.
        digest: `sha256:…` of its manifest or configuration; None if unknown.
        architecture: Docker's name of it, for example `amd64`; None if unknown.
        begun: start of the import in epoch seconds; 0 if unknown.
    """

    source: str
    digest: str | None = None
    architecture: str | None = None
    begun: float = 0.0


class ImageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one image file.

    Attributes:
        address: file name without `.sqsh`.
        references: names of the image, each as `images.canonical` writes it.
        sha256: SHA-256 of the file.
        size: bytes of the file.
        modified: mtime in nanoseconds when the file was hashed.
        changed: ctime in nanoseconds at that moment; no user can set it.
        imported: epoch seconds.
    """

    address: str
    references: tuple[str, ...]
    made: ImageOrigin
    sha256: str
    size: int
    modified: int
    changed: int
    imported: float

    @property
    def of_path(self) -> bool:
        """Whether it was made from a file or folder, so that no registry can give it again."""
        return self.made.source.startswith("/")


class CachedImage(msgspec.Struct, frozen=True):
    """An image of the cache: its record, the path of its file, and its last use (epoch seconds)."""

    entry: ImageRecord
    path: Path
    used: float


class ImageCache:
    """One folder of images.

    Args:
        folder: absolute path; created with mode 0700 when the first image is stored.
        owners: user ids whose files are trusted; by default the user's own and root.
    """

    def __init__(self, folder: Path, owners: Collection[int] | None = None) -> None:
        self.folder = folder
        self.owners = frozenset((os.getuid(), 0) if owners is None else owners)

    def entries(self) -> list[CachedImage]:
        """Return all images, last used first; untrusted and unreadable ones are left out.

        Raises:
            ImageError: when others may write into the folder, or it has another owner.
        """
        try:
            check_folder(self.folder, self.owners)
        except FileNotFoundError:
            return []
        found = filter(None, map(self._read, self.folder.glob("*.json")))
        return sorted(found, key=lambda each: each.used, reverse=True)

    def find(self, reference: str) -> CachedImage | None:
        """Return the image of that name, unchecked; None if there is none. Raises as `entries`."""
        return next((c for c in self.entries() if reference in c.entry.references), None)

    def check(
        self, cached: CachedImage, *, full: bool = False, report: ReportProgress = ignore_progress
    ) -> None:
        """Check that a file is the one that was imported.

        The file is hashed only with `full`, or if its times are not the recorded ones: no user
        can change a file and keep its ctime.

        Raises:
            ImageError: when it is a link, has another owner, is writable by others, or is not
                what was recorded.
        """
        entry = cached.entry
        handle = open_trusted(cached.path, self.owners)
        try:
            found = os.fstat(handle)
            same = (found.st_mtime_ns, found.st_ctime_ns) == (entry.modified, entry.changed)
            if found.st_size == entry.size and same and not full:
                return None
            if found.st_size != entry.size or sha256_of(handle, report) != entry.sha256:
                now = self._now(entry.address)
                if now is not None and now.entry != entry:  # imported again meanwhile
                    return self.check(now, full=full, report=report)
                raise ImageError(
                    f"{cached.path} has changed since its import: its size or SHA-256 differs; run:"
                    f" slurmkit image import --again {_import_arguments(entry)}"
                )
            if not same:
                self._record_times(cached, found)
        finally:
            os.close(handle)

    def used(self, cached: CachedImage) -> None:
        """Record that an image is used now; in a read-only folder, record nothing."""
        with suppress(OSError):
            os.utime(self._record(cached.entry.address))

    def make_folder(self) -> None:
        """Create the folder if it does not exist. Raises as `entries`."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_folder(self.folder, self.owners)

    def keep(
        self,
        file: Path,
        reference: str,
        made: ImageOrigin,
        report: ReportProgress = ignore_progress,
    ) -> CachedImage:
        """Move a finished file into the cache, and take its name away from other images.

        Args:
            file: a file on the same file system.
            reference: its name, as `images.canonical` writes it.
            made: what the importer knows about it.
            report: called with the progress of hashing.

        Raises:
            ImageError: when it is not a complete squashfs file.
        """
        check_squashfs(file)
        file.chmod(0o644)
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            os.fsync(handle)
            digest = sha256_of(handle, report)
            address = (made.digest or f"sha256:{digest}").replace(":", "-")
            path = self.folder / f"{address}.sqsh"
            with hold_lock(self.folder / "lock"):
                record = self._record(address)
                before = self._read(record) if record.exists() else None
                others = before.entry.references if before else ()
                file.rename(path)
                found = os.fstat(handle)
                entry = ImageRecord(
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
        return CachedImage(entry, path, entry.imported)

    def remove(self, cached: Iterable[CachedImage]) -> None:
        """Delete images. A submitted job that has not started yet would miss its image."""
        with hold_lock(self.folder / "lock"):
            for each in cached:
                self._record(each.entry.address).unlink(missing_ok=True)
                each.path.unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove files without a record, left by imports that were killed before writing it."""
        with hold_lock(self.folder / "lock"):
            for path in self.folder.glob("sha256-*.sqsh"):
                # Users may keep files of their own in the folder, too.
                if _OURS.fullmatch(path.name) and not path.with_suffix(".json").exists():
                    path.unlink()

    def _record_times(self, cached: CachedImage, found: os.stat_result) -> None:
        """Record new times so that the next check need not hash, if the folder is writable."""
        times = {"modified": found.st_mtime_ns, "changed": found.st_ctime_ns}
        with suppress(OSError, ImageError), hold_lock(self.folder / "lock"):
            now = self._read(self._record(cached.entry.address))
            if now is not None and now.entry == cached.entry:
                self._write(msgspec.structs.replace(cached.entry, **times), cached.used)

    def _now(self, address: str) -> CachedImage | None:
        """Read an image's record under the lock; None if there is none or no permission."""
        with suppress(OSError, ImageError), hold_lock(self.folder / "lock"):
            return self._read(self._record(address))
        return None

    def _take(self, reference: str, but: str) -> None:
        """Take a name away from other images; an image without a name stays until it is pruned."""
        for each in self.entries():
            if each.entry.address != but and reference in each.entry.references:
                left = tuple(name for name in each.entry.references if name != reference)
                self._write(msgspec.structs.replace(each.entry, references=left), each.used)

    def _record(self, address: str) -> Path:
        return self.folder / f"{address}.json"

    def _write(self, entry: ImageRecord, used: float | None = None) -> None:
        path = self._record(entry.address)
        draft = path.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(entry))
        draft.chmod(0o644)
        if used is not None:
            os.utime(draft, (used, used))
        draft.rename(path)

    def _read(self, record: Path) -> CachedImage | None:
        try:
            handle = open_trusted(record, self.owners)
            with os.fdopen(handle, "rb") as file:
                entry = msgspec.json.decode(file.read(), type=ImageRecord)
                used = os.fstat(handle).st_mtime
        except (OSError, ImageError, msgspec.MsgspecError):
            return None
        path = record.with_suffix(".sqsh")
        belongs = entry.address == record.stem and os.path.lexists(path)
        return CachedImage(entry, path, used) if belongs else None


def longest_unused(cached: Iterable[CachedImage], limit: float) -> Iterator[CachedImage]:
    """Yield the longest unused images, so that the others take at most `limit` bytes."""
    room = limit
    for each in sorted(cached, key=lambda one: one.used, reverse=True):
        room -= each.entry.size
        if room < 0:
            yield each


def check_squashfs(file: Path) -> None:
    """Check that a file is a complete squashfs file.

    Raises:
        ImageError: when it is not one, or is truncated.
    """
    with file.open("rb") as opened_file:
        head = opened_file.read(_BYTES_USED_OFFSET + 8)
    if len(head) < _BYTES_USED_OFFSET + 8 or head[:4] != _SQUASHFS:
        raise ImageError(f"{file} is not a squashfs file: the import failed")
    if file.stat().st_size < int.from_bytes(head[_BYTES_USED_OFFSET:], "little"):
        raise ImageError(f"{file} is cut off: it is shorter than its own header says")


def _import_arguments(entry: ImageRecord) -> str:
    """Return the arguments of `slurmkit image import` that import the image again."""
    name = next(iter(entry.references), entry.address)
    if not name.startswith(LOCAL_PREFIX):
        return name.removeprefix("docker.io#").replace("#", "/", 1)
    return shlex.join([entry.made.source, "--as", name.removeprefix(LOCAL_PREFIX)])


@contextmanager
def hold_lock(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock `path`, and wait until it is free.

    Other machines see the lock on NFS, and on Lustre if it is mounted with `flock`.

    Args:
        path: the lock file.
        waiting: called once if the lock is not free.

    Raises:
        ImageError: when the file system has no locks.
    """
    with open_lock_file(path) as lock:
        if not _lock(lock, path, 0):
            waiting()
            _lock(lock, path, None)
        yield


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold the lock `path` if it is free; yield whether it was."""
    with open_lock_file(path) as lock:
        yield _lock(lock, path, 0)


def _lock(lock: FileIO, path: Path, patience: float | None) -> bool:
    try:
        return lock_file(lock, patience)
    except OSError as error:
        raise ImageError(
            f"{path.parent} is on a file system without locks ({error.strerror}); set another"
            " folder in [containers] cache"
        ) from error
