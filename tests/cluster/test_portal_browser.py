"""The portal in Debian's Chromium: everybody logs in on each way, and sees what MUNGE shows them.

The ways: a password of slapd; Apache with mod_auth_openidc; OpenID by itself. The provider of the
last two is npm's oidc-provider. All of it runs on the ledger's host, which gets what it lacks.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_lab import Lab
from portal_service import pages_served, running
from waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.service, pytest.mark.slow]

HERE = Path(__file__).parent
NEEDED = (
    "chromium", "chromium-driver", "python3-selenium", "libapache2-mod-auth-openidc", "nodejs",
    "npm",
)  # fmt: skip
FOLDER = "/var/tmp/openid"
IDP, LDAP, HEADER, OIDC = 6890, 6833, 6843, 6853  # ports
DEPUTY, STRANGER = "frank", "mallory"
PEOPLE = ("alice", "vogel", DEPUTY, "olga")
SECRET = "a secret of this test alone, 32 c"
SETTINGS = {
    "ldap": f"""
[ledger.portal]
listen = "127.0.0.1:{LDAP}"
url = "http://127.0.0.1:{LDAP}"
login = ["ldap"]
""",
    "header": f"""
[ledger.portal]
listen = "unix:{FOLDER}/pages/socket"
url = "http://127.0.0.1:{HEADER}"
login = ["header"]
""",
    "oidc": f"""
[ledger.portal]
listen = "127.0.0.1:{OIDC}"
url = "http://127.0.0.1:{OIDC}"
login = ["oidc"]
[ledger.portal.oidc]
issuer = "http://127.0.0.1:{IDP}"
client_id = "pages"
client_secret_file = "{FOLDER}/secret"
claim = "ldap_id"
""",
}
BASES = {way: f"http://127.0.0.1:{port}" for way, port in zip(
    ("ldap", "header", "oidc"), (LDAP, HEADER, OIDC), strict=True
)}  # fmt: skip
MODULES = (
    "mpm_event", "authn_core", "authz_core", "authz_user", "headers", "proxy", "proxy_http",
    "auth_openidc",
)  # fmt: skip
LOADED = "\n".join(
    f"LoadModule {one}_module /usr/lib/apache2/modules/mod_{one}.so" for one in MODULES
)
# As in docs/portal.md, without TLS.
APACHE = f"""
ServerRoot {FOLDER}
PidFile {FOLDER}/apache.pid
DefaultRuntimeDir {FOLDER}
User www-data
Group www-data
ServerName 127.0.0.1:{HEADER}
Listen 127.0.0.1:{HEADER}
ErrorLog {FOLDER}/error.log
{LOADED}
OIDCProviderMetadataURL http://127.0.0.1:{IDP}/.well-known/openid-configuration
OIDCClientID apache
OIDCClientSecret "{SECRET}"
OIDCCryptoPassphrase "{SECRET}"
OIDCRedirectURI /oidc
OIDCRemoteUserClaim preferred_username
OIDCPassClaimsAs none
RequestHeader unset X-Remote-User early
<Location />
    AuthType openid-connect
    Require valid-user
    RequestHeader set X-Remote-User "expr=%{{REMOTE_USER}}"
