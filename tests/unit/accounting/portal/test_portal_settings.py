"""Settings of the portal: those that let people in or send passwords in clear are refused."""

from __future__ import annotations

from typing import Any

import pytest
from slurmkit_accounting.config import LdapSection
from slurmkit_accounting.portal.settings import OidcSection, PortalSection, check_portal_section

from slurmkit.errors import BadConfig

LDAP = LdapSection(uri="ldap://ldap.example", people_base="ou=people")


def section(**given: Any) -> PortalSection:
    usual = {
        "listen": "127.0.0.1:6833", "url": "https://gpu.example.org", "proxies": ("::1",),
        "proxy_secret_file": "/x",
    }  # fmt: skip
    return PortalSection(**(usual | given))


TCP_HEADER = {"login": ("header",), "proxies": ("127.0.0.1",), "proxy_secret_file": "/x"}


@pytest.mark.parametrize(
    "given",
    [
        {}, {"url": "http://127.0.0.1:6833", "proxies": ()}, {"url": "http://localhost:6833"},
        {"listen": "unix:/run/x/portal.sock", "login": ("header",), "proxies": ()}, TCP_HEADER,
        {"listen": "[::1]:6833"}, {"url": "https://GPU.example.org:443"},
        {"listen": "unix:/run/x/portal.sock", "proxy_secret_file": ""},
        {"logout_url": "https://gpu.example.org/oidc?logout"}, {"logout_url": "/oidc?logout"},
    ],
)  # fmt: skip
def test_settings_that_are_safe(given: dict[str, Any]) -> None:
    check_portal_section(section(**given), LDAP)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": ""}, "url is ''"),
        ({"url": "http://gpu.example.org"}, "write the address"),
        ({"url": "https://gpu.example.org/path"}, "write the address"),
        ({"url": "https://[::"}, "write the address"),
        ({"listen": "0.0.0.0:6833", "proxies": ()}, "go in clear"),
        ({"listen": "10.0.0.5:6833", "proxies": ()}, "go in clear"),
        ({"listen": "10.0.0.5:6833", "proxies": ("10.0.0.7",)}, "go in clear"),
        ({"listen": "0.0.0.0:6833", "proxies": ("0.0.0.0/0",)}, "go in clear"),
        ({"listen": "[::]:6833", "proxies": ("::/0",)}, "go in clear"),
        ({"listen": ":6833"}, "go in clear"),
        (TCP_HEADER | {"listen": "10.0.0.5:6833"}, "go in clear"),
        ({"url": "https://user:pass@gpu.example.org"}, "write the address"),
        ({"url": "https://gpu.example.org#x"}, "write the address"),
        ({"proxy_secret_file": ""}, "pretend to be the proxy"),
        ({"logout_url": "javascript:alert(1)"}, "logout_url is"),
        ({"proxies": ()}, "count as one for failed logins"),
        ({"proxies": ("proxy.example.org",)}, "write addresses or networks"),
        ({"login": ()}, "login is empty"),
        (TCP_HEADER | {"header": "Host"}, "header cannot be"),
        (TCP_HEADER | {"header": "X_Remote"}, "header cannot be"),
        (TCP_HEADER | {"proxy_secret_file": ""}, "believes whoever reaches the port"),
        (TCP_HEADER | {"proxies": ()}, "believes whoever reaches the port"),
        ({"login": ("oidc",), "proxies": ()}, "count as one for failed logins"),
    ],
)
def test_settings_that_would_let_people_in(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        check_portal_section(section(**given), LDAP, oidc())


def oidc(**given: Any) -> OidcSection:
    usual = {
        "issuer": "https://idp.example.org/realms/site",
        "client_id": "portal",
        "client_secret_file": "/x",
    }
    return OidcSection(**(usual | given))


@pytest.mark.parametrize(
    "given",
    [
        {}, {"issuer": "https://idp.example.org/"}, {"claim": "sub"},
        {"claim": "ldap_id"}, {"scopes": ("profile",)},
    ],
)  # fmt: skip
def test_an_openid_provider_that_is_safe(given: dict[str, Any]) -> None:
    check_portal_section(section(login=("oidc",)), LdapSection(), oidc(**given))


def test_a_provider_on_this_host_without_tls_is_for_pages_without_tls() -> None:
    here = oidc(issuer="http://127.0.0.1:8080/realms/x")
    trial = section(login=("oidc",), url="http://127.0.0.1:6833", proxies=())
    check_portal_section(trial, LdapSection(), here)
    with pytest.raises(BadConfig, match="write the issuer"):
        check_portal_section(section(login=("oidc",)), LdapSection(), here)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"issuer": ""}, "issuer is ''"),
        ({"issuer": "http://idp.example.org"}, "write the issuer"),
        ({"issuer": "https://user@idp.example.org"}, "write the issuer"),
        ({"issuer": "https://idp.example.org?x=1"}, "write the issuer"),
        ({"issuer": "https://idp.example.org#x"}, "write the issuer"),
        ({"issuer": "https://[::"}, "write the issuer"),
        ({"issuer": "idp.example.org"}, "write the issuer"),
        ({"issuer": "https://idp.example.org/a b"}, "write the issuer"),
        ({"client_id": ""}, "needs client_id and client_secret_file"),
        ({"client_secret_file": ""}, "needs client_id and client_secret_file"),
        ({"claim": "email"}, "claim cannot be 'email'"),
        ({"claim": "preferred_username"}, "somebody else's later"),
        ({"claim": "name"}, "claim cannot be 'name'"),
        ({"claim": "UPN"}, "claim cannot be 'UPN'"),
        ({"claim": "mail"}, "claim cannot be 'mail'"),
        ({"claim": ""}, "claim cannot be ''"),
    ],
)
def test_an_openid_provider_that_would_let_people_in(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        check_portal_section(section(login=("oidc",)), LDAP, oidc(**given))
    check_portal_section(section(), LDAP, oidc(**given))  # it is no way to log in


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://GPU.Example.org", "gpu.example.org"),
        ("https://gpu.example.org:443/", "gpu.example.org"),
        ("https://gpu.example.org:8443", "gpu.example.org:8443"),
        ("http://127.0.0.1:80", "127.0.0.1"),
        ("http://[::1]:6833", "[::1]:6833"),
    ],
)
def test_an_address_is_compared_as_browsers_send_it(url: str, host: str) -> None:
    made = section(url=url)
    assert made.host == host
    assert made.origin == f"{url.partition(':')[0]}://{host}"


@pytest.mark.parametrize(
    "ldap",
    [
        LdapSection(),
        LdapSection(uri="ldap://x", people_base="ou=p", starttls=False),
        LdapSection(uri="ldaps://x ldap://y", people_base="ou=p", starttls=False),
    ],
)
def test_passwords_do_not_go_in_clear(ldap: LdapSection) -> None:
    with pytest.raises(BadConfig, match=r"in clear|needs uri"):
        check_portal_section(section(), ldap)
    check_portal_section(
        section(), LdapSection(uri="ldaps://x", people_base="ou=p", starttls=False)
    )
