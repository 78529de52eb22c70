"""The portal on the real cluster: people log in with slapd's passwords, and see what they may."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_lab import Lab
from portal_service import PYTHON, pages_served
from slurmkit_accounting.portal.login import REFUSAL_SECONDS
from waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.service]

WINDOW = "from=2020-01-01&to=2100-01-01&timezone=UTC"
CONFIG = """
[ledger.portal]
listen = "127.0.0.1:6833"
url = "http://127.0.0.1:6833"
login = ["ldap"]
"""
# Logs in as told on standard input, then prints the status and text of each page.
BROWSE = """
import http.cookiejar, json, re, sys, time, urllib.error, urllib.parse, urllib.request
told = json.load(sys.stdin)
jar = http.cookiejar.CookieJar()
class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None
opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar), Stay)
def fetch(path, form=None, **headers):
    data = None if form is None else urllib.parse.urlencode(form).encode()
    request = urllib.request.Request("http://127.0.0.1:6833" + path, data, headers)
    try:
        with opener.open(request) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
said = {}
if "name" in told:
    _, page = fetch("/login")
    token = re.search('name="token" value="([0-9a-f]+)"', page)[1]
    began = time.monotonic()
    said["login"] = fetch("/login", {"token": token, **{k: told[k] for k in ("name", "password")}})
    said["seconds"] = time.monotonic() - began
said["pages"] = [fetch(path, **told.get("headers", {})) for path in told["paths"]]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def portal(lab: Lab) -> Iterator[Lab]:
    for user in ("alice", "dave"):
        lab.run(
            "sbatch", "--wait", "--gres=gpu:1", "--output=/dev/null", "--wrap=sleep 2", user=user
        )
    with pages_served(lab, CONFIG):
        yield lab


def browse(lab: Lab, *paths: str, **told: Any) -> dict[str, Any]:
    said = lab.run(
        PYTHON, "-c", BROWSE, service="ledger", user="slurmkit",
        input=json.dumps({"paths": paths, **told}),
    )  # fmt: skip
    return json.loads(said.stdout)


def password(lab: Lab, name: str) -> str:
    return lab.run("cat", f"/secrets/people/{name}.password", user="").stdout.removesuffix("\n")


def by_munge(lab: Lab, user: str, end: str) -> list[dict[str, Any]]:
    window = ("--from", "2020-01-01", "--to", end, "--timezone", "UTC")
    command = ("slurmkit", "report", "usage", *window, "--by", "user,account", "--format", "json")
    return json.loads(lab.run(*command, user=user).stdout)["rows"]


@pytest.mark.parametrize("user", ["alice", "vogel", "olga", "garcia"])
def test_each_logs_in_and_sees_what_the_service_shows_them(portal: Lab, user: str) -> None:
    # Up to a moment that is over; an ingest may come between the two.
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - 5))
    link = f"/report/usage?from=2020-01-01&to={end}&timezone=UTC&by=user,account&format=json"

    def seen() -> tuple[Any, Any, Any]:
        before = by_munge(portal, user, end)
        said = browse(portal, link, "/", name=user, password=password(portal, user))
        return before, said, by_munge(portal, user, end)

    before, said, after = wait_for(seen, lambda three: three[0] == three[2])
    assert said["login"][0] == 303
    (status, rows), (home, page) = said["pages"]
    assert (status, home) == (200, 200)
    assert json.loads(rows)["rows"] == before == after
    assert f"Shown to {user}" in page


def test_wrong_passwords_and_unknown_names_are_the_same(portal: Lab) -> None:
    wrong = browse(portal, "/", name="bob", password="not-this")
    unknown = browse(portal, "/", name="no-such-person", password="not-this")
    for said in (wrong, unknown):
        assert said["login"][0] == 403
        assert "do not belong together" in said["login"][1]
        assert said["pages"][0][0] == 303
    # Each takes a random time longer than this, so the time tells neither from the other.
    assert min(wrong["seconds"], unknown["seconds"]) >= REFUSAL_SECONDS


def test_an_expired_account_does_not_get_in(portal: Lab) -> None:
    said = browse(portal, "/", name="trent", password="x")  # who has left
    assert said["login"][0] == 403
    assert said["pages"][0][0] == 303


@pytest.mark.parametrize("header", ["X-Remote-User", "Remote-User", "X-Forwarded-User"])
def test_headers_mean_nothing_without_a_proxy(portal: Lab, header: str) -> None:
    said = browse(portal, "/", f"/report/usage?{WINDOW}", headers={header: "olga"})
    assert [status for status, _ in said["pages"]] == [303, 303]
