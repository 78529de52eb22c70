"""Pages that send people to the site's OpenID provider, and take them back from it.

Each login has a state and a signed cookie of its own: only the browser that began a login can end
it, once and within minutes, and each of several tabs its own. Nonce and PKCE verifier are made from
the state with our key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from http import HTTPStatus
from typing import cast

import msgspec
from flask import Blueprint, Response, g, redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from slurmkit_accounting.portal.context import portal
from slurmkit_accounting.portal.identity import LoginRefused, account_of_directory_id
from slurmkit_accounting.portal.login import (
    client_address,
    cookie_name,
    is_from_our_page,
    local_path,
    login_form,
    open_session,
    too_many_failures,
    too_many_logins,
)
from slurmkit_accounting.portal.openid_provider import OpenIdProvider, ProviderFailed

pages = Blueprint("oidc", __name__)
STATE_SECONDS = 600  # within which people must log in at the provider
_LONGEST_CODE = 4096
# Browsers keep 4 KiB of a cookie, and nginx passes on 4 KiB of headers by default.
_LONGEST_NEXT = 1000
_MOST_PENDING = 4  # logins of a browser; with another one the oldest is forgotten
_LONGEST_PENDING = 2500  # bytes of their cookies
_REFUSED = "You could not be logged in; try again, or ask the administrators of the cluster."
_AWAY = "Your site's login does not answer; try again in a few minutes."


class LoginState(msgspec.Struct, frozen=True):
    """A login that has begun.

    Attributes:
        name: random; the `state` of OAuth.
        begun: epoch seconds.
        next_path: the page that was asked for.
    """

    name: str
    begun: int
    next_path: str

    @property
    def nonce(self) -> str:
        """The nonce of this login, which its ID token must have."""
        return portal().sessions.sign("oidc nonce", self.name)

    @property
    def verifier(self) -> str:
        """The secret of PKCE, 64 characters."""
        return portal().sessions.sign("oidc verifier", self.name)


@pages.get("/login/oidc")
def start() -> AnyResponse | tuple[str, int]:
    """Send the browser to the provider."""
    provider, next_path = _provider(), local_path(request.args.get("next", ""))
    if len(next_path) > _LONGEST_NEXT:
        next_path = "/"
    if not is_from_our_page():
        # A page of another site would decide that, and as whom, its visitors are logged in here.
        return redirect(url_for("login.page", next=None if next_path == "/" else next_path), 303)
    with portal().oidc_turns(client_address()) as free:
        if not free:
            return too_many_logins(next_path)
        state = LoginState(secrets.token_urlsafe(24), portal().now, next_path)
        try:
            url = provider.login_url(state=state.name, nonce=state.nonce, verifier=state.verifier)
        except ProviderFailed as error:
            return _away(error, next_path)
    text = _cookie_of(state)
    g.oidc_cookies = dict.fromkeys(_too_many_pending(len(text)), "") | {
        _cookie_name(state.name): text
    }
    return redirect(url, 303)


@pages.get("/login/oidc/callback")
def callback() -> AnyResponse | tuple[str, int]:
    """Log in whom the provider sends back."""
    provider, address = _provider(), client_address()
    g.pop("reader", None)  # the log has the addresses of readers' pages, and this one has a code
    with portal().oidc_turns(address) as free:
        if not free:
            return too_many_logins("")
        if wait := portal().limits.wait_seconds(None, address):
            return too_many_failures(wait, "")
        try:
            state = _state_of_browser()
            portal().limits.count_failure(None, address)  # what is written for, or asked
            code = _code_of_answer(provider)
            person = provider.person_id(
                code, nonce=state.nonce, verifier=state.verifier, begun=state.begun
            )
            with portal().open_ledger() as ledger, ledger.transaction() as connection:
                account = account_of_directory_id(connection, person)
        except ProviderFailed as error:
            return _away(error, "")
        except LoginRefused as error:
            portal().log("login refused", sender=address, via="oidc", why=error)
            return login_form(_REFUSED), HTTPStatus.FORBIDDEN
    portal().limits.forget(None, address)
    return open_session(account, "oidc", state.next_path)


def _provider() -> OpenIdProvider:
    return cast("OpenIdProvider", portal().oidc)  # without one the application lacks these pages


def _away(error: ProviderFailed, next_path: str) -> tuple[str, int]:
    portal().log("failed", asked="the OpenID provider for a login", why=error)
    g.retry_after = 60
    return login_form(_AWAY, next_path=next_path), HTTPStatus.SERVICE_UNAVAILABLE


def _cookie_prefix() -> str:
    return f"{cookie_name(portal().section)}-oidc-"


def _cookie_name(state: str) -> str:
    """Return the name of the cookie of a state; what a browser sends as one may be any text."""
    digest = hashlib.sha256(state.encode("utf-8", "replace")).hexdigest()
    return f"{_cookie_prefix()}{digest[:16]}"


def _too_many_pending(length: int) -> list[str]:
    """Return the cookies of logins that make way for one whose cookie has so many bytes."""
    known = [
        (_begun(text), name, len(text))
        for name, text in request.cookies.items()
        if name.startswith(_cookie_prefix())
    ]
    logins, too_many = 1, []
    for begun, name, size in sorted(known, reverse=True):
        logins, length = logins + 1, length + size
        is_over = portal().now >= begun + STATE_SECONDS
        if is_over or logins > _MOST_PENDING or length > _LONGEST_PENDING:
            too_many.append(name)
    return too_many


def _begun(text: str) -> int:
    """Return when the login of a cookie began, in epoch seconds; 0 if the cookie is not ours."""
    text, _, signature = text.rpartition(".")
    if not portal().sessions.is_signed("oidc", text, signature):
        return 0
    return int(text.split(".")[1])


def _cookie_of(state: LoginState) -> str:
    """Return a login's state as a signed cookie."""
    next_path = base64.urlsafe_b64encode(state.next_path.encode()).decode().rstrip("=")
    text = f"{state.name}.{state.begun}.{next_path}"
    return f"{text}.{portal().sessions.sign('oidc', text)}"


