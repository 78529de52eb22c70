"""Who gets into the portal: nobody by a forged, old or foreign cookie, header, form or password."""

from __future__ import annotations

import os
import random
import re
import secrets
import sqlite3
import stat
import string
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from entries import person
from msgspec.structs import replace
from portal_lab import COOKIE, HOST, OPERATOR, Browser, PortalLab, form_token, links_of, words_of
from report_books import BEGIN, run, write_books
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.people.ldap import LoginCheck
from slurmkit_accounting.portal import identity, login
from slurmkit_accounting.portal.identity import Account, LoginRefused, account_of_entry
from slurmkit_accounting.portal.login_limits import LoginLimits
from slurmkit_accounting.portal.sessions import SessionStore
from sqlalchemy import text
from waiting import PATIENCE, wait_until

from slurmkit.errors import BadConfig, DirectoryError, ServiceError

ALICE = person("alice", uid=2001, directory_id="alice")
PASSWORD = "correct horse"
DICE = random.Random(23)


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with open_for_writing(f"sqlite:///{tmp_path_factory.mktemp('books')}/ledger.db") as ledger:
        jobs = [run(name, BEGIN, BEGIN + 3600, gpus={"a100": 2}) for name in ("alice", "bob")]
        write_books(ledger, jobs)
        yield ledger


@pytest.fixture
def header_lab(books: Ledger, tmp_path: Path) -> PortalLab:
    return PortalLab(books, tmp_path)


def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "REFUSAL_SECONDS", 0.001)
    monkeypatch.setattr(login, "REFUSAL_SPREAD", 0)


@pytest.fixture
def lab(books: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PortalLab:
    """Logs in with a form, directly at its port; refusals do not wait."""
    without_pauses(monkeypatch)
    made = PortalLab(
        books, tmp_path, login=("ldap",), listen="127.0.0.1:6833", url=f"https://{HOST}"
    )
    made.passwords["alice", PASSWORD] = ALICE
    return made


def log_in(browser: Browser, name: str = "alice", password: str = PASSWORD, **more: str) -> Any:
    token = form_token(browser.get("/login").text)
    return browser.post("/login", {"token": token, "name": name, "password": password, **more})


def is_in(browser: Browser) -> bool:
    answer = browser.get("/")
    assert answer.status_code in {200, 303}
    return bool(answer.status_code == 200)


# ---- the form


def test_a_login_and_its_end(lab: PortalLab) -> None:
    browser = lab.browser()
    assert not is_in(browser)
    answer = log_in(browser, next="/report/usage?by=user")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/report/usage?by=user")
    (cookie,) = (
        one for one in answer.headers.getlist("Set-Cookie") if one.startswith(f"{COOKIE}=")
    )
    for part in ("Secure", "HttpOnly", "SameSite=Lax", "Path=/"):
        assert part in cookie
    assert "Domain" not in cookie
    assert is_in(browser)
    token = browser.cookie
    assert browser.send("/logout").status_code == 303
    assert not is_in(browser)
    browser.client.set_cookie(COOKIE, token, domain=HOST)
    assert not is_in(browser)  # the token itself is worth nothing any more


def test_the_token_is_new_at_each_login_and_an_old_one_ends(lab: PortalLab) -> None:
    browser = lab.browser()
    browser.client.set_cookie(COOKIE, "chosen-by-somebody-else", domain=HOST)
    log_in(browser)
    first = browser.cookie
    assert first != "chosen-by-somebody-else"
    log_in_page = browser.get("/login")
    assert log_in_page.status_code == 303  # there is nothing to log in to
    other = lab.browser()
    log_in(other)
    assert browser.send("/logout-everywhere").status_code == 303
    assert not is_in(browser)
    assert not is_in(other)


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("alice", "wrong"), ("alice", ""), ("nobody-at-all", PASSWORD), ("", ""), ("*", PASSWORD),
        ("alice)(uid=*", PASSWORD), ("alice\0", PASSWORD), ("alice", PASSWORD + "\0"),
        ("alice", "x" * 5000), ("a" * 500, PASSWORD), ("../alice", PASSWORD), ("bob", PASSWORD),
        ("uid=alice,ou=people", PASSWORD), ("al ice", PASSWORD), ("alice\r\nX: y", PASSWORD),
    ],
)  # fmt: skip
def test_wrong_names_and_passwords_get_the_same_answer(
    lab: PortalLab, name: str, password: str
) -> None:
    browser = lab.browser()
    answer = log_in(browser, name, password)
    assert answer.status_code == 403
    said = re.search(r'role="alert"[^>]*>([^<]*)<', answer.text)
    assert said
    assert said[1] == login._REFUSED
    assert not is_in(browser)
    assert not [one for one in answer.headers.getlist("Set-Cookie") if one.startswith(f"{COOKIE}=")]
    assert password not in " ".join(lab.lines) or not password


