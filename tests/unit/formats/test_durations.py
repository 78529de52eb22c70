"""Slurm's forms of a time limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.errors import BadInput
from slurmkit.formats.durations import format_duration, parse_time_limit, reformat_elapsed


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 600),
        ("60:30", 3630),
        ("1:00:00", 3600),
        ("2-0", 172800),
        ("1-", 86400),
        ("1-12:30", 131400),
        ("1-02:03:04", 93784),
    ],
)
def test_forms(text: str, seconds: int) -> None:
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "ten", "1h", "-5", "1:2:3:4", "1--2", "1-2:", "1-:30", "1.5", "10\n#"]
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not one of Slurm's forms"):
        parse_time_limit(text)


@pytest.mark.parametrize("text", ["0", "0:00", "0-0", "UNLIMITED", "-1"])
def test_zero_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="no limit"):
        parse_time_limit(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("00:01:21", "1:21"), ("01:00:00", "1:00:00"), ("2-03:00:00", "2-03:00:00"),
     ("UNLIMITED", "UNLIMITED"), ("", "")],
)  # fmt: skip
def test_sacct_and_squeue_have_one_form(text: str, shown: str) -> None:
    assert reformat_elapsed(text) == shown


@given(st.integers(min_value=1, max_value=10**7))
def test_what_is_written_reads_back(seconds: int) -> None:
    assert parse_time_limit(format_duration(seconds)) == seconds
