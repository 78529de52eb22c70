"""Reading squeue."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.errors import SlurmError
from slurmkit.queue import parse_queue, read_queue, record_mark, squeue_format
from slurmkit.testing import FakeSlurm

MARK = "\x1fabcd1234"
FIELDS = (
    "12_3 15 alice vision gpu normal RUNNING 2 2 cpu=2,gres/gpu=4,gres/gpu:a100=4 100 1700000000"
    " 1700000010 1:02 10:00 c[1-2] None /home/alice /home/alice/slurm-12.out"
).split()


def squeue_line(name: str, comment: str = "(null)") -> str:
    return "".join(f"{value}{MARK}" for value in [*FIELDS, comment, name]) + "\n"


def test_a_row() -> None:
    (row,) = parse_queue(squeue_line("train"), MARK)
    assert (row.job_id, row.user, row.state, row.gpus) == ("12_3", "alice", "RUNNING", 4)
    assert (row.submitted, row.started, row.node_list) == (1700000000, 1700000010, "c[1-2]")
    assert not row.ended


def test_no_rows() -> None:
    assert parse_queue("", MARK) == ()


@given(names=st.lists(st.text(st.characters(blacklist_characters="\x1f"), max_size=30), max_size=5))
def test_any_name_is_one_row(names: list[str]) -> None:
    """A name may hold line breaks, `|`, escape sequences or what looks like another row."""
    rows = parse_queue("".join(map(squeue_line, names)), MARK)
    assert [row.name for row in rows] == names


def test_a_forged_row_stays_a_name() -> None:
    """A user knows the format but not the mark of this call."""
    forged = squeue_line("x").replace(MARK, "\x1fdeadbeef").replace("alice", "root")
    rows = parse_queue(squeue_line(f"evil\n{forged}"), MARK)
    assert [row.user for row in rows] == ["alice"]


def test_an_answer_that_breaks_off_is_an_error() -> None:
    text = squeue_line("a") + squeue_line("b")[:40]
    with pytest.raises(SlurmError, match="broke off after 1 rows"):
        parse_queue(text, MARK)


def test_an_unreadable_number_is_an_error() -> None:
    with pytest.raises(SlurmError, match="cannot be read"):
        parse_queue(squeue_line("a").replace(f"2{MARK}2{MARK}", f"two{MARK}2{MARK}"), MARK)


def test_filters_go_to_slurm() -> None:
    slurm = FakeSlurm({"squeue": lambda argv, stdin: ""})
    read_queue(slurm, user="alice", job_ids=["3", "4"], ended=True)
    assert {"--user=alice", "--jobs=3,4", "--states=all"} <= set(slurm.asked[0])


def test_each_call_has_a_mark_of_its_own() -> None:
    def echo(argv: Sequence[str], stdin: str | None) -> str:
        return ""

    slurm = FakeSlurm({"squeue": echo})
    read_queue(slurm)
    read_queue(slurm)
    assert slurm.asked[0] != slurm.asked[1]
    assert squeue_format("M").endswith("Name:M")
    assert record_mark() != record_mark()
