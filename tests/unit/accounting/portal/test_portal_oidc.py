"""Logins at an OpenID provider: those that begin and end here, by whom they are, and no others."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from entries import person
from oidc_lab import CLIENT, SECRET, OidcLab, ec_key, rsa_key, serving_oidc
from portal_lab import COOKIE, HOST, Browser, PortalLab, form_token, links_of, words_of
from report_books import BEGIN, run, write_books
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.ledger.schema.people import people, uids
from slurmkit_accounting.portal.oidc_login import _AWAY, _REFUSED
from slurmkit_accounting.portal.openid_provider import OpenIdProvider, ProviderFailed
from slurmkit_accounting.portal.settings import OidcSection
from sqlalchemy import update
from waiting import PATIENCE

from slurmkit.errors import BadConfig

DISCOVERY, KEYS = "/.well-known/openid-configuration", "/jwks"


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with open_for_writing(f"sqlite:///{tmp_path_factory.mktemp('books')}/ledger.db") as ledger:
        jobs = [run(name, BEGIN, BEGIN + 3600, gpus={"a100": 2}) for name in ("alice", "bob")]
        write_books(ledger, jobs)
        yield ledger


@pytest.fixture
def provider() -> Iterator[OidcLab]:
    with serving_oidc() as made:
        yield made


@pytest.fixture
def lab(books: Ledger, tmp_path: Path, provider: OidcLab) -> PortalLab:
    return PortalLab(books, tmp_path, login=("oidc",), provider=provider)


def is_in(browser: Browser) -> bool:
    return bool(browser.get("/").status_code == 200)


def assert_refused(lab: PortalLab, answer: Any, why: str) -> None:
    assert answer.status_code == 403, answer.text
    assert _REFUSED in words_of(answer.text)
    said = [line for line in lab.lines if line.startswith("login refused")][-1]
    assert "via=oidc" in said
    assert why in said


# ---- those that get in


def test_a_login_and_its_end(lab: PortalLab, provider: OidcLab) -> None:
    browser = lab.browser()
    page = browser.get("/login?next=/report/usage?by=user")
    (link,) = (each for each in links_of(page.text) if each.startswith("/login/oidc"))
    answer = browser.log_in_at(provider, link)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/report/usage?by=user")
    (cookie,) = (
        one for one in answer.headers.getlist("Set-Cookie") if one.startswith(f"{COOKIE}=")
    )
    for part in ("Secure", "HttpOnly", "SameSite=Lax", "Path=/"):
        assert part in cookie
    assert is_in(browser)
    assert "alice" in words_of(browser.get("/account").text)
    assert "login user=alice uid=2001 via=oidc sender=127.0.0.1" in lab.lines
    assert not browser.pending_logins
    out = browser.send("/logout")
    assert not is_in(browser)
    links = links_of(browser.get(out.headers["Location"]).text)
    (there,) = (each for each in links if each.startswith(provider.issuer))
    assert parse_qs(urlsplit(there).query) == {
        "realm": ["lab"],
        "client_id": [CLIENT],
        "post_logout_redirect_uri": [f"https://{HOST}/login"],
    }


def test_where_the_provider_has_no_page_to_log_out_there_is_no_link(
    lab: PortalLab, provider: OidcLab
) -> None:
    provider.metadata = {"end_session_endpoint": None}
    browser = lab.browser()
    browser.log_in_at(provider)
    page = browser.get(browser.send("/logout-everywhere").headers["Location"]).text
    assert "Your site's own login still holds: log out there, too." in words_of(page)
    assert not [each for each in links_of(page) if each.startswith("http")]


@pytest.mark.parametrize("key", ["rsa-1", "ec-1", "only"])
@pytest.mark.parametrize("ways", [["client_secret_basic"], ["client_secret_post"], None])
def test_providers_differ_and_are_right(
    lab: PortalLab, provider: OidcLab, key: str, ways: list[str] | None
) -> None:
    provider.signs_with = ec_key(key) if key == "ec-1" else rsa_key(key)
    provider.keys = [provider.signs_with, ec_key("another")]
    provider.metadata = {"token_endpoint_auth_methods_supported": ways}
    browser = lab.browser()
    assert browser.log_in_at(provider).status_code == 303
    assert is_in(browser)


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": [CLIENT]}, {"aud": [CLIENT, "other"], "azp": CLIENT}, {"azp": CLIENT},
        {"nbf": BEGIN}, {"groups": ["x" * 50] * 200}, {"auth_time": BEGIN},
    ],
)  # fmt: skip
def test_tokens_that_are_valid_in_another_way(
    lab: PortalLab, provider: OidcLab, changed: dict[str, Any]
) -> None:
    provider.claims = changed
    browser = lab.browser()
    assert browser.log_in_at(provider).status_code == 303
    assert is_in(browser)


def test_another_claim_may_hold_the_id(books: Ledger, tmp_path: Path, provider: OidcLab) -> None:
    provider.settings = {"claim": "entry_uuid", "scopes": ("profile", "openid", "directory")}
    lab = PortalLab(books, tmp_path, login=("oidc",), provider=provider)
    begun = lab.browser().start_login().headers["Location"]
    assert parse_qs(urlsplit(begun).query)["scope"] == ["openid profile directory"]
    provider.user, provider.claims = "f3c1-whoever", {"entry_uuid": "bob"}
    browser = lab.browser()
    assert browser.log_in_at(provider).status_code == 303
    assert "bob" in words_of(browser.get("/account").text)


def test_both_ways_to_log_in_have_their_place(
    books: Ledger, tmp_path: Path, provider: OidcLab
) -> None:
    lab = PortalLab(books, tmp_path, login=("oidc", "ldap"), provider=provider)
    browser = lab.browser()
    page = browser.get("/login").text
    assert 'name="password"' in page
    assert "/login/oidc" in links_of(page)
    lab.passwords["alice", "right"] = person("alice", uid=2001, directory_id="alice")
    other = lab.browser()
    refused = other.get("/login/oidc/callback")  # the form of this page works as well
    assert refused.status_code == 403
    form = {"token": form_token(refused.text), "name": "alice", "password": "right"}
    assert other.post("/login", form).status_code == 303
    assert is_in(other)


def test_without_a_provider_there_are_no_such_pages(books: Ledger, tmp_path: Path) -> None:
    browser = PortalLab(books, tmp_path).browser("alice")
    for path in ("/login/oidc", "/login/oidc/callback"):
        assert browser.get(path).status_code == 404


# ---- a login belongs to the browser that began it, and is used once


def test_the_session_is_new_at_each_login(lab: PortalLab, provider: OidcLab) -> None:
    browser = lab.browser()
    browser.client.set_cookie(COOKIE, "chosen-by-somebody-else", domain=HOST)
    browser.log_in_at(provider)
    first = browser.cookie
    assert first != "chosen-by-somebody-else"
    provider.user = "vogel"
    assert browser.log_in_at(provider).status_code == 303
    assert "vogel" in words_of(browser.get("/account").text)
    thief = lab.browser()
    thief.client.set_cookie(COOKIE, first, domain=HOST)
    assert not is_in(thief)


def test_an_answer_is_good_once_and_in_its_own_browser(lab: PortalLab, provider: OidcLab) -> None:
    browser, other = lab.browser(), lab.browser()
    answer = browser.answer_of(provider)
    ((name, cookie),) = browser.pending_logins.items()
    assert_refused(lab, other.get(answer), "this browser has not begun a login")
    other.answer_of(provider)  # it has begun one of its own
    assert_refused(lab, other.get(answer), "this browser has not begun")
    assert browser.get(answer).status_code == 303
    other.client.set_cookie(name, cookie, domain=HOST)
    assert_refused(lab, other.get(answer), "its state is used once")
    assert not is_in(other)
    assert is_in(browser)


def test_a_wrong_answer_does_not_end_the_login_that_is_under_way(
    lab: PortalLab, provider: OidcLab
) -> None:
    """Else a page of another site could keep people from logging in."""
    browser = lab.browser()
    answer = browser.answer_of(provider)
    assert_refused(lab, browser.get("/login/oidc/callback?state=x&code=y"), "state")
    assert browser.get(answer).status_code == 303


def test_each_of_several_tabs_ends_its_own_login(lab: PortalLab, provider: OidcLab) -> None:
    browser = lab.browser()
    paths = [f"/login/oidc?next=/report/usage?by={by}" for by in ("user", "pi", "account")]
    answers = [browser.answer_of(provider, path) for path in paths]
    for at, by in ((1, "pi"), (0, "user"), (2, "account")):
        ended = browser.get(answers[at])
        assert (ended.status_code, ended.headers["Location"]) == (303, f"/report/usage?by={by}")
        assert is_in(browser)
    assert not browser.pending_logins
    for answer in answers:
        assert browser.get(answer).status_code == 403


def test_a_browser_has_a_few_pending_logins_and_forgets_the_oldest(
    lab: PortalLab, provider: OidcLab
) -> None:
    browser, answers = lab.browser(), []
    for _ in range(6):
        lab.now = provider.now = lab.now + 1
        answers.append(browser.answer_of(provider))
        assert len(browser.pending_logins) <= 4
    for answer in answers[:2]:
        assert_refused(lab, browser.get(answer), "this browser has not begun")
    assert browser.get(answers[2]).status_code == 303
    assert len(browser.pending_logins) == 3
    lab.now = provider.now = lab.now + 600  # those three are over
    last = browser.answer_of(provider)
    assert len(browser.pending_logins) == 1
    assert browser.get(last).status_code == 303


def test_pending_logins_do_not_outgrow_the_headers_that_proxies_take(
    lab: PortalLab, provider: OidcLab
) -> None:
    browser = lab.browser()
    path = quote("/report/usage?user=".ljust(1000, "x"), "")
    for _ in range(5):
        lab.now = provider.now = lab.now + 1
        last = browser.answer_of(provider, f"/login/oidc?next={path}")
        assert sum(map(len, browser.pending_logins.values())) <= 2500
    assert browser.get(last).status_code == 303
    name = f"{COOKIE}-oidc-{'0' * 16}"
    browser.client.set_cookie(name, "not ours", domain=HOST)
    for _ in range(4):
        lab.now = provider.now = lab.now + 1
        browser.answer_of(provider)
    assert name not in browser.pending_logins


@pytest.mark.parametrize("site", ["cross-site", "same-site", ""])
def test_a_page_of_another_site_cannot_begin_a_login(
    lab: PortalLab, provider: OidcLab, site: str
) -> None:
    """Browsers without Sec-Fetch-Site still keep the cookie of the form to themselves."""
    browser = lab.browser()
    if site:
        browser.get("/login")
    said = {"Sec_Fetch_Site": site} if site else {}
    answer = browser.get("/login/oidc?next=/report/usage?by=user", **said)
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/login?next=/report/usage?by%3Duser"
    assert not browser.pending_logins
    assert provider.asked == []
    assert not is_in(browser)
    page = browser.get(answer.headers["Location"])
    (link,) = (each for each in links_of(page.text) if each.startswith("/login/oidc"))
    ended = browser.log_in_at(provider, link)
    assert ended.headers["Location"] == "/report/usage?by=user"


def test_a_page_of_another_site_cannot_bring_an_own_login(
    lab: PortalLab, provider: OidcLab
) -> None:
    """Login CSRF: the thief's answer of the provider does not log the victim in as the thief."""
    victim, thief = lab.browser(), lab.browser()
    provider.user = "bob"
    stolen = thief.answer_of(provider)
    provider.user = "alice"
    pending = victim.answer_of(provider)
    assert_refused(lab, victim.get(stolen, Sec_Fetch_Site="cross-site"), "has not begun")
    assert not victim.cookie
    assert victim.get(pending).status_code == 303
    before = victim.cookie
    assert victim.get("/login/oidc", Sec_Fetch_Site="cross-site").status_code == 303
    assert_refused(lab, victim.get(stolen), "has not begun")
    assert victim.cookie == before
    assert "alice" in words_of(victim.get("/account").text)


