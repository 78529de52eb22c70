"""`slurmkit setup`: recorded answers of Slurm, a real directory where there is one, real files."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import re
import socket
import stat
import struct
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
from directory_lab import SUFFIX, slapd
from mail_lab import Inbox, smtp
from slurmkit_accounting.cli.setup import setup_command
from slurmkit_accounting.config import LdapSection
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.people.ldap import DirectorySurvey
from slurmkit_accounting.site_setup import cluster, database, host_files, proposal
from slurmkit_accounting.site_setup.checks import checks_of
from slurmkit_accounting.site_setup.config_text import (
    ProposedValue,
    change_config,
    write_config_text,
)
from slurmkit_accounting.site_setup.directory import choose_subtrees
from sqlalchemy import create_engine, make_url, text

from slurmkit.cli.main import run_to_exit_code
from slurmkit.doctor.case import CheckContext
from slurmkit.errors import BadConfig, DirectoryError, LedgerError, SlurmkitError
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[3] / "recorded"
ME = getpass.getuser()


class Cluster:
    """What Slurm answers, as recorded; `answers` replaces the answer to a word of a command."""

    def __init__(self, release: str) -> None:
        folder = RECORDED / release
        text = (folder / "scontrol-config.txt").read_text("utf-8")
        now = f"Configuration data as of {int(time.time())}\n"
        self.config = now + text.partition("\n")[2]
        name = re.findall(r"^ClusterName\s+= (.*)$", text, re.MULTILINE)[0]
        self.answers = {
            "ping": "Slurmctld(primary) at ctld is UP\n",
            "node": (folder / "scontrol-nodes.txt").read_text("utf-8"),
            "cluster": f"{name}|ctld\n",
            "user": f"{ME}|Operator\n",
            "account": "root\nvision\nclimate\n",
            "munge": "MUNGE:AwQ\n",
            "unmunge": "STATUS:          Success (0)\n",
        }

    def slurm(self) -> FakeSlurm:
        return FakeSlurm(dict.fromkeys(("scontrol", "sacctmgr", "munge", "unmunge"), self._answer))

    def _answer(self, argv: Sequence[str], _: str | None) -> str:
        if argv[-1] == "config":
            return self.config
        word = argv[4] if argv[0] == "sacctmgr" else argv[-1] if argv[0] == "scontrol" else argv[0]
        return self.answers[word]


@pytest.fixture(params=["22.05", "24.11", "26.05"])
def site(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Cluster:
    """A cluster, on a host that has neither PostgreSQL nor a directory of its own."""
    made = Cluster(request.param)
    monkeypatch.setattr("slurmkit_accounting.cli.setup.LocalSlurmCommands", made.slurm)
    monkeypatch.setattr(
        "slurmkit.doctor.installation.shutil.which", lambda name: f"/usr/bin/{name}"
    )
    monkeypatch.setattr(cluster, "POSTGRES_SOCKETS", ())
    monkeypatch.setattr(cluster, "SERVICE_FILE", tmp_path / "ledger.db")
    monkeypatch.setattr(proposal, "find_host_directory", lambda: None)
    return made


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /etc/slurmkit."""
    folder = tmp_path / "etc"
    further = folder / "conf.d"

    def paths() -> list[Path]:
        return [folder / "config.toml", *sorted(further.glob("*.toml"))]

    for module in (
        "slurmkit_accounting.cli.setup",
        "slurmkit.config.check",
        "slurmkit.config.files",
    ):
        monkeypatch.setattr(f"{module}.config_paths", paths)
    monkeypatch.setattr("slurmkit_accounting.cli.setup.SITE_FOLDER", folder)
    return folder


def run(*words: str) -> int:
    return run_to_exit_code(setup_command, ["--service-user", ME, *words])


def test_without_write_there_is_a_diff_and_no_file(site, etc, capsys):
    assert run("--timezone", "Europe/Berlin") == 0
    said = capsys.readouterr()
    assert '+timezone = "Europe/Berlin"\n' in said.out
    assert "+# setup: option --timezone\n" in said.out
    for check in ("slurmctld", "slurmdbd", "clock", "munge", "database", "service-account"):
        assert f"ok       {check}: " in said.err
    assert "note     mail: no mail server is configured" in said.err
    assert "note     prices: no price for: a100" in said.err
    assert "nothing was written" in said.err
    assert not etc.exists()


