"""Pasted text presses no keys, whatever is in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurmkit_tui.widgets.keyboard import PasteCleaner, PasteSafeParser
from textual.events import Key, Paste

HOSTILE = "echo a\r\x1b[31m\x13y\x1b[A\rcy\t\x1b"


@given(st.lists(st.integers(1, 60)))
def test_a_paste_in_any_pieces_is_one_paste(cuts: list[int]) -> None:
    text = f"k\x1b[200~{HOSTILE}\x1b[201~q"
    parser, events, at = PasteSafeParser(), [], 0
    for cut in [*cuts, 100]:
        events += list(parser.feed(text[at : at + cut])) if at < len(text) else []
        at += cut
    pasted = HOSTILE.replace("\x1b", "␛")
    found = [e.text if isinstance(e, Paste) else e.key for e in events]
    assert [e for e in found if e != pasted] == ["k", "q"]
    assert pasted in found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\x1b[200~a\x1b[201~cy\x1b[201~q", ["a␛[201~cy", "q"]),
        ("\x1b[200~a\x1b[201~k\x1b[200~b\x1b[201~q", ["a", "k", "b", "q"]),
    ],
)
def test_an_end_within_a_paste_ends_nothing(text: str, found: list[str]) -> None:
    events = list(PasteSafeParser().feed(text))
    assert [e.text if isinstance(e, Paste) else e.key for e in events] == found


@pytest.mark.parametrize("keys", ["\x1b", "\x1b[A", "abc\x1b[5~", "\x1b\x1b[200", "\x1b[201~x"])
def test_keys_pass_as_they_are(keys: str) -> None:
    pasting = PasteCleaner()
    assert "".join(pasting.clean(key) for key in keys) == keys
    assert PasteCleaner().clean(keys) == keys


def test_the_end_of_the_input_is_told() -> None:
    parser = PasteSafeParser()
    assert [e.key for e in parser.feed("a") if isinstance(e, Key)] == ["a"]
    list(parser.feed(""))
    with pytest.raises(Exception, match="end of file"):
        list(parser.feed("b"))
