"""The service from end to end, over HTTP: what each of several people sees, and no more."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from entries import group, person
from service_lab import FakeMunge, serving
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ledger.database import Ledger, open_for_reading
from slurmkit_accounting.people.model import Directory
from slurmkit_accounting.people.sync import PeopleData, sync_people
from slurmkit_accounting.remote.protocol import ServiceQuery
from slurmkit_accounting.service import permissions
from slurmkit_accounting.service.permissions import Permissions
from slurmkit_accounting.service.queries import QueryAnswerer, QueryTurns
from slurmkit_accounting.service.wsgi import query_application
from stored_runs import ran, store_runs

from slurmkit.errors import BadConfig, LedgerError, ServiceError, SlurmError
from slurmkit.testing import FakeSlurm

ALICE, BOB, DAVE, VOGEL, OLGA, ROOT2, STRANGER, LEFT = range(10011, 10019)
HOUR = 3600
BEGIN = 1_790_000_000 // HOUR * HOUR
# GPU-hours that tell by their sum whose they are.
HOURS = {"alice": 1, "bob": 2, "dave": 4, "vogel": 8, "stranger": 16, "left": 32}
ALL = sum(HOURS.values())
UIDS = {"alice": ALICE, "bob": BOB, "dave": DAVE, "vogel": VOGEL, "stranger": STRANGER,
        "left": LEFT}  # fmt: skip
ADMINS = "root|Administrator\nolga|Operator\nalice|None\n"


@pytest.fixture
def books(ledger: Ledger) -> Ledger:
    accounts = {"dave": "genomics", "stranger": "none"}
    runs = [
        ran(BEGIN, hours * HOUR // 2, user=user, uid=UIDS[user],
            account=accounts.get(user, "vision"), name=f"secret of {user}")
        for user, hours in HOURS.items()
    ]  # fmt: skip
    everybody = [person(name, uid=UIDS[name]) for name in HOURS if name != "stranger"]
    members = ("uid=alice", "uid=bob", "uid=vogel", "uid=left")
    groups = (
        group("vision", *members, owners=("vogel",)),
        group("genomics", "uid=dave"),
    )
    sync_people(
        ledger, PeopleData(Directory((*everybody, person("olga", uid=OLGA)), groups)), now=1
    )
    here = tuple(each for each in everybody if each.username != "left")
    sync_people(
        ledger, PeopleData(Directory((*here, person("olga", uid=OLGA)), groups)), now=BEGIN * 2
    )
    store_runs(ledger, *runs)
    return ledger


class Accounts:
    """The operating system's users."""

    def getpwnam(self, name: str) -> Any:
        uids = UIDS | {"olga": OLGA, "anna": ROOT2}
        return SimpleNamespace(pw_uid=uids[name], pw_gid=1)

    def getpwuid(self, uid: int) -> Any:
        names = {uid: name for name, uid in (UIDS | {"olga": OLGA, "anna": ROOT2}).items()}
        return SimpleNamespace(pw_name=names[uid])


@contextmanager
def service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: object
) -> Iterator[dict[str, str]]:
    """A service; what its clients have in their environment."""
    FakeMunge(tmp_path / "munge", monkeypatch)
    monkeypatch.setattr(permissions, "pwd", Accounts())
    slurm = FakeSlurm({"sacctmgr": lambda *_: ADMINS})

    def log(what: str, **facts: object) -> None:
        print(what, facts)  # shown where a test fails

    sights = Permissions(ServiceSection(**settings), slurm, log)  # type: ignore[arg-type]
    app = query_application(QueryAnswerer(open_for_reading, sights, log), log, QueryTurns())
    with serving(app) as url:
        config = tmp_path / "client.toml"
        me = pwd.getpwuid(os.getuid()).pw_name
        config.write_text(f'[ledger.service]\nurl = "{url}"\nuser = "{me}"\n')
        environ = {name: value for name, value in os.environ.items() if name != "SLURMKIT_DB"}
        yield environ | {"SLURMKIT_CONFIG": str(config)}