def test_a_second_run_changes_nothing(site, etc, capsys):
    assert run("--timezone", "Europe/Berlin", "--write") == 0
    file = etc / "config.toml"
    text = file.read_text("utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    capsys.readouterr()
    assert run("--write") == 0
    said = capsys.readouterr()
    assert (said.out, file.read_text("utf-8")) == ("", text)
    assert "nothing to change in" in said.err
    # The host is in another zone than the option said: the file keeps it.
    assert "kept: [ledger.schedule] timezone = 'Europe/Berlin'" in said.err
    assert [path.name for path in etc.iterdir()] == ["config.toml"]


ADMINS = """\
# Ours.
[ledger]   # the books
db = "sqlite:////var/tmp/ours.db" # on this disk

  [ledger . schedule]
ingest = "*/5 * * * *"
# a note at the end

[[gpu.a100.prices]]
since = 2026-01-01
currency = "EUR"
on_premises = 0.9
"""


def test_values_and_comments_of_the_admin_stay(site, etc, capsys):
    etc.mkdir()
    file = etc / "config.toml"
    file.write_text(ADMINS, "utf-8")
    file.chmod(0o640)
    assert run("--timezone", "Europe/Berlin", "--write") == 0
    text = file.read_text("utf-8")
    kept = iter(text.splitlines())
    assert all(line in kept for line in ADMINS.splitlines())  # in their order
    after = tomllib.loads(text)
    assert after["ledger"]["db"] == "sqlite:////var/tmp/ours.db"
    assert after["ledger"]["schedule"] == {"ingest": "*/5 * * * *", "timezone": "Europe/Berlin"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    (backup,) = etc.glob("config.toml.before-*")
    assert backup.read_text("utf-8") == ADMINS
    assert stat.S_IMODE(backup.stat().st_mode) == 0o640
    assert str(backup) in capsys.readouterr().err


def test_a_password_in_the_file_is_not_shown(site, etc, capsys):
    etc.mkdir()
    url = "postgresql+psycopg://me:s3 cret@127.0.0.1:1/x"
    (etc / "config.toml").write_text(f'[ledger]\ndb = "{url}"\n', "utf-8")
    for words in (
        [],
        ["--json"],
        ["--db", "sqlite:////tmp/x.db"],
        ["--db=postgresql:///x", "--json"],
    ):
        run(*words)
        said = capsys.readouterr()
        assert "me:***@" in said.out
        assert "cret@" not in said.out + said.err


def test_the_diff_of_a_file_without_a_newline_at_its_end_can_be_read(site, etc, capsys):
    etc.mkdir()
    (etc / "config.toml").write_text("[ledger.schedule]\n# ours", "utf-8")
    run("--timezone", "Europe/Berlin")
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("-# ours")
    assert lines[at + 1] == "\\ No newline at end of file"
    assert "+# ours" in lines


def test_an_option_replaces_a_value_and_keeps_its_comment(site, etc):
    etc.mkdir()
    file = etc / "config.toml"
    file.write_text(ADMINS, "utf-8")
    assert run("--db", "sqlite:////tmp/other#1.db", "--write") == 0
    line = 'db = "sqlite:////tmp/other#1.db" # on this disk\n'
    assert f"# setup: option --db\n{line}" in file.read_text("utf-8")
    assert run("--db", "sqlite:////tmp/third.db", "--write") == 0
    text = file.read_text("utf-8")
    assert text.count("# setup: option --db\n") == 1
    assert 'db = "sqlite:////tmp/third.db" # on this disk\n' in text


def test_a_value_of_another_file_of_the_site_is_kept(site, etc, capsys):
    further = etc / "conf.d" / "zone.toml"
    further.parent.mkdir(parents=True)
    further.write_text('[ledger.schedule]\ntimezone = "Asia/Tokyo"\n', "utf-8")
    assert run("--timezone", "Europe/Berlin", "--write") == 0
    assert "timezone" not in (etc / "config.toml").read_text("utf-8")
    said = capsys.readouterr().err
    assert f"kept: [ledger.schedule] timezone = 'Asia/Tokyo' of {further}" in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[ledger\n", "cannot read the configuration file"),
        ("ledger = 5\n", "must be a table"),
        (
            'ledger = {db = "sqlite:////x.db"}\n',
            r"in a form that setup cannot change; .*\[ledger\]",
        ),
        ('[ledger]\ndb = """\n[ledger]"""\n', "in a form that setup cannot change"),
        ("[ledger]\nnonsense = 1\n", "nonsense.*nothing was written"),
    ],
)
def test_a_file_that_cannot_be_changed_is_left_alone(text, why, site, etc, capsys):
    etc.mkdir()
    file = etc / "config.toml"
    file.write_text(text, "utf-8")
    assert run("--db", "sqlite:////tmp/other.db", "--write") == 2
    said = capsys.readouterr().err
    assert re.search(why, said), said
    assert file.read_text("utf-8") == text
    assert [path.name for path in etc.iterdir()] == ["config.toml"]


def test_no_text_from_outside_can_add_a_line():
    evil = 'x"\n[ledger.service]\noperators = ["mallory"]\x7f\x9b\u2028'
    value = ProposedValue("ldap", "people_base", evil, f"ldap://x {evil}")
    text = change_config(Path("f"), "", [value])
    assert tomllib.loads(text) == {"ldap": {"people_base": evil}}
    assert len(text.splitlines()) == 3
    assert text.isascii()


def test_a_file_that_somebody_else_changes_is_not_overwritten(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("# theirs\n", "utf-8")
    with pytest.raises(SlurmkitError, match="was changed meanwhile"):
        write_config_text(file, "# before\n", "# ours\n")
    assert file.read_text("utf-8") == "# theirs\n"
    assert not list(tmp_path.glob(".*"))


def test_everybody_may_read_the_new_file_whatever_the_umask(tmp_path):
    tmp_path.chmod(0o700)
    file = tmp_path / "etc" / "slurmkit" / "config.toml"
    before = os.umask(0o077)
    try:
        write_config_text(file, "", "# new\n")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (*list(file.parents)[:3], file)]
    assert modes == [0o755, 0o755, 0o700, 0o644]


def test_an_access_control_list_stays(tmp_path):
    """`user::rw-, user:1:r--, group::---, mask::r--, other::---`, as acl(5) stores it."""
    file = tmp_path / "config.toml"
    file.write_text("", "utf-8")
    entries = ((1, 6, -1), (2, 4, 1), (4, 0, -1), (16, 4, -1), (32, 0, -1))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(file, "system.posix_acl_access", acl)
    except OSError:
        pytest.skip("this filesystem has no access control lists")
    backup = write_config_text(file, "", "# new\n")
    assert os.getxattr(file, "system.posix_acl_access") == acl
    assert os.getxattr(backup, "system.posix_acl_access") == acl


def test_each_file_from_before_is_kept(tmp_path):
    """Several writes within a second have backups of their own, with the bytes of the file."""
    file = tmp_path / "config.toml"
    file.write_bytes(b"# 0\r\n")
    backups = [write_config_text(file, f"# {n}\n", f"# {n + 1}\n") for n in range(4)]
    assert [each.read_bytes() for each in backups] == [b"# 0\r\n", b"# 1\n", b"# 2\n", b"# 3\n"]


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    file = tmp_path / "config.toml"
    file.write_text("# old\n", "utf-8")

    def fails(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(SlurmkitError, match="Read-only"):
        write_config_text(file, "# old\n", "# new\n")
    assert [each for each in tmp_path.iterdir() if "config" in each.name] == [file]


def test_a_link_stays_a_link(tmp_path):
    file, link = tmp_path / "real.toml", tmp_path / "config.toml"
    file.write_text("", "utf-8")
    link.symlink_to(file)
    write_config_text(link, "", "# new\n")
    assert link.is_symlink()
    assert file.read_text("utf-8") == "# new\n"


def test_a_login_node_gets_one_line(site, etc, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert run_to_exit_code(setup_command, ["--service-url", url, "--write"]) == 0
    assert tomllib.loads((etc / "config.toml").read_text("utf-8")) == {
        "ledger": {"service": {"url": url}}
    }
    assert "ok       service: " in capsys.readouterr().err
    assert run_to_exit_code(setup_command, []) == 1  # nobody answers there any more
    said = capsys.readouterr().err
    assert f"error    service: nothing answers at {url}" in said
    assert "database" not in said


def test_json(site, etc, capsys):
    assert run("--timezone", "Europe/Berlin", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    rows = {(row["section"], row["key"]): row for row in shown["rows"]}
    assert rows["ledger.schedule", "timezone"]["state"] == "new"
    assert rows["ledger.service", "listen"]["value"] == "0.0.0.0:6830"
    assert shown["written"] is False
    assert {"slurmdbd", "database"} <= {check["check"] for check in shown["checks"]}


def test_what_fails_is_written_with_force_only(site, etc, capsys):
    words = ("--db", "sqlite:////nowhere/at/all.db", "--mail-host", "127.0.0.1", "--write")
    assert run(*words) == 1
    said = capsys.readouterr().err
    assert "nothing was written, because of: " in said
    assert "--force writes it anyway" in said
    assert not etc.exists()
    assert run(*words, "--force") == 1
    assert "all.db" in (etc / "config.toml").read_text("utf-8")


def test_what_is_wrong_is_an_error_and_exit_1(site, etc, capsys):
    site.answers["user"] = "alice|Operator\n"
    site.answers["unmunge"] = "STATUS: Expired credential (15)\n"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    code = run(
        "--ldap-uri", f"ldap://127.0.0.1:{port}", "--mail-host", "127.0.0.1", "--db",
        "sqlite:////nowhere/at/all.db", "--mail-sender", "x@lab.example",
    )  # fmt: skip
    said = capsys.readouterr().err
    assert code == 1
    assert "error    directory: [ldap] people_base is not set" in said
    assert f"not found: [ldap]: cannot read ldap://127.0.0.1:{port}: nothing answers there" in said
    assert "error    mail: cannot send mail through 127.0.0.1:25" in said
    assert "there is no folder /nowhere/at; make it" in said
    assert "error    munge: munge does not work: STATUS: Expired credential" in said
    if os.geteuid():
        assert f"warning  service-account: {ME}, the account of the ledger's service, lacks" in said


@pytest.mark.parametrize("by", ["option", "file"])
def test_a_host_with_a_url_that_also_serves_is_checked_as_one_that_serves(site, etc, capsys, by):
    option = ["--ldap-uri", "ldap://127.0.0.1:1"]
    if by == "file":
        option = []
        etc.mkdir()
        (etc / "config.toml").write_text(
            '[ledger.service]\nlisten = "127.0.0.1:6830"\n[ldap]\nuri = "ldap://127.0.0.1:1"\n'
        )
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert run("--service-url", url, "--write", *option) == 1
    said = capsys.readouterr().err
    assert "ok       service: " in said
    assert "error    directory: " in said
    assert "nothing was written, because of: directory" in said


def test_without_slurm_it_says_so_and_proposes_the_rest(etc, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("--timezone", "Europe/Berlin") == 1
    said = capsys.readouterr()
    assert '+timezone = "Europe/Berlin"' in said.out
    assert "unknown  slurmdbd: " in said.err


def test_the_mail_server_is_asked_and_gets_no_mail(site, etc, capsys):
    inbox = Inbox()
    with smtp(inbox) as port:
        etc.mkdir()
        (etc / "config.toml").write_text(f'[mail]\nport = {port}\nsecurity = "none"\n', "utf-8")
        assert run("--mail-host", "127.0.0.1", "--mail-sender", "x@lab.example") == 0
    assert "ok       mail: " in capsys.readouterr().err
    assert inbox.mails == []


def test_a_postgresql_on_this_host_is_proposed(site, etc, tmp_path, monkeypatch, capsys):
    path = tmp_path / "postgresql" / ".s.PGSQL.5432"
    path.parent.mkdir()
    path.touch()
    monkeypatch.setattr(cluster, "POSTGRES_SOCKETS", (path,))
    run()
    said = capsys.readouterr()
    assert f'+db = "postgresql+psycopg://{ME}@/ledger"' in said.out
    assert f"+# setup: PostgreSQL's socket {path}; database `ledger`" in said.out


def test_without_postgresql_the_file_of_the_units_is_named_for_all_commands(
    site, etc, tmp_path, capsys
):
    assert run("--write") == 0
    written = tomllib.loads((etc / "config.toml").read_text("utf-8"))
    assert written["ledger"]["db"] == f"sqlite:///{tmp_path}/ledger.db"
    assert "no socket of PostgreSQL" in capsys.readouterr().out


def test_the_units_use_the_file_that_setup_proposes():
    assets = Path(cluster.__file__).parents[1] / "assets"
    for name in ("slurmkit-ledger.service", "slurmkit-ingest.service"):
        (data,) = re.findall(r" XDG_DATA_HOME=(\S+)", (assets / name).read_text("utf-8"))
        assert Path(data) / "slurmkit" / "ledger.db" == cluster.SERVICE_FILE


def test_mails_about_jobs_are_taken_where_slurm_leaves_them(site, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "MAIL_SPOOL", tmp_path)
    assert list(cluster.propose_job_mail(CheckContext(site.slurm()))) == []
    lines = [line for line in site.config.splitlines() if not line.startswith("MailProg")]
    site.config = "\n".join([*lines, "MailProg = /etc/slurm/slurmkit-mail"])
    (value,) = cluster.propose_job_mail(CheckContext(site.slurm()))
    assert (value.section, value.key, value.value) == ("job_mail", "spool", str(tmp_path))


# --- the database, as the service's account -------------------------------------------------------


@pytest.mark.sql
def test_a_database_in_postgresql(postgres):
    url = postgres
    (finding,) = database.check_database(url, ME)
    assert finding.severity == "ok"
    assert "empty: the first ingest makes the tables" in finding.message
    (finding,) = database.check_database(f"{url.partition('?')[0]}_missing", ME)
    assert finding.severity == "error"


def test_an_account_that_may_make_no_tables(postgres):
    url = make_url(postgres)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS setup_reader"))
        connection.execute(text("CREATE ROLE setup_reader LOGIN PASSWORD 'x'"))
        connection.execute(text("GRANT USAGE ON SCHEMA public TO setup_reader"))
    reader = url.set(username="setup_reader", password="x").render_as_string(hide_password=False)
    try:
        (finding,) = database.check_database(reader, ME)
        assert finding.severity == "error"
        assert "setup_reader may not make tables in the schema public" in finding.message
        with open_for_writing(postgres):
            pass
        with engine.begin() as connection:
            connection.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO setup_reader"))
        (finding,) = database.check_database(reader, ME)
        assert "setup_reader may not write to the table allocation" in finding.message
        (finding,) = database.check_database(postgres, ME)
        assert finding.severity == "ok"
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP OWNED BY setup_reader"))
            connection.execute(text("DROP ROLE setup_reader"))
        engine.dispose()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another account")
def test_a_file_in_a_folder_of_somebody_else(tmp_path):
    """The account may write to the file, but SQLite's WAL and the locks are beside it."""
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_mode & 0o001:
            break
        each.chmod(0o711)
    file = tmp_path / "ledger.db"
    file.touch()
    file.chmod(0o666)
    os.setresuid(65534, 65534, 0)
    try:
        with pytest.raises(LedgerError, match=f"may not write to the folder {tmp_path}"):
            database.describe_database(f"sqlite:///{file}")
    finally:
        os.setresuid(0, 0, 0)


def test_a_file_that_is_no_ledger(tmp_path):
    file = tmp_path / "x.db"
    file.write_text("something else, and long enough to be seen as that\n" * 30, "utf-8")
    (finding,) = database.check_database(f"sqlite:///{file}", ME)
    assert (finding.severity, "this file is not a ledger" in finding.message) == ("error", True)


def test_an_account_that_is_not_there_is_not_guessed_about():
    with pytest.raises(SlurmkitError, match="there is no account nobody-has-this on this host"):
        list(database.check_database("", "nobody-has-this"))


def test_the_account_of_the_service_runs_the_module(tmp_path):
    for url, code, words in (
        (f"sqlite:///{tmp_path}/new.db", 0, "SQLite; the first ingest makes the file"),
        ("mysql://x/y", 3, "a ledger cannot be stored in 'mysql'"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "slurmkit_accounting.site_setup.database"],
            input=url, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, words in done.stdout + done.stderr) == (code, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another account")
def test_root_asks_as_the_account_of_the_service(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("python")
    program = folder / "python"
    program.write_text(
        '#!/bin/sh\necho "$(id -un) $HOME ${SLURMKIT_DB-none}${SECRET-} $PWD $(cat)"\n', "utf-8"
    )
    program.chmod(0o755)
    # Another account must be able to start it.
    for each in (folder, *folder.parents):
        if each.stat().st_mode & 0o001:
            break
        each.chmod(0o711)
    monkeypatch.setattr(database.sys, "executable", str(program))
    monkeypatch.setenv("SLURMKIT_DB", "sqlite:////of/root.db")
    monkeypatch.setenv("SECRET", "of root")
    (finding,) = database.check_database("sqlite:////x.db", "nobody")
    assert finding.message == "nobody /nonexistent none / sqlite:////x.db"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another account")
def test_an_account_that_cannot_run_python_leaves_the_database_unchecked(monkeypatch):
    monkeypatch.setattr(database.sys, "executable", "/bin/false")
    with pytest.raises(SlurmkitError, match=r"not checked: nobody cannot run slurmkit \(exit code"):
        list(database.check_database("sqlite:////x.db", "nobody"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another account")
def test_files_that_the_service_cannot_read_are_an_error(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for each in (folder, *folder.parents):
        if each.stat().st_mode & 0o001:
            break
        each.chmod(0o711)
    password, ca = folder / "ldap.password", folder / "ca.pem"
    password.touch(0o600)
    ca.touch(0o644)
    contents = {
        "ledger": {"service": {"user": "nobody"}},
        "ldap": {"uri": "ldap://x", "bind_password_file": str(password), "ca_file": str(ca)},
    }
    (files,) = [check for check in checks_of(contents) if check.name == "files"]
    (finding,) = files.look(SimpleNamespace())
    assert finding.message == f"nobody cannot read {password}"
    assert finding.fix == f"chown nobody {password}"
    ca.chmod(0o600)
    _, about_ca = files.look(SimpleNamespace())
    assert about_ca.fix == f"chmod a+r {ca}"
    ca.chmod(0o644)
    os.chown(password, pwd.getpwnam("nobody").pw_uid, -1)
    assert list(files.look(SimpleNamespace())) == []


# --- the directory --------------------------------------------------------------------------------


OLD_LDAP3 = pytest.mark.filterwarnings(r"ignore:ssl\.match_hostname:DeprecationWarning")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator:
    with slapd(tmp_path / "slapd") as running:
        yield running


@OLD_LDAP3
def test_a_directory_is_asked_where_people_and_groups_are(directory, site, etc, capsys):
    code = run("--ldap-uri", directory.uri, "--ldap-ca-file", str(directory.ca_file), "--write")
    said = capsys.readouterr().err
    assert code == 0, said
    assert "ok       directory: 4 people, 2 groups, 2 of them with an owner" in said
    text = (etc / "config.toml").read_text("utf-8")
    assert tomllib.loads(text)["ldap"] == {
        "uri": directory.uri,
        "ca_file": str(directory.ca_file),
        "people_base": f"ou=people,{SUFFIX}",
        "groups_base": f"ou=research,{SUFFIX}",
    }
    assert "4 of 5 entries with (objectClass=posixAccount) are below it" in text
    assert "the name of a Slurm account (climate, vision) are below it" in text
    assert run() == 0
    assert "nothing to change" in capsys.readouterr().err


@OLD_LDAP3
def test_a_directory_without_owners_is_not_fine(directory, site, etc, capsys):
    run("--ldap-uri", directory.uri, "--ldap-ca-file", str(directory.ca_file), "--write")
    capsys.readouterr()
    config = etc / "config.toml"
    text = config.read_text("utf-8")
    config.write_text(text.replace("[ldap]\n", '[ldap]\nowner_attribute = "manager"\n'), "utf-8")
    run()
    said = capsys.readouterr().err
    assert (
        "warning  directory: 4 people, 2 groups, 0 of them with an owner: no entry has the"
        " attribute 'manager'"
    ) in said
    assert "set [ldap] owner_attribute" in said


@OLD_LDAP3
def test_a_directory_whose_certificate_is_not_known_is_not_read(directory, site, etc, capsys):
    assert run("--ldap-uri", directory.uri) == 1
    said = capsys.readouterr()
    assert "not signed by the CA" in said.err
    assert "_base" not in said.out


SECTION = LdapSection(uri="ldap://one")


def survey(*owned: str, **entries: list[str]) -> DirectorySurvey:
    """By object class, DNs whose first part has the name; those of `owned` have an owner."""
    kinds = {
        "ad_person": "(&(objectCategory=person)(objectClass=user))",
        "ipa": "(&(objectClass=ipaUserGroup)(memberManager=*))",
    }
    every = {
        "(&(objectCategory=person)(objectClass=user))", "(objectClass=posixAccount)",
        "(&(objectClass=ipaUserGroup)(memberManager=*))", "(objectClass=groupOfNames)",
        "(objectClass=groupOfUniqueNames)", "(objectClass=group)", "(objectClass=posixGroup)",
    }  # fmt: skip
    found = {kinds.get(name, f"(objectClass={name})"): dns for name, dns in entries.items()}
    assert found.keys() <= every
    listed = {
        each: [(dn, {"cn": [dn.partition("=")[2].partition(",")[0].encode()]}) for dn in dns]
        for each, dns in ({key: [] for key in every} | found).items()
    }
    for dn, attributes in chain.from_iterable(listed.values()):
        attributes["Owner"] = [b"uid=x"] if dn in owned else []
    return DirectorySurvey("ldap://one", {}, listed)


def chosen(made: DirectorySurvey, *accounts: str) -> dict[str, object]:
    return {each.key: each.value for each in choose_subtrees(made, SECTION, accounts)}


def test_groups_are_those_that_are_named_as_accounts():
    made = survey(
        posixAccount=["uid=a,ou=p,dc=x"],
        groupOfNames=["cn=printers,ou=it,dc=x", "cn=doors,ou=it,dc=x"],
        posixGroup=["cn=vision,ou=unix,dc=x", "cn=wheel,ou=sys,dc=x"],
    )
    with_accounts = chosen(made, "Vision", "climate")
    assert with_accounts["groups_base"] == "ou=unix,dc=x"
    assert with_accounts["members"] == "username"
    assert chosen(made)["groups_base"] == "ou=it,dc=x"


def test_groups_with_owners_come_first():
    of_pis, accounts = "cn=vision,ou=research,dc=x", ("vision", "climate")
    groups = {
        "posixAccount": ["uid=a,ou=p,dc=x"],
        "groupOfNames": [of_pis],
        "posixGroup": ["cn=vision,ou=groups,dc=x", "cn=climate,ou=groups,dc=x"],
    }
    assert chosen(survey(**groups), *accounts)["groups_base"] == "ou=groups,dc=x"
    made = choose_subtrees(survey(of_pis, **groups), SECTION, accounts)
    (base,) = [each for each in made if each.key == "groups_base"]
    assert base.value == "ou=research,dc=x"
    assert "(vision) are below it, 1 with an owner" in base.source
    assert "; ou=groups,dc=x has 2 such groups with (objectClass=posixGroup)" in base.source


def test_active_directory_and_freeipa_need_other_attributes():
    ad = survey(ad_person=["CN=a,OU=People,DC=x"], group=["CN=vision,OU=Research,DC=x"])
    assert chosen(ad, "vision")["id_attribute"] == "objectGUID"
    assert chosen(ad, "vision")["owner_attribute"] == "managedBy"
    ipa = survey(posixAccount=["uid=a,cn=users,dc=x"], ipa=["cn=vision,cn=groups,dc=x"])
    assert chosen(ipa, "vision")["id_attribute"] == "ipaUniqueID"
    assert chosen(ipa, "vision")["expire_attribute"] == ""


def test_settings_of_a_subtree_that_the_file_has_are_left_alone():
    ad = survey(ad_person=["CN=a,OU=People,DC=x"], group=["CN=vision,OU=Research,DC=x"])

    def keys(*present: str) -> set[str]:
        return {each.key for each in choose_subtrees(ad, SECTION, ["vision"], present)}

    assert keys("uri") == keys() > {"people_base", "people_filter", "id_attribute", "groups_base"}
    of_groups = {"groups_base", "groups_filter", "group_name_attribute", "owner_attribute"}
    assert keys("people_base") == of_groups
    assert keys("people_filter") == of_groups
    assert "owner_attribute" not in keys("groups_base")
    assert keys("people_base", "groups_filter") == set()
    # A directory that shows no people is no error where the file says where they are.
    no_people = survey(group=["CN=vision,OU=Research,DC=x"])
    assert choose_subtrees(no_people, SECTION, ["vision"], ["people_base"])


def test_people_in_several_subtrees_have_the_one_above_them():
    dns = [f"uid=s{n},OU=staff,ou=people,dc=x" for n in range(40)]
    dns += [f"uid=t{n},ou=students,ou=People,dc=x" for n in range(30)]
    dns += ["uid=backup,ou=system,dc=x", r"uid=a\,b,ou=staff,ou=people,dc=x"]
    made = survey(posixAccount=dns, groupOfNames=["cn=vision,ou=g,dc=x"])
    assert chosen(made, "vision")["people_base"] == "ou=people,dc=x"
    people, *_ = choose_subtrees(made, SECTION, ["vision"])
    assert "71 of 72 entries" in people.source


def test_a_directory_that_shows_nothing_is_an_error():
    with pytest.raises(DirectoryError, match=r"shows no people .* to anonymous; name another"):
        chosen(survey())
    with pytest.raises(DirectoryError, match="shows no groups"):
        chosen(survey(posixAccount=["uid=a,dc=x"]))


@pytest.mark.parametrize(
    ("name", "text", "uri"),
    [
        ("nslcd.conf", "# x\nuri ldap://a/ ldapi:///\nTLS_CACERTFILE /etc/ca.pem\n", "ldap://a"),
        (
            "ldap.conf",
            "URI ldaps://a:636 ldap://b\nTLS_CACERT /etc/ca.pem\n",
            "ldaps://a:636 ldap://b",
        ),
        ("ldap.conf", "#URI ldap://a\n", None),
    ],
)
def test_the_directory_of_this_host(name, text, uri, tmp_path):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    words = ("uri", "tls_cacertfile" if name == "nslcd.conf" else "tls_cacert")
    found = host_files.find_host_directory({path: words}, tmp_path / "sssd.conf")
    assert (found and found.uri) == uri
    if found:
        assert found.ca_file == "/etc/ca.pem"


def test_sssd_comes_first(tmp_path):
    sssd = tmp_path / "sssd.conf"
    sssd.write_text(
        "[sssd]\nservices = nss\n[domain/lab]\nldap_uri = ldap://a, ldap://b\n"
        "ldap_tls_cacert = /etc/ca.pem\nldap_default_authtok = 100%secret\n",
        "utf-8",
    )
    found = host_files.find_host_directory({}, sssd)
    assert found == host_files.HostDirectory("ldap://a ldap://b", "/etc/ca.pem", sssd)


def test_a_wrong_value_in_the_file_is_an_error_of_one_line():
    with pytest.raises(BadConfig, match=r"\[ldap\]: .*timeout"):
        proposal.section_of({"ldap": {"timeout": "soon"}}, "ldap", LdapSection)
