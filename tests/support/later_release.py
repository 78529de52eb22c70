"""A later release of slurmkit, whose schema has one more column."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest
import slurmkit_accounting
from slurmkit_accounting.audit import backup, backup_file
from slurmkit_accounting.cli import maintenance
from slurmkit_accounting.ledger import database
from slurmkit_accounting.ledger.schema.types import REVISION

LATER = "9001"
_MIGRATION = f"""
from alembic import op
import sqlalchemy as sa

revision = "{LATER}"
down_revision = "{REVISION}"


def upgrade():
    op.add_column("clusters", sa.Column("of_later", sa.Text))
"""
_MODULES: tuple[ModuleType, ...] = (database, backup, backup_file, maintenance)


def become_later_release(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make this process the later release.

    Args:
        patch: undoes it.
        folder: for the migrations of the later release; it must not exist.
    """
    shutil.copytree(Path(slurmkit_accounting.__file__).parent / "migrations", folder)
    (folder / "versions" / f"{LATER}_later.py").write_text(_MIGRATION, "utf-8")
    patch.setattr(database, "_MIGRATIONS", str(folder))
    for module in _MODULES:
        patch.setattr(module, "REVISION", LATER)