</Location>
ProxyPreserveHost On
ProxyPass / unix:{FOLDER}/pages/socket|http://127.0.0.1:{HEADER}/ disablereuse=on retry=0
"""


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Lab]:
    """The cluster with an OpenID provider, and Apache before the pages."""
    for user in ("alice", "dave"):
        lab.run(
            "sbatch", "--wait", "--gres=gpu:1", "--output=/dev/null", "--wrap=sleep 2", user=user
        )
    install(lab)
    provider = ("node", f"{FOLDER}/openid_provider.mjs")
    with running(lab, *provider, told=json.dumps(provided(lab)) + "\n") as said:
        assert said == "ready\n"
        yield lab


def install(lab: Lab) -> None:
    apt = ("apt-get", "install", "-y", "--no-install-recommends")
    lab.as_root("ledger", "apt-get", "update")
    lab.as_root("ledger", "env", "DEBIAN_FRONTEND=noninteractive", *apt, *NEEDED)
    lab.as_root("ledger", "install", "-d", FOLDER)
    lab.as_root("ledger", "npm", "install", "--prefix", FOLDER, "--no-fund", "oidc-provider@8.8")
    pages = ("-d", "-o", "slurmkit", "-g", "www-data", "-m", "2750", f"{FOLDER}/pages")
    lab.as_root("ledger", "install", *pages)
    for name, text in (
        ("openid_provider.mjs", (HERE / "openid_provider.mjs").read_text("utf-8")),
        ("apache.conf", APACHE),
        ("secret", SECRET),
    ):
        lab.run("tee", f"{FOLDER}/{name}", service="ledger", user="", input=text)
    lab.as_root("ledger", "chown", "slurmkit", f"{FOLDER}/secret")
    lab.as_root("ledger", "chmod", "0600", f"{FOLDER}/secret")


def provided(lab: Lab) -> dict[str, Any]:
    """What the provider knows: its clients, and people with the ids that slapd gives them."""
    people = {
        name: {"preferred_username": name, "ldap_id": directory_id(lab, name)} for name in PEOPLE
    }
    redirects = {
        "pages": f"{BASES['oidc']}/login/oidc/callback",
        "apache": f"{BASES['header']}/oidc",
    }
    clients = [
        {"client_id": name, "client_secret": SECRET, "redirect_uris": [uri]}
        for name, uri in redirects.items()
    ]
    return {"port": IDP, "clients": clients, "people": people}


def directory_id(lab: Lab, name: str) -> str:
    command = ("slurmkit", "ledger", "people", "show", name)
    said = lab.run(*command, service="ledger", user="slurmkit").stdout
    (line,) = (line for line in said.splitlines() if line.startswith("directory id"))
    return line.split()[-1]


@contextmanager
def pages_on(site: Lab, way: str) -> Iterator[None]:
    with pages_served(site, SETTINGS[way]):
        if way != "header":
            yield
            return
        apache = ("apache2", "-f", f"{FOLDER}/apache.conf", "-k")
        site.as_root("ledger", *apache, "start")
        try:
            yield
        finally:
            site.as_root("ledger", *apache, "stop")


def browse(site: Lab, way: str, *people: dict[str, Any]) -> list[dict[str, Any]]:
    """Let people use the pages, one after the other; return what they saw."""
    told = {"way": way, "base": BASES[way], "people": people}
    driver = (HERE / "browser_driver.py").read_text("utf-8")
    return json.loads(
        site.run("python3", "-c", driver, service="ledger", user="", input=json.dumps(told)).stdout
    )


def person(site: Lab, name: str, **does: Any) -> dict[str, Any]:
    """Somebody who logs in with the password that slapd has, if it has one."""
    found = site.run("cat", f"/secrets/people/{name}.password", user="", check=False).stdout
    return {"name": name, "password": found.strip() or "guessed", **does}


def by_munge(site: Lab, user: str, end: str) -> list[dict[str, Any]]:
    window = ("--from", "2020-01-01", "--to", end, "--timezone", "UTC")
    command = ("slurmkit", "report", "usage", *window, "--by", "user,account", "--format", "json")
    return json.loads(site.run(*command, user=user).stdout)["rows"]


@pytest.mark.parametrize("way", ["ldap", "header", "oidc"])
def test_everybody_sees_what_munge_shows_them(site: Lab, way: str) -> None:
    tomorrow = (dt.datetime.now(dt.UTC) + dt.timedelta(days=2)).date().isoformat()
    named = {"user": DEPUTY, "until": tomorrow}
    with pages_on(site, way):
        (pi,) = browse(site, way, person(site, "vogel", deputy=named))
        assert f"End {DEPUTY}" in pi["named"]
        try:
            compare(site, way)
        finally:
            (pi,) = browse(site, way, person(site, "vogel", ends=DEPUTY))
        assert "There are none." in pi["ended"]
        (stranger,) = browse(site, way, person(site, STRANGER, pages=["/", "/report/usage"]))
    for text in (stranger["home"], *stranger["pages"]):
        assert "Shown to" not in text


def compare(site: Lab, way: str) -> None:
    """Compare what each person downloads with what MUNGE shows them."""
    # Up to a moment that is over; an ingest may come between.
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - 5))
    link = f"/report/usage?from=2020-01-01&to={end}&timezone=UTC&by=user,account&format=json"
    does = [person(site, name, downloads=[link], logs_out=True) for name in PEOPLE]

    def seen() -> tuple[Any, Any, Any]:
        before = [by_munge(site, name, end) for name in PEOPLE]
        found = browse(site, way, *does)
        return before, found, [by_munge(site, name, end) for name in PEOPLE]

    before, found, after = wait_for(seen, lambda three: three[0] == three[2])
    for name, rows, saw in zip(PEOPLE, after, found, strict=True):
        assert f"Shown to {name}" in saw["home"]
        (download,) = saw["downloads"]
        assert download["rows"] == rows
        assert "You are logged out of these pages." in saw["out"]
        assert ("Shown to" in saw["after"]) == (way == "header")  # the proxy still knows them
    assert before == after
    whose = {name: {row["user"] for row in rows} for name, rows in zip(PEOPLE, after, strict=True)}
    assert whose["alice"] == {"alice"}
    assert "dave" not in whose["vogel"]
    assert whose["vogel"] <= whose[DEPUTY]
    assert {"alice", "dave"} <= whose["olga"]
