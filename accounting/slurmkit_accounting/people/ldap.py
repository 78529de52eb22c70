"""People and groups read from LDAP: all of them, or an error; and passwords checked by it.

Only this module uses ldap3. Its errors are explained by what they mean for `[ldap]`.
"""

from __future__ import annotations

import re
import ssl
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlsplit

from msgspec.structs import replace

from slurmkit.errors import BadConfig, DirectoryError
from slurmkit_accounting.config import LdapSection
from slurmkit_accounting.people.ldap_entries import (
    LdapEntry,
    attributes_to_read,
    parse_directory,
    parse_person,
)
from slurmkit_accounting.people.model import Directory, PersonEntry

with warnings.catch_warnings():  # ldap3 2.9.1 uses old names of pyasn1
    warnings.simplefilter("ignore", DeprecationWarning)
    import ldap3
    from ldap3.core.exceptions import (
        LDAPCertificateError,
        LDAPCommunicationError,
        LDAPConstraintViolationResult,
        LDAPException,
        LDAPInappropriateAuthenticationResult,
        LDAPInvalidCredentialsResult,
        LDAPInvalidDNSyntaxResult,
        LDAPNoSuchObjectResult,
        LDAPResponseTimeoutError,
        LDAPSASLPrepError,
        LDAPStartTLSError,
        LDAPUnwillingToPerformResult,
    )
    from ldap3.core.results import RESULT_SUCCESS
    from ldap3.utils.conv import escape_filter_chars
    from ldap3.utils.dn import escape_rdn