def test_what_cannot_be_a_name_never_reaches_the_directory(lab: PortalLab) -> None:
    for name in ("*", "alice)(uid=*", "", "al ice", "(", "a" * 65, "é"):
        log_in(lab.browser(), name)
    assert lab.asked == []


def test_a_name_that_may_be_a_password_is_not_in_the_log(lab: PortalLab) -> None:
    log_in(lab.browser(), "hunter2", "alice")
    log_in(lab.browser(), "alice", "wrong-one")
    said = " ".join(lab.lines)
    assert "hunter2" not in said
    assert "wrong-one" not in said
    assert "login refused sender=127.0.0.1 user=unknown via=ldap" in said
    assert "login refused sender=127.0.0.1 user=alice via=ldap" in said


def test_a_refusal_takes_a_fixed_time_and_a_random_one(monkeypatch: Any) -> None:
    slept: list[float] = []
    took = (0.0, 0.3, 1.9999, 2.1)
    monkeypatch.setattr(login.time, "sleep", slept.append)
    for taken in took:
        for _ in range(50):
            monkeypatch.setattr(login.time, "monotonic", iter([taken]).__next__)
            login._wait_before_refusal(0.0)
    before = [each for each in took for _ in range(50)]
    whole = [sum(pair) for pair in zip(slept, before, strict=True)]
    assert all(2 <= each < 3 for each in whole[:150])
    assert all(4 <= each < 5 for each in whole[150:])
    assert len({round(each, 3) for each in whole[:150]}) > 20


def test_logins_at_a_time_leave_threads_to_others(lab: PortalLab) -> None:
    asked, go_on = [], threading.Event()

    def slow(name: str, _: str) -> LoginCheck:
        asked.append(name)
        go_on.wait(PATIENCE)
        return LoginCheck(None, is_known=False)

    lab.app.extensions["portal"] = replace(lab.portal, check_password=slow)
    statuses: list[int] = []

    def try_it(address: str) -> None:
        browser = lab.browser()
        browser.client.environ_base["REMOTE_ADDR"] = address
        answer = log_in(browser)
        statuses.append(answer.status_code)
        if answer.status_code == 503:
            assert answer.headers["Retry-After"] == "5"

    threads = [
        threading.Thread(target=try_it, args=(address,), daemon=True)
        for address in ("192.0.2.1",) * 4 + ("192.0.2.2",) * 4
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: statuses.count(503) == 5)  # at once, while the others are checked
    assert len(asked) == 3
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert statuses.count(403) == 3
    with lab.portal.login_turns("192.0.2.1") as one, lab.portal.login_turns("192.0.2.1") as two:
        with lab.portal.login_turns("192.0.2.1") as third:
            assert (one, two, third) == (True, True, False)
        with lab.portal.login_turns("192.0.2.2") as other:
            assert other


def test_many_tries_are_refused_also_with_the_right_password(lab: PortalLab) -> None:
    for _ in range(5):
        assert log_in(lab.browser(), "alice", "wrong").status_code == 403
    asked = len(lab.asked)
    answer = log_in(lab.browser(), "ALICE", PASSWORD)
    assert answer.status_code == 429
    assert "Try again in 5 minutes" in words_of(answer.text)
    assert len(lab.asked) == asked
    lab.now += 301
    assert log_in(lab.browser()).status_code == 303


def test_ten_thousand_logins_ask_the_directory_only_some_times(lab: PortalLab) -> None:
    browser = lab.browser()
    token = form_token(browser.get("/login").text)
    for at in range(2000):
        form = {"token": token, "name": f"user{at % 500}", "password": "x"}
        assert browser.post("/login", form).status_code in {403, 429}
    assert len(lab.asked) <= 60


