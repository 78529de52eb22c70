"""Backups of a ledger: consistent under load, the same for both databases, all or nothing."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from databases import KINDS, emptied
from fake_sacct import FakeSacct, job, runs_of_every_kind
from later_release import become_later_release
from slurmkit_accounting.audit import backup as module
from slurmkit_accounting.audit.backup import back_up, check_backup, restore
from slurmkit_accounting.audit.backup_file import read_header
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ledger.bulk_write import insert_rows
from slurmkit_accounting.ledger.database import (
    Ledger,
    open_for_reading,
    open_for_writing,
    recreate_schema,
    upgrade_ledger,
)
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema import clusters, gpu_use, runs
from slurmkit_accounting.ledger.schema.types import REVISION, metadata
from sqlalchemy import LargeBinary, func, insert, select, text
from stored_runs import checked

from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import BadInput, LedgerError

NOW = int(time.time())


def filled(ledger: Ledger) -> str:
    """Enter runs, and a row with binary values; return the checksum."""
    ingest(ledger, runs_of_every_kind(NOW))
    with ledger.transaction() as connection:
        values: dict[str, Any] = {}
        for column in gpu_use.columns:
            if isinstance(column.type, LargeBinary):
                values[column.name] = bytes(range(256))
            elif column.name != "id" and not column.nullable:
                number = 1 / 3 if "FLOAT" in str(column.type) else 1
                values[column.name] = "x" if str(column.type) == "TEXT" else number
        connection.execute(insert(gpu_use).values(values))
    return checked(ledger)


def everything(ledger: Ledger) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    with ledger.transaction() as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(select(table))), key=repr)
            for table in metadata.sorted_tables
        }


def backed_up(tmp_path: Path) -> Path:
    """A backup of the default ledger."""
    path = tmp_path / "ledger.gz"
    with open_for_reading() as ledger:
        back_up(ledger, path)
    return path


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "gz" in path.name)


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database without a ledger, of each kind."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres"))
    return f"sqlite:///{tmp_path}/restored.db"


@pytest.mark.sql
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_ledger_is_the_same_in_every_table(ledger, kind, tmp_path):
    before = filled(ledger)
    rows = everything(ledger)
    path = backed_up(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    ledger.close()
    target = emptied() if kind == "postgresql" else f"sqlite:///{tmp_path}/restored.db"
    with open_for_writing(target) as there:
        restored = restore(path, there)
        assert restored.checksum == before == checked(there) == restored.header.checksum
        assert everything(there) == rows
        # New rows get new ids.
        slurm = runs_of_every_kind(NOW)
        slurm.jobs.append(job(8, NOW - 9, NOW - 9, NOW))
        ingest(there, slurm)
        assert checked(there) != before


@pytest.mark.sql
def test_there_and_back_it_is_the_same_file_but_for_its_header(file_ledger, target, tmp_path):
    filled(file_ledger)
    path = backed_up(tmp_path)
    again = tmp_path / "again.gz"
    with open_for_writing(target) as there:
        restore(path, there)
    with open_for_reading(target) as there:
        back_up(there, again)
    first, second = (gzip.decompress(each.read_bytes()).splitlines() for each in (path, again))
    assert sorted(first[1:-1]) == sorted(second[1:-1])


@pytest.mark.sql
def test_a_backup_under_load_is_the_ledger_of_one_moment(ledger, tmp_path, monkeypatch):
    """Another thread enters jobs while the backup is written, and never has to wait for it."""
    ingest(ledger, runs_of_every_kind(NOW))
    entered, stop, sizes = threading.Event(), threading.Event(), []

    def enter() -> None:
        with open_for_writing() as own:
            number = 100
            while not stop.is_set():
                ingest(
                    own, FakeSacct(*(job(n, NOW - 90, NOW - 80, NOW) for n in range(100, number)))
                )
                number += 20
                entered.set()

    stored = module.stored_rows

    def slowly(connection, table):
        """Let the writer commit between any two tables."""
        entered.clear()
        assert entered.wait(60)
        with ledger.transaction() as now:
            sizes.append(now.scalar(select(func.count()).select_from(runs)))
        return stored(connection, table)

    monkeypatch.setattr(module, "stored_rows", slowly)
    writer = threading.Thread(target=enter)
    writer.start()
    try:
        path = backed_up(tmp_path)
    finally:
        stop.set()
        writer.join()
    assert len(set(sizes)) > 3  # runs were entered all the time
    with open_for_writing(f"sqlite:///{tmp_path}/other.db") as there:
        assert restore(path, there).checksum == checked(there) == read_header(path).checksum
        with there.transaction() as connection:
            assert connection.scalar(select(func.count()).select_from(runs)) < sizes[-1]


def test_a_restore_of_many_batches_takes_no_more_locks_than_of_one(postgres):
    """PostgreSQL has room for a few thousand locks; a restore is one transaction."""
    held = []
    locks = text("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()")
    with open_for_writing(postgres) as there, there.transaction() as connection:
        for number in range(1, 6):
            insert_rows(connection, clusters, ("id", "name"), [(number, f"c{number}")])
            held.append(connection.scalar(locks))
        assert connection.scalar(select(func.count()).select_from(clusters)) == 5
    assert len(set(held)) == 1


def test_only_an_empty_ledger_is_filled(file_ledger, target, tmp_path):
    filled(file_ledger)
    path = backed_up(tmp_path)
    with open_for_writing(target) as there:
        with there.transaction() as connection:
            connection.execute(insert(clusters).values(name="mine"))
        rows = everything(there)
        with pytest.raises(LedgerError, match="already has rows in clusters; name an empty"):
            restore(path, there)
        assert everything(there) == rows
        with hold_ledger_lock(there, "ingest"), pytest.raises(LedgerError, match="another ingest"):
            restore(path, there)


def rewritten(path: Path, change: Any, *, sign: bool = False) -> None:
    """Change the lines of a backup; with `sign`, put the right sha256 at its end."""
    lines = change(gzip.decompress(path.read_bytes()).splitlines(keepends=True))
    if sign:
        digest = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
        lines[-1] = json.dumps({"sha256": digest}, separators=(",", ":")).encode() + b"\n"
    path.write_bytes(gzip.compress(b"".join(lines)))


def of_newer(key: str, value: Any) -> Any:
    def change(lines: list[bytes]) -> list[bytes]:
        header = json.loads(lines[0])
        header[key] = value
        return [json.dumps(header, separators=(",", ":")).encode() + b"\n", *lines[1:]]

    return change


def row_at(lines: list[bytes]) -> int:
    """The first row of a run."""
    return next(at for at, line in enumerate(lines) if line.startswith(b'{"table":"runs"')) + 1


def with_row(lines: list[bytes], change: Any) -> list[bytes]:
    at = row_at(lines)
    return [*lines[:at], change(lines[at]), *lines[at + 1 :]]


def of_no_cluster(row: bytes) -> bytes:
    """Let a run belong to a cluster that does not exist."""
    return re.sub(rb"^\[(\d+),\d+", rb"[\1,999", row)


SPOILS: dict[str, tuple[Any, bool, str]] = {
    "a row changed": (lambda it: with_row(it, lambda row: row.replace(b"a100", b"h100")), False,
                      "another sha256"),
    "a row less": (lambda it: [*it[: row_at(it)], *it[row_at(it) + 1 :]], True,
                   "other numbers of rows"),
    "a value less": (lambda it: with_row(it, lambda row: b"[1]\n"), True, "too many or too few"),
    "no end": (lambda it: it[:-1], False, "its end is missing"),
    "more after the end": (lambda it: [*it, it[-1]], False, "more after its last line"),
    "no json": (lambda it: with_row(it, lambda row: row[:-4] + b"\n"), True, "damaged"),
    "no table": (lambda it: [it[0], b"[1]\n", *it[1:]], True, "rows of no table"),
    "an object": (lambda it: with_row(it, lambda row: b'{"x":1}\n'), True, "damaged"),
    "a newer schema": (of_newer("schema", "9999"), True, "newer slurmkit .*upgrade slurmkit"),
    "a newer format": (of_newer("format_version", 2), True, "newer slurmkit .*upgrade slurmkit"),
    "another format": (of_newer("format", "x"), True, "is not a backup"),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILS)
def test_a_file_that_was_changed_is_refused_and_nothing_is_made(how, file_ledger, tmp_path, capsys):
    filled(file_ledger)
    path = backed_up(tmp_path)
    change, sign, why = SPOILS[how]
    rewritten(path, change, sign=sign)
    with pytest.raises(LedgerError, match=why):
        check_backup(path)
    new = tmp_path / "new.db"
    assert run_to_exit_code(ledger_group, ["restore", str(path), "--db", f"sqlite:///{new}"]) == 1
    assert str(path) in capsys.readouterr().err
    assert not new.exists()


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.999])
def test_a_file_that_is_cut_off_is_refused(keep, file_ledger, tmp_path):
    filled(file_ledger)
    path = backed_up(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(LedgerError, match=r"is cut off|is not a backup"):
        check_backup(path)


def test_no_flipped_byte_changes_what_is_read(file_ledger, tmp_path):
    filled(file_ledger)
    path = backed_up(tmp_path)
    data = path.read_bytes()
    content = gzip.decompress(data)
    refused = 0
    places = range(10, len(data), max(1, len(data) // 60))
    for at in places:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            check_backup(path)
        except LedgerError:
            refused += 1
        else:
            # A few bits of gzip carry nothing: a copy from an equal text elsewhere, padding.
            assert gzip.decompress(path.read_bytes()) == content
    assert refused > len(places) * 0.8


@pytest.mark.parametrize(
    "content", [b"SQLite format 3\0", b"{}\n", gzip.compress(b"{}\n", mtime=0)]
)
def test_another_file_is_neither_read_nor_replaced(content, file_ledger, tmp_path):
    path = tmp_path / "precious"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"precious is not a backup by: slurmkit ledger backup"):
        check_backup(path)
    with pytest.raises(BadInput, match=r"a backup replaces only a backup: .*precious is not a"):
        back_up(file_ledger, path)
    assert path.read_bytes() == content


def test_a_file_that_appears_meanwhile_is_not_replaced(file_ledger, tmp_path):
    path = tmp_path / "ledger.gz"

    def appear(*_: int) -> None:
        path.write_bytes(b"precious")

    filled(file_ledger)
    with pytest.raises(BadInput, match="a backup replaces only a backup"):
        back_up(file_ledger, path, appear)
    assert path.read_bytes() == b"precious"
    assert left_in(tmp_path) == ["ledger.gz"]


def test_a_link_stays_and_an_empty_file_is_replaced(file_ledger, tmp_path):
    """For example a link to another disk, and a file that mktemp made."""
    link, there = tmp_path / "link.gz", tmp_path / "there.gz"
    there.touch()
    with pytest.raises(LedgerError, match="is not a backup"):
        check_backup(there)
    link.symlink_to(there)
    for _ in range(2):
        back_up(file_ledger, link)
        assert link.is_symlink()
        assert check_backup(there).schema == REVISION
    assert left_in(tmp_path) == ["link.gz", "there.gz"]


def test_an_error_in_the_middle_restores_nothing(file_ledger, target, tmp_path):
    """The sha256 is right, so only the database finds the error."""
    filled(file_ledger)
    path = backed_up(tmp_path)
    spoil = [
        (lambda it: with_row(it, lambda row: row.replace(b"a100", b"h100")), "another checksum"),
        (lambda it: with_row(it, of_no_cluster), "(?i)foreign key"),
        (lambda it: [line.replace(b'"revisions"', b'"nonsense"') for line in it], "no ledger has"),
        (lambda it: [line.replace(b'"job_id_raw"', b'"x"') for line in it], "does not have: x"),
    ]  # fmt: skip
    good = path.read_bytes()
    for change, why in spoil:
        path.write_bytes(good)
        rewritten(path, change, sign=True)
        check_backup(path)
        with open_for_writing(target) as there:
            with pytest.raises(LedgerError, match=why):
                restore(path, there)
            assert not any(everything(there).values())
    path.write_bytes(good)
    with open_for_writing(target) as there:
        restore(path, there)


def test_a_backup_of_an_older_schema_is_upgraded(target, tmp_path, monkeypatch):
    old = tmp_path / "old.gz"
    with open_for_writing(f"sqlite:///{tmp_path}/old.db") as ledger:
        with ledger.transaction() as connection:
            connection.execute(text("INSERT INTO clusters (name) VALUES ('lab')"))
        back_up(ledger, old)
    with open_for_writing(target):
        pass
    become_later_release(monkeypatch, tmp_path / "migrations")
    upgrade_ledger(target)
    with open_for_writing(target) as there:
        restore(old, there)
        checked(there)
        assert [row[1] for row in everything(there)["clusters"]] == ["lab"]
        with there.transaction() as connection:
            assert connection.scalar(text("SELECT of_later FROM clusters")) is None
    with open_for_reading(target):
        pass  # it has the schema of the later release


@pytest.mark.sql
def test_an_older_schema_replaces_no_tables_of_others(target):
    with open_for_writing(target) as there:
        with there.transaction() as connection:
            connection.execute(text("CREATE TABLE theirs (id INTEGER)"))
            connection.execute(text("INSERT INTO theirs VALUES (7)"))
        with there.transaction() as connection:
            recreate_schema(connection, REVISION)
            assert connection.scalar(text("SELECT id FROM theirs")) == 7


def test_an_unknown_schema_is_an_error_of_one_line(file_ledger, tmp_path):
    path = backed_up(tmp_path)
    rewritten(path, of_newer("schema", "0000"), sign=True)
    with (
        open_for_writing(f"sqlite:///{tmp_path}/x.db") as there,
        pytest.raises(LedgerError, match="there is no schema 0000 of a ledger"),
    ):
        restore(path, there)


def test_the_commands(file_ledger, tmp_path, capsys):
    before = filled(file_ledger)
    path, new = str(tmp_path / "ledger.gz"), f"sqlite:///{tmp_path}/new.db"
    for _ in range(2):  # the second one replaces the first
        assert run_to_exit_code(ledger_group, ["backup", path]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == f"{before}  {path}"
    assert f"schema {REVISION}" in said.err
    assert run_to_exit_code(ledger_group, ["restore", "--check", path, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["checksum"], row["tables"]["clusters"]) == (before, 1)
    assert run_to_exit_code(ledger_group, ["restore", path, "--db", new]) == 0
    assert capsys.readouterr().out == f"{before}  {tmp_path}/new.db\n"
    assert run_to_exit_code(ledger_group, ["verify", "--db", new]) == 0
    assert capsys.readouterr().out.startswith(before)
    assert run_to_exit_code(ledger_group, ["restore", path, "--db", new]) == 1
    assert "name an empty database" in capsys.readouterr().err
    assert run_to_exit_code(ledger_group, ["backup", "/nowhere/x.gz"]) == 1
    assert "make its folder" in capsys.readouterr().err
    assert left_in(tmp_path) == ["ledger.gz"]


def test_ctrl_c_leaves_the_older_backup_and_nothing_else(file_ledger, tmp_path):
    """A process of its own is interrupted in the middle of the file."""
    filled(file_ledger)
    path = backed_up(tmp_path)
    old = path.read_bytes()
    code = (
        "import time, sys\n"
        "from slurmkit_accounting.audit import backup\n"
        "from slurmkit.cli.main import main\n"
        "rows = backup.stored_rows\n"
        "def stop(connection, table):\n"
        "    if table.name == 'runs': print('now', flush=True); time.sleep(60)\n"
        "    return rows(connection, table)\n"
        "backup.stored_rows = stop\n"
        f"sys.argv = ['slurmkit', 'ledger', 'backup', {str(path)!r}]\n"
        "sys.exit(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        assert len(left_in(tmp_path)) == 2
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert left_in(tmp_path) == ["ledger.gz"]
    assert path.read_bytes() == old


def test_a_full_disk_is_said_and_leaves_nothing(file_ledger, tmp_path, monkeypatch):
    filled(file_ledger)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slurmkit_accounting.audit.backup_file.os.fsync", full)
    with pytest.raises(LedgerError, match="No space left on device; make room there"):
        back_up(file_ledger, tmp_path / "ledger.gz")
    assert left_in(tmp_path) == []
