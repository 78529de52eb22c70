"""A piece of a file of any size, as a screen needs it."""

from __future__ import annotations

import os

import msgspec

from slurmkit.errors import LogUnavailable
from slurmkit.machine import HERE, Machine

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


def read_piece(path: str, begin: int, length: int, on: Machine = HERE) -> Piece:
    """Read some bytes of a file; a negative begin counts from its end.

    Args:
        path: of the file.
        begin: offset of the first byte.
        length: how many.
        on: the machine that sees it; this one by default.

    Raises:
        LogUnavailable: when it cannot be read, or is no file.
    """
    try:
        with on.open(path) as file:
            size = file.seek(0, os.SEEK_END)
            at = file.seek(max(0, min(size, begin if begin >= 0 else size + begin)))
            return Piece(file.read(min(length, LARGEST)), at, size)
    except OSError as error:
        raise LogUnavailable(f"cannot read {path}: {error.strerror}") from error
