"""A ledger of its own for each test, and a host that has no configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurmkit_accounting.ledger import Ledger, open_for_writing
from slurmkit_accounting.location import ledger_url
from sqlalchemy import create_engine, text


@pytest.fixture(autouse=True)
def _bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "slurmkit.config.config_paths", lambda: [tmp_path / "config" / "slurmkit.toml"]
    )
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TZ", "UTC")
    for name in ("SLURMKIT_DB", "SLURMKIT_LDAP_PASSWORD", "SLURMKIT_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def configure(tmp_path: Path) -> object:
    """Writes the one configuration file."""

    def write(text: str) -> None:
        path = tmp_path / "config" / "slurmkit.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")

    return write


@pytest.fixture
def file_ledger() -> Iterator[Ledger]:
    """A ledger in the default place."""
    with open_for_writing() as opened:
        yield opened


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A new ledger; in PostgreSQL where SLURMKIT_TEST_DB names an empty database."""
    url = os.environ.get("SLURMKIT_TEST_DB")
    if url:
        monkeypatch.setenv("SLURMKIT_DB", url)
        engine = create_engine(ledger_url(url))
        with engine.begin() as connection:
            connection.execute(text("DROP SCHEMA IF EXISTS public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))
        engine.dispose()
    with open_for_writing() as opened:
        yield opened
