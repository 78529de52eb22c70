"""Read people and groups from LDAP: all of them, or an error. The only user of ldap3."""

from __future__ import annotations

import re
import ssl
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

from slurmkit.errors import BadConfig, DirectoryError
from slurmkit_accounting.config import LdapSection
from slurmkit_accounting.people import Directory, GroupEntry, PersonEntry, expired

with warnings.catch_warnings():  # ldap3 2.9.1 uses old names of pyasn1
    warnings.simplefilter("ignore", DeprecationWarning)
    import ldap3
    from ldap3.core.exceptions import LDAPException, LDAPOperationResult
    from ldap3.core.results import RESULT_SUCCESS
    from ldap3.utils.dn import parse_dn

Entry = Mapping[str, list[bytes]]
# What ldap3 and servers say, and what it means here.
_MEANINGS = (
    ("invalid CA public key file", "[ldap] ca_file does not exist or cannot be read"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by the CA in [ldap] ca_file"),
    ("doesn't match any name", "its certificate is for another host name than [ldap] uri"),
    ("invalidCredentials", "it does not accept [ldap] bind_dn with this password"),
    ("confidentialityRequired", "it wants TLS; set [ldap] starttls = true"),
    ("noSuchObject", "[ldap] people_base or groups_base is not there for [ldap] bind_dn"),
    ("socket connection error", "nothing answers there; check [ldap] uri"),
    ("timed out", "it does not answer in time; check [ldap] uri and timeout"),
    ("invalid filter", "[ldap] people_filter or groups_filter is no LDAP filter"),
    ("invalid server address", "its host name cannot be resolved"),
)
_BIGGEST = 2**63 - 1  # what the ledger stores
_ESCAPED = re.compile(rb"\\(?:[0-9A-Fa-f]{2}|.)")
_SPECIAL = re.compile(r"[\\,+=]")


def read_directory(section: LdapSection, password: str) -> Directory:
    """Read everybody under `people_base` and every group under `groups_base`.

    Args:
        section: `[ldap]`.
        password: of `bind_dn`; not used without one.

    Raises:
        BadConfig: when the section cannot be meant.
        DirectoryError: when the server cannot be reached, verified or read in full.
    """
    url = _checked(section)
    with _translated(section.uri), _connected(section, url, password) as connection:
        people = list(_entries(connection, section, section.people_base, section.people_filter))
        groups = list(_entries(connection, section, section.groups_base, section.groups_filter))
    for found, base, kind in (
        (people, section.people_base, "people"),
        (groups, section.groups_base, "groups"),
    ):
        if not found:
            raise DirectoryError(
                f"{section.uri} shows no {kind} under {base} to {section.bind_dn or 'anonymous'};"
                f" check [ldap] {kind}_base, {kind}_filter and what bind_dn may read"
            )
    now = int(time.time())
    return Directory(
        tuple(person_entry(dn, entry, section, now) for dn, entry in people),
        tuple(group_entry(dn, entry, section) for dn, entry in groups),
    )


def person_entry(dn: str, entry: Entry, section: LdapSection, now: int) -> PersonEntry:
    """Make a person of an entry's raw attributes; `now` in epoch seconds.

    Raises:
        DirectoryError: when the immutable id or the user name is missing, or a number is none.
    """
    expire = _number(dn, entry, section.expire_attribute)
    return PersonEntry(
        dn=normal_dn(dn),
        directory_id=_required(dn, entry, section.id_attribute),
        username=_required(dn, entry, section.username_attribute),
        uid=_number(dn, entry, section.uid_attribute),
        display_name=_first(entry, section.name_attribute),
        mail=_first(entry, section.mail_attribute),
        active=not expired(expire, now),
    )


def group_entry(dn: str, entry: Entry, section: LdapSection) -> GroupEntry:
    """Make a group of an entry's raw attributes.

    Raises:
        DirectoryError: when the immutable id or the name is missing.
    """
    return GroupEntry(
        dn=normal_dn(dn),
        directory_id=_required(dn, entry, section.id_attribute),
        name=_required(dn, entry, section.group_name_attribute),
        members=_dns(entry, section.member_attribute),
        owners=_dns(entry, section.owner_attribute),
    )


def normal_dn(dn: str) -> str:
    """Write a DN so that equal ones are equal texts: case and blanks do not count.

    Raises:
        DirectoryError: for a text that is no DN.
    """
    try:
        parts = parse_dn(dn, escape=True, strip=True)
    except LDAPException as error:
        raise DirectoryError(f"the directory holds {dn!r} where a DN belongs: {error}") from error
    return "".join(f"{name}={_one_spelling(value)}{sign}".lower() for name, value, sign in parts)


def _one_spelling(value: str) -> str:
    r"""A comma may be written `\,` or `\2C`, and any letter as its bytes, RFC 4514 section 2.4."""
    raw = _ESCAPED.sub(lambda match: _meant(match[0][1:]), value.encode())
    return _SPECIAL.sub(r"\\\g<0>", raw.decode("utf-8", "replace"))


def _meant(escaped: bytes) -> bytes:
    return bytes.fromhex(escaped.decode()) if len(escaped) == 2 else escaped


def _checked(section: LdapSection) -> SplitResult:
    url = _url(section.uri)
    if url is None or url.scheme not in {"ldap", "ldaps"} or not url.hostname:
        raise BadConfig(
            f"[ldap] uri {section.uri!r} is not of the form ldap://HOST[:PORT] or ldaps://HOST"
        )
    for key in ("people_base", "groups_base"):
        if not getattr(section, key):
            raise BadConfig(f"[ldap] {key} is not set; name the subtree, e.g. ou=people,dc=…")
    return url


def _url(text: str) -> SplitResult | None:
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:  # half an IPv6 address; a port that is no number, or too big
        return None
    return None if port == 0 else url


@contextmanager
def _connected(section: LdapSection, url: SplitResult, password: str) -> Iterator[Any]:
    tls = ldap3.Tls(validate=ssl.CERT_REQUIRED, ca_certs_file=section.ca_file or None)
    server = ldap3.Server(
        url.hostname or "",
        port=url.port or (636 if url.scheme == "ldaps" else 389),
        use_ssl=url.scheme == "ldaps",
        tls=tls,
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
        read_only=True,
    )
    try:
        connection.open(read_server_info=False)
        encrypted = url.scheme == "ldaps" or not section.starttls
        if not (encrypted or connection.start_tls(read_server_info=False)):
            raise DirectoryError(f"{section.uri} did not begin TLS; nothing was changed")
        connection.bind(read_server_info=False)
        yield connection
    finally:
        _hang_up(connection)


def _hang_up(connection: Any) -> None:
    with suppress(LDAPException, OSError):
        connection.unbind()
    if connection.socket is not None:  # ldap3 leaves it open where a connection failed
        connection.socket.close()


def _entries(
    connection: Any, section: LdapSection, base: str, search_filter: str
) -> Iterator[tuple[str, Entry]]:
    """Every entry that matches, page by page; any end but success is an error."""
    cookie: bytes | None = None
    while True:
        connection.search(
            base,
            search_filter,
            attributes=_attributes(section),
            paged_size=section.page_size,
            paged_cookie=cookie,
        )
        # ldap3 lets a size limit, a time limit and a referral pass as if that were all.
        if connection.result["result"] != RESULT_SUCCESS:
            raise DirectoryError(
                f"{section.uri} ended the search under {base} early"
                f" ({connection.result['description']}); nothing was changed"
            )
        for item in connection.response:
            if item["type"] == "searchResEntry":
                yield item["dn"], item["raw_attributes"]
            elif item["type"] == "searchResRef" and not section.ignore_referrals:
                raise _refers(section, base, item["uri"])
        paging = connection.result.get("controls", {}).get("1.2.840.113556.1.4.319")
        cookie = paging["value"]["cookie"] if paging else None
        if not cookie:
            return


def _refers(section: LdapSection, base: str, uris: Sequence[str]) -> DirectoryError:
    hosts = [(url and url.hostname) or uri for uri, url in zip(uris, map(_url, uris), strict=True)]
    return DirectoryError(
        f"{section.uri} refers to {' or '.join(hosts)} for a part of {base}; nothing was changed:"
        " name a server that holds all of it in [ldap] uri, or leave that part out with [ldap]"
        " ignore_referrals = true"
    )


def _attributes(section: LdapSection) -> list[str]:
    names = {
        getattr(section, name) for name in section.__struct_fields__ if name.endswith("_attribute")
    }
    return sorted(names)


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    try:
        yield
    except (LDAPException, OSError) as error:
        words = _plain(_words(error))
        raise DirectoryError(f"cannot read {uri}: {words}; nothing was changed") from error
    except (LookupError, TypeError, ValueError) as error:  # from ldap3's decoder
        raise DirectoryError(
            f"cannot read {uri}: what answers there does not speak LDAP, or broke off"
            f" ({type(error).__name__}); nothing was changed"
        ) from error


def _words(error: Exception) -> str:
    if isinstance(error, LDAPOperationResult):
        return " ".join(filter(None, (error.description, error.message)))
    said: object = error
    while isinstance(said, Exception | tuple):  # ldap3 wraps words in tuples in errors
        parts = said.args if isinstance(said, Exception) else said
        if len(parts) != 1:
            break
        said = parts[0]
    return " ".join(str(said).split()) or type(error).__name__


def _plain(words: str) -> str:
    for sign, meaning in _MEANINGS:
        if sign in words:
            return f"{meaning} ({words})"
    return words


def _first(entry: Entry, name: str) -> str:
    values = entry.get(name) or [b""]
    return _text(values[0])


def _required(dn: str, entry: Entry, name: str) -> str:
    value = _first(entry, name)
    if not value:
        raise DirectoryError(
            f"{dn} shows no {name}; nothing was changed: let [ldap] bind_dn read it, or name"
            " another attribute"
        )
    return value


def _number(dn: str, entry: Entry, name: str) -> int | None:
    value = _first(entry, name)
    try:
        number = int(value) if value else None
    except ValueError as error:
        raise DirectoryError(f"{dn} has {name} {value!r}, which is no number") from error
    if number is not None and abs(number) > _BIGGEST:
        raise DirectoryError(f"{dn} has {name} {value!r}, which is too big; nothing was changed")
    return number


def _dns(entry: Entry, name: str) -> tuple[str, ...]:
    return tuple(normal_dn(_text(value)) for value in entry.get(name) or ())


def _text(value: bytes) -> str:
    """PostgreSQL stores no NUL."""
    return value.decode("utf-8", "replace").replace("\0", "\ufffd")
