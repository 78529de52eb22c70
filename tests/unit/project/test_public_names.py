"""The public names of the library are a list, sorted, and each can be imported."""

from __future__ import annotations

import subprocess
import sys

import slurmkit


def test_public_names_are_sorted_and_import() -> None:
    assert slurmkit.__all__ == sorted(slurmkit.__all__)
    for name in slurmkit.__all__:
        value = getattr(slurmkit, name)
        module = getattr(value, "__module__", None)
        assert module is None or module.startswith("slurmkit.")


def test_names_survive_the_import_of_their_modules() -> None:
    """No submodule has the name of a public name, which its import would replace."""
    code = "import slurmkit.planning.planner; from slurmkit import plan; assert callable(plan)"
    subprocess.run([sys.executable, "-c", code], check=True)
