"""Pages to log in and out: by the directory's password, or by the header of the site's proxy.

`oidc_login` has those of the site's OpenID provider.
"""

from __future__ import annotations

import ipaddress
import math
import secrets
import time
from http import HTTPStatus

from flask import Blueprint, Response, abort, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from slurmkit.errors import BadConfig, DirectoryError
from slurmkit_accounting.people.ldap import LoginCheck
from slurmkit_accounting.people.model import PersonEntry
from slurmkit_accounting.portal.context import portal, reader
from slurmkit_accounting.portal.identity import (
    USER_NAME,
    Account,
    LoginRefused,
    account_of_entry,
)
from slurmkit_accounting.portal.sessions import Session
from slurmkit_accounting.portal.settings import LoginWay, PortalSection

pages = Blueprint("login", __name__)
_LONGEST_PASSWORD = 256
# A refusal takes so long and a random part of the other, so its time does not tell which names the
# directory has. Both are longer than what a directory usually takes.
REFUSAL_SECONDS, REFUSAL_SPREAD = 2.0, 1.0
_RETRY_SECONDS = 5
_REFUSED = "This user name and password do not belong together, or the account has expired."


@pages.get("/login")
def page() -> AnyResponse | str:
    """Show the form."""
    if "reader" in g:
        return redirect(local_path(request.args.get("next", "")), 303)
    return login_form("", next_path=request.args.get("next", ""))


@pages.post("/login")
def send() -> AnyResponse | tuple[str, int] | str:
    """Log in with the directory's password."""
    if "ldap" not in portal().section.login:
        abort(HTTPStatus.NOT_FOUND)
    _check_form()
    name, password = request.form.get("name", "").strip(), request.form.get("password", "")
    address, next_path = client_address(), request.form.get("next", "")
    with portal().login_turns(address) as free:
        if not free:
            return too_many_logins(next_path, name)
        return _log_in(name, password, address, next_path)


def _log_in(
    name: str, password: str, address: str, next_path: str
) -> AnyResponse | tuple[str, int]:
    if wait := portal().limits.wait_seconds(name, address):
        return too_many_failures(wait, next_path, name)
    begun = time.monotonic()
    portal().limits.count_failure(name, address)  # before the try: others may be under way
    try:
        checked = _check_password(name, password)
    except (DirectoryError, BadConfig) as error:
        portal().limits.take_back(name, address)
        portal().log("failed", asked="the directory for a password", why=error)
        g.retry_after = 60
        words = "The directory does not answer. Try again in a few minutes."
        return login_form(words, next_path=next_path, name=name), HTTPStatus.SERVICE_UNAVAILABLE
    if checked.person is None:
        known = name if checked.is_known else "unknown"  # else it may be a password
        why = "the directory refuses the password"
        portal().log("login refused", sender=address, user=known, via="ldap", why=why)
        _wait_before_refusal(begun)
        return login_form(_REFUSED, next_path=next_path, name=name), HTTPStatus.FORBIDDEN
    portal().limits.forget(name, address)
    return _log_in_person(name, checked.person, address, next_path)


def _log_in_person(
    name: str, person: PersonEntry, address: str, next_path: str
) -> AnyResponse | tuple[str, int]:
    """Log in somebody whose password is right."""
    try:
        with portal().open_ledger() as ledger, ledger.transaction() as connection:
            account = account_of_entry(connection, person)
    except LoginRefused as error:
        portal().log("login refused", sender=address, user=name, via="ldap", why=error)
        words = "The ledger does not know this account yet. Try again in an hour."
        return login_form(words, next_path=next_path, name=name), HTTPStatus.FORBIDDEN
    return open_session(account, "ldap", next_path)


def open_session(account: Account, via: LoginWay, next_path: str) -> AnyResponse:
    """Begin the session of somebody who has proved who they are, and send them to a page."""
    if before := request.cookies.get(cookie_name(portal().section), ""):
        portal().sessions.close(before)  # a token from before the login is worth nothing after it
    g.pop("reader", None)
    g.new_cookie = portal().sessions.open(account, via).token
    portal().log("login", user=account.user, uid=account.uid, via=via, sender=client_address())
    return redirect(local_path(next_path), 303)


def too_many_logins(next_path: str, name: str = "") -> tuple[str, int]:
    """Refuse a login that found no turn."""
    portal().log("login refused", sender=client_address(), why="too many at a time")
    g.retry_after = _RETRY_SECONDS
    words = "Too many people log in at this moment. Try again in a few seconds."
    return login_form(words, next_path=next_path, name=name), HTTPStatus.SERVICE_UNAVAILABLE


def too_many_failures(wait: int, next_path: str, name: str = "") -> tuple[str, int]:
    """Refuse a login after too many failures; the next one may be in `wait` seconds."""
    portal().log("login refused", sender=client_address(), why="too many failures")
    words = f"Too many failed logins. Try again in {math.ceil(wait / 60)} minutes."
    return login_form(words, next_path=next_path, name=name), HTTPStatus.TOO_MANY_REQUESTS


@pages.post("/logout")
def out() -> AnyResponse:
    """End this session."""
    session = reader().session
    portal().sessions.close(session.token)
    return _logged_out(session)


@pages.post("/logout-everywhere")
def out_everywhere() -> AnyResponse:
    """End all sessions of the user."""
    session = reader().session
    portal().sessions.close_all(session.account.uid)
    return _logged_out(session)