def test_a_login_must_end_within_minutes(lab: PortalLab, provider: OidcLab) -> None:
    browser = lab.browser()
    answer = browser.answer_of(provider)
    lab.now = provider.now = lab.now + 600
    assert_refused(lab, browser.get(answer), "more than 10 minutes ago")
    answer = browser.answer_of(provider)
    lab.now = provider.now = lab.now + 599
    assert browser.get(answer).status_code == 303


def test_a_used_state_stays_used_after_a_restart(
    books: Ledger, lab: PortalLab, provider: OidcLab, tmp_path: Path
) -> None:
    browser = lab.browser()
    answer = browser.answer_of(provider)
    ((name, cookie),) = browser.pending_logins.items()
    browser.get(answer)
    again = PortalLab(books, tmp_path, login=("oidc",), provider=provider)
    other = again.browser()
    other.client.set_cookie(name, cookie, domain=HOST)
    assert_refused(again, other.get(answer), "its state is used once")
    again.now += 601
    assert again.sessions.use_once("another", int(again.now) + 1)  # forgets what is too old
    assert again.sessions.use_once("another", int(again.now) + 1) is False


@pytest.mark.parametrize("cookie", ["", "x", "a.1.2f.0", "a.b.c.d", "....", "é", "a" * 4000])
def test_forged_cookies_of_a_login(lab: PortalLab, provider: OidcLab, cookie: str) -> None:
    browser = lab.browser()
    answer = browser.answer_of(provider)
    (name,) = browser.pending_logins
    browser.client.set_cookie(name, cookie, domain=HOST)
    assert_refused(lab, browser.get(answer), "this browser has not begun a login")


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("", "has no code"), ("&code=", "has no code"), ("&code=a&code=b", "has no code"),
        (f"&code={'a' * 5000}", "has no code"), ("&code=guessed", "invalid_grant"),
        ("&error=access_denied&error_description=no+%0A+way", "provider answers: access_denied"),
        ("&code=a&iss=https://other.example", "comes from https://other.example"),
        ("&code=a&iss=", "comes from"),
    ],
)  # fmt: skip
def test_answers_without_a_code_of_this_provider(
    lab: PortalLab, provider: OidcLab, query: str, why: str
) -> None:
    browser = lab.browser()
    given = parse_qs(urlsplit(browser.answer_of(provider)).query)
    issuer = "" if "iss=" in query else f"&iss={provider.issuer}"
    path = f"/login/oidc/callback?state={given['state'][0]}{issuer}{query}"
    assert_refused(lab, browser.get(path), why)


