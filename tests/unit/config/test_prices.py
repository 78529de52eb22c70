"""What a site says of its GPUs: dated prices, weights, aliases."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from slurmkit.config.prices import (
    canonical_type,
    cpu_prices,
    gpu_settings,
    memory_prices,
    partition_gpu_types,
    price_at,
    price_on,
)
from slurmkit.errors import BadConfig

SITE = """
[gpu.a100]
aliases = ["A100-SXM4-80GB", "ampere"]
watts = 400
shard_weight = 0.25
[[gpu.a100.prices]]
since = 2026-07-01
currency = "EUR"
on_premises = 0.85
cloud = 3
[[gpu.a100.prices]]
since = 2026-01-01
currency = "EUR"
on_premises = 0.9
[gpu."a100_3g.20gb"]
part_of = "A100"
weight = 0.5
[gpu.h100]
[partition.untyped]
gpu_type = "a100"
[partition.cpu]
"""


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(SITE, "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(path))
    return path


@pytest.mark.usefixtures("file")
def test_the_price_is_that_of_the_day() -> None:
    assert price_at("a100", date(2025, 12, 31)) is None
    first = price_at("a100", date(2026, 6, 30))
    assert first is not None
    assert (first.on_premises, first.cloud, first.currency) == (Decimal("0.9"), None, "EUR")
    second = price_at("Ampere", date(2026, 7, 1))
    assert second is not None
    assert second.on_premises == Decimal("0.85")


@pytest.mark.usefixtures("file")
def test_a_slice_without_prices_costs_its_part_of_the_whole() -> None:
    part = price_at("a100_3g.20gb", date(2027, 1, 1))
    assert part is not None
    assert (part.on_premises, part.cloud) == (Decimal("0.425"), Decimal("1.5"))


@pytest.mark.usefixtures("file")
def test_nobody_has_said_what_it_costs() -> None:
    assert price_at("h100", date(2027, 1, 1)) is None
    assert price_at("v100", date(2027, 1, 1)) is None


@pytest.mark.usefixtures("file")
def test_types_by_alias_and_without_case() -> None:
    assert canonical_type("a100-sxm4-80gb") == "a100"
    assert canonical_type("H100") == "h100"
    assert canonical_type("V100") == "V100"
    assert canonical_type("V100", {}) == "V100"
    assert partition_gpu_types() == {"untyped": "a100"}
    assert gpu_settings()["a100"].watts == 400


def test_without_configuration_nothing_is_known() -> None:
    assert gpu_settings() == {}
    assert partition_gpu_types() == {}
    assert canonical_type("A100") == "A100"
    assert price_at("a100", date(2026, 1, 1)) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[gpu.a]\naliases = ["x"]\n[gpu.b]\naliases = ["X"]', "alias 'X' already stands for a"),
        ("[gpu.a]\n[gpu.A]", "differ only in upper and lower case"),
        ("[gpu.a]\nwatts = 0", "> 0.0"),
        ("[gpu.a]\nwat = 1", r"\[gpu.a\] has no key 'wat'; did you mean 'watts'"),
        ("[gpu.a_3g.20gb]\nweight = 1", "in a header, put a name that has a dot in quotes"),
        ('[[gpu.a.prices]]\nsince = 2026-01-01\ncurrency = "euro"', "matching regex"),
        (
            '[[gpu.a.prices]]\nsince = 2026-01-01\ncurrency = "EUR"\ncloud = -1',
            "-1 is not a price; write 0 or more",
        ),
        ('[[gpu.a.prices]]\nsince = "soon"\ncurrency = "EUR"', "date"),
        (
            '[[gpu.a.prices]]\nsince = 2026-01-01\ncurrency = "EUR"\n' * 2,
            "two prices begin on 2026-01-01",
        ),
        ("gpu = 1", "must be a table"),
        ("[gpu]\na100 = 1", "must be a table"),
    ],
)
def test_a_wrong_section_is_named(file: Path, text: str, says: str) -> None:
    file.write_text(text, "utf-8")
    with pytest.raises(BadConfig, match=says):
        gpu_settings()


def test_cpus_and_memory_have_dated_prices_of_their_own(file: Path) -> None:
    file.write_text(
        SITE + '[[cpu.prices]]\nsince = 2026-01-01\ncurrency = "EUR"\non_premises = 0.01\n'
        '[[cpu.prices]]\nsince = 2026-02-01\ncurrency = "EUR"\non_premises = 0.02\n'
    )
    days = (date(2025, 12, 31), date(2026, 1, 31), date(2026, 2, 1))
    found = [price_on(cpu_prices(), day) for day in days]
    assert [price and price.on_premises for price in found] == [
        None,
        Decimal("0.01"),
        Decimal("0.02"),
    ]
    assert memory_prices() == ()


@pytest.mark.parametrize("section", ["cpu", "memory"])
def test_two_prices_from_the_same_day_are_refused(file: Path, section: str) -> None:
    price = f'[[{section}.prices]]\nsince = 2026-01-01\ncurrency = "EUR"\n'
    file.write_text(price * 2)
    with pytest.raises(BadConfig, match="two prices begin on 2026-01-01"):
        {"cpu": cpu_prices, "memory": memory_prices}[section]()
