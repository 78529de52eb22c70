"""The filter language, on rows of the queue."""

from __future__ import annotations

import contextlib

import pytest
from fake_queue import Scene, job, waiting
from hypothesis import given
from hypothesis import strategies as st
from slurmkit_tui.views.queue import JOBS
from slurmkit_tui.widgets.filters import FilterError, parse_filter
from slurmkit_tui.widgets.listing import RowContext, RowQuery, arrange_rows, prepare_rows

from slurmkit.cluster.cluster import Cluster

H100 = "cpu=8,mem=64G,node=1,gres/gpu=8,gres/gpu:h100=8"
ROWS = (
    Cluster(
        Scene(
            [
                job("11", UserName="alice", Name="resnet-train", TimeUsed="2:00:00"),
                job("12", UserName="bob", Partition="mig", Name="test two", NodeList="c[1-2]"),
                waiting("13_[4-9]", UserName="carol", tres_alloc=H100, Name="sweep"),
                waiting("14", UserName="alicia", tres_alloc="cpu=8,node=1", Reason="Resources"),
            ]
        ).slurm
    )
    .queue()
    .rows
)
SHEET = prepare_rows(JOBS, ROWS, RowContext(me="alice"))


def passed(text: str) -> str:
    found = arrange_rows(SHEET, RowQuery(filter=parse_filter(text, JOBS)))
    return " ".join(ROWS[at].raw_id for at in found.order)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", "11 12 13 14"),
        ("alic", "11 14"),
        ("user:me", "11"),
        ("user:me,carol", "11 13"),
        ("user=alice", "11"),
        ("gpus=2", "11 12"),
        ("jobid=12", "12"),
        ("time=2h", "11"),
        ("user!=alice", "12 13 14"),
        ("-user:alic", "12 13"),
        ("!alic sweep", "13"),
        ("state:pd", "13 14"),
        ("st:running", "11 12"),
        ("gpu:h100", "13"),
        ("gpus>=8", "13"),
        (">1gpu", "11 12 13"),
        (">2gpu", "13"),
        ("gpus<1", "14"),
        ("part:mig", "12"),
        ("where:c2 part:mig", ""),
        ("on:c[1", "12"),
        ("time>90m", "11 12"),
        ("time>1:57:00", "11"),
        ("reason:resources", "14"),
        ("/^1[12]$/", ""),
        ("/res.*train/", "11"),
        ("name:/^SWEEP$/", "13"),
        ("-/res|sweep/", "12"),
        ('"test two"', "12"),
        ("two test", "12"),
        ("user:", "11 12 13 14"),
        ("-", ""),
        (">", ""),
        ('name:"test', "12"),
    ],
)
def test_what_passes(text: str, ids: str) -> None:
    assert passed(text) == ids


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("usr:alice", "there is no field 'usr'; did you mean user?"),
        ("xyzzy:1", "the fields are jobid, user,"),
        ("gpus>many", "write a number, for example gpus>8"),
        ("name:/(/", "is no regular expression"),
        (">8xyzzy", "there is no field 'xyzzy'"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(FilterError, match=says.replace("?", r"\?").replace("(", r"\(")):
        parse_filter(text, JOBS)


@given(st.text(max_size=30))
def test_no_text_breaks_it(text: str) -> None:
    with contextlib.suppress(FilterError):
        arrange_rows(SHEET, RowQuery(filter=parse_filter(text, JOBS)))


@pytest.mark.parametrize(
    ("wish", "ids"),
    [
        (RowQuery(sort="gpus"), "14 11 12 13"),
        (RowQuery(sort="gpus", descending=True), "13 11 12 14"),
        (RowQuery(sort="user"), "11 14 12 13"),
        (RowQuery(sort="priority", descending=True), "13 14 11 12"),  # only of those that wait
        (RowQuery(mine=True), "11"),
    ],
)
def test_order(wish: RowQuery, ids: str) -> None:
    assert " ".join(ROWS[at].raw_id for at in arrange_rows(SHEET, wish).order) == ids


def test_sorting_by_the_same_column_turns_around_and_then_ends() -> None:
    wish = RowQuery().sorted_by("user")
    assert (wish.sort, wish.descending) == ("user", False)
    wish = wish.sorted_by("user")
    assert (wish.sort, wish.descending) == ("user", True)
    assert wish.sorted_by("user") == RowQuery()