def _logged_out(session: Session) -> AnyResponse:
    """Send somebody to the page that says that they are logged out, and where they are not."""
    account = session.account
    portal().log("logout", user=account.user, uid=account.uid, sender=client_address())
    g.new_cookie = ""
    provider = portal().oidc
    if session.via != "oidc" or provider is None:
        return redirect(url_for("login.page", out="1"), 303)
    return redirect(url_for("login.page", out="oidc"), 303)


def _site_logout_url() -> str:
    """Return where people log out of the login that their session came from; empty if unknown."""
    provider = portal().oidc
    if portal().section.logout_url or provider is None or request.args.get("out") != "oidc":
        return portal().section.logout_url
    return provider.known_logout_url()


def cookie_name(section: PortalSection) -> str:
    """Return the name of the session's cookie.

    Browsers take `__Host-` only with TLS, and from this host itself, not from its siblings. Without
    TLS, all ports of this host get the cookie, so its name has the port.
    """
    if section.is_secure:
        return "__Host-slurmkit"
    return f"slurmkit-{section.host.rpartition(']')[2].partition(':')[2] or 80}"


def _nonce_cookie() -> str:
    return f"{cookie_name(portal().section)}-form"


def set_cookie(response: Response, section: PortalSection, token: str) -> None:
    """Set the session's cookie; an empty token deletes it."""
    name, secure = cookie_name(section), section.is_secure
    if token:
        response.set_cookie(name, token, secure=secure, httponly=True, samesite="Lax", path="/")
    else:
        response.delete_cookie(name, secure=secure, httponly=True, samesite="Lax", path="/")


def header_name() -> str:
    """Return the user name that the site's proxy sends; empty without one."""
    return request.headers.get(portal().section.header, "").strip()


def client_address() -> str:
    """Return the address of the client; through a proxy the one that the proxy saw.

    The proxy is believed if nobody else can open the socket, or if it has sent the secret: on a
    port of this host, everybody here can send the header.
    """
    peer = request.environ.get("REMOTE_ADDR") or "unknown"
    if not (portal().section.on_socket or portal().proxy_secret):
        return str(peer)
    last = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
    try:
        return str(ipaddress.ip_address(last))
    except ValueError:
        return str(peer)


def _check_password(name: str, password: str) -> LoginCheck:
    """Ask the directory; nothing that cannot be a name or a password."""
    if not USER_NAME.fullmatch(name) or "\0" in password:
        return LoginCheck(None, is_known=False)
    if not 0 < len(password) <= _LONGEST_PASSWORD:
        return LoginCheck(None, is_known=False)
    return portal().check_password(name, password)


def _wait_before_refusal(begun: float) -> None:
    """Wait until a fixed time and a random one have passed, also if the directory took longer."""
    taken = time.monotonic() - begun
    steps = math.floor(taken / REFUSAL_SECONDS) + 1
    spread = REFUSAL_SPREAD * secrets.randbelow(1000) / 1000
    time.sleep(steps * REFUSAL_SECONDS + spread - taken)


def login_form(words: str, *, next_path: str = "", name: str = "") -> str:
    """Render the page to log in at; its form has a token that belongs to a cookie of its own."""
    nonce = request.cookies.get(_nonce_cookie(), "")
    if not 20 <= len(nonce) <= 60:
        nonce = secrets.token_urlsafe(24)
    g.form_nonce = nonce
    return render_template(
        "login.html",
        title="Log in",
        words=words,
        name=name[:64],
        next=next_path if _is_local_path(next_path) else "",
        token=portal().sessions.sign("login", nonce),
        is_out="out" in request.args,
        site_holds="header" in portal().section.login or request.args.get("out") == "oidc",
        logout_url=_site_logout_url(),
    )


@pages.after_app_request
def _keep_nonce(response: Response) -> Response:
    if nonce := g.pop("form_nonce", None):
        secure = portal().section.is_secure
        response.set_cookie(
            _nonce_cookie(), nonce, secure=secure, httponly=True, samesite="Strict", path="/"
        )
    return response


def _check_form() -> None:
    """Refuse a login that another page sends: it would log the reader in as somebody else."""
    nonce = request.cookies.get(_nonce_cookie(), "")
    signed = portal().sessions.is_signed("login", nonce, request.form.get("token", ""))
    if not (signed and is_from_our_page()):
        portal().log("refused", sender=client_address(), why="a login form of another page")
        abort(HTTPStatus.FORBIDDEN, "This form is too old. Load the page again, then log in.")


def is_from_our_page() -> bool:
    """Return whether our own page to log in sent the browser here, and no page of another site.

    Browsers send the cookie of that page's form (`SameSite=Strict`) only then.
    """
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    return bool(request.cookies.get(_nonce_cookie())) and site in {"same-origin", "none"}


def local_path(path: str) -> str:
    """Return a path of ours as it is, and any other as that of Home."""
    return path if _is_local_path(path) else "/"


def _is_local_path(path: str) -> bool:
    """Return whether a path leads to a page of ours; `//host` and `/\\host` lead elsewhere."""
    plain = path.isascii() and path.isprintable() and "\\" not in path
    elsewhere = path.startswith(("//", "/login", "/logout"))
    return plain and path.startswith("/") and not elsewhere and len(path) <= 2000
