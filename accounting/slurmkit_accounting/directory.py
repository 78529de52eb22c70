"""Read people and groups from LDAP: all of them, or an error. The only user of ldap3."""

from __future__ import annotations

import re
import ssl
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias
from urllib.parse import SplitResult, urlsplit

from slurmkit.errors import BadConfig, DirectoryError
from slurmkit_accounting.config import LdapSection
from slurmkit_accounting.directory_entries import Named, attributes, directory
from slurmkit_accounting.directory_words import said_plainly
from slurmkit_accounting.people import Directory

with warnings.catch_warnings():  # ldap3 2.9.1 uses old names of pyasn1
    warnings.simplefilter("ignore", DeprecationWarning)
    import ldap3
    from ldap3.core.exceptions import (
        LDAPCertificateError,
        LDAPCommunicationError,
        LDAPException,
        LDAPResponseTimeoutError,
        LDAPStartTLSError,
    )
    from ldap3.core.results import RESULT_SUCCESS

_TRIES = 3  # when a connection is cut half-way
_PAUSE_SECONDS = 0.5
_RANGE = re.compile(r"(.+);range=\d+-(\d+|\*)\Z", re.IGNORECASE)
_LOST = (
    LDAPCertificateError,
    LDAPCommunicationError,
    LDAPResponseTimeoutError,
    LDAPStartTLSError,
    OSError,
)
_Values: TypeAlias = list[bytes]
_SEARCH_ENTRY = 4  # RFC 4511 section 4.5.2
_PAGING = "1.2.840.113556.1.4.319"


class _NoAnswer(DirectoryError):
    """A server that cannot be reached, or not with TLS: another one may do."""


class _Cut(DirectoryError):
    """A connection that ended while it was read."""


def read_directory(section: LdapSection, password: str) -> Directory:
    """Read everybody under `people_base` and every group under `groups_base`.

    Of several servers the first that answers is read; when it breaks off, all is read again.

    Args:
        section: `[ldap]`.
        password: of `bind_dn`; not used without one.

    Raises:
        BadConfig: when the section cannot be meant.
        DirectoryError: when no server can be reached, verified and read in full.
    """
    urls = _checked(section)
    for tries_left in reversed(range(_TRIES)):
        try:
            people, groups = _read_any(section, urls, password)
            break
        except _Cut:
            if not tries_left:
                raise
            time.sleep(_PAUSE_SECONDS)
    for found, base, kind in (
        (people, section.people_base, "people"),
        (groups, section.groups_base, "groups"),
    ):
        if not found:
            raise DirectoryError(
                f"{section.uri} shows no {kind} under {base} to {section.bind_dn or 'anonymous'};"
                f" check [ldap] {kind}_base, {kind}_filter and what bind_dn may read"
            )
    return directory(section, people, groups, int(time.time()))


def _read_any(
    section: LdapSection, urls: Sequence[SplitResult], password: str
) -> tuple[list[Named], list[Named]]:
    silent: list[_NoAnswer] = []
    for url in urls:
        try:
            with _connected(section, url, password) as connection, _translated(url, _Cut):
                people = (section.people_base, section.people_filter)
                groups = (section.groups_base, section.groups_filter)
                return (
                    list(_entries(connection, section, *people)),
                    list(_entries(connection, section, *groups)),
                )
        except _NoAnswer as error:
            silent.append(error)
    raise DirectoryError("; ".join(map(str, silent))) from silent[-1]


def _checked(section: LdapSection) -> list[SplitResult]:
    urls = [_url(text) for text in section.uri.split()]
    found = [url for url in urls if url and url.scheme in {"ldap", "ldaps"} and url.hostname]
    if not found or len(found) < len(urls):
        raise BadConfig(
            f"[ldap] uri {section.uri!r} is not of the form ldap://HOST[:PORT] or ldaps://HOST,"
            " or several of these separated by blanks"
        )
    for key in ("people_base", "groups_base"):
        if not getattr(section, key):
            raise BadConfig(f"[ldap] {key} is not set; name the subtree, e.g. ou=people,dc=…")
    return found


def _url(text: str) -> SplitResult | None:
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:  # half an IPv6 address; a port that is no number, or too big
        return None
    return None if port == 0 else url


@contextmanager
def _connected(section: LdapSection, url: SplitResult, password: str) -> Iterator[Any]:
    with _translated(url, _NoAnswer):
        connection = _connection(section, url, password)
    try:
        with _translated(url, _NoAnswer):
            connection.open(read_server_info=False)
            encrypted = url.scheme == "ldaps" or not section.starttls
            if not (encrypted or connection.start_tls(read_server_info=False)):
                raise DirectoryError(f"{url.geturl()} did not begin TLS; nothing was changed")
            connection.bind(read_server_info=False)
        yield connection
    finally:
        _hang_up(connection)


