"""Who changes the schema of a ledger, when, and what is kept of the ledger before."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from databases import KINDS
from later_release import LATER, become_later_release
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.ledger.database import open_for_reading, open_for_writing, upgrade_ledger
from slurmkit_accounting.ledger.location import ledger_url
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.types import REVISION
from sqlalchemy import Engine, create_engine, event, text

from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import LedgerError

pytestmark = pytest.mark.sql

OLD = REVISION


def make_old(where: str) -> None:
    """Make a ledger with one cluster."""
    with open_for_writing(where) as ledger, ledger.transaction() as connection:
        connection.execute(text("INSERT INTO clusters (name) VALUES ('lab')"))


@pytest.fixture(params=KINDS)
def old(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """URL of a ledger of this release; slurmkit is then a later one."""
    where = f"sqlite:///{tmp_path}/old.db"
    if request.param == "postgresql":
        where = request.getfixturevalue("postgres")
    make_old(where)
    become_later_release(monkeypatch, tmp_path / "migrations")
    return where


@pytest.fixture
def old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a SQLite ledger of this release; slurmkit is then a later one."""
    where = f"sqlite:///{tmp_path}/old.db"
    make_old(where)
    become_later_release(monkeypatch, tmp_path / "migrations")
    return where


def test_a_writer_copies_a_file_before_it_changes_the_schema_and_leaves_postgresql_alone(old):
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
    assert upgrade_ledger(old) == (LATER, None)


def test_a_file_that_cannot_be_copied_is_not_changed(old_file, tmp_path, monkeypatch):

    def no_room(*_: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", no_room)
        words = f"must be upgraded, but cannot be copied to .*old.db.schema-{OLD} before: .*no room"
        with pytest.raises(LedgerError, match=words), open_for_writing(old_file):
            pass
    assert list(tmp_path.glob("*.schema-*")) == []
    assert upgrade_ledger(old_file).before == OLD


def test_no_schema_is_changed_while_an_ingest_is_running(old):
    """The ingest of the older release would go on with other tables."""
    engine = create_engine(ledger_url(old))
    source = str(engine.url.database) if old.startswith("sqlite") else old
    running = SimpleNamespace(engine=engine, source=source)
    with hold_ledger_lock(running, "ingest"):
        with pytest.raises(LedgerError, match="another ingest is writing to the ledger"):
            upgrade_ledger(old)
        if old.startswith("sqlite"):
            with pytest.raises(LedgerError, match="another ingest"), open_for_writing(old):
                pass
    engine.dispose()
    assert upgrade_ledger(old).before == OLD


def test_a_new_ledger_can_be_made_while_another_command_makes_it(tmp_path):
    where = f"sqlite:///{tmp_path}/new.db"
    with open_for_writing(where) as one, open_for_writing(where) as other:
        assert one.source == other.source


def test_a_ledger_can_be_made_and_upgraded_with_the_sqlite_of_rhel_9(tmp_path, monkeypatch):
    """It is 3.34, which can drop no column, and knows no STRICT tables."""
    for module in ("sqlite3", "sqlite3.dbapi2"):
        monkeypatch.setattr(f"{module}.sqlite_version_info", (3, 34, 1))
    statements: list[str] = []

    def note(_connection, _cursor, statement, *_):
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        with open_for_writing(f"sqlite:///{tmp_path}/new.db") as ledger:
            assert ledger.source
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert len(statements) > 20
    newer = re.compile(r"DROP COLUMN|\bSTRICT\b|\bRETURNING\b|->>", re.IGNORECASE)
    assert [one for one in statements if newer.search(one)] == []


def test_copies_are_deleted_after_a_migration_and_only_those_of_migrations(
    old_file, tmp_path, monkeypatch
):
    others = {tmp_path / f"old.db.schema-{name}" for name in ("0002.bak", "0003-mine", "00021")}
    older = tmp_path / "old.db.schema-0002"
    for path in (older, *others):
        path.write_text("")

    def fails(_connection: object) -> None:
        raise LedgerError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("slurmkit_accounting.ledger.database.upgrade_schema", fails)
        with pytest.raises(LedgerError, match="no room"):
            upgrade_ledger(old_file)
    assert older.exists()
    copy = upgrade_ledger(old_file).copy
    assert copy == f"{tmp_path}/old.db.schema-{OLD}"
    assert set(tmp_path.glob("*.schema-*")) == {Path(copy), *others}


def test_the_command_upgrades_a_ledger_and_a_reader_names_it(old_file, tmp_path, capsys):
    argv = ["upgrade", "--db", old_file]
    assert run_to_exit_code(ledger_group, [*argv[:2], f"sqlite:///{tmp_path}/none.db"]) == 1
    assert "there is no ledger at" in capsys.readouterr().err
    with pytest.raises(LedgerError, match="slurmkit ledger upgrade"), open_for_reading(old_file):
        pass
    assert run_to_exit_code(ledger_group, argv) == 0
    said = capsys.readouterr()
    assert said.out == f"upgraded the ledger from schema {OLD} to {LATER}\n"
    assert said.err == f"a copy from before: {tmp_path}/old.db.schema-{OLD}\n"
    assert run_to_exit_code(ledger_group, argv) == 0
    assert "has the schema of this release" in capsys.readouterr().out


def test_a_ledger_from_before_the_first_release_is_refused_with_what_to_do(tmp_path, capsys):
    where = f"sqlite:///{tmp_path}/old.db"
    make_old(where)
    with closing(sqlite3.connect(tmp_path / "old.db")) as file:
        file.execute("UPDATE ledger_version SET version_num = '0016'")
        file.commit()
    before = (tmp_path / "old.db").read_bytes()
    words = r"made before slurmkit 0.1.0 \(schema 0016\).*: slurmkit ledger ingest"
    for opening in (open_for_reading, open_for_writing):
        with pytest.raises(LedgerError, match=words), opening(where):
            pass
    assert run_to_exit_code(ledger_group, ["upgrade", "--db", where]) == 1
    assert "no release reads it: move it away" in capsys.readouterr().err
    assert (tmp_path / "old.db").read_bytes() == before
