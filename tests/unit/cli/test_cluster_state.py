"""The commands `slurmkit nodes` and `slurmkit gpus`: their options."""

from __future__ import annotations

import pytest

from slurmkit.cli.cluster_state import split_names


@pytest.mark.parametrize("text", ["idle,mix", "idle, mix", " idle ,mix ", "idle,,mix,"])
def test_names_may_have_blanks_between_them(text: str) -> None:
    assert split_names(text) == ("idle", "mix")
    assert split_names(" , ") == ()
