"""Reading on in a file that is written meanwhile."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.errors import LogUnavailable
from slurmkit.jobs.log import FileTail, _last_lines
from slurmkit.slurm.machine import open_regular_file


def read(tail: FileTail) -> bytes:
    return b"".join(tail.read())


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = FileTail(path)
    assert (tail.exists, read(tail)) == (False, b"")
    path.write_bytes(b"one\n")
    assert read(tail) == b"one\n"
    with path.open("ab") as file:
        file.write(b"two\n")
    assert (read(tail), tail.rewritten) == (b"two\n", False)
    assert read(tail) == b""


@pytest.mark.parametrize("new", [b"", b"new\n", b"a second run that is longer than the first\n"])
def test_a_file_written_anew_is_read_from_its_start(tmp_path: Path, new: bytes) -> None:
    """Also when it has grown beyond where reading was before anybody looked."""
    path = tmp_path / "log"
    path.write_bytes(b"a first run of some length\n")
    tail = FileTail(path)
    read(tail)
    path.write_bytes(new)
    assert read(tail) == new
    assert tail.rewritten


def test_a_file_that_was_removed_and_made_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n")
    tail = FileTail(path)
    read(tail)
    path.unlink()
    assert read(tail) == b""
    path.write_bytes(b"other\n")
    assert (read(tail), tail.rewritten) == (b"other\n", True)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        with pytest.raises(LogUnavailable, match="not a regular file"):
            read(FileTail(path))
    with pytest.raises(LogUnavailable, match="Is a directory"):
        read(FileTail(tmp_path))


def test_a_pipe_put_there_after_the_look_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    file = tmp_path / "file"
    file.touch()
    before = file.stat()
    monkeypatch.setattr(Path, "stat", lambda _: before)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular_file(pipe)


def test_a_directory_that_may_not_be_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests may run as root, to whom nothing is closed."""

    def closed(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    tail = FileTail(tmp_path / "log")
    monkeypatch.setattr(Path, "stat", closed)
    with pytest.raises(LogUnavailable, match=r"cannot read .*log: Permission denied"):
        assert tail.exists
    with pytest.raises(LogUnavailable, match=r"cannot read .*log: Permission denied"):
        read(tail)


def test_without_old_lines_a_file_written_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a first run of some length\n")
    tail = FileTail(path, 0)
    assert read(tail) == b""
    path.write_bytes(b"second\n")
    assert (read(tail), tail.rewritten) == (b"second\n", True)


@given(st.lists(st.sampled_from([b"", b"a", b"bc\r"]), max_size=8), st.integers(0, 9))
def test_the_last_lines(texts: list[bytes], number: int) -> None:
    text = b"\n".join(texts)
    expected = b"".join(_lines(text)[-number:]) if number else b""
    assert text[_last_lines(io.BytesIO(text), number) :] == expected


def _lines(text: bytes) -> list[bytes]:
    parts = text.split(b"\n")
    whole = [part + b"\n" for part in parts[:-1]]
    return [*whole, parts[-1]] if parts[-1] else whole


def test_the_last_lines_of_a_huge_file_are_found_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(8 << 30)  # sparse: reading it through would take minutes
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"".join(b"%0100d\n" % number for number in range(5000)))
    assert read(FileTail(path, 2000)) == b"".join(b"%0100d\n" % n for n in range(3000, 5000))
