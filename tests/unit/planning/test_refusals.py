"""The words that planner and job_submit.lua share."""

from __future__ import annotations

import string

import pytest

from slurmkit.planning.refusals import REFUSAL_TEXTS, refusal_text

FIELDS = {"name", "type", "count", "asked", "most", "partition", "types"}


def test_a_refusal_is_said_with_its_values() -> None:
    said = refusal_text("shards-per-gpu", asked=5, most=4, partition="gpu")
    assert said.startswith("shard:5 on one node")
    assert said.endswith("ask for at most shard:4")


@pytest.mark.parametrize("code", REFUSAL_TEXTS)
def test_texts_are_plain_fields_and_one_line(code: str) -> None:
    """Lua fills in `{field}` and knows nothing else of Python's format language."""
    fields = list(string.Formatter().parse(REFUSAL_TEXTS[code]))
    assert {name for _, name, _, _ in fields if name} <= FIELDS
    assert all(not spec and not conversion for _, _, spec, conversion in fields)
    assert "\n" not in REFUSAL_TEXTS[code]
