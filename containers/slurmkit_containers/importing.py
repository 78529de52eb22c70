"""Import an image once, whoever asks for it at the same time, and leave nothing half done."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

import msgspec

from slurmkit.errors import ImageError
from slurmkit.text import printable
from slurmkit_containers.cache import Cache, Cached, Made
from slurmkit_containers.locks import held, tried
from slurmkit_containers.trust import STAYS, Report, silent

Make = Callable[[Path, Report], Made]
"""Writes an image's squashfs file to a path, in a folder that is its own, and says what it is."""

Again = Literal["missing", "anew", "always"]

_PAUSE = 0.2  # seconds between two looks at a child
_OURS = re.compile(r"import-[0-9a-f]{32}-[a-z0-9_]+", re.ASCII)
_ALL = 64 << 20  # bytes; nothing says more
_GRACE = 15  # seconds that a child has to end by itself; enroot removes what it unpacked
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_WORDS = (os.strerror(errno.ENOSPC).lower(), os.strerror(errno.EDQUOT).lower())
_LITTLE = 64 << 20  # bytes; a child that failed with less left has failed for it


def import_once(
    cache: Cache, reference: str, make: Make, *, again: Again = "missing", report: Report = silent
) -> tuple[Cached, bool]:
    """Have an image in the cache: the one that is there, or what `make` writes.

    Of many processes that ask at once, on all nodes that share the folder, one imports and the
    others wait for it.

    Args:
        cache: where.
        reference: the name, as `images.canonical` writes it.
        make: writes the file.
        again: import what is `missing`, or `anew` unless another import began since, or `always`.
        report: told how far it is.

    Returns:
        The image, and whether it was imported now.

    Raises:
        ImageError: when it fails, the folder is full, or what is there cannot be trusted.
    """
    started = time.time()
    cache.make_folder()
    with _working(cache, reference, report) as work:
        found = cache.find(reference)
        new = found is not None and found.entry.made.begun >= started
        if found is not None and (again == "missing" or (again == "anew" and new)):
            cache.check(found, report=report)
            cache.used(found)
            return found, False
        with _room_told(cache.folder):
            begun = time.time()
            made = msgspec.structs.replace(make(work / "image.sqsh", report), begun=begun)
            return cache.keep(work / "image.sqsh", reference, made, report), True


def clean(cache: Cache) -> None:
    """Remove what imports left that did not live to do so: those whose lock is free."""
    for left in cache.folder.glob("import-*"):
        if not _OURS.fullmatch(left.name):
            continue
        with tried(cache.folder / "locks" / left.name.rpartition("-")[0]) as free:
            if free:
                shutil.rmtree(left, ignore_errors=True)
    cache.clean()


def need_room(folder: Path, needed: int) -> None:
    """Refuse before it begins what cannot fit.

    Raises:
        ImageError: naming folder, needed and free.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ImageError(
            f"{folder} has no room: about {gib(needed)} needed, {gib(free)} free; make room with"
            " slurmkit image prune --size, or name another folder in [containers] cache"
        )


def gib(size: float) -> str:
    """Bytes in words."""
    for unit, word in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {word}"
    return f"{size / 1024:.1f} KiB"


@contextmanager
def _working(cache: Cache, reference: str, report: Report) -> Iterator[Path]:
    """A folder of one's own while the lock of a reference is held.

    It is never used again: what a killed import started may live on, and write there.
    """
    folder = cache.folder
    name = f"import-{hashlib.sha256(reference.encode()).hexdigest()[:32]}"
    locks = folder / "locks"
    locks.mkdir(mode=0o700, exist_ok=True)

    def waiting() -> None:
        report(f"another import of {reference} runs: waiting for it", 0, None)

    with held(locks / name, waiting):
        clean(cache)
        for left in folder.glob(f"{name}-*"):
            report(f"an import of {reference} was cut off: it begins anew", STAYS, None)
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _room_told(folder: Path) -> Iterator[None]:
    """Say of a full disk which folder it is."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _full(folder, error.strerror or "no space") from error


def _full(folder: Path, why: str) -> ImageError:
    return ImageError(
        f"{folder} is full ({why}); make room with slurmkit image prune --size, or name another"
        " folder in [containers] cache"
    )


def run_child(
    argv: Sequence[str],
    file: Path,
    report: Report,
    feed: Callable[[IO[bytes]], None] | None = None,
) -> str:
    """Run a command that writes `file`; it and all it started end with us.

    Args:
        argv: the command.
        file: what it writes; its size is reported.
        report: told the size, and the last line it said.
        feed: writes what it is to read.

    Returns:
        What it said.

    Raises:
        ImageError: when it fails, in its last words.
    """
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if feed is None else subprocess.PIPE,
            stdout=said,
            stderr=said,
            start_new_session=True,  # so that all it starts can be ended together
        )
        try:
            if feed is not None and child.stdin is not None:
                with suppress(BrokenPipeError), child.stdin as pipe:
                    feed(pipe)
            while _runs(child):
                size = file.stat().st_size if file.exists() else 0
                report(_last(said) or Path(argv[0]).name, size, None)
        except BaseException:
            _end(child)
            raise
        if child.returncode:
            raise _failed(argv, child.returncode, said, file)
        return _text(said, _ALL)


def _runs(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(_PAUSE)
    except subprocess.TimeoutExpired:
        return True
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)


def _failed(argv: Sequence[str], code: int, said: IO[bytes], file: Path) -> ImageError:
    words = _text(said)
    folder = file.parent.parent
    why = next((full for full in _FULL_WORDS if full in words.lower()), None)
    if why is None and shutil.disk_usage(folder).free < _LITTLE:
        why = "hardly anything is free"
    if why is not None and shutil.disk_usage(folder).free > _LITTLE:
        return ImageError(
            f"no room for {Path(argv[0]).name} ({why}): its quota in {folder} is reached, or the"
            " folder in which enroot unpacks is full: ENROOT_TEMP_PATH, else TMPDIR or /tmp"
        )
    if why is not None:
        return _full(folder, why)
    how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
    lines = words.splitlines()
    last = " / ".join([line for line in lines if not line.startswith("[INFO]")][-3:] or lines[-2:])
    return ImageError(f"{Path(argv[0]).name} {how}: {last or 'it said nothing'}")


def _last(said: IO[bytes]) -> str:
    return next(iter(_text(said).splitlines()[-1:]), "")


def _text(said: IO[bytes], most: int = 4096) -> str:
    """The end of what a command said; a terminal would show of a line what follows a return."""
    size = os.fstat(said.fileno()).st_size
    tail = os.pread(said.fileno(), most, max(0, size - most)).decode("utf-8", "replace")
    lines = (printable(line.strip()) for line in tail.replace("\r", "\n").split("\n"))
    return "\n".join(filter(None, lines))
