"""Foreign text on a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.formats.display import format_quantity, printable, spark_signs


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Zoë Ångström 李", "Zoë Ångström 李"),
        ("a\nb", "a\\nb"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x9b31m", "\\x9b31m"),
        ("evil\u202etxt", "evil\\u202etxt"),
        ("nbsp\u00a0here", "nbsp\u00a0here"),
        ("\udc80", "\\udc80"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    left = {unicodedata.category(char) for char in printable(text) if char not in "\u200c\u200d"}
    assert not left & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "1 CPU-hour"),
        (1.001, "1 CPU-hour"),
        (0, "0 CPU-hours"),
        (0.5, "0.5 CPU-hours"),
        (2, "2 CPU-hours"),
        (None, "unknown CPU-hours"),
    ],
)
def test_one_of_a_thing_has_no_s(number: float | None, words: str) -> None:
    assert format_quantity(number, "CPU-hour") == words


@pytest.mark.parametrize(
    ("plain", "shown"), [(False, "▁▁▂▅██·"), (True, "112588.")], ids=["blocks", "ASCII"]
)
def test_a_curve_as_text_tells_unknown_from_zero(plain: bool, shown: str) -> None:
    assert spark_signs([0.0, 12.4, 12.5, 50.0, 99.0, 250.0, None], plain=plain) == shown
