"""The web application: who may send a request, who it is, and what every answer carries."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from contextlib import ExitStack
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from flask import Flask, Response, abort, g, redirect, render_template, request, url_for
from jinja2 import ChoiceLoader, PackageLoader, StrictUndefined
from markupsafe import Markup
from msgspec.structs import replace
from werkzeug.exceptions import HTTPException, SecurityError
from werkzeug.wrappers import Response as AnyResponse

from slurmkit.errors import BadConfig, BadInput, ServiceError
from slurmkit.formats.display import printable
from slurmkit_accounting.ledger.database import reading_once
from slurmkit_accounting.portal import (
    account_pages,
    allocation_pages,
    home,
    idle_pages,
    login,
    report_pages,
    run_pages,
    statement_pages,
)
from slurmkit_accounting.portal.context import RETRY_SECONDS, PageTurns, Portal, Reader, portal
from slurmkit_accounting.portal.identity import (
    Account,
    LoginRefused,
    account_of_name,
    is_still,
)
from slurmkit_accounting.portal.sessions import Session
from slurmkit_accounting.render.format import format_utc
from slurmkit_accounting.render.html import column_heading
from slurmkit_accounting.service.log import error_facts, request_id
from slurmkit_accounting.service.permissions import AccountExpired, person_of_uid
from slurmkit_accounting.service.wsgi import with_request_id

SECRET_HEADER = "X-Slurmkit-Proxy-Secret"  # noqa: S105 - a name
_HSTS_SECONDS = 365 * 86400
_MOST_BODY, _MOST_QUERY, _MOST_PATH = 16 * 1024, 8 * 1024, 1024
_PUBLIC = frozenset(("login.page", "login.send", "oidc.start", "oidc.callback", "style"))
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self';"
        " base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: with it browsers send forms with `Origin: null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


def portal_application(parts: Portal) -> Flask:
    """Make the WSGI application of the pages."""
    app = Flask("slurmkit_accounting.portal", static_folder=None, template_folder=None)
    app.extensions["portal"] = parts
    app.config.update(
        MAX_CONTENT_LENGTH=_MOST_BODY,
        MAX_FORM_MEMORY_SIZE=_MOST_BODY,
        MAX_FORM_PARTS=50,
        TRUSTED_HOSTS=_own_hosts(parts),
        PROPAGATE_EXCEPTIONS=False,
    )
    # A redirect to the merged path would begin with http: TLS ends at the proxy.
    app.url_map.merge_slashes = False
    _set_up_templates(app)
    for pages in (
        login.pages,
        home.pages,
        report_pages.pages,
        run_pages.pages,
        account_pages.pages,
        allocation_pages.pages,
        statement_pages.pages,
        idle_pages.pages,
    ):
        app.register_blueprint(pages)
    if parts.oidc is not None:
        from slurmkit_accounting.portal import (  # noqa: PLC0415 - only these pages need Authlib
            oidc_login,
        )

        app.register_blueprint(oidc_login.pages)
    app.add_url_rule("/style.css", "style", _style)
    turns = PageTurns()
    app.before_request(lambda: _admit(turns))
    app.after_request(_finish)
    app.teardown_request(_close)
    app.register_error_handler(Exception, _on_error)
    app.wsgi_app = with_request_id(app.wsgi_app, parts.log)  # type: ignore[assignment, method-assign]
    return app


def _own_hosts(parts: Portal) -> list[str]:
    """Return the host names that a request may be for; others are a page that lies about ours."""
    hosts = [parts.section.host]
    if not parts.section.on_socket:
        hosts.append(parts.section.listen)
    return hosts


def _set_up_templates(app: Flask) -> None:
    app.jinja_loader = ChoiceLoader(
        [
            PackageLoader("slurmkit_accounting.portal", "templates"),
            PackageLoader("slurmkit_accounting.render", "templates"),
        ]
    )
    app.jinja_options = {
        "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True,
        "finalize": _finalize, "autoescape": True,
    }  # fmt: skip
    app.jinja_env.filters |= {"printable": printable, "heading": column_heading, "utc": format_utc}
    app.context_processor(_common_values)


def _finalize(value: Any) -> Any:
    """Make every text of a page printable: names come from users."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


def _common_values() -> dict[str, Any]:
    """Return what the frame of every page shows."""
    who: Reader | None = g.get("reader")
    token = who.session.token if who else ""
    return {
        "who": who,
        "form_token": portal().sessions.sign("form", token) if who else "",
        "ways": portal().section.login,
        "path": request.full_path.rstrip("?"),
        "version": _style_version(),
    }