@pytest.mark.parametrize(
    "error", [DirectoryError("ldap://secret-host is away"), BadConfig("secret-host: no password")]
)
def test_tries_that_the_directory_did_not_answer_count_for_the_address_only(
    lab: PortalLab, error: Exception
) -> None:
    def away(*_: str) -> LoginCheck:
        raise error

    lab.app.extensions["portal"] = replace(lab.portal, check_password=away)
    for _ in range(59):
        answer = log_in(lab.browser())
        assert answer.status_code == 503
        assert answer.headers["Retry-After"] == "60"
        assert "secret-host" not in answer.text
    assert lab.portal.limits.wait_seconds("alice", "192.0.2.9") == 0
    lab.app.extensions["portal"] = lab.portal
    assert log_in(lab.browser()).status_code == 303
    lab.app.extensions["portal"] = replace(lab.portal, check_password=away)
    for _ in range(60):
        log_in(lab.browser())
    assert log_in(lab.browser()).status_code == 429


def test_limits_forget_the_oldest_names_first() -> None:
    limits = LoginLimits(lambda: 0.0)
    for at in range(30_000):
        limits.count_failure(f"u{at}", f"address{at}")
    assert len(limits._failures) <= 20_000


def test_an_empty_name_does_not_widen_the_limit_of_an_address() -> None:
    limits = LoginLimits(lambda: 0.0)
    limits.count_failure("", "192.0.2.1")
    for at in range(60):
        limits.count_failure(f"u{at}", "192.0.2.1")
    assert limits.wait_seconds("somebody", "192.0.2.1") == 300
    assert limits.wait_seconds("", "192.0.2.2") == 0


@pytest.mark.parametrize(
    ("addresses", "other"),
    [
        ("2001:db8:1:2::{:x}", "2001:db8:1:3::1"),
        ("2001:db8:1:2:{:x}::", "2001:db8:1:1:ffff::"),
        ("::ffff:192.0.2.1", "192.0.2.2"),
    ],
)
def test_one_network_of_ipv6_is_one_client(addresses: str, other: str) -> None:
    limits = LoginLimits(lambda: 0.0)
    for at in range(1, 61):
        limits.count_failure(f"u{at}", addresses.format(at))
    assert limits.wait_seconds("somebody", addresses.format(99)) == 300
    assert limits.wait_seconds("somebody", other) == 0
    if addresses.startswith("::ffff"):
        assert limits.wait_seconds("somebody", "192.0.2.1") == 300


def test_one_network_of_ipv6_cannot_lock_a_name_out() -> None:
    limits = LoginLimits(lambda: 0.0)
    for at in range(200):
        address = f"2001:db8::{at:x}"
        if not limits.wait_seconds("alice", address):
            limits.count_failure("alice", address)
    assert limits.wait_seconds("alice", "192.0.2.1") == 0


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example",
        "javascript:alert(1)", "/\tevil", "/%0d%0aSet-Cookie: a=b\r\n", "/login?next=/login",
        "/logout", "///evil.example", "evil", "", "/x" * 2000, "/\u2028evil",
    ],
)  # fmt: skip
def test_a_login_leads_nowhere_else(lab: PortalLab, path: str) -> None:
    answer = log_in(lab.browser(), next=path)
    assert answer.status_code == 303
    assert answer.headers["Location"] in {"/", "/%0d%0aSet-Cookie: a=b"[:1]}


@pytest.mark.parametrize("token", ["", "0" * 64, "x", "é", "None"])
def test_a_form_that_we_did_not_make(lab: PortalLab, token: str) -> None:
    browser = lab.browser()
    browser.get("/login")
    answer = browser.post("/login", {"token": token, "name": "alice", "password": PASSWORD})
    assert answer.status_code == 403
    assert lab.asked == []


def test_a_form_of_another_browser_or_another_site(lab: PortalLab) -> None:
    token = form_token(lab.browser().get("/login").text)
    victim = lab.browser()
    victim.get("/login")
    form = {"token": token, "name": "alice", "password": PASSWORD}
    assert victim.post("/login", form).status_code == 403
    log_in(victim)
    own = form_token(victim.get("/account").text)
    for headers in (
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"}, {"Origin": f"http://{HOST}"},
    ):  # fmt: skip
        assert victim.post("/logout", {"token": own}, **headers).status_code == 403
    assert victim.post("/logout", {"token": "0" * 64}).status_code == 403
    assert victim.post("/logout", {}).status_code == 403
    assert is_in(victim)
    assert victim.post("/logout", {"token": own}, Origin=f"https://{HOST}").status_code == 303


