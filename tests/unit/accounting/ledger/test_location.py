from __future__ import annotations

import errno
import sqlite3
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.ledger import database as module
from slurmkit_accounting.ledger.bulk_write import insert_rows
from slurmkit_accounting.ledger.database import open_for_reading, open_for_writing
from slurmkit_accounting.ledger.location import (
    default_ledger_path,
    describe_url,
    is_network,
    ledger_url,
    refuse_network_filesystem,
)
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.runs import clusters, ingests
from slurmkit_accounting.ledger.schema.types import VERSION_TABLE, metadata
from sqlalchemy import func, insert, select, text

from slurmkit.cli.main import run_to_exit_code
from slurmkit.config.paths import filesystem_type
from slurmkit.errors import BadInput, LedgerError

pytestmark = pytest.mark.sql

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 30 254:1 / /home/local\\040disk rw - xfs /dev/vdb rw
32 22 0:41 / /scratch rw master:3 - lustre mds@tcp:/s rw
33 22 0:42 / /over rw - nfs server:/o rw
34 33 0:43 / /over rw - tmpfs tmpfs rw
35 22 0:44 / /mnt/ssh rw - fuse.sshfs host:/ rw
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_option_beats_environment_beats_configuration_beats_default(
    configure, monkeypatch, tmp_path
):
    assert describe_url(ledger_url()) == str(default_ledger_path())
    assert default_ledger_path() == tmp_path / "data" / "slurmkit" / "ledger.db"
    configure('[ledger]\ndb = "sqlite:////from/config.db"\n')
    assert describe_url(ledger_url()) == "/from/config.db"
    monkeypatch.setenv("SLURMKIT_DB", "sqlite:////from/environment.db")
    assert describe_url(ledger_url()) == "/from/environment.db"
    assert describe_url(ledger_url("sqlite:////from/option.db")) == "/from/option.db"


def test_a_relative_xdg_data_home_is_not_one(monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_ledger_path() == Path.home() / ".local/share/slurmkit/ledger.db"


def test_without_a_home_directory_a_ledger_must_be_named(monkeypatch):
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "nowhere")
    with pytest.raises(BadInput, match="no home directory for a ledger; name a database with --db"):
        default_ledger_path()


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_a_password_is_not_shown(scheme):
    shown = describe_url(ledger_url(f"{scheme}://me:s3cret@db/books"))
    assert shown == "postgresql+psycopg://me:***@db/books"


@pytest.mark.parametrize("key", ["password", "PASSWORD", "sslpassword", "oauth_client_secret"])
def test_a_password_in_the_query_is_refused_and_not_shown(key):
    for scheme in ("postgresql", "postgresql+psycopg", "mysql"):
        with pytest.raises(BadInput, match=rf"has {key} in its query.*~/\.pgpass") as caught:
            ledger_url(f"{scheme}://me@db/books?sslmode=require&{key}=s3cret")
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--db", "postgresql+psycopg://me:s3cret@db/books"],
        ["ingest", "--db", "postgresql://:s3c/ret@db/books"],
        ["export", "postgresql://me:s3cret@db/books"],
        ["import", "postgresql://me:s3cret@db/books"],
    ],
)
def test_a_password_on_the_command_line_is_refused_and_not_shown(words, capsys):
    """Everybody sees it in the list of processes."""
    assert run_to_exit_code(ledger_group, words) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith("take it out of the URL, and put it into ~/.pgpass")
    assert "s3c" not in said


def test_a_url_without_a_password_is_taken_on_the_command_line(capsys):
    assert run_to_exit_code(ledger_group, ["status", "--db", "sqlite:////no:su@ch/books.db"]) == 1
    assert "password" not in capsys.readouterr().err


def test_the_folder_of_a_ledger_that_is_named_is_not_made(tmp_path):
    path = tmp_path / "mistyped" / "backup.db"
    with (
        pytest.raises(LedgerError, match="No such file or directory; make its folder, or name"),
        open_for_writing(f"sqlite:///{path}"),
    ):
        pass
    assert not path.parent.exists()