def _admit(turns: PageTurns) -> AnyResponse | None:
    """Find out who sends a request; answer here if they must not go on."""
    g.stack = ExitStack()
    if isinstance(request.routing_exception, SecurityError):  # for another host than ours
        portal().log("refused", sender=request.remote_addr, why="it is for another host")
        return Response("This service has another address.\n", 400, mimetype="text/plain")
    if len(request.query_string) > _MOST_QUERY or len(request.path) > _MOST_PATH:
        abort(HTTPStatus.REQUEST_URI_TOO_LONG)
    if b"%00" in request.query_string:  # PostgreSQL takes no NUL
        abort(HTTPStatus.BAD_REQUEST)
    _refuse_strangers()
    if request.endpoint == "style":
        return None
    session = _session()
    if session is None:
        return None if request.endpoint in _PUBLIC else _to_login()
    if not g.stack.enter_context(turns(session.account.uid)):
        g.retry_after = RETRY_SECONDS
        abort(HTTPStatus.SERVICE_UNAVAILABLE)
    g.ledger = g.stack.enter_context(portal().open_ledger())
    if request.method in {"GET", "HEAD"}:  # a form may change what was read
        g.stack.enter_context(reading_once(g.ledger))
    g.reader = _reader(session)
    if g.reader is None:
        del g.reader
        g.new_cookie = ""
        return None if request.endpoint in _PUBLIC else _to_login()
    if request.method == "POST" and request.endpoint != "login.send":
        check_form_token(session.token, "form")
    return None