def test_an_answer_names_its_provider_if_it_always_does(lab: PortalLab, provider: OidcLab) -> None:
    for supported, status in ((True, 403), (False, 303)):
        provider.metadata = {"authorization_response_iss_parameter_supported": supported}
        lab.now = provider.now = lab.now + 3601  # the discovery document is read again
        browser = lab.browser()
        answer = browser.answer_of(provider).partition("&iss=")[0]
        assert browser.get(answer).status_code == status


def test_a_code_never_gets_into_the_log(lab: PortalLab, provider: OidcLab) -> None:
    browser = lab.browser()
    browser.log_in_at(provider)
    answer = browser.answer_of(provider)  # a second login of the same browser
    code = parse_qs(urlsplit(answer).query)["code"][0]
    lab.now = provider.now = lab.now + 601
    assert browser.get(answer).status_code == 403
    said = " ".join(lab.lines)
    assert code not in said
    assert SECRET not in said


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/\\evil", "/login"])
def test_a_login_leads_nowhere_else(lab: PortalLab, provider: OidcLab, path: str) -> None:
    answer = lab.browser().log_in_at(provider, f"/login/oidc?next={path}")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")


def test_headers_are_no_longer_than_proxies_and_browsers_take(
    lab: PortalLab, provider: OidcLab
) -> None:
    for length, wanted in ((1000, "/report/usage?user="), (1001, "/")):
        path = "/report/usage?user=".ljust(length, "x")
        browser = lab.browser()
        begun = browser.start_login(f"/login/oidc?next={quote(path, '')}")
        assert len(str(begun.headers)) < 4096
        answer = browser.log_in_at(provider, f"/login/oidc?next={quote(path, '')}")
        assert answer.headers["Location"].startswith(wanted)
        assert len(answer.headers["Location"]) in {length, 1}


