"""A piece of a file of any size, as a screen needs it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from slurmkit.errors import LogUnavailable
from slurmkit.jobs.tail import open_regular

LARGEST = 1 << 22  # bytes of one piece


class Piece(msgspec.Struct, frozen=True):
    """A piece of a file.

    Attributes:
        begin: offset of its first byte.
        size: of the whole file, when it was read.
    """

    data: bytes
    begin: int
    size: int


def read_piece(path: str, begin: int, length: int) -> Piece:
    """Read some bytes of a file; a negative begin counts from its end.

    Raises:
        LogUnavailable: when it cannot be read, or is no file.
    """
    try:
        with open_regular(Path(path)) as file:
            size = file.seek(0, os.SEEK_END)
            at = file.seek(max(0, min(size, begin if begin >= 0 else size + begin)))
            return Piece(file.read(min(length, LARGEST)), at, size)
    except OSError as error:
        raise LogUnavailable(f"cannot read {path}: {error.strerror}") from error
