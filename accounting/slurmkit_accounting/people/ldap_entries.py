"""LDAP entries (raw attributes) parsed to people and groups, with DNs in a normal form."""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from slurmkit.errors import DirectoryError
from slurmkit_accounting.config import LdapSection
from slurmkit_accounting.people.model import Directory, GroupEntry, PersonEntry, has_expired

LdapAttributes = Mapping[str, Sequence[bytes]]
LdapEntry = tuple[str, LdapAttributes]  # DN and attributes
_BIGGEST = 2**63 - 1  # the largest number the ledger stores
_BITS = re.compile(r"#'[01]*'B\Z")  # may follow a DN in uniqueMember, RFC 4517 section 3.3.21
_FILETIME_DAY = 864_000_000_000  # 100 ns; AD counts them from 1601
_DAYS_1601_TO_1970 = 134_774
_NEVER = (0, _BIGGEST)
# ATTRIBUTE=VALUE and the sign after it; a value may be quoted, any character in it escaped. These
# are three expressions, matched one after another, so that none is tried again with a shorter
# value: `\41` is one escape or an escaped `4` and a `1`, so many of them would take forever.
_NAME = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*|[0-9]+(?:\.[0-9]+)*)\s*=\s*")
_VALUE = re.compile(r'"(?:\\.|[^"\\])*"|(?:\\[0-9A-Fa-f]{2}|\\.|[^\\"+,;])*', re.DOTALL)
_SIGN = re.compile(r"\s*([+,;]|\Z)")
_ESCAPED = re.compile(rb"\\(?:[0-9A-Fa-f]{2}|.)", re.DOTALL)
_BLANKS = re.compile(r" +")
_RDN = re.compile(r"(?:\\.|[^\\,])*", re.DOTALL)  # the first part of a normal form
_SPECIAL = re.compile(r"[\\,+=]")
_PLAIN = re.compile(r"(?:[a-z]+=[a-z0-9_.-]+(?:,|\Z))+")


def attributes_to_read(section: LdapSection) -> list[str]:
    """Return the names of the attributes to read."""
    names = {
        getattr(section, name) for name in section.__struct_fields__ if name.endswith("_attribute")
    }
    # memberOf is computed by the server for each entry: do not ask for it without need.
    unused = {section.member_of_attribute} if section.members != "member_of" else set()
    return sorted(filter(None, names - unused))


def parse_directory(
    section: LdapSection, people: Sequence[LdapEntry], groups: Sequence[LdapEntry], now: int
) -> Directory:
    """Make a `Directory` of all entries of people and groups.

    Args:
        section: names of the attributes.
        people: DN and attributes of each person.
        groups: DN and attributes of each group.
        now: epoch seconds, to tell whether an account has expired.

    Raises:
        DirectoryError: when an entry lacks a required attribute, or two claim the same value.
    """
    persons = tuple(parse_person(dn, entry, section, now) for dn, entry in people)
    by_name = {
        alias.lower(): person.dn
        for person, (_, entry) in zip(persons, people, strict=True)
        for alias in _values(entry, section.username_attribute)
    }
    by_name |= {person.username.lower(): person.dn for person in persons}
    listed = _members_by_member_of(section, [*people, *groups])
    return Directory(
        persons, tuple(_parse_group(dn, entry, section, by_name, listed) for dn, entry in groups)
    )


def parse_person(dn: str, entry: LdapAttributes, section: LdapSection, now: int) -> PersonEntry:
    """Parse the raw attributes of a person; `now` in epoch seconds.

    Raises:
        DirectoryError: when the immutable id or the user name is missing, or a number is invalid.
    """
    return PersonEntry(
        dn=normalise_dn(dn),
        directory_id=_identity(dn, entry, section),
        username=_own_name(dn, entry, section.username_attribute),
        uid=_number(dn, entry, section.uid_attribute),
        display_name=_first(entry, section.name_attribute),
        mail=_first(entry, section.mail_attribute),
        active=not has_expired(_expiry(dn, entry, section.expire_attribute), now),
        department=_first(entry, section.department_attribute),
    )


def _parse_group(
    dn: str,
    entry: LdapAttributes,
    section: LdapSection,
    by_name: Mapping[str, str],
    listed: Mapping[str, Sequence[str]],
) -> GroupEntry:
    """Parse the raw attributes of a group.

    Args:
        dn: of the group.
        entry: its raw attributes.
        section: names of the attributes.
        by_name: DNs of people by user name in lower case.
        listed: members of each group, from their `member_of_attribute`.

    Raises:
        DirectoryError: when the immutable id or the name is missing.
    """
    if section.members == "member_of":
        members = tuple(listed.get(normalise_dn(dn), ()))
    else:
        by_dn = section.members == "dn"
        members = _listed_dns(entry, section.member_attribute, by_name, by_dn=by_dn)
    return GroupEntry(
        dn=normalise_dn(dn),
        directory_id=_identity(dn, entry, section),
        name=_own_name(dn, entry, section.group_name_attribute),
        members=members,
        owners=_listed_dns(entry, section.owner_attribute, by_name, by_dn=None),
    )