# ---- who it is


@pytest.mark.parametrize(
    "user",
    ["vogel@example.org", "Vogel", "ALICE", "alice ", "2001", "1", "x" * 256, "", "%", "alice\0"],
)
def test_only_the_immutable_id_says_who_it_is(lab: PortalLab, provider: OidcLab, user: str) -> None:
    """All tokens also say that name, mail address and user name are those of vogel."""
    provider.user = user
    browser = lab.browser()
    no_id = len(user) in {0, 256} or "\0" in user
    why = "no claim sub" if no_id else "nobody in the ledger has the directory id"
    assert_refused(lab, browser.log_in_at(provider), why)
    assert not is_in(browser)


@pytest.mark.parametrize(
    ("table", "values", "why"),
    [
        (people, {"closed_at": BEGIN}, "nobody in the ledger"),
        (people, {"active": False}, "the account of bob has expired"),
        (uids, {"valid_to": BEGIN}, "the uid of bob is unknown"),
        (uids, {"uid": 0}, "bob is no account of a person"),
        (uids, {"uid": 1}, "is that of"),  # another name on this host
    ],
)
def test_people_who_left_do_not_get_in(
    tmp_path: Path, provider: OidcLab, table: Any, values: dict[str, Any], why: str
) -> None:
    with open_for_writing(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        write_books(ledger, [])
        lab = PortalLab(ledger, tmp_path, login=("oidc",), provider=provider)
        provider.user = "bob"
        assert lab.browser().log_in_at(provider).status_code == 303
        of_bob = table.c.directory_id == "bob" if table is people else table.c.person_id == 2
        with ledger.transaction() as connection:
            connection.execute(update(table).where(of_bob).values(**values))
        assert_refused(lab, lab.browser().log_in_at(provider), why)


# ---- the provider


def test_a_new_key_is_read_and_one_that_nobody_has_asks_rarely(
    lab: PortalLab, provider: OidcLab
) -> None:
    assert lab.browser().log_in_at(provider).status_code == 303
    provider.signs_with = rsa_key("new")
    provider.keys = [provider.signs_with]
    lab.now = provider.now = lab.now + 59
    assert_refused(lab, lab.browser().log_in_at(provider), "no key new")
    lab.now = provider.now = lab.now + 1
    assert lab.browser().log_in_at(provider).status_code == 303
    provider.signs_with = rsa_key("nobody has it")
    lab.now = provider.now = lab.now + 60
    asked = provider.asked.count(KEYS)
    for _ in range(20):
        assert_refused(lab, lab.browser().log_in_at(provider), "no key nobody has it")
    assert provider.asked.count(KEYS) == asked + 1


def test_a_key_that_was_withdrawn_counts_for_ten_minutes_only(
    lab: PortalLab, provider: OidcLab
) -> None:
    assert lab.browser().log_in_at(provider).status_code == 303
    provider.keys = [ec_key("ec-1")]
    lab.now = provider.now = lab.now + 600
    assert_refused(lab, lab.browser().log_in_at(provider), "no key rsa-1")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"issuer": "http://127.0.0.1:1"}, "is of the issuer http://127.0.0.1:1"),
        ({"issuer": None}, "cannot be read"),
        ({"token_endpoint": "http://idp.example/token"}, "no https address"),
        ({"jwks_uri": "file:///etc/passwd"}, "no https address"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "no https address"),
        ({"end_session_endpoint": "data:text/html,x"}, "no https address"),
        ({"authorization_endpoint": "http://user@127.0.0.1/"}, "no https address"),
        ({"code_challenge_methods_supported": ["plain"]}, "does not know PKCE"),
    ],
)
def test_discovery_documents_that_do_not_fit(
    lab: PortalLab, provider: OidcLab, changed: dict[str, Any], why: str
) -> None:
    provider.metadata = changed
    answer = lab.browser().start_login()
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "60"
    assert _AWAY in words_of(answer.text)
    assert any(why in line for line in lab.lines if line.startswith("failed"))


