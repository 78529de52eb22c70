"""Pages of files of any size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurmkit_tui.widgets import log_pages
from slurmkit_tui.widgets.log_pages import (
    find_backward,
    find_forward,
    last_page,
    line_begin,
    offset_above,
    page_from,
)

from slurmkit.errors import LogUnavailable
from slurmkit.jobs.log import FilePiece, read_piece


def reader(data: bytes) -> log_pages.ReadPiece:
    return lambda begin, length: FilePiece(data[begin : begin + length], begin, len(data))


def texts(page: log_pages.LogPage) -> list[bytes]:
    return [line.text for line in page.lines]


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=60),
       st.integers(1, 10), st.booleans())  # fmt: skip
def test_pages_hold_the_lines_of_the_file(lines: list[bytes], rows: int, ended: bool) -> None:
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    wanted = data.split(b"\n")
    wanted = wanted[:-1] if wanted[-1:] == [b""] else wanted
    read, found, at = reader(data), [], 0
    while (page := page_from(read, at, rows)).lines:
        found += texts(page)
        at = page.end
    assert found == wanted
    assert at == len(data)
    assert texts(last_page(read, rows)) == wanted[-rows:]
    starts = [line.begin for line in page_from(read, 0, len(wanted) + 1).lines]
    for place, start in enumerate(starts):
        assert offset_above(read, start, 3) == starts[max(0, place - 3)]
        assert line_begin(read, start) == start


def test_small_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pages, "_BLOCK", 16)
    monkeypatch.setattr(log_pages, "_SEARCHED", 16)
    monkeypatch.setattr(log_pages, "LONGEST", 8)
    data = b"".join(b"l%d\n" % number for number in range(200)) + b"x" * 50 + b"\nend"
    read = reader(data)
    assert texts(page_from(read, 0, 3)) == [b"l0", b"l1", b"l2"]
    assert texts(last_page(read, 2))[-1] == b"end"
    first = find_forward(read, re.compile(rb"l150"), 0)
    assert first == data.index(b"l150")
    assert find_backward(read, re.compile(rb"l15\d"), len(data)) == data.index(b"l159")
    assert find_forward(read, re.compile(rb"nothing"), 0) is None
    assert find_backward(read, re.compile(rb"nothing"), len(data)) is None
    whole, at = b"", 0
    while (page := page_from(read, at, 7)).lines:
        whole += b"".join(texts(page))
        at = page.end
    assert whole == data.replace(b"\n", b"")


def test_a_search_can_be_given_up() -> None:
    read = reader(b"a\n" * 3_000_000)
    told: list[float] = []
    assert find_forward(read, re.compile(b"b"), 0, lambda part: bool(told.append(part))) is None
    assert len(told) == 1


def test_pieces_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    assert read_piece(str(path), 2, 3) == FilePiece(b"234", 2, 10)
    assert read_piece(str(path), -3, 99) == FilePiece(b"789", 7, 10)
    assert read_piece(str(path), 50, 9) == FilePiece(b"", 10, 10)
    with pytest.raises(LogUnavailable, match="cannot read"):
        read_piece(str(tmp_path), 0, 1)


def test_a_gigabyte_is_opened_at_once_and_searched(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # holes: a line of a gigabyte of noughts
        file.seek(0, 2)
        file.write(b"\nTraceback (most recent call last):\nend\n")
    asked: list[int] = []

    def read(begin: int, length: int) -> FilePiece:
        asked.append(length)
        return read_piece(str(path), begin, length)

    assert texts(last_page(read, 2)) == [b"Traceback (most recent call last):", b"end"]
    assert sum(asked) < 1 << 20
    assert len(page_from(read, 0, 30).lines) == 30
