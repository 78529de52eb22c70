"""Scenes of what an administrator runs, for the tests of `--json`: backups, setup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from recorded_lab import slurm
from slurmkit_accounting.audit.backup import back_up
from slurmkit_accounting.ledger.database import open_for_reading, open_for_writing

from slurmkit.doctor.case import Diagnosis

SCENES: dict[str, Callable[[pytest.MonkeyPatch, Path], Sequence[str]]] = {}


def _of_backup(_: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    with open_for_writing():
        pass
    return (str(folder / "ledger.gz"),)


def _of_restore(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    (file,) = _of_backup(patch, folder)
    with open_for_reading() as ledger:
        back_up(ledger, Path(file))
    return (file, "--db", f"sqlite:///{folder}/restored.db")


def _of_check(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    file, *_ = _of_restore(patch, folder)
    return (file, "--check")


def _of_setup(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    found = [Diagnosis("database", "ok", "ledger.db: SQLite; empty")]
    patch.setattr("slurmkit_accounting.cli.setup.run_checks", lambda *_: found)
    patch.setattr("slurmkit_accounting.cli.setup.LocalSlurmCommands", slurm)
    patch.setattr("slurmkit_accounting.site_setup.proposal.find_host_directory", lambda: None)
    return ("--file", str(folder / "new.toml"), "--timezone", "Europe/Berlin")


SCENES["setup"] = _of_setup
SCENES["ledger backup"] = _of_backup
SCENES["ledger restore"] = _of_restore
SCENES["ledger restore --check"] = _of_check