@pytest.mark.parametrize("path", [DISCOVERY, KEYS, "/token"])
@pytest.mark.parametrize(
    "answer",
    [
        (500, b"{}"), (302, b"{}"), (200, b"x" * 300_000), (200, b"<html>"), (200, b"[]"),
        (200, b"[" * 100_000), (200, b'{"keys": []}'), (200, b""), (200, b"\xff\xfe"),
    ],
    ids=lambda answer: f"{answer[0]}-{len(answer[1])}-{answer[1][:2].hex()}",
)  # fmt: skip
def test_answers_of_the_provider_that_make_no_sense(
    lab: PortalLab, provider: OidcLab, path: str, answer: tuple[int, bytes]
) -> None:
    provider.answers = {path: answer}
    browser = lab.browser()
    begun = browser.start_login()
    ended = begun if path == DISCOVERY else browser.log_in_at(provider)
    assert ended.status_code in {403, 503}
    assert _AWAY in words_of(ended.text) or _REFUSED in words_of(ended.text)
    assert not is_in(browser)
    lab.now = provider.now = lab.now + 11  # it is not asked again at once
    provider.answers = {}
    assert browser.log_in_at(provider).status_code == 303


def test_an_answer_without_end_is_not_read(lab: PortalLab, provider: OidcLab) -> None:
    text = json.dumps(provider.discovery()).encode()
    provider.answers = {DISCOVERY: (200, text + b" " * 300_000)}
    assert lab.browser().start_login().status_code == 503
    assert any("answers with more than 262144 bytes" in line for line in lab.lines)


