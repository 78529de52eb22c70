"""The tasks of an array in one row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_lines import MARK, job, lines

from slurmkit.state.arrays import (
    array_cells,
    count_tasks,
    format_indices,
    format_task_states,
    group_by_array,
    matches_job_id,
)
from slurmkit.state.queue_rows import QUEUE_COLUMNS, QueueRow, counts_gpus, parse_queue, queue_cells

WAITING = {"State": "PENDING", "NodeList": "", "TimeUsed": "0:00"}
GPU = "cpu=1,gres/gpu=2"


def rows(*jobs: dict[str, str]) -> tuple[QueueRow, ...]:
    return parse_queue(lines(*jobs), MARK)


def shown(*jobs: dict[str, str], known: bool = True) -> dict[str, str]:
    return dict(zip(QUEUE_COLUMNS, array_cells(rows(*jobs), gpus_known=known), strict=True))


def pending(index: str, **fields: str) -> dict[str, str]:
    return job(f"12_[{index}]", **{**WAITING, "Reason": "Resources", **fields})


@pytest.mark.parametrize(
    ("job_id", "tasks"),
    [
        ("12", 1),
        ("12_3", 1),
        ("12+1", 1),
        ("12_[4-9]", 6),
        ("12_[0,2,4,6,8%3]", 5),
        ("12_[0-100:2]", 51),
        ("12_[1-3,7,20-40:5%2]", 9),
        ("12_[7]", 1),
    ],
)
def test_how_many_tasks_a_row_stands_for(job_id: str, tasks: int) -> None:
    (row,) = rows(job(job_id))
    assert count_tasks(row) == tasks


@given(st.sets(st.integers(0, 300), min_size=1))
def test_folding_keeps_every_task(indices: set[int]) -> None:
    (row,) = rows(job(f"12_[{format_indices(indices)}]"))
    assert count_tasks(row) == len(indices)
    assert all(matches_job_id(row, f"12_{index}") for index in indices)
    assert not matches_job_id(row, "12_301")


@pytest.mark.parametrize(
    ("indices", "text"),
    [([1], "1"), ([3, 1, 2], "1-3"), ([1, 2, 5], "1-2,5"), ([0, 5, 10], "0-10:5"), ([1, 9], "1,9")],
)
def test_folding(indices: list[int], text: str) -> None:
    assert format_indices(indices) == text


def test_an_array_is_one_row() -> None:
    tasks = [job(f"12_{n}", JobID=str(20 + n), TimeUsed=f"{n}:00", tres_alloc=GPU) for n in (1, 2)]
    cell = shown(*tasks, pending("3-40%2", tres_alloc=GPU))
    assert cell["JOBID"] == "12_[1-40%2]"
    assert cell["STATE"] == "R 2, PD 38"
    assert (cell["TIME"], cell["LIMIT"]) == ("2:00", "10:00")
    assert (cell["NODES"], cell["GPUS"]) == ("40", "80")
    assert cell["WHERE"] == "c1 (Resources)"
    assert (cell["USER"], cell["NAME"]) == ("alice", "train")


def test_a_waiting_array_alone_says_how_many() -> None:
    cell = shown(pending("0-100:2", NumNodes="2"))
    assert (cell["JOBID"], cell["STATE"], cell["NODES"]) == ("12_[0-100:2]", "PD 51", "102")
    assert cell["WHERE"] == "(Resources)"


def test_a_task_alone_and_a_job_are_as_they_are() -> None:
    for job_id in ("12", "12_3", "12+1"):
        (row,) = rows(job(job_id))
        assert array_cells((row,), gpus_known=True) == queue_cells(row, gpus_known=True)


def test_tasks_that_differ() -> None:
    cell = shown(
        job("12_1", NodeList="c[1-2]", NumNodes="2", TimeLimit="UNLIMITED", Name="one"),
        job("12_2", NodeList="c3", Partition="cpu", TimeUsed="1-00:00:01", Name="two\n"),
        job("12_3", State="COMPLETING", NodeList="c3"),
    )
    assert cell["WHERE"] == "c[1-3]"
    assert cell["PARTITION"] == "gpu,cpu"
    assert (cell["TIME"], cell["LIMIT"]) == ("1-00:00:01", "UNLIMITED")
    assert cell["NAME"] == "one,two\\n,train"
    assert cell["STATE"] == "R 2, CG 1"


def test_gpus_of_an_array_are_unknown_when_those_of_a_task_are() -> None:
    assert shown(job("12_1", tres_alloc=GPU), pending("2", tres_alloc=""))["GPUS"] == "?"


def test_parts_of_gpus_of_an_array_are_added_up() -> None:
    shards = "cpu=1,gres/shard=3"
    assert shown(job("12_1", tres_alloc=shards), pending("2-3", tres_alloc=shards))["GPUS"] == (
        "9 shard"
    )
    assert shown(job("12_1", tres_alloc=shards), job("12_2", tres_alloc=GPU))["GPUS"] == (
        "2, 3 shard"
    )


def test_arrays_stand_where_their_first_task_does() -> None:
    found = group_by_array(rows(job("5_1"), job("12"), job("5_[2-3]"), job("7_1"), job("12+0")))
    assert [[row.job_id for row in each] for each in found] == [
        ["5_1", "5_[2-3]"],
        ["12"],
        ["7_1"],
        ["12+0"],
    ]


def test_a_tally_starts_with_what_runs_and_ends_with_what_waits() -> None:
    states = ["PENDING", "FAILED", "RUNNING", "COMPLETED", "RUNNING"]
    assert (
        format_task_states(rows(*(job(State=state) for state in states))) == "R 2, CD 1, F 1, PD 1"
    )


@pytest.mark.parametrize("job_id", ["12", "12_7", "12_9", "30"])
def test_ids_that_a_row_covers(job_id: str) -> None:
    (row,) = rows(job("12_[7-9]", JobID="30"))
    assert matches_job_id(row, job_id)


@pytest.mark.parametrize("job_id", ["1", "12_6", "12_", "13_7", "7", "12+7"])
def test_ids_that_a_row_does_not_cover(job_id: str) -> None:
    (row,) = rows(job("12_[7-9]", JobID="30"))
    assert not matches_job_id(row, job_id)


@pytest.mark.parametrize(
    ("tres", "tracked", "text"),
    [
        ("cpu=1,gres/gpu=2", None, "2"),  # the row proves it
        ("cpu=1", True, "0"),
        ("cpu=1", False, "?"),
        ("cpu=1", None, "?"),
        ("", True, "?"),  # this release lists no TRES for a job that waits
        ("N/A", True, "?"),
        ("cpu=1,gres/shard=2", True, "2 shard"),
        ("cpu=1,gres/mps=50", None, "50 mps"),
    ],
)
def test_unknown_gpus_are_not_none(tres: str, tracked: bool | None, text: str) -> None:
    found = rows(job(tres_alloc=tres))
    known = counts_gpus(found, tracked=tracked)
    assert queue_cells(found[0], gpus_known=known)[QUEUE_COLUMNS.index("GPUS")] == text


@pytest.mark.parametrize(
    ("state", "reason", "where"),
    [
        ("PENDING", "Priority", "(Priority)"),
        ("PENDING", "None", "(None)"),
        ("CANCELLED", "None", ""),
        ("FAILED", "NonZeroExitCode", "(NonZeroExitCode)"),
    ],
)
def test_a_job_without_nodes_says_why(state: str, reason: str, where: str) -> None:
    found = [job(f"12_{n}", State=state, Reason=reason, NodeList="") for n in (1, 2)]
    assert shown(found[0])["WHERE"] == shown(*found)["WHERE"] == where


def test_cells_are_safe_to_show() -> None:
    (row,) = rows(job(Name="evil\n\x1b[2J"))
    assert queue_cells(row, gpus_known=True)[-1] == "evil\\n\\x1b[2J"
