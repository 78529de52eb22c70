"""tests/second-look: a cluster test that fails is run once more, alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Look = Callable[..., tuple[int, str, list[str]]]
ROOT = Path(__file__).parents[3]
FAILS_BESIDE_OTHERS = """
import os
def test_needs_the_machine_for_itself():
    assert "PYTEST_XDIST_WORKER" not in os.environ
def test_passes():
    pass
"""
SKIPPED_ALONE = """
import os, pytest
def test_looks_for_an_engine():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("there is none")
    assert False
"""
FAILS = "def test_fails():\n    assert False\n"


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Runs the script in a tree of its own; returns exit code, output, what passed only alone."""
    tree = tmp_path / "tree"
    (tree / "tests").mkdir(parents=True)
    (tree / ".venv/bin").mkdir(parents=True)
    (tree / ".venv/bin/pytest").write_text(f'#!/bin/sh\nexec {sys.executable} -m pytest "$@"\n')
    (tree / ".venv/bin/pytest").chmod(0o755)
    shutil.copy(ROOT / "tests/second-look", tree / "tests")
    (tree / "pytest.ini").write_text("[pytest]\naddopts = -p xdist\n")

    def run(**files: str) -> tuple[int, str, list[str]]:
        for name, text in files.items():
            (tree / f"test_{name}.py").write_text(text)
        alone = tmp_path / "alone"
        done = subprocess.run(
            [str(tree / "tests/second-look"), "-n", "2", "--dist", "loadfile"],
            capture_output=True, text=True, check=False,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
            | {"SLURMKIT_TEST_ONLY_ALONE": str(alone), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )  # fmt: skip
        passed = alone.read_text().splitlines() if alone.exists() else []
        return done.returncode, done.stdout + done.stderr, passed

    return run


def test_what_passes_alone_is_named_and_the_run_is_green(look: Look) -> None:
    code, said, passed = look(a=FAILS_BESIDE_OTHERS)
    assert code == 0, said
    assert passed == ["test_a.py::test_needs_the_machine_for_itself"]
    assert said.splitlines()[-1] == f"passed only alone: 1, {passed[0]}"
    assert "1 passed" in said  # the second look ran nothing else


def test_what_fails_twice_is_red(look: Look) -> None:
    code, said, passed = look(a=FAILS_BESIDE_OTHERS, b=FAILS)
    assert code == 1
    assert passed == []
    assert "1 failed, 1 passed" in said
    assert "passed only alone" not in said


def test_what_is_skipped_then_has_not_passed(look: Look) -> None:
    code, said, passed = look(a=SKIPPED_ALONE)
    assert (code, passed) == (1, [])
    assert "the second look was skipped" in said


def test_many_failures_get_no_second_look(look: Look) -> None:
    code, said, passed = look(
        a=FAILS_BESIDE_OTHERS, b="".join(FAILS.replace("fails", f"fails_{n}") for n in range(10))
    )
    assert (code, passed) == (1, [])
    assert "11 tests failed: too many for a second look" in said
