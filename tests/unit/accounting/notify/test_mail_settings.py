"""What each user wants mails of: through the service, each their own, and nobody another's."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from service_lab import FakeMunge, serving
from slurmkit_accounting.cli.notify import notify_command
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ledger.database import Ledger, open_for_reading, open_for_writing
from slurmkit_accounting.notify import mail_settings
from slurmkit_accounting.notify.mail_settings import MailSettings, settings_of
from slurmkit_accounting.remote.client import configured_remote
from slurmkit_accounting.remote.protocol import ServiceQuery
from slurmkit_accounting.remote.served import also_remote
from slurmkit_accounting.service.permissions import Permissions
from slurmkit_accounting.service.queries import QueryAnswerer, QueryTurns
from slurmkit_accounting.service.wsgi import query_application

from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import BadInput
from slurmkit.testing import FakeSlurm

ALICE, BOB = 10011, 10012
NAMES = {ALICE: "alice", BOB: "bob"}


class Users:
    """Runs `slurmkit notify` as users, each a process of its own."""

    def __init__(self, config: Path) -> None:
        left = {name: value for name, value in os.environ.items() if name != "SLURMKIT_DB"}
        self._environ = left | {"SLURMKIT_CONFIG": str(config)}

    def notify(self, uid: int, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "slurmkit", "notify", *words]
        environ = self._environ | {"STAND_IN_UID": str(uid)}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)

    def settings(self, uid: int, *words: str) -> str:
        done = self.notify(uid, "settings", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def users(
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    configure: Callable[[str], None],
) -> Iterator[Users]:
    """Users of a service that sends mails about jobs."""
    FakeMunge(tmp_path / "munge", monkeypatch)
    own = pwd.getpwuid(os.getuid())

    def named(uid: int) -> Any:
        return SimpleNamespace(pw_name=NAMES[uid]) if uid in NAMES else own

    monkeypatch.setattr(mail_settings.pwd, "getpwuid", named)
    db = os.environ.get("SLURMKIT_DB")

    def log(what: str, **facts: object) -> None:
        print(what, facts)  # shown where a test fails

    sights = Permissions(ServiceSection(), FakeSlurm({"sacctmgr": lambda *_: ""}), log)
    answers = QueryAnswerer(
        partial(open_for_reading, db), sights, log, partial(open_for_writing, db)
    )
    monkeypatch.delenv("SLURMKIT_DB", raising=False)
    with serving(query_application(answers, log, QueryTurns())) as url:
        configure(
            f'[ledger.service]\nurl = "{url}"\nuser = "{own.pw_name}"\n'
            '[job_mail]\nspool = "/spool"\n'
        )
        yield Users(tmp_path / "config" / "slurmkit.toml")


USUAL = (
    "mails: each       a mail for each job or array, at once\n"
    "about: all        everything that --mail-type names\n"
)


@pytest.mark.sql
def test_each_user_has_their_own(users: Users, ledger: Ledger) -> None:
    assert users.settings(ALICE) == USUAL
    users.settings(ALICE, "--mails", "daily")
    changed = "mails: daily      one mail a day\nabout: failures   only what went wrong\n"
    assert users.settings(ALICE, "--about", "failures") == changed
    assert users.settings(BOB) == USUAL
    assert users.settings(ALICE) == changed
    with ledger.transaction() as connection:
        assert settings_of(connection, ALICE, "alice") == MailSettings("daily", "failures")
        # Both the uid and the name may be given to somebody else later.
        assert settings_of(connection, ALICE, "newcomer") == MailSettings()
        assert settings_of(connection, BOB, "alice") == MailSettings()
        assert settings_of(connection, None, "") == MailSettings()


@pytest.mark.usefixtures("users")
def test_nobody_chooses_for_another() -> None:
    """The uid is what MUNGE says, and no argument."""
    remote = configured_remote()
    assert remote is not None
    with pytest.raises(BadInput, match="has no argument 'uid'"):
        remote.ask("change_mail_settings", {"mails": "never", "uid": BOB}, MailSettings)


@pytest.mark.usefixtures("users")
def test_a_wrong_value_is_refused() -> None:
    remote = configured_remote()
    assert remote is not None
    with pytest.raises(BadInput, match="Invalid enum value 'hourly'"):
        remote.ask("change_mail_settings", {"mails": "hourly"}, MailSettings)


def test_where_the_service_sends_no_mails_it_says_so(
    users: Users, configure: Callable[[str], None], tmp_path: Path
) -> None:
    config = tmp_path / "config" / "slurmkit.toml"
    configure(config.read_text().partition("[job_mail]")[0])
    done = users.notify(ALICE, "settings")
    assert done.returncode == 2
    assert "the ledger's service sends no mails about jobs here" in done.stderr


def test_without_a_service_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to_exit_code(notify_command, ["settings"]) == 2
    assert "this site has no ledger service that sends mails" in capsys.readouterr().err


def test_the_service_calls_no_function_that_does_not_ask_who_asks() -> None:
    def everything(books: Ledger) -> None:
        del books

    with pytest.raises(TypeError, match="everything must take `scope` or `uid`"):
        also_remote(everything)


def test_slurm_is_asked_who_somebody_is_before_the_ledger_is_open_for_writing(
    ledger: Ledger,
) -> None:
    """sacctmgr may take a minute, in which nothing else could write."""
    opened: list[str] = []
    asked_after: list[list[str]] = []

    @contextmanager
    def open_to_change() -> Iterator[Ledger]:
        opened.append("to change")
        yield ledger

    def sacctmgr(*_: object) -> str:
        asked_after.append(list(opened))
        return ""

    def log(what: str, **facts: object) -> None:
        print(what, facts)

    sights = Permissions(ServiceSection(), FakeSlurm({"sacctmgr": sacctmgr}), log)
    answers = QueryAnswerer(open_for_reading, sights, log, open_to_change)
    answers(ALICE, ServiceQuery("change_mail_settings", {"mails": "never"}))
    assert (opened, asked_after) == (["to change"], [[]])
