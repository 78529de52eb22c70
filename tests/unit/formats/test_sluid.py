"""SLUIDs, against what sacct 26.05.5 printed of the same runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.formats.sluid import format_sluid, parse_sluid

PRINTED = {
    14557473182063114240: "sCM1M8QBT2BE00",
    14557473182072980480: "sCM1M8QBTBRH00",
    14557473182620736512: "sCM1M8QCAP4Q00",
    9959297078711018496: "s8MDM7XMPJFS00",
}


@pytest.mark.parametrize(("db_index", "sluid"), PRINTED.items())
def test_it_is_the_number_that_sacct_prints_as_dbindex(db_index: int, sluid: str) -> None:
    assert format_sluid(db_index) == sluid
    assert parse_sluid(sluid) == parse_sluid(sluid.lower()) == db_index


@given(st.integers(2 << 52, (1 << 64) - 1))
def test_text_and_number_say_the_same(db_index: int) -> None:
    sluid = format_sluid(db_index)
    assert sluid is not None
    assert parse_sluid(sluid) == db_index


@given(st.integers(0, (2 << 52) - 1))
def test_a_row_number_of_an_older_slurmdbd_is_none(db_index: int) -> None:
    assert format_sluid(db_index) is None
    assert format_sluid(None) is None


def test_slurm_reads_letters_like_digits_as_digits() -> None:
    assert parse_sluid("sCMIM8QBT2BEOo") == parse_sluid("sCMlM8QBT2BE00") == 14557473182063114240


@pytest.mark.parametrize(
    "text",
    ["", "12", "s", "sCM1M8QBT2BE0", "sCM1M8QBT2BE000", "xCM1M8QBT2BE00", "sCM1M8QBT2BEU0",
     "s0000000000000", "sZZZZZZZZZZZZZ", "sCM1M8QBT2BE0é", "sCM1M8QBT2BE0\n"],
)  # fmt: skip
def test_other_texts_are_none(text: str) -> None:
    assert parse_sluid(text) is None
