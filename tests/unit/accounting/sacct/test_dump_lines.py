"""Lines of a file are the same rows whichever way they are split, read and written."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ingest.file import SacctFile, ingest_file
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_accounting.sacct import columns, values
from slurmkit_accounting.sacct.file import SacctFileReader
from slurmkit_accounting.sacct.rows import Reject, RowBatch, RunRow
from sqlalchemy import select

FREE = ("JobIDRaw", "Submit", "State", "JobName")
BOUND = ("JobIDRaw", "Submit", "State", "Account")
TEXTS = st.sampled_from(
    [
        "",
        "7",
        "007",
        "-7",
        " 7",
        "7.batch",
        "12_3",
        "x",
        "\0",
        "\r",
        "\n",
        "\n8",
        "|",
        "||",
        "é",
        "٣",
    ]
)
ROW = st.lists(TEXTS, min_size=1, max_size=6)
WHOLE = st.tuples(*[st.sampled_from(["7", "007", "x y", "é", "7.0", "\0", ""])] * len(FREE))
END = st.sampled_from(["\n", "\n", "\n", "\r\n", "\n\n", ""])


@st.composite
def files(draw: st.DrawFn, delimiter: str) -> bytes:
    """Mostly whole lines; also what breaks off, runs on or is no text."""
    rows = draw(st.lists(st.tuples(WHOLE | ROW, END), max_size=8))
    data = "".join(delimiter.join(row) + end for row, end in rows).encode()
    return data.replace("é".encode(), draw(st.sampled_from([b"\xe9", b"\xc3\xa9", b"\xe2\x82"])))


def split(data: bytes, fields: tuple[str, ...], delimiter: str, block: int) -> list[Any]:
    dump = SacctFileReader(io.BytesIO(data), fields, delimiter, find_zone("UTC"))
    rows: list[tuple[str, ...]] = []
    prints: list[int] = []
    rejects: list[Reject] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slurmkit_accounting.sacct.file._BLOCK", block)
        for batch in dump.batches():
            assert [batch.row(place) for place in range(len(batch.rows))] == [
                *map(list, batch.rows)
            ]
            rows += batch.rows
            prints += batch.fingerprints
            rejects += batch.rejects
    assert dump.over
    assert dump.done == len(data)
    return [rows, prints, rejects, dump.steps]


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), st.sampled_from(["|", "||", "|x|", "é", "\x1f"]), st.integers(1, 60))
@pytest.mark.parametrize("fields", [FREE, BOUND])
def test_all_lines_at_once_are_the_same_as_line_by_line(
    fields: tuple[str, ...], data: st.DataObject, delimiter: str, block: int
) -> None:
    text = data.draw(files(delimiter))
    quick = [split(text, fields, delimiter, size) for size in (block, 2**20)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SacctFileReader, "_at_once", lambda *_: [])
        slow = [split(text, fields, delimiter, size) for size in (block, 2**20)]
    assert quick == slow
    assert quick[0] == quick[1]


def test_whole_lines_are_split_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("line by line")

    monkeypatch.setattr(SacctFileReader, "_put_together", never)
    rows, prints, rejects, steps = split(b"1|2|A|x\n2|3|B|y\r\n2.0|4|C|", FREE, "|", 2**20)
    assert rows == [("1", "2", "A", "x"), ("2", "3", "B", "y\r")]
    assert (len(set(prints)), rejects, steps) == (2, [], 1)


NUMBERS = st.sampled_from(
    ["1", "17", "4294967296", "4294967297", "9" * 25, "0", "007", "", "-1", "-0", "+1", " 1", "1 ",
     "1\n", "1.0", "1e3", "1,2", "1]", "null", "Unknown", "٣", "x", "\ud800"]
)  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.integers(1, 2**32).map(str)), st.lists(NUMBERS, max_size=3), st.randoms())
@pytest.mark.parametrize(
    "read",
    [values.parse_db_index, values.parse_number, values.parse_required_time, values.parse_time],
    ids=lambda f: f.__name__,
)
def test_numbers_at_once_are_the_same_as_one_by_one(
    read: Callable[[str], Any], plain: list[str], odd: list[str], chance: Any
) -> None:
    texts = plain + odd
    chance.shuffle(texts)
    bad: dict[int, str] = {}
    slow_bad: dict[int, str] = {}
    found = columns._parse_digits(read, texts, "Start", bad)
    assert found == list(columns._parse_one_by_one(read, texts, "Start", slow_bad))
    assert all(type(value) in (int, type(None)) for value in found)
    assert bad == slow_bad


FIELDS = "DBIndex,JobIDRaw,UID,User,Submit,Start,End,State,ConsumedEnergyRaw,Reservation,JobName"


@pytest.mark.sql
@pytest.mark.parametrize("same", ["", "plain", 'it\'s 100% "?" \\ :x'])
@pytest.mark.parametrize("cancelled", [0, 1, 3])
def test_what_is_stored_is_what_was_read(ledger: Ledger, same: str, cancelled: int) -> None:
    """Columns of one value, of none, and of some, in more rows than one statement takes."""
    fields, lines = FIELDS.split(","), []
    for n in range(1, 301):
        state = f"CANCELLED by {n - 1}" if cancelled and n % cancelled == 0 else "FAILED"
        end = "Unknown" if n % 50 == 1 else 30 + n
        row = (n, n, n % 3 or "", same, 10 + n, 20 + n, end, state, 0, same, "x" * (n % 2))
        lines.append("|".join(map(str, row)))
    stream = io.BytesIO("\n".join(lines).encode())
    how = SacctFileReader(stream, fields, "|", find_zone("UTC")).how
    prints = [number ^ how.seed for number in columns.fingerprints(map(str.encode, lines))]
    told, rejects = how.runs(RowBatch.of([line.split("|") for line in lines], prints, []))
    assert not rejects
    assert (
        ingest_file(
            ledger, SacctFile("x", stream, "old", fields, "|", find_zone("UTC"))
        ).entered.new
        == 300
    )
    with ledger.transaction() as connection:
        query = select(*(runs.c[name] for name in RunRow._fields)).order_by(runs.c.job_id_raw)
        assert [RunRow(*row) for row in connection.execute(query)] == told
