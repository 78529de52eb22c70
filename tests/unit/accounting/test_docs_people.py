"""docs/ledger-people.md: its configurations can be meant, and it leaves no key out."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
from slurmkit_accounting.config import LdapSection, LedgerSection
from slurmkit_accounting.people.sync import load_overrides

TEXT = (Path(__file__).parents[3] / "docs" / "ledger-people.md").read_text("utf-8")
BLOCKS = re.findall(r"^```toml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def test_every_configuration_can_be_meant() -> None:
    found = [tomllib.loads(block) for block in BLOCKS]
    sections = {"ldap": LdapSection, "ledger": LedgerSection}
    for name, section in sections.items():
        tables = [one[name] for one in found if name in one]
        assert tables
        for table in tables:
            made = msgspec.convert(table, section)
            assert table.keys() <= set(made.__struct_fields__)


def test_the_overrides_can_be_meant(tmp_path: Path) -> None:
    (text,) = [block for block in BLOCKS if "[[override]]" in block]
    path = tmp_path / "overrides.toml"
    path.write_text(text, "utf-8")
    assert [one.pi for one in load_overrides(path)] == ["vogel", "chen"]


def test_every_key_is_in_the_table() -> None:
    table = TEXT.partition("### All keys")[2]
    assert {*re.findall(r"`(\w+)`", table)} >= set(LdapSection.__struct_fields__)
