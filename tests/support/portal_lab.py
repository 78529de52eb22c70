"""The portal on a ledger of a test: who is who, its pages as text, and the tables in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flask.testing import FlaskClient
from report_books import BEGIN, DAY
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.people.ldap import LoginCheck
from slurmkit_accounting.portal.app import portal_application
from slurmkit_accounting.portal.context import Portal
from slurmkit_accounting.portal.login_limits import LoginLimits
from slurmkit_accounting.portal.sessions import SessionStore
from slurmkit_accounting.portal.settings import PortalSection
from slurmkit_accounting.portal.view_log import ViewLog
from slurmkit_accounting.service.permissions import Permissions

from slurmkit.testing import FakeSlurm

HOST = "gpu.example.org"
NOW = BEGIN + 20 * DAY
OPERATOR = "daemon"  # an account of every host
ON_SOCKET = {"listen": "unix:/run/portal.sock", "url": f"https://{HOST}"}
COOKIE = "__Host-slurmkit"


class PortalLab:
    """A portal whose clock stands still; by default the proxy's header says who somebody is."""

    def __init__(
        self,
        ledger: Ledger,
        folder: Path,
        *,
        proxy_secret: str = "",
        provider: Any = None,  # an OidcLab, which needs Authlib
        **section: Any,
    ) -> None:
        self.now = float(NOW)
        self.ledger = ledger
        self.lines: list[str] = []
        self.address = ""  # of new browsers, as the proxy sees it
        self.passwords: dict[str, Any] = {}  # a PersonEntry by (name, password)
        self.asked: list[str] = []
        settings = PortalSection(**({"login": ("header",), **ON_SOCKET} | section))
        slurm = FakeSlurm({"sacctmgr": lambda *_: ""})
        permissions = Permissions(ServiceSection(operators=(OPERATOR,)), slurm, self._log)
        self.sessions = SessionStore(
            folder / "portal", idle_seconds=settings.idle_minutes * 60,
            session_seconds=settings.session_hours * 3600, clock=lambda: self.now,
        )  # fmt: skip
        self.views = ViewLog(lambda: nullcontext(ledger), self._log, settings.view_days)
        self.portal = Portal(
            section=settings,
            open_ledger=lambda: nullcontext(ledger),
            open_to_change=lambda: nullcontext(ledger),
            permissions=permissions,
            sessions=self.sessions,
            limits=LoginLimits(lambda: self.now),
            views=self.views,
            check_password=self._check,
            proxy_secret=proxy_secret,
            zone=find_zone("UTC"),
            log=self._log,
            clock=lambda: self.now,
            oidc=provider and provider.as_the_portal_sees_it(settings.origin, lambda: self.now),
        )
        self.app = portal_application(self.portal)

    def _check(self, name: str, password: str) -> LoginCheck:
        self.asked.append(name)
        known = any(user == name for user, _ in self.passwords)
        return LoginCheck(self.passwords.get((name, password)), known)

    def _log(self, what: str, **facts: object) -> None:
        pairs = [f"{name}={fact}" for name, fact in facts.items() if fact is not None]
        self.lines.append(" ".join([what, *pairs]))

    def browser(self, user: str = "") -> Browser:
        """A browser; the proxy says that `user` is logged in there."""
        return Browser(self.app.test_client(), user, self.address)


class Browser:
    """Keeps cookies, and sends what a browser behind the proxy sends."""

    def __init__(self, client: FlaskClient, user: str, address: str = "") -> None:
        self.client = client
        self.user = user
        self.address = address

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(path, base_url=f"https://{HOST}", headers=self._with_user(headers))

    def log_in_at(self, provider: Any, start: str = "/login/oidc") -> Any:
        """Follow the login to an OpenID provider and back; the answer of the portal."""
        return self.get(self.answer_of(provider, start))

    def answer_of(self, provider: Any, start: str = "/login/oidc") -> str:
        """The path of the portal that the provider sends the browser back to."""
        begun = self.start_login(start)
        assert begun.status_code == 303, begun.text
        back = urlsplit(provider.authorize(begun.headers["Location"]))
        assert (back.scheme, back.netloc) == ("https", HOST)
        return f"{back.path}?{back.query}"

    def start_login(self, start: str = "/login/oidc") -> Any:
        """Follow the link of the page to log in, which a browser must have loaded before."""
        self.get("/login")
        return self.get(start)

    @property
    def pending_logins(self) -> dict[str, str]:
        """The logins at an OpenID provider that have begun: cookies by name."""
        cookies = self.client._cookies or {}
        begun = [one for one in cookies.values() if one.key.startswith(f"{COOKIE}-oidc-")]
        return {one.key: one.value for one in begun}

    def post(self, path: str, data: dict[str, str], **headers: str) -> Any:
        return self.client.post(
            path, data=data, base_url=f"https://{HOST}", headers=self._with_user(headers)
        )

    def send(self, path: str, *, on: str = "/account", **data: str) -> Any:
        """Send the form of a page, with the token that stands in it."""
        return self.post(path, {"token": form_token(self.get(on).text), **data})

    def _with_user(self, headers: dict[str, str]) -> dict[str, str]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        usual = {"X-Remote-User": self.user, "X-Forwarded-For": self.address}
        return {name: value for name, value in usual.items() if value} | given

    @property
    def cookie(self) -> str:
        found = self.client.get_cookie(COOKIE, HOST)
        return found.value if found else ""


def form_token(page: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]+)"', page)
    assert found, page
    return found[1]


class _Tables(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self._cell: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"td", "th"}:
            self.text.append(" ")
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self._cell = []
        elif tag == "a":
            self.links.append(dict(attrs).get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "th"} and self._cell is not None:
            self.tables[-1][-1].append(" ".join("".join(self._cell).split()))
            self._cell = None

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._cell is not None:
            self._cell.append(data)


def tables_of(page: str) -> list[list[list[str]]]:
    """The tables of a page, as rows of texts; the first row is the heading."""
    return _parsed(page).tables


def links_of(page: str) -> list[str]:
    return _parsed(page).links


def words_of(page: str) -> str:
    return " ".join("".join(_parsed(page).text).split())


def _parsed(page: str) -> _Tables:
    parser = _Tables()
    parser.feed(page)
    return parser


@contextmanager
def writing(lab: PortalLab) -> Iterator[PortalLab]:
    """Let the lab's views be written."""
    lab.views.start()
    try:
        yield lab
    finally:
        lab.views.stop()
