"""Sorting the queue."""

from __future__ import annotations

import pytest
from queue_lines import MARK, job, lines

from slurmkit.errors import BadInput
from slurmkit.state.queue_rows import SORT_KEYS, parse_queue, sort_rows

ROWS = parse_queue(
    lines(
        job("9", UserName="bob", TimeUsed="1-00:00:00", tres_alloc="gres/gpu=1", StartTime="N/A"),
        job("10", TimeUsed="2:00", tres_alloc="gres/gpu=8", TimeLimit="UNLIMITED", StartTime="20"),
        job("100", TimeUsed="10:00", tres_alloc="gres/gpu=1", StartTime="10"),
    ),
    MARK,
)


@pytest.mark.parametrize(
    ("by", "ids"),
    [
        ("jobid", ["9", "10", "100"]),
        ("-jobid", ["100", "10", "9"]),
        ("time", ["10", "100", "9"]),
        ("user,-gpus", ["10", "100", "9"]),
        ("-gpus,user", ["10", "100", "9"]),
        ("gpus,-user", ["9", "100", "10"]),
        ("limit", ["9", "100", "10"]),
        ("start", ["100", "10", "9"]),
        ("-start", ["10", "100", "9"]),  # what is unknown comes last both ways
        (" JobID ", ["9", "10", "100"]),
    ],
)
def test_order(by: str, ids: list[str]) -> None:
    assert [row.job_id for row in sort_rows(ROWS, by)] == ids


@pytest.mark.parametrize("key", SORT_KEYS)
def test_every_key_sorts(key: str) -> None:
    assert set(sort_rows(ROWS, key)) == set(ROWS)
    assert set(sort_rows(ROWS, f"-{key}")) == set(ROWS)


@pytest.mark.parametrize(
    ("by", "says"),
    [
        ("gpu", "did you mean 'gpus'"),
        ("", "known columns: jobid, user"),
        ("user,,name", "column ''"),
    ],
)
def test_what_cannot_be_sorted_by(by: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        sort_rows(ROWS, by)


def test_parts_of_gpus_are_more_than_none_and_less_than_one() -> None:
    kinds = {"1": "gres/gpu=1", "2": "gres/shard=3", "3": "cpu=1", "4": "gres/shard=12"}
    found = parse_queue(lines(*(job(at, tres_alloc=tres) for at, tres in kinds.items())), MARK)
    assert [row.job_id for row in sort_rows(found, "gpus")] == ["3", "2", "4", "1"]
