"""The import contracts hold, and would notice a break."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOMES = {
    "slurmkit": ".",
    "slurmkit_accounting": "accounting",
    "slurmkit_containers": "containers",
    "slurmkit_plugins": "plugins",
    "slurmkit_tui": "tui",
}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Copy the packages side by side, where a break can be made without harm."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package, home in HOMES.items():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / home / package, tmp_path / package, ignore=ignored)
    return tmp_path


def lint(house: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the copy; -P keeps the installed packages out of the way."""
    code = (
        f"import sys; sys.path.insert(0, {str(house)!r});"
        "from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    return subprocess.run(
        [sys.executable, "-P", "-c", code, "--no-cache"],
        cwd=house,
        capture_output=True,
        text=True,
        check=False,
    )


def test_contracts_hold(house: Path) -> None:
    done = lint(house)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("slurmkit/text.py", "import slurmkit_accounting"),
        ("slurmkit/text.py", "import sqlalchemy"),
        ("slurmkit_containers/__init__.py", "import slurmkit_tui"),
        ("slurmkit_accounting/zones.py", "import slurmkit_tui"),
        ("slurmkit_accounting/zones.py", "import ldap3"),
        ("slurmkit_tui/__init__.py", "import slurmkit_accounting.ingest"),
        ("slurmkit_plugins/__init__.py", "import slurmkit_tui"),
        ("slurmkit_plugins/__init__.py", "import slurmkit_accounting.ingest"),
        ("slurmkit_plugins/__init__.py", "import slurmkit.cli.show"),
    ],
)
def test_a_break_is_noticed(house: Path, module: str, line: str) -> None:
    path = house / module
    path.write_text(f"{path.read_text('utf-8')}\n{line}\n", "utf-8")
    done = lint(house)
    assert done.returncode != 0
    assert "BROKEN" in done.stdout
