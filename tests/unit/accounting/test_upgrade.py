"""Who changes the schema of a ledger, when, and what is kept of the ledger before."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from databases import KINDS
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.ledger.database import open_for_reading, open_for_writing, upgrade_ledger
from slurmkit_accounting.ledger.location import ledger_url
from slurmkit_accounting.ledger.schema.types import REVISION
from sqlalchemy import create_engine, text

from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import LedgerError

OLD = "0004"


def make_old(where: str) -> None:
    """Make a ledger as an earlier release made it, with one cluster."""
    engine = create_engine(ledger_url(where))
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "slurmkit_accounting:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, OLD)
        connection.execute(text("INSERT INTO clusters (name) VALUES ('lab')"))
    engine.dispose()


@pytest.fixture(params=KINDS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a ledger of an earlier release."""
    where = f"sqlite:///{tmp_path}/old.db"
    if request.param == "postgresql":
        where = request.getfixturevalue("postgres")
    make_old(where)
    return where


def test_a_writer_copies_a_file_before_it_changes_the_schema_and_leaves_postgresql_alone(old):
    """Finding security L14."""
    if old.startswith("postgresql"):
        words = r"pg_dump\), then run: slurmkit ledger upgrade"
        with pytest.raises(LedgerError, match=words), open_for_writing(old):
            pass
        assert upgrade_ledger(old) == (OLD, None)
    else:
        path = Path(old.removeprefix("sqlite:///"))
        older = path.with_name("old.db.schema-0000")
        older.write_text("")
        with open_for_writing(old):
            pass
        copy = path.with_name(f"old.db.schema-{OLD}")
        assert copy.stat().st_mode & 0o777 == 0o600
        with closing(sqlite3.connect(copy)) as kept:
            assert kept.execute("SELECT version_num FROM ledger_version").fetchall() == [(OLD,)]
            assert kept.execute("SELECT name FROM clusters").fetchall() == [("lab",)]
        assert not older.exists()
        with open_for_writing(old):
            pass
    assert upgrade_ledger(old) == (REVISION, None)


def test_a_file_that_cannot_be_copied_is_not_changed(tmp_path, monkeypatch):
    """Finding security L14."""

    def no_room(*_: object) -> None:
        raise OSError("no room")

    where = f"sqlite:///{tmp_path}/old.db"
    make_old(where)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", no_room)
        words = f"must be upgraded, but cannot be copied to .*old.db.schema-{OLD} before: .*no room"
        with pytest.raises(LedgerError, match=words), open_for_writing(where):
            pass
    assert list(tmp_path.glob("*.schema-*")) == []
    assert upgrade_ledger(where).before == OLD


def test_the_command_upgrades_a_ledger_and_a_reader_names_it(tmp_path, capsys):
    """Finding security L14."""
    where = f"sqlite:///{tmp_path}/old.db"
    argv = ["upgrade", "--db", where]
    assert run_to_exit_code(ledger_group, argv) == 1
    assert "there is no ledger at" in capsys.readouterr().err
    make_old(where)
    with pytest.raises(LedgerError, match="slurmkit ledger upgrade"), open_for_reading(where):
        pass
    assert run_to_exit_code(ledger_group, argv) == 0
    said = capsys.readouterr()
    assert said.out == f"upgraded the ledger from schema {OLD} to {REVISION}\n"
    assert said.err == f"a copy from before: {tmp_path}/old.db.schema-{OLD}\n"
    assert run_to_exit_code(ledger_group, argv) == 0
    assert "has the schema of this release" in capsys.readouterr().out