def test_the_form_token_of_one_is_no_good_for_another(header_lab: PortalLab) -> None:
    alice, vogel = header_lab.browser("alice"), header_lab.browser("vogel")
    token = form_token(alice.get("/account").text)
    vogel.get("/")
    form = {"token": token, "user": "alice", "until": "2026-12-01"}
    assert vogel.post("/account/deputies", form).status_code == 403


@pytest.mark.parametrize("path", ["/logout", "/logout-everywhere", "/see-as", "/account/deputies"])
def test_what_changes_something_is_not_done_by_a_link(lab: PortalLab, path: str) -> None:
    browser = lab.browser()
    log_in(browser)
    assert browser.get(path).status_code in {404, 405}
    assert lab.browser().post(path, {}).status_code == 401


# ---- cookies


def _forged(token: str) -> list[str]:
    """Tokens that are not that one: changed, cut, padded, guessed, of other programs."""
    changed = []
    for at in range(0, len(token), 2):
        letter = "A" if token[at] != "A" else "B"
        changed.append(token[:at] + letter + token[at + 1 :])
    random_ones = [secrets.token_urlsafe(32) for _ in range(40)]
    odd = [
        "", " ", "null", "None", "0", "alice", "2001", "*", "%", "' OR 1=1 --", "\\x00", token[:-1],
        token + "A", token.lower(), token.upper(), token[::-1], f" {token[1:]}", token * 2,
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.", "a" * 4000, "../../key", "{}", "[]",
    ]  # fmt: skip
    ascii_ones = [
        "".join(DICE.choices(string.printable[:94].replace(";", ""), k=43)) for _ in range(40)
    ]
    return [one for one in (*changed, *random_ones, *odd, *ascii_ones) if one != token]


def test_forged_cookies(lab: PortalLab) -> None:
    browser = lab.browser()
    log_in(browser)
    forged = _forged(browser.cookie)
    assert len(forged) > 120
    for token in forged:
        other = lab.browser()
        other.client.set_cookie(COOKIE, token, domain=HOST)
        assert not is_in(other), token
    assert is_in(browser)


