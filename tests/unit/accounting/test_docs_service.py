"""docs/service.md: every example of configuration is right, and together they can be."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmkit.config.check import inspect_configuration

TEXT = (Path(__file__).parents[3] / "docs/service.md").read_text("utf-8")
BLOCKS = re.findall(r"^```toml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example(block: str, configure: Callable[[str], None]) -> None:
    configure(block)
    assert inspect_configuration().problems == ()


def test_there_are_examples() -> None:
    assert len(BLOCKS) == 10
