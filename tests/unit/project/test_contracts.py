"""The import contracts hold, and would notice a break."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
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
        ("slurmkit/formats/display.py", "import slurmkit_accounting"),
        ("slurmkit/formats/display.py", "import sqlalchemy"),
        ("slurmkit_containers/__init__.py", "import slurmkit_tui"),
        ("slurmkit_accounting/calendar.py", "import slurmkit_tui"),
        ("slurmkit_accounting/calendar.py", "import ldap3"),
        ("slurmkit_tui/__init__.py", "import slurmkit_accounting.ingest.ingest"),
        ("slurmkit_plugins/__init__.py", "import slurmkit_tui"),
        ("slurmkit_plugins/__init__.py", "import slurmkit_accounting.ingest.ingest"),
        ("slurmkit_plugins/__init__.py", "import slurmkit.cli.tables"),
        ("slurmkit_plugins/gpu_exporter/cli.py", "import slurmkit.state.nodes"),
    ],
)
def test_a_break_is_noticed(house: Path, module: str, line: str) -> None:
    path = house / module
    path.write_text(f"{path.read_text('utf-8')}\n{line}\n", "utf-8")
    done = lint(house)
    assert done.returncode != 0
    assert "BROKEN" in done.stdout


UPWARD = "from slurmkit.cluster.cluster import Cluster"
LAYERS = [
    pytest.param("slurmkit/formats/tres.py", UPWARD, id="upward"),
    pytest.param(
        "slurmkit/state/gres.py",
        f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {UPWARD}",
        id="upward for types",
    ),
    pytest.param(
        "slurmkit/state/gres.py", f"def late() -> None:\n    {UPWARD}", id="upward in a function"
    ),
    pytest.param(
        "slurmkit/doctor/case.py",
        "from slurmkit.diagnose.explain import explain",
        id="from the same layer",
    ),
    pytest.param(
        "slurmkit/jobs/info.py",
        "def late() -> None:\n    from slurmkit.jobs.job import Job",
        id="cycle of two files",
    ),
    pytest.param(
        "slurmkit_accounting/ledger/database.py",
        "import slurmkit_accounting.usage.tables",
        id="upward in accounting",
    ),
    pytest.param(
        "slurmkit_tui/screens/help.py", "import slurmkit_tui.app.app", id="upward in the TUI"
    ),
    pytest.param(
        "slurmkit_containers/cache.py",
        "import slurmkit_containers.importing.importer",
        id="upward in containers",
    ),
]


@pytest.mark.parametrize(("module", "line"), LAYERS)
def test_a_break_of_the_layers_is_noticed(house: Path, module: str, line: str) -> None:
    path = house / module
    path.write_text(f"{path.read_text('utf-8')}\n{line}\n", "utf-8")
    done = lint(house)
    assert done.returncode != 0
    assert "BROKEN" in done.stdout


def test_a_package_without_a_layer_is_noticed(house: Path) -> None:
    (house / "slurmkit/odds").mkdir()
    (house / "slurmkit/odds/__init__.py").write_text("")
    assert lint(house).returncode != 0
