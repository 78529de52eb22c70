"""Reading squeue."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_lines import MARK, job, lines, many

from slurmkit.errors import NoSuchJob, SlurmError
from slurmkit.slurm.records import record_mark
from slurmkit.state import queue_rows
from slurmkit.state.arrays import shown_id
from slurmkit.state.queue import QueueFilter, read_queue
from slurmkit.state.queue_rows import (
    QUEUE_FIELDS,
    QueueRow,
    parse_queue,
    squeue_format,
)
from slurmkit.testing import FakeSlurm, squeue_text


def parsed(*jobs: dict[str, str]) -> tuple[QueueRow, ...]:
    return parse_queue(lines(*jobs), MARK)


def test_a_row() -> None:
    (row,) = parsed(
        job(
            "12_3",
            JobID="15",
            tres_alloc="cpu=2,gres/gpu=4,gres/gpu:a100=4",
            NodeList="c[1-2]",
            NumNodes="2",
            EligibleTime="N/A",
            Dependency="afterok:9(unfulfilled)",
            Comment="(null)",
        )
    )
    assert (row.job_id, row.raw_id, row.array_id, row.user) == ("12_3", "15", "12", "alice")
    assert (row.state, row.gpus, row.nodes, row.node_list) == ("RUNNING", 4, 2, "c[1-2]")
    assert (row.submitted, row.started, row.eligible) == (1700000000, 1700000010, None)
    assert (row.dependency, row.features, row.comment) == ("afterok:9(unfulfilled)", "", "")
    assert not row.ended


def test_a_foreign_array_tag_is_dropped_where_it_cannot_be_true() -> None:
    """The comment names an array of alice's, who runs it."""
    tag = "slurmkit-array:0123456789ab:2:9:12345"
    jobs = [job("12345_3"), job("99_1", UserName="mallory", Comment=tag)]
    slurm = FakeSlurm({"squeue": lambda argv, stdin: squeue_text(argv, jobs)})
    assert [shown_id(row) for row in read_queue(slurm).rows] == ["12345_3", "99_1"]
    mine = read_queue(slurm, QueueFilter(me=True)).rows
    assert shown_id(mine[1]) == "12345_3"  # the first part of one's own array may have ended


def test_at_least_18_fields_are_asked_for() -> None:
    assert len(QUEUE_FIELDS) >= 18
    assert {*QUEUE_FIELDS, "gpus"} == set(QueueRow.__struct_fields__)


def test_no_rows() -> None:
    assert parse_queue([], MARK) == ()


@given(names=st.lists(st.text(st.characters(blacklist_characters="\x1f"), max_size=30), max_size=5))
def test_any_name_is_one_row(names: list[str]) -> None:
    """A name may hold line breaks, `|`, escape sequences or what looks like another row."""
    assert [row.name for row in parsed(*(job(Name=name) for name in names))] == names


@pytest.mark.parametrize("name", ["evil\n", "\n", "\n\nx", "a\r\nb"])
def test_line_breaks_at_the_ends_of_a_name(name: str) -> None:
    rows = parsed(job("1", Name=name), job("2"))
    assert [(row.job_id, row.name) for row in rows] == [("1", name), ("2", "train")]


@pytest.mark.parametrize("mark", ["\x1fdeadbeef", "\x1f", "\x1fabcd123", "|", "\x1fABCD1234"])
def test_a_forged_row_stays_a_name(mark: str) -> None:
    """A user knows the format but not the mark of this call."""
    forged = "".join(lines(job("9", UserName="root"))).replace(MARK, mark)
    (row,) = parsed(job("12", Name=f"evil\n{forged}", Comment=forged))
    assert (row.job_id, row.user, row.name) == ("12", "alice", f"evil\n{forged}")


def test_pieces_of_any_size_give_the_same_rows() -> None:
    text = "".join(lines(*(job(str(n), Name=f"a\n{n}") for n in range(1, 50))))
    whole = parse_queue([text], MARK)
    assert len(whole) == 49
    for size in (1, 7, 100):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert parse_queue(pieces, MARK) == whole


