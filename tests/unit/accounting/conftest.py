"""A ledger of its own for each test, and a host that has no configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import KINDS, emptied
from mail_lab import Inbox
from quick_ledgers import make_quickly
from slurmkit_accounting.ledger.database import Ledger, open_for_writing


@pytest.fixture(autouse=True)
def _bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "slurmkit.config.files.config_paths", lambda: [tmp_path / "config" / "slurmkit.toml"]
    )
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TZ", "UTC")
    for name in ("SLURMKIT_DB", "SLURMKIT_LDAP_PASSWORD", "SLURMKIT_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _quick_ledgers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of migrations make theirs as everybody does."""
    if request.path.name not in {"test_migrations.py", "test_upgrade.py"}:
        make_quickly(monkeypatch)


@pytest.fixture
def configure(tmp_path: Path) -> object:
    """Writes the one configuration file."""

    def write(text: str) -> None:
        path = tmp_path / "config" / "slurmkit.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")

    return write


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def file_ledger() -> Iterator[Ledger]:
    """A ledger in the default place."""
    with open_for_writing() as opened:
        yield opened


@pytest.fixture
def postgres() -> str:
    """URL of an empty database in PostgreSQL."""
    return emptied()


@pytest.fixture(params=KINDS)
def ledger(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A new ledger in each kind of database."""
    if request.param == "postgresql":
        monkeypatch.setenv("SLURMKIT_DB", request.getfixturevalue("postgres"))
    with open_for_writing() as opened:
        yield opened