def _refuse_strangers() -> None:
    """Refuse requests that do not come through the site's proxy, if it has one."""
    section = portal().section
    if section.proxies and not section.on_socket:
        try:
            peer = ipaddress.ip_address(request.environ.get("REMOTE_ADDR", ""))
        except ValueError:
            abort(HTTPStatus.FORBIDDEN)
        if not any(peer in network for network in section.networks):
            portal().log("refused", sender=peer, why="it is not one of [ledger.portal] proxies")
            abort(HTTPStatus.FORBIDDEN)
    if portal().proxy_secret:
        given = request.headers.get(SECRET_HEADER, "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, portal().proxy_secret.encode()):
            portal().log("refused", sender=request.remote_addr, why=f"{SECRET_HEADER} is wrong")
            abort(HTTPStatus.FORBIDDEN)


def _session() -> Session | None:
    """Return the session of a request; one by the proxy's header begins here."""
    token = request.cookies.get(login.cookie_name(portal().section), "")
    session = portal().sessions.find(token) if token else None
    if session is not None and session.via not in portal().section.login:
        session = None
    name = login.header_name() if "header" in portal().section.login else ""
    if session is not None and session.via == "header" and not _same(session.account.user, name):
        portal().sessions.close(token)  # somebody else is logged in at the proxy now, or nobody
        session = None
    if session is not None or not name or _is_logged_out():
        return session
    return _session_by_header(name, token)


def _session_by_header(name: str, token: str) -> Session:
    """Return the session of whom the proxy names.

    It is stored once the client sends its cookie: some clients never do, and ask a lot.
    """
    try:
        with portal().open_ledger() as ledger, ledger.transaction() as connection:
            account = account_of_name(connection, name)
    except LoginRefused as error:
        portal().log("login refused", sender=login.client_address(), via="header", why=error)
        abort(HTTPStatus.FORBIDDEN, "The proxy has named somebody whom the ledger does not know.")
    session = portal().sessions.accept(token, account, "header")
    if session is None:
        session = portal().sessions.offer(account, "header")
        g.new_cookie = session.token
        return session
    portal().log(
        "login", user=account.user, uid=account.uid, via="header", sender=login.client_address()
    )
    return session


def _is_logged_out() -> bool:
    """Return whether this is the page that follows a log out: the proxy still sends its header."""
    return request.endpoint == "login.page" and "out" in request.args


def _same(user: str, name: str) -> bool:
    return user.lower() == name.lower()


def _reader(session: Session) -> Reader | None:
    """Look up what somebody may see now; None, and an ended session, if they are not there now.

    Then the uid was passed on, or the person has left the directory or has an expired account.
    """
    with g.ledger.transaction() as connection:
        if not is_still(connection, session.account):
            portal().sessions.close(session.token)
            return None
        own = portal().permissions.of(connection, session.account.uid, portal().now)
        is_operator = own.scope.is_everything
        as_uid = session.as_uid
        if as_uid is None:
            return Reader(session, session.account, own, is_operator)
        try:
            person = person_of_uid(connection, as_uid)
            seen = portal().permissions.of(connection, as_uid, portal().now)
        except AccountExpired:
            person, seen = None, None
        if not is_operator or seen is None:
            portal().sessions.see_as(session.token, None, "")
            session = replace(session, as_uid=None, as_user="")
            return Reader(session, session.account, own, is_operator)
        account = Account(as_uid, session.as_user, person)
    return Reader(session, account, seen, is_operator)


def check_form_token(bound_to: str, purpose: str) -> None:
    """Refuse a form that one of our pages did not make for this session."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    ours = origin is None or origin == portal().section.origin
    given = request.form.get("token", "")
    signed = portal().sessions.is_signed(purpose, bound_to, given)
    if not (ours and site == "same-origin" and bound_to and signed):
        if "reader" not in g:  # else the line of the page says so
            portal().log("refused", sender=login.client_address(), why="a form of another page")
        abort(HTTPStatus.FORBIDDEN, "This form is too old. Load the page again, then send it.")


def _to_login() -> AnyResponse:
    if request.method not in {"GET", "HEAD"}:
        abort(HTTPStatus.UNAUTHORIZED, "You are not logged in any more.")
    wanted = request.full_path.rstrip("?")
    return redirect(url_for("login.page", next=None if wanted == "/" else wanted), 303)


def _finish(response: Response) -> Response:
    """Add what every answer carries, and write the line of the log."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    if portal().section.is_secure:
        response.headers.setdefault("Strict-Transport-Security", f"max-age={_HSTS_SECONDS}")
    if "retry_after" in g:
        response.headers["Retry-After"] = str(g.retry_after)
    token = g.get("new_cookie")
    if token is not None:
        login.set_cookie(response, portal().section, token)
    who: Reader | None = g.get("reader")
    if who is not None:
        account = who.session.account
        portal().log(
            "refused" if response.status_code in _DENIED else "page",
            sender=login.client_address(), user=account.user, uid=account.uid,
            seen_as=who.seen_as or None, method=request.method, path=_logged_path(),
            status=response.status_code, why=g.get("why"),
        )  # fmt: skip
    return response


def _logged_path() -> str:
    """Return the path with its query; without it where that can hold a code or a password."""
    is_login = request.path.startswith("/login")
    return request.path if is_login else request.full_path.rstrip("?")


def _close(_: BaseException | None) -> None:
    stack: ExitStack | None = g.pop("stack", None)
    if stack is not None:
        stack.close()


def _on_error(error: Exception) -> tuple[str, int] | AnyResponse:
    """Show what is wrong with a request; what is wrong with the service is in its log only."""
    if isinstance(error, HTTPException):
        if error.code is None or error.code < 400:
            return error.get_response()
        status = HTTPStatus(error.code)
        words = _WORDS.get(status, "The service cannot answer this.")
        if error.description and type(error).description != error.description:
            words = error.description
    elif isinstance(error, BadInput) and not isinstance(error, BadConfig):
        status, words = HTTPStatus.BAD_REQUEST, _sentence(str(error))
    elif isinstance(error, ServiceError):
        status, words = HTTPStatus.SERVICE_UNAVAILABLE, _sentence(str(error))
    else:
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        words = (
            "The service failed. The reason is in its log, which your administrator can read:"
            f" request={request_id()}"
        )
        portal().log("failed", path=request.path, **error_facts(error))
    if status in _DENIED:
        g.why = words
    return render_template("error.html", title=status.phrase, words=words), status.value


_DENIED = frozenset((HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN))
_WORDS = {
    HTTPStatus.NOT_FOUND: "There is no such page.",
    HTTPStatus.FORBIDDEN: "You may not do this.",
    HTTPStatus.METHOD_NOT_ALLOWED: "This page does not take that.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The form is too large.",
    HTTPStatus.REQUEST_URI_TOO_LONG: "The address is too long.",
    HTTPStatus.SERVICE_UNAVAILABLE: (
        "Too many pages at a time. Wait a moment, then load the page again."
    ),
    HTTPStatus.BAD_REQUEST: "The request is not valid.",
}


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


@cache
def _style_text() -> str:
    """Return the style sheet: that of reports, and that of the pages."""
    report = files("slurmkit_accounting.render").joinpath("templates/report.css").read_text("utf-8")
    own = files("slurmkit_accounting.portal").joinpath("static/portal.css").read_text("utf-8")
    return f"{report}\n{own}"


@cache
def _style_version() -> str:
    """Return what changes with the style sheet, so that no browser keeps an old one."""
    return hashlib.sha256(_style_text().encode()).hexdigest()[:16]


def _style() -> Response:
    response = Response(_style_text(), mimetype="text/css")
    response.headers["Cache-Control"] = "public, max-age=3600"
    return response
