"""The pages as an application to be served, with what `[ledger.portal]` says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slurmkit.config.extras import missing_extra
from slurmkit.config.files import load_section, read_secret_file
from slurmkit.config.paths import state_folder
from slurmkit.errors import BadConfig
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import LdapSection, read_bind_password
from slurmkit_accounting.people.ldap import LoginCheck, check_login, servers_of
from slurmkit_accounting.portal.login_limits import LoginLimits
from slurmkit_accounting.portal.sessions import SessionStore
from slurmkit_accounting.portal.settings import OidcSection, PortalSection, check_portal_section
from slurmkit_accounting.portal.view_log import ViewLog
from slurmkit_accounting.service.listening import Door
from slurmkit_accounting.service.server import ServiceParts

if TYPE_CHECKING:
    from slurmkit_accounting.portal.openid_provider import OpenIdProvider

# 8 pages at a time, 1 that waits for its turn, 3 logins of each way that asks somebody; 2 for what
# is answered at once.
THREADS = 17
_SHORTEST_SECRET = 16


@contextmanager
def portal_door(parts: ServiceParts) -> Iterator[Door]:
    """Open the pages until the end of the `with` block.

    Raises:
        BadConfig: when the section would let people in without a login, or lacks something.
        MissingExtra: without Flask.
        ServiceError: when the service's state cannot be stored.
    """
    section = load_section("ledger.portal", PortalSection)
    ldap = load_section("ldap", LdapSection)
    oidc = load_section("ledger.portal.oidc", OidcSection)
    check_portal_section(section, ldap, oidc)
    if "ldap" in section.login:  # what each login needs, so that it fails now
        servers_of(ldap)
        read_bind_password(ldap)
    try:
        from slurmkit_accounting.portal import app, context  # noqa: PLC0415 - Flask is an extra
    except ModuleNotFoundError as error:
        raise missing_extra("flask", "accounting", "[ledger.portal]") from error
    sessions = SessionStore(
        state_folder("portal"),
        idle_seconds=section.idle_minutes * 60,
        session_seconds=section.session_hours * 3600,
    )
    views = ViewLog(parts.open_to_change, parts.log, section.view_days)
    pages = context.Portal(
        section=section,
        open_ledger=parts.open_ledger,
        open_to_change=parts.open_to_change,
        permissions=parts.permissions,
        sessions=sessions,
        limits=LoginLimits(),
        views=views,
        check_password=check_password,
        proxy_secret=_proxy_secret(section),
        zone=find_zone(section.timezone) if section.timezone else parts.zone,
        log=parts.log,
        oidc=_open_id_provider(section, oidc),
    )
    views.start()
    try:
        yield Door(app.portal_application(pages), THREADS)
    finally:
        views.stop()


def check_password(name: str, password: str) -> LoginCheck:
    """Ask the directory that `[ldap]` names now."""
    section = load_section("ldap", LdapSection)
    return check_login(section, read_bind_password(section), name, password)


def _open_id_provider(section: PortalSection, oidc: OidcSection) -> OpenIdProvider | None:
    """Return the provider to log in at; None where that is no way to log in."""
    if "oidc" not in section.login:
        return None
    try:
        from slurmkit_accounting.portal.openid_provider import OpenIdProvider  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing_extra("authlib", "accounting", '[ledger.portal] login "oidc"') from error
    secret = read_secret_file(
        "[ledger.portal.oidc] client_secret_file", oidc.client_secret_file
    ).strip()
    return OpenIdProvider(oidc, secret, section.origin)


def _proxy_secret(section: PortalSection) -> str:
    secret = read_secret_file("[ledger.portal] proxy_secret_file", section.proxy_secret_file)
    if section.proxy_secret_file and len(secret) < _SHORTEST_SECRET:
        raise BadConfig(
            f"[ledger.portal] proxy_secret_file holds fewer than {_SHORTEST_SECRET} characters;"
            " make another: openssl rand -hex 32"
        )
    return secret