def _connection(section: LdapSection, url: SplitResult, password: str) -> Any:
    server = ldap3.Server(
        url.hostname or "",
        port=url.port or (636 if url.scheme == "ldaps" else 389),
        use_ssl=url.scheme == "ldaps",
        tls=ldap3.Tls(validate=ssl.CERT_REQUIRED, ca_certs_file=section.ca_file or None),
        get_info=ldap3.NONE,
        connect_timeout=section.timeout,
    )
    connection = ldap3.Connection(
        server,
        section.bind_dn or None,
        password if section.bind_dn else None,
        auto_referrals=False,
        receive_timeout=section.timeout,
        raise_exceptions=True,
        auto_range=False,  # `_whole` sees to it
        return_empty_attributes=False,
        read_only=True,
    )
    _spare(connection.strategy)
    return connection


def _spare(strategy: Any) -> None:
    """Have ldap3 make entries of raw attributes only: made of text too, they take twice as long."""
    decode = strategy.decode_response_fast

    def decode_raw(message: Mapping[str, Any]) -> Any:
        if message["protocolOp"] != _SEARCH_ENTRY or message["controls"]:
            return decode(message)
        (*_, dn), (*_, listed) = message["payload"]
        pairs = [(name, values) for *_, ((*_, name), (*_, values)) in listed]
        return {
            "type": "searchResEntry",
            "dn": dn.decode("utf-8", "replace"),
            "raw_attributes": {
                name.decode("utf-8", "replace"): [value for *_, value in values]
                for name, values in pairs
            },
        }

    strategy.decode_response_fast = decode_raw


def _hang_up(connection: Any) -> None:
    with suppress(LDAPException, OSError):
        connection.unbind()
    if connection.socket is not None:  # ldap3 leaves it open where a connection failed
        connection.socket.close()


def _entries(
    connection: Any, section: LdapSection, base: str, search_filter: str
) -> Iterator[Named]:
    """Every entry that matches, page by page; any end but success is an error."""
    cookie: bytes | None = None
    asked = {name.lower(): name for name in attributes(section)}
    how = {"attributes": [*asked.values()], "paged_size": section.page_size}
    while True:
        connection.search(base, search_filter, paged_cookie=cookie, **how)
        # ldap3 lets a size limit, a time limit and a referral pass as if that were all.
        if connection.result["result"] != RESULT_SUCCESS:
            raise DirectoryError(
                f"{section.uri} ended the search under {base} early"
                f" ({connection.result['description']}); nothing was changed"
            )
        paging = connection.result.get("controls", {}).get(_PAGING)
        for item in connection.response:
            if item["type"] == "searchResEntry":
                found = item["raw_attributes"]
                yield item["dn"], _whole(connection, item["dn"], _spelled(found, asked))
            elif item["type"] == "searchResRef" and not section.ignore_referrals:
                raise _refers(section, base, item["uri"])
        cookie = paging["value"]["cookie"] if paging else None
        if not cookie:
            return


def _spelled(found: Mapping[str, _Values], asked: Mapping[str, str]) -> dict[str, _Values]:
    """Attributes under the names that the configuration has: case does not count in LDAP."""
    parts = ((name.partition(";"), values) for name, values in found.items())
    return {
        asked.get(bare.lower(), bare) + sign + options: values
        for (bare, sign, options), values in parts
    }


def _whole(connection: Any, dn: str, entry: dict[str, _Values]) -> dict[str, _Values]:
    """An entry with all values of each attribute.

    AD gives the first 1,500 values of an attribute only, as `member;range=0-1499`.
    """
    for name in [name for name in entry if ";" in name]:
        ranged = _RANGE.match(name)
        if not ranged:
            continue
        attribute, whole = ranged[1], entry.pop(name)
        while ranged[2] != "*":
            ranged, more = _more(connection, dn, f"{attribute};range={int(ranged[2]) + 1}-*")
            whole = [*whole, *more]
        entry[attribute] = whole  # as the configuration spells it, whatever the server does
    return entry


def _more(connection: Any, dn: str, name: str) -> tuple[re.Match[str], _Values]:
    connection.search(dn, "(objectClass=*)", search_scope=ldap3.BASE, attributes=[name])
    for item in connection.response:
        for key, values in item.get("raw_attributes", {}).items():
            if (ranged := _RANGE.match(key)) and values:
                return ranged, values
    raise DirectoryError(f"{dn} does not show {name}; nothing was changed: try again")


def _refers(section: LdapSection, base: str, uris: Sequence[str]) -> DirectoryError:
    hosts = [(url and url.hostname) or uri for uri, url in zip(uris, map(_url, uris), strict=True)]
    return DirectoryError(
        f"{section.uri} refers to {' or '.join(hosts)} for a part of {base}; nothing was changed:"
        " name a server that holds all of it in [ldap] uri, or leave that part out with [ldap]"
        " ignore_referrals = true"
    )


@contextmanager
def _translated(url: SplitResult, lost: type[DirectoryError]) -> Iterator[None]:
    """Say in one line what went wrong; as `lost` where the connection did."""
    try:
        yield
    except (LDAPException, OSError) as error:
        kind = lost if isinstance(error, _LOST) else DirectoryError
        words = said_plainly(error)
        raise kind(f"cannot read {url.geturl()}: {words}; nothing was changed") from error
    except (LookupError, TypeError, ValueError) as error:  # from ldap3's decoder
        raise lost(
            f"cannot read {url.geturl()}: what answers there does not speak LDAP, or broke off"
            f" ({type(error).__name__}); nothing was changed"
        ) from error
