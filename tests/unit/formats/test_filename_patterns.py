"""Output paths, against what real slurmd wrote for them."""

from __future__ import annotations

import pytest

from slurmkit.formats.filename_patterns import PatternValues, depends_on_restarts, expand_pattern

ALONE = PatternValues("12", "12", "train", "alice", "c1")
TASK = PatternValues("13_4", "15", "train", "alice", "c1")


@pytest.mark.parametrize(
    ("pattern", "facts", "path"),
    [
        ("/h/plain.out", ALONE, "/h/plain.out"),
        ("/h/slurm-%j.out", ALONE, "/h/slurm-12.out"),
        ("/h/%5j", ALONE, "/h/00012"),
        ("/h/%x_%u", ALONE, "/h/train_alice"),
        ("/h/%x_%04a.out", TASK, "/h/train_0004.out"),
        ("/h/%12a_%011j", TASK, "/h/0000000004_0000000015"),
        ("/h/%r_%S", ALONE, "/h/%r_%S"),
        ("/h/%5x", ALONE, "/h/train"),
        ("/h/d%N-%n-%t-%s-%a-%A", ALONE, "/h/dc1-0-0-batch-4294967294-12"),
        ("/h/%%j", ALONE, "/h/%j"),
        ("/h/%A_%a_%j_%b", TASK, "/h/13_4_15_4"),
        ("/h/g\\%j", ALONE, "/h/g%j"),
        ("/h/100%", ALONE, "/h/100%"),
    ],
)
def test_patterns(pattern: str, facts: PatternValues, path: str) -> None:
    assert expand_pattern(pattern, facts) == path


def test_a_path_by_node_is_unknown_before_there_is_one() -> None:
    waiting = ALONE._replace(first_node=None)
    assert expand_pattern("/h/%N", waiting) is None
    assert expand_pattern("/h/%j", waiting) == "/h/12"


@pytest.mark.parametrize(
    ("pattern", "depends"),
    [("/h/%j-%r", True), ("/h/%02r", True), ("/h/%S", True), ("/h/%%r", False),
     ("/h/\\%r", False), ("/h/%j", False)],
)  # fmt: skip
def test_a_path_that_depends_on_the_run(pattern: str, depends: bool) -> None:
    assert depends_on_restarts(pattern) is depends
