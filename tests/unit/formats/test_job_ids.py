"""Job ids: their forms, and which rows are meant by one."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest

from slurmkit.errors import BadInput
from slurmkit.formats.job_ids import (
    batch_job_ids,
    check_job_id,
    check_part_id,
    group_by_id,
    parse_index_spans,
    parse_task_indices,
)


class Row(NamedTuple):
    job_id: str
    raw_id: str


ROWS = [
    Row("12_1", "14"),
    Row("12_2", "12"),
    Row("12_[3,5-9:2%4]", "12"),
    Row("20+0", "20"),
    Row("20+1", "21"),
    Row("120", "120"),
]


@pytest.mark.parametrize("job_id", ["12", "12_3", "12+1", "0"])
def test_job_ids(job_id: str) -> None:
    assert check_job_id(job_id) == job_id
    assert check_part_id(job_id) == job_id


@pytest.mark.parametrize("text", ["", "x", "7;8", "-1", "7 8", "7_", "all", "12_[4-9]", "١٢"])
def test_what_is_no_job_id(text: str) -> None:
    with pytest.raises(BadInput, match="not a job id"):
        check_job_id(text)


def test_tasks_that_wait_together_are_a_part() -> None:
    assert check_part_id("12_[1,4-9:2]") == "12_[1,4-9:2]"
    for text in ("12_[1%2]", "12_[$(x)]", "12_[]x", "12_[4-4-9]", "12_[9-4]", "12_[1-5:0]"):
        with pytest.raises(BadInput):
            check_part_id(text)


@pytest.mark.parametrize(
    ("job_id", "indices"),
    [
        ("12", []),
        ("12+1", []),
        ("12_3", [3]),
        ("12_[1,4-6%2]", [1, 4, 5, 6]),
        ("12_[0-10:5]", [0, 5, 10]),
    ],
)
def test_tasks(job_id: str, indices: list[int]) -> None:
    assert [index for span in parse_task_indices(job_id) for index in span] == indices


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("12", ["12_1", "12_2", "12_[3,5-9:2%4]"]),
        ("12_1", ["12_1"]),
        ("12_7", ["12_[3,5-9:2%4]"]),
        ("12_6", []),
        ("14", ["12_1"]),
        ("20", ["20+0", "20+1"]),
        ("20+1", ["20+1"]),
        ("21", ["20+1"]),
        ("1", []),
    ],
)
def test_rows_of_a_job(asked: str, found: list[str]) -> None:
    rows = group_by_id([asked, "999"], ROWS)
    assert [row.job_id for row in rows[asked]] == found
    assert rows["999"] == []


def test_a_het_job_that_has_not_started_is_its_first_component_in_sacct() -> None:
    assert group_by_id(["30+0"], [Row("30", "30")])["30+0"] == [Row("30", "30")]


def test_ids_are_split_to_fit_a_command_line() -> None:
    ids = [str(number) for number in range(1000000, 1030000)]
    split = list(batch_job_ids([*ids, *ids]))
    assert [job_id for batch in split for job_id in batch] == ids
    assert max(len(",".join(batch)) for batch in split) <= 64 * 1024
    assert len(split) == 4


def test_many_tasks_are_found_quickly_among_many_that_wait() -> None:
    """Each task beside each span would take minutes."""
    asked = [f"12_{at}" for at in range(10000)]

    def seconds(span: str) -> float:
        began = time.process_time()
        assert group_by_id(asked, [Row(f"12_[{span}]", "12")])["12_9999"]
        return time.process_time() - began

    odd = ",".join(str(at) for at in range(1, 10000, 2))
    assert seconds(odd) < 50 * seconds("0-9999")


def test_indices_of_an_array() -> None:
    found = parse_index_spans("0,2,5-9,20-40:5%3")
    assert found == (range(1), range(2, 3), range(5, 10), range(20, 41, 5))
    assert parse_index_spans("") == ()