def test_a_provider_that_is_away_is_not_asked_at_each_click(
    lab: PortalLab, provider: OidcLab
) -> None:
    provider.answers = {DISCOVERY: (503, b"")}
    for _ in range(10):
        assert lab.browser().start_login().status_code == 503
    assert provider.asked == [DISCOVERY]


def test_nobody_waits_again_for_a_provider_that_hung(provider: OidcLab) -> None:
    now = [1000.0]
    section = provider.section()
    found = OpenIdProvider(section, "secret", "https://gpu.example.org", lambda: now[0])

    def hang(*_: Any) -> None:
        now[0] += 10
        provider.asked.append("hung")
        raise ProviderFailed("no answer")

    with mock.patch.object(found, "_ask", hang):
        for _ in range(3):
            with pytest.raises(ProviderFailed):
                found.metadata()
    assert provider.asked == ["hung"]
    now[0] = 100.0  # the clock was set back: what is remembered is old
    assert found.metadata().issuer == provider.issuer


def test_an_answer_that_comes_byte_by_byte_has_an_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        section = OidcSection(
            issuer=f"http://127.0.0.1:{server.getsockname()[1]}", client_id="x", timeout=1
        )

        def drip() -> None:
            with suppress(OSError), server.accept()[0] as connection:
                while True:
                    connection.sendall(b"H")
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        provider = OpenIdProvider(section, "secret", "https://gpu.example.org")
        begun = time.monotonic()
        with pytest.raises(ProviderFailed, match="no whole answer within 1 s"):
            provider.metadata()
        assert time.monotonic() - begun < PATIENCE


def test_guesses_at_codes_are_limited_by_address(lab: PortalLab, provider: OidcLab) -> None:
    def guess(address: str) -> Any:
        lab.address = address
        browser = lab.browser()
        state = parse_qs(urlsplit(browser.answer_of(provider)).query)["state"][0]
        path = f"/login/oidc/callback?state={state}&iss={provider.issuer}&code=guessed"
        return browser.get(path)

    for _ in range(60):
        assert guess("192.0.2.1").status_code == 403
    asked = provider.asked.count("/token")
    assert guess("192.0.2.1").status_code == 429
    assert provider.asked.count("/token") == asked
    assert guess("192.0.2.2").status_code == 403
    browser = lab.browser()
    assert browser.log_in_at(provider).status_code == 303


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of 127.0.0.1 that is its own CA, with its key."""
    path = tmp_path / "provider.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-keyout", f"{path}.key", "-out",
            path, "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_text(path.read_text() + Path(f"{path}.key").read_text())
    return path


def test_tls_is_verified_with_the_sites_ca(
    books: Ledger, tmp_path: Path, certificate: Path
) -> None:
    with serving_oidc(certificate) as provider:
        lab = PortalLab(books, tmp_path, login=("oidc",), provider=provider)
        assert lab.browser().start_login().status_code == 503
        assert any("certificate verify failed" in line for line in lab.lines)
        assert provider.asked == []
        provider.settings = {"ca_file": str(certificate)}
        trusting = PortalLab(books, tmp_path, login=("oidc",), provider=provider)
        browser = trusting.browser()
        assert browser.log_in_at(provider).status_code == 303
        assert is_in(browser)
        provider.metadata = {"token_endpoint": provider.issuer.replace("https", "http") + "/token"}
        trusting.now = provider.now = trusting.now + 3601
        assert trusting.browser().start_login().status_code == 503


@pytest.mark.parametrize(
    ("secret", "ca_file", "words"),
    [
        ("", "", "holds no secret"), ("two\nlines", "", "holds no secret"),
        ("schlüssel", "", "holds no secret"), ("right", "/nowhere/ca.pem", "ca_file: cannot read"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_right(
    provider: OidcLab, secret: str, ca_file: str, words: str
) -> None:
    with pytest.raises(BadConfig, match=words):
        OpenIdProvider(provider.section(ca_file=ca_file), secret, f"https://{HOST}")
