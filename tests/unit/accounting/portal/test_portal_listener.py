"""The listener of the portal, on a port or a socket; and its passwords."""

from __future__ import annotations

import http.client
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from entries import person
from msgspec.structs import replace
from portal_lab import PortalLab
from report_books import BEGIN, run, write_books
from service_lab import FakeMunge
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import LdapSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.people import ldap
from slurmkit_accounting.people.ldap import check_login
from slurmkit_accounting.portal.listener import portal_door
from slurmkit_accounting.portal.login import client_address
from slurmkit_accounting.service.listening import serving_on
from slurmkit_accounting.service.log import make_log
from slurmkit_accounting.service.server import Neighbour, ServiceParts, serve

from slurmkit.errors import BadConfig, DirectoryError, ServiceError

LDAP = '[ldap]\nuri = "ldap://ldap"\npeople_base = "ou=p"\ngroups_base = "ou=g"\n'

ON_LOOPBACK = 'listen = "127.0.0.1:1"\nurl = "http://127.0.0.1:1"\n'
WITH_SECRET = """
listen = "127.0.0.1:1"
url = "https://x"
login = ["header"]
proxies = ["10.0.0.1"]
proxy_secret_file = "{secret}"
"""


WITH_OIDC = """
listen = "127.0.0.1:1"
url = "http://127.0.0.1:1"
login = ["oidc"]
[ledger.portal.oidc]
issuer = "https://idp.example.org"
client_id = "portal"
client_secret_file = "{secret}"
"""


def parts(ledger: Ledger) -> ServiceParts:
    permissions: Any = SimpleNamespace(of=lambda *_: None)
    opened = lambda: nullcontext(ledger)  # noqa: E731
    return ServiceParts(opened, opened, permissions, find_zone("UTC"), make_log("text"))


def ask(connection: http.client.HTTPConnection, path: str, **headers: str) -> tuple[int, str]:
    connection.request("GET", path, headers={n.replace("_", "-"): v for n, v in headers.items()})
    answer = connection.getresponse()
    said = answer.status, answer.read().decode()
    connection.close()
    return said


class SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("gpu.example.org", timeout=30)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('listen = "0.0.0.0:1"\nurl = "https://x"\n', "go in clear"),
        ('listen = "127.0.0.1:1"\n', "url is ''"),
        (WITH_SECRET, "fewer than 16 characters"),
        (ON_LOOPBACK + '[ldap]\nuri = "nonsense"\npeople_base = "ou=p"\n', "uri 'nonsense' is not"),
        (
            ON_LOOPBACK + '[ldap]\nuri = "ldap://x"\npeople_base = "ou=p"\nbind_dn = "cn=r"\n'
            'bind_password_file = "/nowhere/x"\n',
            "bind_password_file: cannot read",
        ),
        (WITH_OIDC.replace("{secret}", "/nowhere/x"), "client_secret_file: cannot read /nowhere/x"),
        (WITH_OIDC.replace("{secret}", "/dev/null"), "everybody can read"),
        (WITH_OIDC + 'ca_file = "/nowhere/ca.pem"\n', "ca_file: cannot read /nowhere/ca.pem"),
        (WITH_OIDC + 'claim = "email"\n', "claim cannot be 'email'"),
        (WITH_OIDC + "claims = 5\n", "did you mean 'claim'"),
    ],
)
def test_settings_that_let_people_in_stop_the_service(
    ledger: Ledger,
    configure: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    words: str,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    secret = tmp_path / "secret"
    secret.write_text("short")
    secret.chmod(0o600)
    ldap = "" if "[ldap]" in text else LDAP
    configure(ldap + "[ledger.portal]\n" + text.replace("{secret}", str(secret)))
    with pytest.raises(BadConfig, match=words), portal_door(parts(ledger)):
        pass


def test_the_pages_know_the_provider_of_the_configuration(
    ledger: Ledger,
    configure: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They start while the provider is away: nothing of it is read before somebody logs in."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    secret = tmp_path / "secret"
    secret.write_text("of the provider\n")
    secret.chmod(0o600)
    configure("[ledger.portal]\n" + WITH_OIDC.replace("{secret}", str(secret)))
    with portal_door(parts(ledger)) as door:
        pass
    application = door.app
    provider = application.extensions["portal"].oidc  # type: ignore[attr-defined]
    assert provider.redirect_uri == "http://127.0.0.1:1/login/oidc/callback"
    assert provider.known_logout_url() == ""
    paths = {rule.rule for rule in application.url_map.iter_rules()}  # type: ignore[attr-defined]
    assert {"/login/oidc", "/login/oidc/callback"} <= paths


def test_only_a_site_with_a_provider_needs_authlib(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "import slurmkit_accounting.portal.app, slurmkit_accounting.portal.listener\n"
        "print('authlib' in sys.modules, 'joserfc' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False False\n"


def test_pages_on_a_socket_that_only_its_group_can_open(ledger: Ledger, tmp_path: Path) -> None:
    write_books(ledger, [run("alice", BEGIN, BEGIN + 3600, gpus={"a100": 1})])
    path = tmp_path / "portal.sock"
    lab = PortalLab(ledger, tmp_path)
    for _ in range(2):  # the second time over what a killed service left
        with serving_on(f"unix:{path}", lab.app, 2):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            status, page = ask(SocketConnection(path), "/", X_Remote_User="alice")
            assert status == 200
            assert "Your GPU-hours" in page
            assert ask(SocketConnection(path), "/")[0] == 303
            # A second spelling of the header, which some servers take for the first.
            assert ask(SocketConnection(path), "/", X__Remote__User="alice")[0] == 303
            twice = SocketConnection(path)
            twice.putrequest("GET", "/")
            for name in ("alice", "vogel"):
                twice.putheader("X-Remote-User", name)
            twice.endheaders()
            answer = twice.getresponse()
            assert answer.status == 403
            answer.read()
            twice.close()
        assert not path.exists()
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(path))
        left.close()


def test_the_server_passes_on_whom_the_proxy_saw(ledger: Ledger, tmp_path: Path) -> None:
    """Else everybody has the proxy's address, and one who guesses locks all others out."""
    seen: list[str] = []

    def app(environ: Any, start: Any) -> list[bytes]:
        with lab.app.request_context(environ):
            seen.append(client_address())
        start("200 OK", [("Content-Length", "0")])
        return []

    path = tmp_path / "portal.sock"
    for at, address in enumerate((f"unix:{path}", "127.0.0.1:0")):
        url = "http://127.0.0.1"
        lab = PortalLab(
            ledger, tmp_path / str(at), listen=address, url=url, proxies=("127.0.0.1",),
            proxy_secret="" if address.startswith("unix:") else "s" * 32,
        )  # fmt: skip
        with serving_on(address, app, 1) as port:
            client = http.client.HTTPConnection("127.0.0.1", port) if port else None
            asked = client or SocketConnection(path)
            assert ask(asked, "/", X_Forwarded_For="192.0.2.9, 203.0.113.9")[0] == 200
    assert seen == ["203.0.113.9", "203.0.113.9"]


@pytest.mark.parametrize("listener", ["listen", "monitor"])
def test_the_pages_do_not_take_the_place_of_the_queries(
    configure: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listener: str,
) -> None:
    FakeMunge(tmp_path / "munge", monkeypatch)
    configure(f'[ledger.service]\nuser = "{os.getuid()}"\n{listener} = "127.0.0.1:9"\n')
    with pytest.raises(BadConfig, match=r"two listeners have the address 127\.0\.0\.1:9"):
        serve(
            f"sqlite:///{tmp_path}/ledger.db",
            lambda *_: nullcontext(Neighbour("127.0.0.1:9", lambda: True)),
        )


def test_the_socket_of_a_service_that_runs_stays(ledger: Ledger, tmp_path: Path) -> None:
    path, lab = tmp_path / "portal.sock", PortalLab(ledger, tmp_path)
    with serving_on(f"unix:{path}", lab.app, 1):
        second = serving_on(f"unix:{path}", lab.app, 1)
        with pytest.raises(ServiceError, match="another service listens there"), second:
            pass
        assert ask(SocketConnection(path), "/login")[0] == 200
    assert not path.exists()
    other = socket.socket(socket.AF_UNIX)
    first = serving_on(f"unix:{path}", lab.app, 1)
    with first:
        path.unlink()
        other.bind(str(path))  # a service that took the place: its socket stays
    assert path.is_socket()
    other.close()


def test_a_login_needs_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    Server(monkeypatch, ENTRY)
    found = check_login(replace(SECTION, groups_base=""), "service", "ann", "right")
    assert found.person is not None


def test_a_file_in_the_place_of_the_socket_stays(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "important"
    path.write_text("x")
    opening = serving_on(f"unix:{path}", PortalLab(ledger, tmp_path).app, 1)
    with pytest.raises(ServiceError, match="cannot listen on unix:"), opening:
        pass
    assert path.read_text() == "x"


# ---- passwords that the directory checks

SECTION = LdapSection(
    uri="ldap://one", people_base="ou=people", groups_base="ou=g", bind_dn="cn=reader"
)
ENTRY = ("uid=ann,ou=people", {"entryUUID": [b"1"], "uid": [b"ann"], "uidNumber": [b"7"]})
EXCEPTIONS = ldap.ldap3.core.exceptions


class Server:
    """Stands in for a directory server: entries by filter, passwords by DN."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *entries: Any) -> None:
        self.binds: list[tuple[str, str]] = []
        self.filters: list[str] = []
        self.entries = entries
        self.passwords = {"cn=reader": "service", "uid=ann,ou=people": "right"}
        self.error: Exception | None = None
        self.error_of_users: Exception | None = None
        monkeypatch.setattr(ldap, "_connected", self._connected)
        monkeypatch.setattr(ldap, "_entries", self._search)

    @contextmanager
    def _connected(self, section: LdapSection, url: Any, password: str) -> Any:
        self.binds.append((section.bind_dn, password))
        if self.error is not None:
            raise DirectoryError("cannot read ldap://one: x") from self.error
        if self.error_of_users is not None and section.bind_dn != "cn=reader":
            raise DirectoryError("cannot read ldap://one: x") from self.error_of_users
        if self.passwords.get(section.bind_dn) != password:
            refused = EXCEPTIONS.LDAPInvalidCredentialsResult()
            raise DirectoryError("cannot read ldap://one: x") from refused
        yield None

    def _search(self, _: Any, section: LdapSection, base: str, search_filter: str) -> Any:
        assert base == section.people_base
        self.filters.append(search_filter)
        yield from self.entries


def test_a_password_is_checked_with_a_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, ENTRY)
    found = check_login(SECTION, "service", "ann", "right")
    assert found.person == replace(
        person("ann"), dn="uid=ann,ou=people", directory_id="1", uid=7, display_name="", mail=""
    )
    assert server.filters == ["(&(objectClass=posixAccount)(uid=ann))"]
    wrong = check_login(SECTION, "service", "ann", "wrong")
    assert (wrong.person, wrong.is_known) == (None, True)


def test_an_unknown_name_costs_the_server_a_bind_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    assert check_login(SECTION, "service", "nobody", "x") == (None, False)
    assert server.binds == [("cn=reader", "service"), ("uid=nobody,ou=people", "x")]


@pytest.mark.parametrize(
    ("name", "escaped"),
    [("*", r"\2a"), ("a)(uid=*", r"a\29\28uid=\2a"), ("a\\", r"a\5c"), ("a\0", r"a\00")],
)
def test_names_are_no_filters(monkeypatch: pytest.MonkeyPatch, name: str, escaped: str) -> None:
    server = Server(monkeypatch)
    check_login(SECTION, "service", name, "x")
    assert server.filters == [f"(&(objectClass=posixAccount)(uid={escaped}))"]


def test_an_empty_password_is_no_anonymous_login(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, ENTRY)
    server.passwords["uid=ann,ou=people"] = ""
    assert check_login(SECTION, "service", "ann", "").person is None


@pytest.mark.parametrize("password", ["\x01", "\u00ad", "\ue000"])
def test_a_password_with_characters_that_none_has_is_wrong(
    monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    """ldap3 refuses it; were that taken for a server that is away, tries would not count."""
    server = Server(monkeypatch, ENTRY)
    with pytest.raises(EXCEPTIONS.LDAPSASLPrepError) as refused:
        ldap.ldap3.protocol.sasl.sasl.validate_simple_password(password)
    assert check_login(SECTION, "service", "ann", "right").person is not None
    server.error_of_users = refused.value
    assert check_login(SECTION, "service", "ann", password) == (None, True)


def test_two_entries_of_a_name_are_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    Server(monkeypatch, ENTRY, ENTRY)
    assert check_login(SECTION, "service", "ann", "right") == (None, False)


def test_an_expired_account_does_not_get_in(monkeypatch: pytest.MonkeyPatch) -> None:
    Server(monkeypatch, (ENTRY[0], ENTRY[1] | {"shadowExpire": [b"1"]}))
    assert check_login(SECTION, "service", "ann", "right") == (None, True)


def test_a_server_that_fails_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, ENTRY)
    server.error = EXCEPTIONS.LDAPBusyResult()
    with pytest.raises(DirectoryError):
        check_login(SECTION, "service", "ann", "right")