SURVEYED = 1000  # the most entries that AD returns at a time
_TRIES = 3  # attempts, when the connection breaks while reading
_PAUSE_SECONDS = 0.5
_RANGE = re.compile(r"(.+);range=\d+-(\d+|\*)\Z", re.IGNORECASE)
_LOST = (
    LDAPCertificateError,
    LDAPCommunicationError,
    LDAPResponseTimeoutError,
    LDAPStartTLSError,
    OSError,
)
# Answers to a bind that mean: not with this password, or not at present.
_REFUSED = (
    LDAPConstraintViolationResult,
    LDAPInappropriateAuthenticationResult,
    LDAPInvalidCredentialsResult,
    LDAPInvalidDNSyntaxResult,
    LDAPNoSuchObjectResult,
    LDAPSASLPrepError,  # of ldap3: no password can have such characters
    LDAPUnwillingToPerformResult,
)
_Values: TypeAlias = list[bytes]
_SEARCH_ENTRY = 4  # RFC 4511 section 4.5.2
_PAGING = "1.2.840.113556.1.4.319"
# Part of an error of ldap3 or a server, and what it means for the configuration.
_MEANINGS = (
    ("invalid CA public key file", "[ldap] ca_file does not exist or cannot be read"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by the CA in [ldap] ca_file"),
    ("doesn't match any name", "its certificate is for another host name than [ldap] uri"),
    ("invalidCredentials", "it does not accept [ldap] bind_dn with this password"),
    ("confidentialityRequired", "it requires TLS; set [ldap] starttls = true"),
    ("noSuchObject", "[ldap] people_base or groups_base does not exist, or bind_dn may not see it"),
    ("socket connection error", "nothing answers there; check [ldap] uri"),
    ("timed out", "it does not answer in time; check [ldap] uri and timeout"),
    ("invalid filter", "[ldap] people_filter or groups_filter is not a valid LDAP filter"),
    ("invalid server address", "its host name cannot be resolved"),
)


class _ServerUnreachable(DirectoryError):
    """A server that cannot be reached, or not with TLS: another one may answer."""


class _ConnectionBroken(DirectoryError):
    """A connection that broke while reading."""


def read_directory(section: LdapSection, password: str) -> Directory:
    """Read everybody under `people_base` and every group under `groups_base`.

    Of several servers the first that answers is read. If the connection breaks, everything is read
    again.

    Args:
        section: `[ldap]`.
        password: of `bind_dn`; not used without one.

    Raises:
        BadConfig: when the section is incomplete or the URI is invalid.
        DirectoryError: when no server can be reached, verified and read in full.
    """
    urls = servers_of(section)
    if not section.groups_base:
        raise BadConfig("[ldap] groups_base is not set; name the subtree, e.g. ou=groups,dc=…")
    for tries_left in reversed(range(_TRIES)):
        try:
            people, groups = _read_any(section, urls, password)
            break
        except _ConnectionBroken:
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
    return parse_directory(section, people, groups, int(time.time()))


class DirectorySurvey(NamedTuple):
    """What a server says about itself, and some of its entries.

    Attributes:
        url: of the server that answered.
        about: its root DSE (RFC 4512 section 5.1): the values of each attribute, by its name in
            lower case.
        entries: for each filter that was asked, DN and attributes of at most `SURVEYED` entries.
    """

    url: str
    about: Mapping[str, Sequence[str]]
    entries: Mapping[str, list[LdapEntry]]


def survey_directory(
    section: LdapSection, password: str, filters: Sequence[str], attributes: Sequence[str]
) -> DirectorySurvey:
    """Ask the first server that answers what it is, and for some entries of each kind.

    Connections are verified as for `read_directory`. `people_base` and `groups_base` are not used:
    entries are searched for below all naming contexts of the server.

    Args:
        section: `[ldap]`.
        password: of `bind_dn`.
        filters: LDAP filters of the kinds of entries.
        attributes: the attributes of these entries to read.

    Raises:
        BadConfig: when the URI is invalid.
        DirectoryError: when no server can be reached and verified, or it does not answer.
    """
    silent: list[_ServerUnreachable] = []
    for url in servers_of(replace(section, people_base="-")):
        try:
            with (
                _connected(section, url, password) as connection,
                _translate_errors(url, _ServerUnreachable),
            ):
                about = _root_dse(connection)
                bases = about.get("defaultnamingcontext") or about.get("namingcontexts") or ()
                found = {
                    each: [
                        entry
                        for base in bases
                        for entry in _first_entries(connection, base, each, attributes)
                    ]
                    for each in filters
                }
                return DirectorySurvey(url.geturl(), about, found)
        except _ServerUnreachable as error:
            silent.append(error)
    raise DirectoryError("; ".join(map(str, silent))) from silent[-1]


def _root_dse(connection: Any) -> dict[str, list[str]]:
    connection.search("", "(objectClass=*)", search_scope=ldap3.BASE, attributes=["*", "+"])
    for item in connection.response:
        if item["type"] == "searchResEntry":
            return {
                name.lower(): [value.decode("utf-8", "replace") for value in values]
                for name, values in item["raw_attributes"].items()
            }
    return {}


def _first_entries(
    connection: Any, base: str, search_filter: str, attributes: Sequence[str]
) -> Iterator[LdapEntry]:
    connection.search(base, search_filter, attributes=list(attributes), size_limit=SURVEYED)
    for item in connection.response:
        if item["type"] == "searchResEntry":
            yield item["dn"], item["raw_attributes"]


class LoginCheck(NamedTuple):
    """Result of `check_login`: the person if the password is theirs; whether the name is known."""

    person: PersonEntry | None
    is_known: bool


def check_login(
    section: LdapSection, service_password: str, name: str, password: str
) -> LoginCheck:
    """Check a user's password with a bind as their entry, found under `people_base` by name.

    For a name that nobody has, an entry that does not exist is bound to, so that the server has as
    much to do. Connections are verified as for `read_directory`.

    Args:
        section: `[ldap]`.
        service_password: of `bind_dn`, for the search.
        name: the user name.
        password: the user's; empty ones are refused, since LDAP takes them for anonymous.

    Raises:
        BadConfig: when the section is incomplete or the URI is invalid.
        DirectoryError: when no server can be reached and verified.
    """
    silent: list[_ServerUnreachable] = []
    for url in servers_of(section):
        try:
            entry = _find_person(section, url, service_password, name)
            nobody = f"{section.username_attribute}={escape_rdn(name)},{section.people_base}"
            dn = nobody if entry is None else entry[0]
            if not _can_bind(section, url, dn, password) or entry is None:
                return LoginCheck(None, entry is not None)
            person = parse_person(*entry, section, int(time.time()))
            return LoginCheck(person if person.active else None, is_known=True)
        except _ServerUnreachable as error:
            silent.append(error)
    raise DirectoryError("; ".join(map(str, silent))) from silent[-1]


def _find_person(
    section: LdapSection, url: SplitResult, password: str, name: str
) -> LdapEntry | None:
    """Return the only person with a user name; None if there is none, or several."""
    same = f"({section.username_attribute}={escape_filter_chars(name)})"
    with (
        _connected(section, url, password) as connection,
        _translate_errors(url, _ServerUnreachable),
    ):
        search_filter = f"(&{section.people_filter}{same})"
        found = list(_entries(connection, section, section.people_base, search_filter))
    return found[0] if len(found) == 1 else None


def _can_bind(section: LdapSection, url: SplitResult, dn: str, password: str) -> bool:
    """Return whether the server takes a password for a DN."""
    if not password or not dn:
        return False
    try:
        with _connected(replace(section, bind_dn=dn), url, password):
            return True
    except DirectoryError as error:
        if isinstance(error.__cause__, _REFUSED):
            return False
        raise


def _read_any(
    section: LdapSection, urls: Sequence[SplitResult], password: str
) -> tuple[list[LdapEntry], list[LdapEntry]]:
    silent: list[_ServerUnreachable] = []
    for url in urls:
        try:
            with (
                _connected(section, url, password) as connection,
                _translate_errors(url, _ConnectionBroken),
            ):
                people = (section.people_base, section.people_filter)
                groups = (section.groups_base, section.groups_filter)
                return (
                    list(_entries(connection, section, *people)),
                    list(_entries(connection, section, *groups)),
                )
        except _ServerUnreachable as error:
            silent.append(error)
    raise DirectoryError("; ".join(map(str, silent))) from silent[-1]


def servers_of(section: LdapSection) -> list[SplitResult]:
    """Return the servers of the section, where people can be found.

    Raises:
        BadConfig: when it names none, or not the subtree with the people.
    """
    urls = [_url(text) for text in section.uri.split()]
    found = [url for url in urls if url and url.scheme in {"ldap", "ldaps"} and url.hostname]
    if not found or len(found) < len(urls):
        raise BadConfig(
            f"[ldap] uri {section.uri!r} is not valid; write ldap://HOST[:PORT] or"
            " ldaps://HOST[:PORT], or several of these separated by blanks"
        )
    if not section.people_base:
        raise BadConfig("[ldap] people_base is not set; name the subtree, e.g. ou=people,dc=…")
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
    with _translate_errors(url, _ServerUnreachable):
        connection = _connection(section, url, password)
    try:
        with _translate_errors(url, _ServerUnreachable):
            connection.open(read_server_info=False)
            encrypted = url.scheme == "ldaps" or not section.starttls
            if not (encrypted or connection.start_tls(read_server_info=False)):
                raise DirectoryError(f"{url.geturl()} did not start TLS; nothing was changed")
            connection.bind(read_server_info=False)
        yield connection
    finally:
        _disconnect(connection)


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
        auto_range=False,  # `_fetch_all_values` does it
        return_empty_attributes=False,
        read_only=True,
    )
    _decode_raw_only(connection.strategy)
    return connection


