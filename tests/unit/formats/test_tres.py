"""Counting GPUs in TRES strings."""

from __future__ import annotations

import pytest

from slurmkit.formats.tres import format_gpus, format_tres_minutes, gpu_count, gpu_types


@pytest.mark.parametrize(
    ("tres", "count", "types"),
    [
        ("", 0, {}),
        ("N/A", 0, {}),
        ("cpu=4,mem=8G,node=2,billing=4", 0, {}),
        ("cpu=4,gres/gpu=4,gres/gpu:a100=4", 4, {"a100": 4}),
        ("gres/gpu:a100=2,gres/gpu:v100=1", 3, {"a100": 2, "v100": 1}),
        ("gres/gpu=3,gres/gpu:a100=2", 3, {"a100": 2, "": 1}),
        ("gres/gpumem=80G,gres/gpuutil=77", 0, {}),
        ("gres/shard=3,gres/mps=50", 0, {}),
        ("gres/gpu:a100_3g.20gb=1,gres/gpu=1", 1, {"a100_3g.20gb": 1}),
    ],
)
def test_gpus(tres: str, count: int, types: dict[str, int]) -> None:
    assert gpu_count(tres) == count
    assert gpu_types(tres) == types


@pytest.mark.parametrize(
    ("tres", "said"),
    [
        ("cpu=1,gres/gpu=4,gres/gpu:a100=4", ["4 a100"]),
        ("gres/gpu=2", ["2"]),
        ("cpu=1,gres/shard=3", ["3 shard"]),
        ("gres/mps=50", ["50 mps"]),
        ("cpu=1", []),
    ],
)
def test_gpus_in_words(tres: str, said: list[str]) -> None:
    assert format_gpus(tres) == said


@pytest.mark.parametrize(
    ("minutes", "words"),
    [(1, "1 CPU-minute"), (2, "2 CPU-minutes"), (-1, "0 CPU-minutes"), (600, "10 CPU-hours")],
)
def test_one_minute_has_no_s(minutes: float, words: str) -> None:
    assert format_tres_minutes("cpu", minutes) == words
    assert format_tres_minutes("cpu", 60, hours_from=60) == "1 CPU-hour"