def _members_by_member_of(
    section: LdapSection, entries: Iterable[LdapEntry]
) -> dict[str, list[str]]:
    """Return the members of each group, as the members' own `member_of_attribute` lists them."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    if section.members == "member_of":
        for dn, entry in entries:
            for group in _values(entry, section.member_of_attribute):
                found[normalise_dn(group)].append(normalise_dn(dn))
    return found


def _listed_dns(
    entry: LdapAttributes, attribute: str, by_name: Mapping[str, str], *, by_dn: bool | None
) -> tuple[str, ...]:
    """Return the DNs that an attribute lists: by DN, user name (`by_dn` False) or either (None)."""
    dns = []
    for value in _values(entry, attribute):
        named = by_dn is False or (by_dn is None and "=" not in value)
        # An unknown user name stays as it is: it is then neither a person nor a group.
        dns.append(
            by_name.get(value.lower(), value) if named else normalise_dn(_BITS.sub("", value))
        )
    return tuple(dns)


def _identity(dn: str, entry: LdapAttributes, section: LdapSection) -> str:
    """Return the immutable id of an entry; AD's objectGUID is 16 bytes and not text."""
    values = entry.get(section.id_attribute) or ()
    if values and section.id_attribute.lower() == "objectguid" and len(values[0]) == 16:
        return str(uuid.UUID(bytes_le=values[0]))
    return _required(dn, entry, section.id_attribute)


def _expiry(dn: str, entry: LdapAttributes, attribute: str) -> int | None:
    """Return the day of expiry, in days since 1970."""
    number = _number(dn, entry, attribute)
    if attribute.lower() != "accountexpires" or number is None:
        return number
    return None if number in _NEVER else number // _FILETIME_DAY - _DAYS_1601_TO_1970


def _values(entry: LdapAttributes, attribute: str) -> list[str]:
    return [_text(value) for value in entry.get(attribute) or ()]


def _first(entry: LdapAttributes, name: str) -> str:
    values = entry.get(name) or [b""]
    return _text(values[0])


def _own_name(dn: str, entry: LdapAttributes, attribute: str) -> str:
    """Return the name of an entry: of several, the one in its RDN, as SSSD does.

    The others are aliases. The directory gives the values of an attribute in any order.
    """
    names = _values(entry, attribute)
    parts = _RDN.match(normalise_dn(dn))
    rdn = f"+{parts[0]}+" if parts else ""
    for name in names if len(names) > 1 else ():
        value = _SPECIAL.sub(r"\\\g<0>", _BLANKS.sub(" ", name.strip()))
        if f"+{attribute}={value}+".lower() in rdn:
            return name
    return _required(dn, entry, attribute)


def _required(dn: str, entry: LdapAttributes, name: str) -> str:
    value = _first(entry, name)
    if not value:
        raise DirectoryError(
            f"{dn} shows no {name}; nothing was changed: let [ldap] bind_dn read this attribute,"
            " or name another one in [ldap]"
        )
    return value


def _number(dn: str, entry: LdapAttributes, name: str) -> int | None:
    value = _first(entry, name)
    try:
        number = int(value) if value else None
    except ValueError as error:
        raise DirectoryError(f"{dn} has {name} {value!r}, which is not a number") from error
    if number is not None and abs(number) > _BIGGEST:
        raise DirectoryError(f"{dn} has {name} {value!r}, which is too big; nothing was changed")
    return number


def _text(value: bytes) -> str:
    """Decode UTF-8; replace NUL, which PostgreSQL cannot store."""
    return value.decode("utf-8", "replace").replace("\0", "\ufffd")


@lru_cache(maxsize=100_000)
def normalise_dn(dn: str) -> str:
    """Normalise a DN, so that equal names are equal texts.

    Case, the number of blanks and the order of parts joined by `+` do not matter.

    Raises:
        DirectoryError: for a text that is not a DN.
    """
    if _PLAIN.fullmatch(dn) and dn[-1] != ",":
        return dn
    names: list[list[str]] = [[]]
    at = 0
    while name := _NAME.match(dn, at):
        value = _VALUE.match(dn, name.end())
        sign = _SIGN.match(dn, value.end()) if value else None
        if value is None or sign is None:
            break
        names[-1].append(f"{name[1]}={_normalise_value(value[0])}".lower())
        at = sign.end()
        if not sign[1]:
            return ",".join("+".join(sorted(parts)) for parts in names)
        if sign[1] != "+":
            names.append([])
    raise DirectoryError(f"the directory has {dn!r} instead of a DN; nothing was changed")


def _normalise_value(value: str) -> str:
    r"""Normalise escapes: a comma may be `\,` or `\2C`, any letter its bytes, RFC 4514 2.4."""
    value = value[1:-1] if value.startswith('"') else _without_blanks(value)
    raw = _ESCAPED.sub(lambda match: _unescape(match[0][1:]), value.encode())
    text = _BLANKS.sub(" ", raw.decode("utf-8", "replace"))
    return _SPECIAL.sub(r"\\\g<0>", text)


def _without_blanks(value: str) -> str:
    bare = value.rstrip()
    signs = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if signs % 2 else bare  # the first blank was escaped


def _unescape(escaped: bytes) -> bytes:
    return bytes.fromhex(escaped.decode()) if len(escaped) == 2 else escaped