def _state_of_browser() -> LoginState:
    """Return the login that this browser began and that this answer is for; it is used up.

    Raises:
        LoginRefused: when there is none, or it was used already, or is too old.
    """
    given = "".join(request.args.getlist("state"))
    cookie = _cookie_name(given)
    text, _, signature = request.cookies.get(cookie, "").rpartition(".")
    if not text or not portal().sessions.is_signed("oidc", text, signature):
        raise LoginRefused("this browser has not begun a login with this state")
    name, begun, next_path = text.split(".")
    state = LoginState(name, int(begun), base64.urlsafe_b64decode(f"{next_path}===").decode())
    if not hmac.compare_digest(given.encode("utf-8", "replace"), name.encode()):
        raise LoginRefused("the answer is for another login than its cookie: state")
    g.oidc_cookies = {cookie: ""}
    end = state.begun + STATE_SECONDS
    if portal().now >= end:
        raise LoginRefused(f"the login began more than {STATE_SECONDS // 60} minutes ago")
    if not portal().sessions.use_once(f"oidc {name}", end):
        raise LoginRefused("the login was ended already: its state is used once")
    return state


def _code_of_answer(provider: OpenIdProvider) -> str:
    """Return the code of the provider's answer.

    Raises:
        LoginRefused: when it is an error, has no code, or is another provider's.
        ProviderFailed: when the provider is not known yet, and does not answer.
    """
    provider.check_answer(request.args.get("iss"))
    if error := request.args.get("error"):
        why = f"{error} {request.args.get('error_description', '')}".strip()
        raise LoginRefused(f"the provider answers: {why}")
    codes = request.args.getlist("code")
    if len(codes) != 1 or not 0 < len(codes[0]) <= _LONGEST_CODE:
        raise LoginRefused("the answer has no code")
    return codes[0]


@pages.after_request
def _keep_states(response: Response) -> Response:
    secure = portal().section.is_secure
    for name, text in g.pop("oidc_cookies", {}).items():
        # Not Strict: the browser comes back from the provider, which is another site. An empty
        # cookie that has ended is deleted.
        response.set_cookie(
            name,
            text,
            max_age=STATE_SECONDS if text else 0,
            secure=secure,
            httponly=True,
            samesite="Lax",
            path="/",
        )
    return response
