"""What an import drags in, looked at in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "cloudpickle",
    "textual",
    "pandas",
    "numpy",
    "sqlalchemy",
    "alembic",
    "ldap3",
    "paramiko",
    "pyslurm",
    "pynvml",
}


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import slurmkit",
        "import slurmkit; [getattr(slurmkit, name) for name in slurmkit.__all__]",
        "import slurmkit.cli.main",
        "import slurmkit.cli.jobs, slurmkit.cli.submit",
    ],
)
def test_library_loads_nothing_heavy(code: str) -> None:
    assert not loaded_by(code) & HEAVY


def test_bare_import_loads_no_third_party_package() -> None:
    assert not loaded_by("import slurmkit") & {"click", "rich", "msgspec", "ClusterShell"}


def test_read_api_never_loads_pandas() -> None:
    assert "pandas" not in loaded_by("import slurmkit_accounting.read")