def _decode_raw_only(strategy: Any) -> None:
    """Make ldap3 decode raw attributes only; decoding to text too takes twice as long."""
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


def _disconnect(connection: Any) -> None:
    with suppress(LDAPException, OSError):
        connection.unbind()
    if connection.socket is not None:  # ldap3 leaves it open where a connection failed
        connection.socket.close()


def _entries(
    connection: Any, section: LdapSection, base: str, search_filter: str
) -> Iterator[LdapEntry]:
    """Yield every matching entry, page by page; any end other than success is an error."""
    cookie: bytes | None = None
    asked = {name.lower(): name for name in attributes_to_read(section)}
    how = {"attributes": [*asked.values()], "paged_size": section.page_size}
    while True:
        connection.search(base, search_filter, paged_cookie=cookie, **how)
        # ldap3 treats a size limit, a time limit and a referral as success.
        if connection.result["result"] != RESULT_SUCCESS:
            raise DirectoryError(
                f"{section.uri} ended the search under {base} early"
                f" ({connection.result['description']}); nothing was changed"
            )
        paging = connection.result.get("controls", {}).get(_PAGING)
        for item in connection.response:
            if item["type"] == "searchResEntry":
                found = item["raw_attributes"]
                yield (
                    item["dn"],
                    _fetch_all_values(connection, item["dn"], _with_configured_names(found, asked)),
                )
            elif item["type"] == "searchResRef" and not section.ignore_referrals:
                raise _referral_error(section, base, item["uri"])
        cookie = paging["value"]["cookie"] if paging else None
        if not cookie:
            return