ASK = """
import json, sys
from slurmkit.errors import SlurmkitError
from slurmkit_accounting import read
named = json.loads(sys.argv[1])
try:
    with read.ledger() as books:
        report = read.usage(books, **named)
        print(json.dumps([report.rows, books.seen_as, report.meta.notes]))
except SlurmkitError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def ask(client: dict[str, str], uid: int, **named: object) -> Any:
    named = {"begin": "2026-01-01", "end": "2027-01-01", "by": ["user"]} | named
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(named)],
        env=client | {"STAND_IN_UID": str(uid)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def seen(client: dict[str, str], uid: int, **named: object) -> dict[str, float]:
    rows, *words = ask(client, uid, **named)
    assert isinstance(rows, list), words
    return {row["user"]: row["gpu_hours"] for row in rows}


@pytest.mark.usefixtures("books")
def test_each_sees_exactly_what_they_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with service(tmp_path, monkeypatch, operators=("anna", "nobody-here")) as client:
        assert seen(client, ALICE) == {"alice": 1}
        assert seen(client, DAVE) == {"dave": 4}
        assert seen(client, VOGEL) == {"alice": 1, "bob": 2, "vogel": 8, "left": 32}
        for operator in (OLGA, ROOT2, os.getuid()):
            assert seen(client, operator) == HOURS
        assert seen(client, STRANGER) == {"stranger": 16}
        assert seen(client, 4711) == {}
        # Who has the number of somebody who left is not them.
        assert seen(client, LEFT) == {}


@pytest.mark.usefixtures("books")
def test_nothing_that_a_client_says_widens_what_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path, monkeypatch) as client:
        assert seen(client, ALICE, scope={"people": None, "pis": None}) == {"alice": 1}
        assert seen(client, ALICE, filters={"user": ["bob"]}) == {}
        rows, words, _ = ask(client, ALICE, by=["pi", "account"])
        assert [row["gpu_hours"] for row in rows] == [1]
        assert words == "alice: your own runs, and the runs of groups whose PI you are"


@pytest.mark.usefixtures("books")
@pytest.mark.parametrize("allowed", [False, True])
def test_a_site_may_show_everybody_sums_that_name_nobody(
    monkeypatch: pytest.MonkeyPatch, *, allowed: bool
) -> None:
    monkeypatch.setattr(permissions, "pwd", Accounts())
    slurm = FakeSlurm({"sacctmgr": lambda *_: ADMINS})
    sights = Permissions(ServiceSection(totals_for_everybody=allowed), slurm, lambda *_, **__: None)
    answerer = QueryAnswerer(open_for_reading, sights, lambda *_, **__: None)
    totals = answerer(ALICE, ServiceQuery("gpu_use_over_time", {"span": "24h"}))
    assert json.loads(bytes(totals.value))["everybody"] is allowed
    found = answerer(ALICE, ServiceQuery("usage", {"begin": "2026-01-01", "by": ["user"]}))
    assert [row["user"] for row in json.loads(bytes(found.value))["rows"]] == ["alice"]


@pytest.mark.usefixtures("books")
@pytest.mark.parametrize(
    ("ask", "arguments", "words"),
    [
        ("usage", {"scope": {"people": None}}, "usage has no argument 'scope'"),
        ("usage", {"books": "x"}, "usage has no argument 'books'"),
        ("usage", {"self": 1}, "usage has no argument 'self'"),
        ("usage", {"more": {"job": "1"}}, "usage has no argument 'more'"),
        ("evidence", {}, "evidence needs the argument 'row'"),
        ("ledger", {}, "service has no function 'ledger'"),
        ("__import__", {}, "service has no function '__import__'"),
    ],
)
def test_a_query_made_by_hand_gets_no_further(
    ask: str, arguments: dict[str, object], words: str
) -> None:
    sights = Permissions(
        ServiceSection(), FakeSlurm({"sacctmgr": lambda *_: ADMINS}), lambda *_: None
    )
    answer = QueryAnswerer(open_for_reading, sights, lambda *_: None)(
        ALICE, ServiceQuery(ask, arguments)
    )
    assert answer.fault is not None
    assert (answer.fault.kind, words in answer.fault.message) == ("BadInput", True)


@pytest.mark.parametrize(
    "error",
    [
        LedgerError("cannot use the ledger /var/lib/slurmkit/ledger.db: disk I/O error"),
        BadConfig("/etc/slurmkit/budgets.toml: budget 3 has no pi"),
        SlurmError("sacctmgr: /etc/slurm/slurm.conf: no such file"),
        RuntimeError("/etc/passwd"),
    ],
)
def test_an_error_tells_no_asker_where_the_service_keeps_what(error: Exception) -> None:
    """The log has the reason."""
    lines: list[str] = []

    def log(what: str, **facts: object) -> None:
        lines.append(f"{what} {facts}")

    def fails() -> AbstractContextManager[Ledger]:
        raise error

    sights = Permissions(ServiceSection(), FakeSlurm({"sacctmgr": lambda *_: ADMINS}), log)
    fault = QueryAnswerer(fails, sights, log)(ALICE, ServiceQuery("usage", {})).fault
    assert fault is not None
    assert "/" not in fault.message
    assert "the reason is in its log" in fault.message
    assert str(error) in lines[0]


def test_nobody_keeps_everybody_waiting() -> None:
    turn = QueryTurns()
    with turn(ALICE), turn(ALICE):
        with turn(BOB):
            pass
        with (
            pytest.raises(ServiceError, match="still answering 2 of your queries"),
            turn(ALICE),
        ):
            pass
    with turn(ALICE):
        pass


@pytest.mark.usefixtures("books")
def test_errors_of_the_api_come_back_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path, monkeypatch) as client:
        assert ask(client, ALICE, begin="soon") == [
            "BadInput", "'soon' is not a date: write YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS",
        ]  # fmt: skip
        kind, words = ask(client, ALICE, begin=["x"])
        assert (kind, "Expected `str | null`" in words) == ("BadInput", True)


@pytest.mark.usefixtures("books")
def test_a_service_that_is_not_there_or_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path, monkeypatch) as client:
        config = Path(client["SLURMKIT_CONFIG"])
        text = config.read_text()
    kind, words = ask(client, ALICE)
    assert (kind, "does not answer" in words) == ("ServiceError", True)
    config.write_text(text.replace("http:", "ftp:"))
    assert ask(client, ALICE)[0] == "BadConfig"
    config.write_text('[ledger.service]\nurl = "http://x"\nuser = "nobody-of-that-name"\n')
    assert ask(client, ALICE)[0] == "BadConfig"