def test_an_ingest_without_slurm_leaves_no_ledger(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_to_exit_code(ledger_group, ["ingest"]) == 1
    assert "is not on the PATH" in capsys.readouterr().err
    assert not default_ledger_path().exists()


def test_an_ingest_of_a_file_with_a_wrong_header_leaves_no_ledger(tmp_path, capsys):
    dump = tmp_path / "dump.txt"
    dump.write_text("a|b\n1|2\n", "utf-8")
    words = ["ingest", "--file", str(dump), "--cluster", "lab", "--header"]
    assert run_to_exit_code(ledger_group, words) == 2
    assert "the header lacks JobIDRaw and Submit" in capsys.readouterr().err
    assert not default_ledger_path().exists()


def test_a_password_file_in_the_query_is_fine():
    url = ledger_url("postgresql://me@db/books?passfile=/etc/books.pgpass&sslkey=/etc/key.pem")
    assert url.query == {"passfile": "/etc/books.pgpass", "sslkey": "/etc/key.pem"}


@pytest.mark.parametrize(
    ("read_only", "options"),
    [
        (False, "-csearch_path=books"),
        (True, "-csearch_path=books -c default_transaction_read_only=on"),
    ],
)
def test_options_in_the_url_reach_postgresql(monkeypatch, read_only, options):
    given, make = {}, module.create_engine

    def create_engine(url, **other):
        given.update(other)
        return make(url)

    monkeypatch.setattr(module, "create_engine", create_engine)
    module._postgresql(ledger_url("postgresql://me@db/x?options=-csearch_path%3Dbooks"), read_only)
    assert given["connect_args"]["options"] == options


@pytest.mark.parametrize(
    "url",
    [
        "ledger.db",
        "://",
        "mysql://db/books",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x?mode=ro",
        "postgresql+psycopg2://db/books",
        "postgresql://me:s3cret@db:port/books",
    ],
)
def test_a_url_that_cannot_be_meant_is_bad_input(url):
    with pytest.raises(BadInput, match="write sqlite:////absolute") as caught:
        ledger_url(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/x.db", "ext4"),
        ("/home/alice/x.db", "nfs4"),
        ("/home/local disk/x.db", "xfs"),
        ("/homestead/x.db", "ext4"),
        ("/scratch/x.db", "lustre"),
        ("/over/x.db", "tmpfs"),
        ("/mnt/ssh/x.db", "fuse.sshfs"),
    ],
)
def test_the_filesystem_of_a_path(path, kind):
    assert filesystem_type(Path(path), MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs", "cifs", "lustre", "gpfs", "beegfs", "fuse.sshfs"])
def test_network_filesystems(kind):
    assert is_network(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay", "zfs", "fuse.fuse-overlayfs"])
def test_local_filesystems(kind):
    assert not is_network(kind)


def test_a_network_filesystem_is_refused_with_the_reason():
    with pytest.raises(LedgerError, match=r"network filesystem \(nfs4\).*--db sqlite:////PATH"):
        refuse_network_filesystem(Path("/home/alice/x.db"), MOUNTS)
    refuse_network_filesystem(Path("/var/x.db"), MOUNTS)


@pytest.mark.parametrize("opening", [open_for_writing, open_for_reading])
def test_opening_looks_at_the_filesystem_and_leaves_nothing_behind(opening, monkeypatch, tmp_path):
    mounts = f"22 1 0:4 / / rw - ext4 a rw\n23 22 0:5 / {tmp_path} rw - nfs b rw\n"
    monkeypatch.setattr("slurmkit.config.paths._read_mountinfo", lambda: mounts)
    with pytest.raises(LedgerError, match="network filesystem"), opening():
        pass
    assert not (tmp_path / "data").exists()


def test_a_new_ledger_is_for_its_owner_only(file_ledger):
    path = Path(file_ledger.source)
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700


def test_the_migrations_make_the_schema(ledger):
    with ledger.transaction() as connection:
        options = {"version_table": VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


def test_a_file_is_written_ahead_and_its_foreign_keys_hold(file_ledger):
    with file_ledger.transaction() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1


def test_foreign_keys_hold_again_after_a_writer_that_is_trusted(file_ledger):
    for ledger, hold in ((file_ledger.without_foreign_keys(), 0), (file_ledger, 1)):
        with ledger.transaction() as connection:
            assert connection.scalar(text("PRAGMA foreign_keys")) == hold


def test_opening_again_changes_nothing(ledger):
    with ledger.transaction() as connection:
        connection.execute(text("INSERT INTO clusters (name) VALUES ('lab')"))
    with open_for_writing() as again, again.transaction() as connection:
        assert connection.scalar(text("SELECT count(*) FROM clusters")) == 1


def test_a_reader_needs_a_ledger_and_makes_none(tmp_path):
    words = "create it with: slurmkit ledger ingest"
    with pytest.raises(LedgerError, match=words), open_for_reading():
        pass
    assert not (tmp_path / "data").exists()


def test_a_reader_cannot_write(ledger):
    with (
        open_for_reading() as books,
        pytest.raises(LedgerError, match=r"read-?only"),
        books.transaction() as connection,
    ):
        connection.execute(text("INSERT INTO clusters (name) VALUES ('lab')"))


def test_an_older_ledger_names_the_command_and_a_newer_one_the_upgrade(ledger, monkeypatch):
    monkeypatch.setattr(module, "REVISION", "9999")
    words = r"older slurmkit .*: slurmkit ledger upgrade"
    with pytest.raises(LedgerError, match=words), open_for_reading():
        pass
    monkeypatch.setattr(module, "REVISION", "0000")
    for opening in (open_for_reading, open_for_writing):
        with pytest.raises(LedgerError, match="newer slurmkit"), opening():
            pass


def test_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("shopping: milk, eggs and a good deal of other things\n" * 9, "utf-8")
    words = "not a database; this file is not a ledger"
    for opening in (open_for_reading, open_for_writing):
        with pytest.raises(LedgerError, match=words), opening(f"sqlite:///{path}"):
            pass
    assert path.read_text("utf-8").startswith("shopping")


def test_a_database_that_is_no_ledger(tmp_path):
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mail (subject TEXT)")
    connection.close()
    with (
        pytest.raises(LedgerError, match="is a database, but not a ledger"),
        open_for_writing(f"sqlite:///{path}"),
    ):
        pass


@pytest.mark.parametrize("place", ["file/ledger.db", "folder"])
@pytest.mark.parametrize("opening", [open_for_reading, open_for_writing])
def test_a_path_that_cannot_be(tmp_path, place, opening):
    (tmp_path / "file").write_text("", "utf-8")
    (tmp_path / "folder").mkdir()
    with pytest.raises(LedgerError, match="ledger"), opening(f"sqlite:///{tmp_path / place}"):
        pass


def test_a_folder_that_cannot_be_made():
    words = r"cannot create or open .*; make its folder, or name another place with --db"
    with pytest.raises(LedgerError, match=words), open_for_writing("sqlite:////proc/new/x.db"):
        pass


def test_a_postgresql_that_is_not_there():
    with (
        pytest.raises(LedgerError, match="cannot use the ledger postgresql"),
        open_for_reading("postgresql+psycopg://me@127.0.0.1:1/books"),
    ):
        pass


def test_writers_take_turns(ledger):
    """What one has read no other changes before it writes."""

    def count_on(_: int) -> None:
        with ledger.transaction() as connection:
            name = connection.scalar(select(func.count()).select_from(clusters))
            time.sleep(0.05)
            connection.execute(insert(clusters).values(name=str(name)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count_on, range(4)))
    with ledger.transaction() as connection:
        assert sorted(connection.scalars(select(clusters.c.name))) == ["0", "1", "2", "3"]


def test_what_a_database_says_of_many_rows_is_one_error_of_ours(ledger):

    def enter() -> None:
        columns = ("cluster_id", "started", "window_from", "window_to")
        with ledger.transaction() as connection:
            insert_rows(connection, ingests, columns, [(1, 2, 3, "no number")])

    with pytest.raises(LedgerError, match="cannot use the ledger"):
        enter()


def test_a_lock_that_cannot_be_had_is_one_line(file_ledger, monkeypatch):
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("slurmkit.config.paths.fcntl.flock", flock)
    with pytest.raises(LedgerError, match="ingest-lock: No locks available"):  # noqa: SIM117
        with hold_ledger_lock(file_ledger, "ingest"):
            pass
