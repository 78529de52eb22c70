"""Import an image into the cache once, also if several processes ask, without partial files."""

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
from slurmkit.formats.display import printable
from slurmkit.formats.memory import format_bytes
from slurmkit_containers.cache import CachedImage, ImageCache, ImageOrigin, hold_lock, try_lock
from slurmkit_containers.trust import LINE_STAYS, ReportProgress, ignore_progress

WriteImage = Callable[[Path, ReportProgress], ImageOrigin]
"""Writes an image's squashfs file to a path in a new, private folder; returns what it knows."""

ReimportMode = Literal["missing", "refresh", "always"]

_PAUSE = 0.2  # seconds between two progress reports of a child process
_OURS = re.compile(r"import-[0-9a-f]{32}-[a-z0-9_]+", re.ASCII)
_ALL = 64 << 20  # bytes; more than any command prints
_GRACE = 15  # seconds after SIGTERM, in which enroot removes what it unpacked
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_WORDS = (os.strerror(errno.ENOSPC).lower(), os.strerror(errno.EDQUOT).lower())
_LITTLE = 64 << 20  # bytes; if less is free, that is why a child failed


class CommandFailed(ImageError):
    """A command of an import failed, and not for lack of room.

    Attributes:
        output: the last lines that it printed.
    """

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


def import_once(
    cache: ImageCache,
    reference: str,
    make: WriteImage,
    *,
    again: ReimportMode = "missing",
    report: ReportProgress = ignore_progress,
) -> tuple[CachedImage, bool]:
    """Return an image of the cache; if necessary, import it with `make`.

    If several processes ask at once, on any node that shares the folder, one imports and the
    others wait for it.

    Args:
        cache: the cache.
        reference: the image's name, as `images.canonical` writes it.
        make: writes the file.
        again: `missing`: import only if it is not there; `newer`: import, unless another import
            began after this call; `always`: import.
        report: called with the progress.

    Returns:
        The image, and whether it was imported now.

    Raises:
        ImageError: when the import fails, the folder is full, or the file cannot be trusted.
    """
    started = time.time()
    cache.make_folder()
    with _working(cache, reference, report) as work:
        found = cache.find(reference)
        new = found is not None and found.entry.made.begun >= started
        if found is not None and (again == "missing" or (again == "refresh" and new)):
            cache.check(found, report=report)
            cache.used(found)
            return found, False
        with _naming_full_folder(cache.folder):
            begun = time.time()
            made = msgspec.structs.replace(make(work / "image.sqsh", report), begun=begun)
            return cache.keep(work / "image.sqsh", reference, made, report), True


def remove_leftovers(cache: ImageCache) -> None:
    """Remove the folders of killed imports: those whose lock is free."""
    for left in cache.folder.glob("import-*"):
        if not _OURS.fullmatch(left.name):
            continue
        with try_lock(cache.folder / "locks" / left.name.rpartition("-")[0]) as free:
            if free:
                shutil.rmtree(left, ignore_errors=True)
    cache.clean()


def check_room(folder: Path, needed: int) -> None:
    """Check before an import that it can fit.

    Args:
        folder: the folder that is written to.
        needed: bytes.

    Raises:
        ImageError: naming the folder, the bytes needed and the bytes free.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ImageError(
            f"{folder} has no room: about {format_bytes(needed)} needed, {format_bytes(free)} free;"
            " make room with slurmkit image prune --size,"
            " or name another folder in [containers] cache"
        )


@contextmanager
def _working(cache: ImageCache, reference: str, report: ReportProgress) -> Iterator[Path]:
    """Hold the lock of a reference, and yield a new folder to work in.

    The folder is never reused: a process left by a killed import may still write to its folder.
    """
    folder = cache.folder
    name = f"import-{hashlib.sha256(reference.encode()).hexdigest()[:32]}"
    locks = folder / "locks"
    locks.mkdir(mode=0o700, exist_ok=True)

    def waiting() -> None:
        report(f"another import of {reference} runs: waiting for it", 0, None)

    with hold_lock(locks / name, waiting):
        remove_leftovers(cache)
        for left in folder.glob(f"{name}-*"):
            words = f"an earlier import of {reference} was interrupted: starting again"
            report(words, LINE_STAYS, None)
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _naming_full_folder(folder: Path) -> Iterator[None]:
    """Turn errors of a full disk into one that names the folder."""
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
    report: ReportProgress,
    feed: Callable[[IO[bytes]], None] | None = None,
) -> str:
    """Run a command that writes `file`; if we are interrupted, its process group is killed.

    Args:
        argv: the command.
        file: the file that it writes; its size is reported.
        report: called with the command's last line and the size.
        feed: writes the command's standard input.

    Returns:
        The command's output.

    Raises:
        CommandFailed: when it fails, with its last lines.
        ImageError: when a disk or quota is full.
    """
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if feed is None else subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # so that all it starts can be ended together
        )
        try:
            if feed is not None and child.stdin is not None:
                with suppress(BrokenPipeError), child.stdin as pipe:
                    feed(pipe)
            while _runs(child):
                size = file.stat().st_size if file.exists() else 0
                last_line = next(iter(_text(output).splitlines()[-1:]), "")
                report(last_line or Path(argv[0]).name, size, None)
        except BaseException:
            _end(child)
            raise
        if child.returncode:
            raise _failed(argv, child.returncode, output, file)
        return _text(output, _ALL)


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


def _failed(argv: Sequence[str], code: int, output: IO[bytes], file: Path) -> ImageError:
    text = _text(output)
    folder = file.parent.parent
    why = next((full for full in _FULL_WORDS if full in text.lower()), None)
    if why is None and shutil.disk_usage(folder).free < _LITTLE:
        why = "hardly anything is free"
    if why is not None and shutil.disk_usage(folder).free > _LITTLE:
        return ImageError(
            f"no room for {Path(argv[0]).name} ({why}): your quota in {folder} is reached, or the"
            " folder in which enroot unpacks is full: ENROOT_TEMP_PATH, else TMPDIR or /tmp"
        )
    if why is not None:
        return _full(folder, why)
    how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
    lines = text.splitlines()
    last = " / ".join([line for line in lines if not line.startswith("[INFO]")][-3:] or lines[-2:])
    return CommandFailed(f"{Path(argv[0]).name} {how}: {last or 'it printed nothing'}", text)


def _text(output: IO[bytes], most: int = 4096) -> str:
    """Return the last `most` bytes of a command's output; a carriage return starts a new line."""
    size = os.fstat(output.fileno()).st_size
    tail = os.pread(output.fileno(), most, max(0, size - most)).decode("utf-8", "replace")
    lines = (printable(line.strip()) for line in tail.replace("\r", "\n").split("\n"))
    return "\n".join(filter(None, lines))
