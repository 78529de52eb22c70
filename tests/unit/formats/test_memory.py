"""Amounts of memory: Slurm's forms in, one form for people out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.formats.memory import (
    format_bytes,
    format_memory_use,
    format_mib,
    memory_option,
    parse_bytes,
    parse_mib,
)
from slurmkit.formats.tres import format_tres, format_tres_minutes


@pytest.mark.parametrize(
    ("text", "up", "down", "exact"),
    [
        ("64G", 65536, 65536, 65536.0),
        ("64gb", 65536, 65536, 65536.0),
        ("1.50T", 1572864, 1572864, 1572864.0),
        ("62.57G", 64072, 64071, 64071.68),
        ("1K", 1, 0, 1 / 1024),
        ("4096", 4096, 4096, 4096.0),
        ("0", 0, 0, 0.0),
        ("2P", 2**31, 2**31, 2.0**31),
    ],
)
def test_mebibytes(text: str, up: int, down: int, exact: float) -> None:
    assert parse_mib(text, rounding="up") == up
    assert parse_mib(text, rounding="down") == down
    assert parse_mib(text, rounding="exact") == pytest.approx(exact)


@pytest.mark.parametrize(
    "text", ["", ".", "G", "x", "-1G", "1e3", "1.2.3G", "64B", "1 G", "\u0663", "1G\n", "9" * 400]
)
def test_what_is_no_amount(text: str) -> None:
    assert parse_mib(text, rounding="up") is None
    assert parse_bytes(text) is None


def test_measured_use_is_in_bytes() -> None:
    assert parse_mib("1048577", rounding="up", plain="") == 2
    assert parse_mib("1048577", rounding="down", plain="") == 1
    assert parse_bytes("399036K") == 399036 * 1024
    assert parse_bytes("1048577") == 1048577


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1500, "1.465 KiB"),
        (512 << 20, "512 MiB"),
        (1 << 30, "1 GiB"),
        (3 << 39, "1.5 TiB"),
        (1 << 60, "1024 PiB"),
    ],
)
def test_words(size: int, words: str) -> None:
    assert format_bytes(size) == words


@given(st.integers(min_value=0, max_value=2**40))
def test_an_option_reads_back(mebibytes: int) -> None:
    assert parse_mib(memory_option(mebibytes), rounding="exact") == mebibytes


@pytest.mark.parametrize(
    ("name", "count", "words"),
    [
        ("mem", 65536, "64 GiB of memory"),
        ("mem", 0, "0 MiB of memory"),
        ("gres/gpu", 2, "2 GPUs"),
        ("gres/gpu:a100", 1, "1 a100 GPU"),
        ("gres/shard", 4, "4 shards"),
        ("cpu", 1, "1 CPU"),
        ("gres/mps", 50, "50 of gres/mps"),
        ("license/matlab", 3, "3 of license/matlab"),
    ],
)
def test_amounts_of_tres(name: str, count: int, words: str) -> None:
    assert format_tres(name, count) == words


@pytest.mark.parametrize(
    ("name", "minutes", "words"),
    [
        ("gres/gpu", 90, "90 GPU-minutes"),
        ("gres/gpu:a100", 600, "10 a100 GPU-hours"),
        ("mem", 5, "5 MiB of memory-minutes"),
    ],
)
def test_tres_minutes(name: str, minutes: float, words: str) -> None:
    assert format_tres_minutes(name, minutes) == words


def test_mebibytes_in_words() -> None:
    assert [format_mib(size) for size in (0, 512, 65536, 1 << 21)] == [
        "0 MiB",
        "512 MiB",
        "64 GiB",
        "2 TiB",
    ]


def test_memory_of_a_gpu_in_use() -> None:
    assert format_memory_use(12_800, 81_920) == "12.5 of 80 GiB"
    assert format_memory_use(0, None) == "0.0 GiB"
    assert format_memory_use(None, 81_920) == "?"
