"""Foreign text on a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.formats.display import printable


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
