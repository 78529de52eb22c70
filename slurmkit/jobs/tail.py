"""A file that is being written, read on from where reading was left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from slurmkit.errors import LogUnavailable
from slurmkit.machine import HERE, Machine

_CHUNK = 1 << 16
_MEMORY = 64  # bytes before the offset that tell whether it is still the same text


class Tail:
    """Reads what was added to a file since the last time.

    Args:
        path: the file, which need not exist yet.
        lines: begin with the last so many lines of what is there at first; all by default.
        on: the machine that sees it; this one by default.

    Attributes:
        rewritten: whether the last read found the file emptied or written anew, as a requeued job
            does, and began at its start again.
    """

    def __init__(self, path: Path, lines: int | None = None, on: Machine = HERE) -> None:
        self.path = path
        self.rewritten = False
        self._on = on
        self._lines = lines
        self._offset: int | None = None
        self._before = b""

    @property
    def exists(self) -> bool:
        """Whether the file is there.

        Raises:
            LogUnavailable: when we may not even look.
        """
        try:
            return self._on.exists(str(self.path))
        except OSError as error:
            raise self._unreadable(error) from error

    def read(self) -> Iterator[bytes]:
        """Yield what is new, nothing while the file does not exist.

        Raises:
            LogUnavailable: when it cannot be read, or is no file.
        """
        self.rewritten = False
        try:
            with self._on.open(str(self.path)) as file:
                self._seek(file)
                while chunk := file.read(_CHUNK):
                    self._offset = (self._offset or 0) + len(chunk)
                    self._before = (self._before + chunk)[-_MEMORY:]
                    yield chunk
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> LogUnavailable:
        return LogUnavailable(f"cannot read {self.path}: {error.strerror}")

    def _seek(self, file: BinaryIO) -> None:
        if self._offset is None:
            self._offset = _last_lines(file, self._lines) if self._lines is not None else 0
            start = file.seek(max(0, self._offset - _MEMORY))
            self._before = file.read(self._offset - start)
        elif not self._is_where_we_left(file):
            self._offset, self._before, self.rewritten = 0, b"", True
        file.seek(self._offset)

    def _is_where_we_left(self, file: BinaryIO) -> bool:
        file.seek((self._offset or 0) - len(self._before))
        return file.read(len(self._before)) == self._before


def _last_lines(file: BinaryIO, lines: int) -> int:
    """Offset of the last `lines` lines, found from the end however large the file is."""
    end = file.seek(0, os.SEEK_END)
    at, left = end, lines
    while at > 0:
        start = max(0, at - _CHUNK)
        file.seek(start)
        block = file.read(at - start)
        if at == end and block.endswith(b"\n"):  # ends the last line, begins none
            block = block[:-1]
        count = block.count(b"\n")
        if count >= left:
            return start + _nth_last(block, left) if left else end
        left -= count
        at = start
    return 0 if lines else end


def _nth_last(block: bytes, number: int) -> int:
    """Where the text after the `number`th line break from the end begins."""
    at = len(block)
    for _ in range(number):
        at = block.rfind(b"\n", 0, at)
    return at + 1
