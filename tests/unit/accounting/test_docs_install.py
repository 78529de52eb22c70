"""docs/install.md: its configuration is right, and what it names is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmkit.config.check import inspect_configuration

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "install.md").read_text("utf-8")
BLOCKS = re.findall(r"^```toml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
ASSETS = ROOT / "accounting" / "slurmkit_accounting" / "assets"


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example(block: str, configure: Callable[[str], None]) -> None:
    configure(block)
    assert inspect_configuration().problems == ()


def test_there_are_examples() -> None:
    assert len(BLOCKS) == 4


def test_every_asset_that_is_named_is_there() -> None:
    named = set(re.findall(r"(?:slurmkit/monitoring|slurmkit_accounting/assets)/([\w.-]+)", TEXT))
    assert {"alerts.yml", "slurmkit-ledger.service"} <= named
    assert named <= {path.name for path in ASSETS.iterdir()}
    for path in re.findall(r"plugins/slurmkit_plugins/\S+", TEXT):
        assert (ROOT / path).exists()


def test_every_alert_that_is_named_is_there() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", (ASSETS / "alerts.yml").read_text("utf-8")))
    assert set(re.findall(r"\bSlurmkit\w+", TEXT)) <= alerts


def test_it_ends_with_three_commands_that_show_that_it_works() -> None:
    last = TEXT.partition("## 14. Does it work?")[2]
    commands = re.findall(r"^\$ (.*?)\s+#", last, re.MULTILINE)
    assert commands[0].endswith("slurmkit doctor")
    assert commands[1].endswith("slurmkit ledger status")
    assert commands[2] == "slurmkit report usage"
    assert len(commands) == 3