def _with_configured_names(
    found: Mapping[str, _Values], asked: Mapping[str, str]
) -> dict[str, _Values]:
    """Rename attributes to the spelling of the configuration: LDAP ignores case."""
    parts = ((name.partition(";"), values) for name, values in found.items())
    return {
        asked.get(bare.lower(), bare) + sign + options: values
        for (bare, sign, options), values in parts
    }


def _fetch_all_values(connection: Any, dn: str, entry: dict[str, _Values]) -> dict[str, _Values]:
    """Complete an entry: fetch all values of each attribute.

    AD returns only the first 1,500 values of an attribute, as `member;range=0-1499`.
    """
    for name in [name for name in entry if ";" in name]:
        ranged = _RANGE.match(name)
        if not ranged:
            continue
        attribute, whole = ranged[1], entry.pop(name)
        while ranged[2] != "*":
            ranged, more = _fetch_more_values(
                connection, dn, f"{attribute};range={int(ranged[2]) + 1}-*"
            )
            whole = [*whole, *more]
        entry[attribute] = whole  # as the configuration spells it, whatever the server does
    return entry


def _fetch_more_values(connection: Any, dn: str, name: str) -> tuple[re.Match[str], _Values]:
    connection.search(dn, "(objectClass=*)", search_scope=ldap3.BASE, attributes=[name])
    for item in connection.response:
        for key, values in item.get("raw_attributes", {}).items():
            if (ranged := _RANGE.match(key)) and values:
                return ranged, values
    raise DirectoryError(f"the server does not show {name} of {dn}; nothing was changed: try again")


def _referral_error(section: LdapSection, base: str, uris: Sequence[str]) -> DirectoryError:
    hosts = [(url and url.hostname) or uri for uri, url in zip(uris, map(_url, uris), strict=True)]
    return DirectoryError(
        f"{section.uri} refers to {' or '.join(hosts)} for a part of {base}; nothing was changed:"
        " name a server that has all of it in [ldap] uri, or leave that part out with [ldap]"
        " ignore_referrals = true"
    )


@contextmanager
def _translate_errors(url: SplitResult, lost: type[DirectoryError]) -> Iterator[None]:
    """Translate errors to one line; raise `lost` if the connection failed."""
    try:
        yield
    except (LDAPException, OSError) as error:
        kind = lost if isinstance(error, _LOST) else DirectoryError
        words = explain_ldap_error(error)
        raise kind(f"cannot read {url.geturl()}: {words}; nothing was changed") from error
    except (LookupError, TypeError, ValueError) as error:  # raised by ldap3's decoder
        raise lost(
            f"cannot read {url.geturl()}: the server there does not speak LDAP, or its answer was"
            f" cut off ({type(error).__name__}); nothing was changed"
        ) from error


def explain_ldap_error(error: Exception) -> str:
    """Return what an error of ldap3 means, with its own text in brackets."""
    words = _ldap_error_text(error)
    for sign, meaning in _MEANINGS:
        if sign in words:
            return f"{meaning} ({words})"
    return words


def _ldap_error_text(error: Exception) -> str:
    description = getattr(error, "description", None)  # set when a server answered
    if description:
        return " ".join(filter(None, (description, getattr(error, "message", None))))
    inner: object = error
    while isinstance(inner, Exception | tuple):  # ldap3 nests its text in errors and tuples
        parts = inner.args if isinstance(inner, Exception) else inner
        if len(parts) != 1:
            break
        inner = parts[0]
    return " ".join(str(inner).split()) or type(error).__name__