def test_more_rows_than_are_read_at_once() -> None:
    rows = parse_queue(many(1001), MARK)
    assert [row.name for row in rows] == [f"train-{n}" for n in range(1001)]


def test_an_answer_that_breaks_off_is_an_error() -> None:
    text = "".join(lines(job("1"), job("2")))
    with pytest.raises(SlurmError, match="broke off after 1 rows"):
        parse_queue([text[:-60]], MARK)


@pytest.mark.parametrize(
    "wrong",
    [
        {"NumNodes": "two"},
        {"NumCPUs": ""},
        {"PriorityLong": "0.5"},
        {"SubmitTime": "2026-01-01T00:00:00"},
        {"StartTime": "soon"},
        {"tres-alloc": "gres/gpu=many"},
    ],
)
def test_an_unreadable_number_is_an_error(wrong: dict[str, str]) -> None:
    with pytest.raises(SlurmError, match="cannot be read"):
        parsed(job("1"), job("2", **wrong))


def test_each_call_has_a_mark_of_its_own() -> None:
    slurm = FakeSlurm({"squeue": lambda argv, stdin: ""})
    read_queue(slurm)
    read_queue(slurm)
    assert slurm.asked[0] != slurm.asked[1]
    assert squeue_format("M").endswith("Name:M")


def test_marks_are_random_and_can_stand_in_a_format() -> None:
    marks = {record_mark() for _ in range(100)}
    assert len(marks) == 100
    assert all(re.fullmatch(r"\x1f[A-Za-z0-9+/]{6}", mark) for mark in marks)


def test_the_old_filters_still_go_to_slurm() -> None:
    slurm = FakeSlurm({"squeue": lambda argv, stdin: ""})
    read_queue(slurm, user="alice", job_ids=["3", "4"], ended=True)
    assert {"--user=alice", "--jobs=3,4", "--states=all"} <= set(slurm.asked[0])


def test_of_a_het_job_only_the_component_asked_for() -> None:
    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        return squeue_text(argv, [job("12+0"), job("12+1", JobID="13")])

    slurm = FakeSlurm({"squeue": squeue})
    assert [r.job_id for r in read_queue(slurm, QueueFilter(job_ids=("12+1",))).rows] == ["12+1"]
    assert len(read_queue(slurm, QueueFilter(job_ids=("12",))).rows) == 2


def test_an_unknown_job_is_said_to_be_one() -> None:
    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        raise NoSuchJob("Invalid job id specified")

    with pytest.raises(NoSuchJob):
        read_queue(FakeSlurm({"squeue": squeue}), QueueFilter(job_ids=("99",)))


def test_rows_are_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call in C over a large queue would hold the interpreter; `make bench` measures it."""
    sizes: list[int] = []
    real, here = queue_rows._rows, threading.get_ident()

    def counted(parts: list[str], columns: list[queue_rows._Column]) -> list[QueueRow]:
        if threading.get_ident() == here:  # a poller of a test before may still ask
            sizes.append(len(parts) // len(QUEUE_FIELDS))
        return real(parts, columns)

    monkeypatch.setattr(queue_rows, "_rows", counted)
    parse_queue(many(5000), MARK)
    assert sum(sizes) == 5000
    assert max(sizes) <= 500


def test_100_000_jobs_take_less_than_150_mb() -> None:
    """Rows and everything needed to read them, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "support")},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    rows, megabytes = done.stdout.split()
    assert int(rows) == 100_000
    assert 10 < float(megabytes) < 150


def peak_megabytes() -> float:
    status = Path("/proc/self/status").read_text("ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def read_many() -> None:
    """Stand in for a process that reads a large queue."""
    list(islice(many(1000), 1000))
    before = peak_megabytes()
    rows = parse_queue(many(100_000), MARK)
    print(len(rows), peak_megabytes() - before)


if __name__ == "__main__":
    read_many()
