"""Compressed files: gzip and xz by Python, zstd by Python from 3.14 on, else by the program."""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from slurmkit.errors import ImageError

MAGIC = 6
"""Bytes at the begin of a file by which its compression is known."""
_PIECE = 1 << 20


Unpack = Callable[[IO[bytes], IO[bytes], Path], None]
"""Writes to a real file what another has without compression; the path is what messages name.

Raises ImageError for what nothing here reads, OSError where there is no room, EOFError when it is
damaged, as gzip and lzma also have their own errors.
"""


def unpacker(head: bytes) -> Unpack | None:
    """What unpacks a file that begins with `head`, `MAGIC` bytes; None where it is not packed."""
    return next((way for magic, way in _WAYS if head.startswith(magic)), None)


def _gzip(file: IO[bytes], out: IO[bytes], source: Path) -> None:
    del source
    with gzip.open(file) as plain:
        shutil.copyfileobj(plain, out, _PIECE)


def _xz(file: IO[bytes], out: IO[bytes], source: Path) -> None:
    del source
    with lzma.open(file) as plain:
        shutil.copyfileobj(plain, out, _PIECE)


def _zstd(file: IO[bytes], out: IO[bytes], source: Path) -> None:
    try:
        python: Any = import_module("compression.zstd")
    except ImportError:
        return _zstd_program(file, out, source)
    try:
        with python.open(file) as plain:
            shutil.copyfileobj(plain, out, _PIECE)
    except python.ZstdError as error:
        raise EOFError(f"zstd: {error}") from error


def _zstd_program(file: IO[bytes], out: IO[bytes], source: Path) -> None:
    program = shutil.which("zstd")
    if program is None:
        raise ImageError(
            f"{source} has layers that are compressed with zstd, and nothing here reads that:"
            " install zstd, or use Python 3.14 or later; or write the image anew with gzip: skopeo"
            " copy --dest-compress-format gzip --dest-force-compress-format"
        )
    with tempfile.TemporaryFile() as said:
        argv = [program, "--decompress", "--stdout", "--quiet", "--no-progress"]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=said)
        try:
            with suppress(BrokenPipeError), child.stdin or out as pipe:
                shutil.copyfileobj(file, pipe, _PIECE)
            code = child.wait()
        finally:
            child.kill()
            child.wait()
        if code:
            said.seek(0)
            _failed(said.read(4096).decode("utf-8", "replace").strip())


def _failed(words: str) -> None:
    full = os.strerror(errno.ENOSPC)
    if full.lower() in words.lower():
        raise OSError(errno.ENOSPC, full)
    raise EOFError(words or "zstd failed")


_WAYS: tuple[tuple[bytes, Unpack], ...] = (
    (b"\x1f\x8b", _gzip),
    (b"\xfd7zXZ\0", _xz),
    (b"\x28\xb5\x2f\xfd", _zstd),
)
