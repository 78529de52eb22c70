"""`[ledger.portal]`: where the pages are served, and who may log in how."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from slurmkit.errors import BadConfig
from slurmkit_accounting.config import LdapSection, ServerTimeout
from slurmkit_accounting.remote.https import is_https_or_loopback, is_loopback
from slurmkit_accounting.remote.protocol import UNIX

LoginWay: TypeAlias = Literal["ldap", "header", "oidc"]
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
SessionHours = Annotated[int, msgspec.Meta(ge=1, le=168)]
IdleMinutes = Annotated[int, msgspec.Meta(ge=1, le=1440)]
ViewDays = Annotated[int, msgspec.Meta(ge=1, le=36500)]
_USUAL_PORTS = {"http": 80, "https": 443}
_HEADER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
# What browsers and proxies send themselves says nothing about who somebody is.
_OTHER_MEANING = frozenset(
    (
        "accept", "authorization", "connection", "content-length", "content-type", "cookie",
        "host", "origin", "referer", "user-agent", "x-forwarded-for", "x-slurmkit-proxy-secret",
    )
)  # fmt: skip
# Claims that people can choose, or that somebody else gets after them, and those of the protocol;
# in small letters.
_CHANGING_CLAIMS = frozenset(
    (
        "acr", "address", "amr", "at_hash", "aud", "auth_time", "azp", "cn", "displayname",
        "eduperson_principal_name", "email", "email_verified", "exp", "family_name", "given_name",
        "iat", "iss", "jti", "login", "mail", "middle_name", "name", "nbf", "nickname", "nonce",
        "phone_number", "picture", "preferred_username", "profile", "samaccountname", "sid", "uid",
        "unique_name", "upn", "user_name", "username", "website",
    )
)  # fmt: skip


class PortalSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[ledger.portal]`: web pages for PIs and their people, served by `slurmkit ledger serve`.

    Attributes:
        listen: `HOST:PORT`, or `unix:/PATH` of a socket; empty for no pages.
        url: address of the pages as people type it: `https://HOST`. `http` only for this host.
        login: ways to log in: `ldap` (a form, checked by the `[ldap]` server), `header` (the
            site's proxy says who it is), `oidc` (the OpenID provider of `[ledger.portal.oidc]`).
        header: name of the header with the user name; only of a proxy.
        proxies: addresses or networks of the site's proxies. With any, nobody else is answered.
        proxy_secret_file: file with a secret that the proxy sends as `X-Slurmkit-Proxy-Secret`,
            not readable by others. With it, nobody is answered without the secret. A proxy needs
            it, unless `listen` is a socket.
        logout_url: where people log out of the site's own login; linked on the page that says that
            they are logged out. Empty for none.
        session_hours: a login ends after so many hours.
        idle_minutes: a login ends after so many minutes without a page.
        view_days: days for which the log of who looked at whose runs is stored.
        timezone: time zone of the pages; empty for the one of `[ledger.schedule]`.
    """

    listen: str = ""
    url: str = ""
    login: tuple[LoginWay, ...] = ("ldap",)
    header: str = "X-Remote-User"
    proxies: tuple[str, ...] = ()
    proxy_secret_file: str = ""
    logout_url: str = ""
    session_hours: SessionHours = 12
    idle_minutes: IdleMinutes = 60
    view_days: ViewDays = 400
    timezone: str = ""

    @property
    def on_socket(self) -> bool:
        """Whether the pages are served on a Unix socket, which only the proxy can open."""
        return self.listen.startswith(UNIX)

    @property
    def networks(self) -> tuple[Network, ...]:
        """The proxies' networks."""
        return tuple(ipaddress.ip_network(text, strict=False) for text in self.proxies)

    @property
    def is_secure(self) -> bool:
        """Whether people reach the pages with TLS."""
        return urlsplit(self.url).scheme == "https"

    @property
    def host(self) -> str:
        """The host of `url` as browsers send it: in lower case, without the usual port."""
        url = urlsplit(self.url)
        name = url.hostname or ""
        bracketed = f"[{name}]" if ":" in name else name
        usual = _USUAL_PORTS.get(url.scheme)
        return bracketed if url.port in {None, usual} else f"{bracketed}:{url.port}"

    @property
    def origin(self) -> str:
        """The origin of `url` as browsers send it."""
        return f"{urlsplit(self.url).scheme}://{self.host}"


class OidcSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[ledger.portal.oidc]`: the OpenID provider of `login = ["oidc"]`.

    Attributes:
        issuer: the provider's issuer, exactly as its discovery document writes it: `https://…`.
            `http` only for this host, and only where `url` is `http`, too.
        client_id: the name of the pages at the provider.
        client_secret_file: file with their secret there, not readable by others.
        ca_file: PEM file of the CA that signed the provider's certificate; empty for the system's.
        claim: the claim of the ID token that holds a person's immutable id, as `[ldap]
            id_attribute` gives it to the ledger. Never a name or a mail address.
        scopes: what is asked for in addition to `openid`, for providers that need it to send the
            claim.
        timeout: seconds to wait for a connection, and for a whole answer.
    """

    issuer: str = ""
    client_id: str = ""
    client_secret_file: str = ""
    ca_file: str = ""
    claim: str = "sub"
    scopes: tuple[str, ...] = ()
    timeout: ServerTimeout = 10


def check_portal_section(
    section: PortalSection, ldap: LdapSection, oidc: OidcSection | None = None
) -> None:
    """Check that nobody can get in past the login, and that no password goes in clear.

    Args:
        section: `[ledger.portal]`.
        ldap: `[ldap]`, for the login `ldap`.
        oidc: `[ledger.portal.oidc]`, for the login `oidc`.

    Raises:
        BadConfig: naming the key, and what to write.
    """
    _check_url(section)
    if section.logout_url and not section.logout_url.startswith(("https://", "/")):
        raise BadConfig(
            f"[ledger.portal] logout_url is {section.logout_url!r}; write https://… or a path of"
            " this host"
        )
    if not (section.on_socket or is_loopback(_host(section.listen))):
        raise BadConfig(
            "[ledger.portal] listen is reached from other hosts, and the pages speak no TLS"
            " themselves: passwords would go in clear; listen on 127.0.0.1 or a socket, behind a"
            " proxy on this host that speaks TLS (docs/portal.md has nginx and Apache)"
        )
    try:
        behind_proxy = bool(section.networks)
    except ValueError as error:
        raise BadConfig(f"[ledger.portal] proxies: {error}; write addresses or networks") from error
    if not section.login:
        raise BadConfig(
            '[ledger.portal] login is empty; write ["ldap"], ["header"], ["oidc"] or several'
        )
    if "header" in section.login:
        _check_header(section)
    if "ldap" in section.login:
        _check_ldap(ldap)
    if "oidc" in section.login:
        _check_oidc(section, oidc or OidcSection())
    limited = {"ldap", "oidc"} & set(section.login)
    if limited and section.is_secure and not (section.on_socket or behind_proxy):
        raise BadConfig(
            "[ledger.portal] url is https, so a proxy stands before the pages; name its address"
            ' in proxies, as ["127.0.0.1"]: else all people count as one for failed logins'
        )
    if behind_proxy and not (section.on_socket or section.proxy_secret_file):
        raise BadConfig(
            "[ledger.portal] proxies: everybody on this host can reach the port and pretend to be"
            " the proxy; set proxy_secret_file, or listen on a socket that only the proxy can open"
        )


def _check_url(section: PortalSection) -> None:
    try:
        url = urlsplit(section.url)
        host, _ = url.hostname or "", url.port
    except ValueError:
        url, host = urlsplit(""), ""
    plain = url.scheme == "http" and is_loopback(host)
    more = url.path.strip("/") or url.query or url.fragment or "@" in url.netloc
    if not host or not (plain or url.scheme == "https") or more:
        raise BadConfig(
            f"[ledger.portal] url is {section.url!r}; write the address that people type, as"
            " https://HOST, or http://127.0.0.1:PORT for this host only"
        )


def _check_header(section: PortalSection) -> None:
    name = section.header
    if not _HEADER_NAME.fullmatch(name) or name.lower() in _OTHER_MEANING:
        raise BadConfig(
            f"[ledger.portal] header cannot be {name!r}; name a header that only the proxy sets,"
            " for example X-Remote-User"
        )
    if not section.on_socket and not (section.proxies and section.proxy_secret_file):
        raise BadConfig(
            '[ledger.portal] login "header" believes whoever reaches the port; set proxies and'
            " proxy_secret_file, or listen on a socket that only the proxy can open"
        )


def _check_ldap(ldap: LdapSection) -> None:
    urls = ldap.uri.split()
    if not urls or not ldap.people_base:
        raise BadConfig('[ledger.portal] login "ldap" needs uri and people_base of [ldap]')
    if not ldap.starttls and not all(url.startswith("ldaps://") for url in urls):
        raise BadConfig(
            '[ledger.portal] login "ldap" would send passwords in clear; set [ldap] starttls = true'
            " or an ldaps:// uri"
        )


def _check_oidc(section: PortalSection, oidc: OidcSection) -> None:
    # While a provider on this host is down, any user of the host can take its port.
    trial = not section.is_secure and is_https_or_loopback(oidc.issuer)
    usual = oidc.issuer.startswith("https://") and is_https_or_loopback(oidc.issuer)
    if not (usual or trial) or "?" in oidc.issuer:
        raise BadConfig(
            f"[ledger.portal.oidc] issuer is {oidc.issuer!r}; write the issuer of the provider's"
            " discovery document, as https://HOST or https://HOST/PATH"
        )
    if not (oidc.client_id and oidc.client_secret_file):
        raise BadConfig(
            '[ledger.portal] login "oidc" needs client_id and client_secret_file of'
            " [ledger.portal.oidc]; the provider gives them when the pages are registered there"
        )
    if not oidc.claim or oidc.claim.lower() in _CHANGING_CLAIMS:
        raise BadConfig(
            f"[ledger.portal.oidc] claim cannot be {oidc.claim!r}: it can change, or be somebody"
            " else's later; name a claim that holds the id of [ldap] id_attribute"
        )


def _host(listen: str) -> str:
    return listen.rpartition(":")[0].strip("[]")