def test_what_the_file_of_sessions_holds_is_no_cookie(lab: PortalLab, tmp_path: Path) -> None:
    browser = lab.browser()
    log_in(browser)
    path = tmp_path / "portal" / "sessions.db"
    assert browser.cookie.encode() not in path.read_bytes()
    (digest,) = sqlite3.connect(path).execute("SELECT token FROM sessions").fetchone()
    for token in (digest.hex(), digest.decode("latin-1")):
        other = lab.browser()
        other.client.set_cookie(COOKIE, token, domain=HOST)
        assert not is_in(other)
    for one in (path, tmp_path / "portal" / "key"):
        assert stat.S_IMODE(one.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_session_ends_when_it_is_idle_and_at_last(lab: PortalLab) -> None:
    browser = lab.browser()
    log_in(browser)
    for _ in range(20):
        lab.now += 35 * 60
        assert is_in(browser)
    lab.now += 21 * 60  # 12 hours and a minute after the login
    assert not is_in(browser)
    log_in(browser)
    lab.now += 59 * 60
    assert is_in(browser)
    lab.now += 60 * 60
    assert not is_in(browser)


def test_a_session_of_another_service_is_none_of_ours(
    books: Ledger, lab: PortalLab, tmp_path: Path
) -> None:
    other = PortalLab(books, tmp_path / "other", login=("ldap",), listen="127.0.0.1:1")
    other.passwords = lab.passwords
    theirs, ours = other.browser(), lab.browser()
    log_in(theirs)
    ours.client.set_cookie(COOKIE, theirs.cookie, domain=HOST)
    assert not is_in(ours)


@pytest.mark.sql
def test_a_session_outlives_a_restart_and_ends_if_the_uid_was_passed_on(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pauses(monkeypatch)
    write_books(ledger, [run("alice", BEGIN, BEGIN + 3600, gpus={"a100": 2})])
    section = {"login": ("ldap",), "listen": "127.0.0.1:1"}
    lab = PortalLab(ledger, tmp_path, **section)
    lab.passwords["alice", PASSWORD] = ALICE
    browser = lab.browser()
    log_in(browser)
    token = browser.cookie
    lab = PortalLab(ledger, tmp_path, **section)
    browser = lab.browser()
    browser.client.set_cookie(COOKIE, token, domain=HOST)
    assert is_in(browser)
    with ledger.transaction() as connection:  # bob gets alice's uid
        connection.execute(text("UPDATE uids SET valid_to = 9 WHERE person_id IN (1, 2)"))
        connection.execute(
            text("INSERT INTO uids (person_id, uid, valid_from) VALUES (2, 2001, 9)")
        )
    assert not is_in(browser)


def test_a_user_has_only_so_many_sessions(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "s", idle_seconds=60, session_seconds=60, clock=lambda: 5)
    tokens = [store.open(Account(1, "a", None), "ldap").token for _ in range(25)]
    assert [store.find(one) is not None for one in tokens] == [False] * 5 + [True] * 20
    assert store.close_all(1) == 20


def test_many_threads_share_the_sessions(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "s", idle_seconds=60, session_seconds=60)
    failed = []

    def work(number: int) -> None:
        for _ in range(10):
            session = store.open(Account(number, f"u{number}", None), "ldap")
            if store.find(session.token) is None:
                failed.append(number)
            store.close(session.token)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    limits = {"idle_seconds": 60, "session_seconds": 60}
    SessionStore(tmp_path / "s", **limits)
    (tmp_path / "s" / "key").chmod(0o644)
    with pytest.raises(ServiceError, match="others can read"):
        SessionStore(tmp_path / "s", **limits)
    (tmp_path / "s" / "key").chmod(0o600)
    (tmp_path / "s" / "key").write_bytes(b"short")
    with pytest.raises(ServiceError, match="not a key of 32 bytes"):
        SessionStore(tmp_path / "s", **limits)


# ---- the proxy's header


@pytest.mark.parametrize("user", ["alice", "ALICE"])
def test_the_proxy_says_who_it_is(header_lab: PortalLab, user: str) -> None:
    browser = header_lab.browser(user)
    assert is_in(browser)
    assert "alice" in browser.get("/account").text


@pytest.mark.parametrize(
    "name",
    [
        "root", "", " ", "nobody-at-all", "alice,vogel", "alice, vogel", "*", "al ice", "alice;",
        "2001", "uid=alice", "alice@", "../alice", "alice\tvogel", "a" * 200, "-", "'", "\xe9",
        "alice@EXAMPLE.ORG", "(null)", "%61lice",
    ],
)  # fmt: skip
def test_headers_that_name_nobody(header_lab: PortalLab, name: str) -> None:
    browser = header_lab.browser()
    answer = browser.get("/", X_Remote_User=name)
    assert answer.status_code in {303, 403}
    assert "GPU-hours so far" not in answer.text
    assert not browser.cookie


@pytest.mark.parametrize(
    "header",
    [
        "Remote-User", "X-Forwarded-User", "X-Remote-Users", "X-Remote-User-2", "Authorization",
        "X-Auth-Request-User", "X-Webauth-User", "Eppn", "X-Remote-Use", "Cookie-User",
    ],
)  # fmt: skip
def test_other_headers_mean_nothing(header_lab: PortalLab, header: str) -> None:
    client = header_lab.app.test_client()
    answer = client.get("/", base_url=f"https://{HOST}", headers={header: "vogel"})
    assert answer.status_code == 303


def test_the_header_means_nothing_where_it_is_not_a_way_to_log_in(lab: PortalLab) -> None:
    assert not is_in(lab.browser("vogel"))
    assert not is_in(lab.browser(OPERATOR))


def test_a_session_by_header_ends_with_the_header(header_lab: PortalLab) -> None:
    browser = header_lab.browser("alice")
    assert is_in(browser)
    browser.user = ""
    assert not is_in(browser)
    browser.user = "vogel"
    assert is_in(browser)
    assert "vogel" in words_of(browser.get("/account").text)
    stolen = header_lab.browser()  # another reader with vogel's cookie, but no header
    stolen.client.set_cookie(COOKIE, browser.cookie, domain=HOST)
    assert not is_in(stolen)


def test_a_client_without_cookies_leaves_no_sessions(header_lab: PortalLab, tmp_path: Path) -> None:
    script = Browser(header_lab.app.test_client(use_cookies=False), "alice")
    for _ in range(30):
        assert is_in(script)
    file = sqlite3.connect(tmp_path / "portal" / "sessions.db")
    assert file.execute("SELECT count(*) FROM sessions").fetchone() == (0,)
    browser = header_lab.browser("alice")
    for _ in range(3):
        assert is_in(browser)
    assert file.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
    file.close()
    said = [line for line in header_lab.lines if line.startswith("login ")]
    assert said == ["login user=alice uid=2001 via=header sender=127.0.0.1"]


def test_an_offered_session_is_for_one_account_and_a_while(header_lab: PortalLab) -> None:
    store = header_lab.sessions
    alice, bob = Account(2001, "alice", 1), Account(2002, "bob", 2)
    token = store.offer(alice, "header").token
    assert store.find(token) is None
    assert store.accept(token, bob, "header") is None
    assert store.accept(token + "0", alice, "header") is None
    for forged in ("", ".", "..", "a.b.c", f"{token.rpartition('.')[0]}.{'0' * 64}", "é"):
        assert store.accept(forged, alice, "header") is None
    header_lab.now += 3601
    assert store.accept(token, alice, "header") is None
    token = store.offer(alice, "header").token
    assert store.accept(token, alice, "header") is not None
    found = store.find(token)
    assert found is not None
    assert found.account == alice


@pytest.mark.parametrize("path", ["/logout", "/logout-everywhere"])
@pytest.mark.parametrize("logout_url", ["", "/oidc?logout=https%3A%2F%2Fgpu.example.org%2F"])
def test_a_log_out_behind_the_proxy_is_one(
    books: Ledger, tmp_path: Path, path: str, logout_url: str
) -> None:
    lab = PortalLab(books, tmp_path, logout_url=logout_url)
    browser = lab.browser("alice")
    assert is_in(browser)
    sent = browser.send(path)
    assert (sent.status_code, sent.headers["Location"]) == (303, "/login?out=1")
    page = browser.get("/login?out=1")
    assert page.status_code == 200
    assert "You are logged out of these pages. Your site's own login still holds" in words_of(
        page.text
    )
    assert not browser.cookie
    assert "Log out</button>" not in page.text
    assert links_of(page.text)[1:] == ([logout_url] if logout_url else []) + ["/"]
    assert is_in(browser)  # logs in again


def test_the_name_of_somebody_else_now_is_refused(
    header_lab: PortalLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of this host knows it before the ledger does."""
    given: dict[str, int] = {"alice": 7654}

    def of_name(name: str) -> Any:
        if name not in given:
            raise KeyError(name)
        return SimpleNamespace(pw_uid=given[name])

    monkeypatch.setattr(identity.pwd, "getpwnam", of_name)
    for user in ("alice", "ALICE"):
        assert header_lab.browser(user).get("/").status_code == 403
    assert "login refused sender=127.0.0.1 via=header why=alice has another uid on this host" in (
        header_lab.lines
    )
    given["alice"] = 2001
    assert is_in(header_lab.browser("alice"))


def test_what_answers_carry_over_tls_only(books: Ledger, tmp_path: Path) -> None:
    over_tls = PortalLab(books, tmp_path).browser("alice").get("/")
    assert over_tls.headers["Strict-Transport-Security"] == "max-age=31536000"
    plain = PortalLab(
        books, tmp_path / "plain", listen="127.0.0.1:6833", url="http://127.0.0.1:6833"
    )
    answer = plain.app.test_client().get(
        "/", base_url="http://127.0.0.1:6833", headers={"X-Remote-User": "alice"}
    )
    assert answer.status_code == 200
    assert "Strict-Transport-Security" not in answer.headers
    # All ports of a host share its cookies.
    assert answer.headers["Set-Cookie"].startswith("slurmkit-6833=")


SECRET = "s" * 32
BEHIND = {
    "login": ("header", "ldap"), "listen": "10.0.0.5:6833", "url": f"https://{HOST}",
    "proxies": ("10.0.0.7", "192.0.2.0/28", "2001:db8::/64"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("peer", "secret", "status"),
    [
        ("10.0.0.7", SECRET, 200), ("192.0.2.15", SECRET, 200), ("2001:db8::5", SECRET, 200),
        ("10.0.0.7", "", 403), ("10.0.0.7", SECRET[:-1], 403), ("10.0.0.7", SECRET + "s", 403),
        ("10.0.0.8", SECRET, 403), ("192.0.2.16", SECRET, 403), ("127.0.0.1", SECRET, 403),
        ("", SECRET, 403), ("10.0.0.7.evil", SECRET, 403), ("::ffff:10.0.0.8", SECRET, 403),
    ],
)  # fmt: skip
def test_only_the_proxy_with_its_secret_is_answered(
    books: Ledger, tmp_path: Path, peer: str, secret: str, status: int
) -> None:
    lab = PortalLab(books, tmp_path, proxy_secret=SECRET, **BEHIND)
    headers = {"X-Remote-User": "vogel"} | ({"X-Slurmkit-Proxy-Secret": secret} if secret else {})
    for forwarded in ("", "10.0.0.7", "127.0.0.1"):
        more = {"X-Forwarded-For": forwarded} if forwarded else {}
        for path in ("/", "/login"):
            answer = lab.app.test_client().get(
                path, base_url=f"https://{HOST}", headers=headers | more,
                environ_overrides={"REMOTE_ADDR": peer},
            )  # fmt: skip
            expected = {200: {"/": 200, "/login": 303}[path], 403: 403}[status]
            assert answer.status_code == expected


def test_the_client_behind_a_proxy_is_who_the_proxy_saw(books: Ledger, tmp_path: Path) -> None:
    lab = PortalLab(books, tmp_path, proxy_secret=SECRET, **BEHIND)
    for peer, forwarded, seen in (
        ("10.0.0.7", "1.1.1.1, 203.0.113.9", "203.0.113.9"), ("10.0.0.7", "", "10.0.0.7"),
        ("10.0.0.7", "203.0.113.9, nonsense", "10.0.0.7"),
    ):  # fmt: skip
        headers = {"X-Forwarded-For": forwarded}
        with lab.app.test_request_context(
            "/", headers=headers, environ_overrides={"REMOTE_ADDR": peer}
        ):
            assert login.client_address() == seen
    direct = PortalLab(
        books, tmp_path / "d", login=("ldap",), listen="127.0.0.1:1", proxies=("127.0.0.1",)
    )  # without a secret, anybody on this host may be the proxy
    with direct.app.test_request_context(
        "/", headers={"X-Forwarded-For": "1.1.1.1"}, environ_overrides={"REMOTE_ADDR": "127.0.0.1"}
    ):
        assert login.client_address() == "127.0.0.1"


@pytest.mark.parametrize("url", [f"https://{HOST.upper()}", f"https://{HOST}:443"])
def test_people_get_in_however_the_address_is_written(
    books: Ledger, tmp_path: Path, url: str
) -> None:
    browser = PortalLab(books, tmp_path, url=url).browser("alice")
    assert is_in(browser)
    token = form_token(browser.get("/account").text)
    answer = browser.post("/logout", {"token": token}, Origin=f"https://{HOST}")
    assert answer.status_code == 303


@pytest.mark.parametrize("secret", ["", "x" * 32])
def test_a_socket_with_a_secret_asks_for_it_as_well(
    books: Ledger, tmp_path: Path, secret: str
) -> None:
    browser = PortalLab(books, tmp_path, proxy_secret=SECRET).browser("alice")
    assert browser.get("/", X_Slurmkit_Proxy_Secret=secret).status_code == 403
    assert browser.get("/", X_Slurmkit_Proxy_Secret=SECRET).status_code == 200


# ---- who somebody is


@pytest.mark.parametrize(
    "entry",
    [
        person("alice", uid=2002, directory_id="alice"),  # uid of bob
        person("newbie", uid=2001, directory_id="id-new"),  # new, with the uid of alice
        person("alice", uid=None, directory_id="id-new"),
        person("root", uid=0, directory_id="id-root"),
        person("someone", uid=1, directory_id="id-new"),  # another name on this host
    ],
)
def test_entries_that_do_not_fit_the_ledger(books: Ledger, entry: Any) -> None:
    with books.transaction() as connection, pytest.raises(LoginRefused):
        account_of_entry(connection, entry)


def test_a_renamed_person_is_who_they_were(books: Ledger) -> None:
    renamed = person("liddell", uid=2001, directory_id="alice")
    with books.transaction() as connection:
        assert account_of_entry(connection, renamed) == Account(2001, "liddell", 1)
        unknown = person("newbie", uid=7777, directory_id="id-new")
        assert account_of_entry(connection, unknown) == Account(7777, "newbie", None)


def test_the_account_of_the_service_is_nobodys_login(
    books: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 7777)
    entry = person("keeper", uid=7777, directory_id="id-new")
    with books.transaction() as connection, pytest.raises(LoginRefused, match="no account of a"):
        account_of_entry(connection, entry)
