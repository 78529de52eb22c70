"""Entries of a directory, as raw attributes, made into people and groups."""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from slurmkit.errors import DirectoryError
from slurmkit_accounting.config import LdapSection
from slurmkit_accounting.dn import normal_dn
from slurmkit_accounting.people import Directory, GroupEntry, PersonEntry, expired

Entry = Mapping[str, Sequence[bytes]]
Named = tuple[str, Entry]  # DN and attributes
_BIGGEST = 2**63 - 1  # what the ledger stores
_BITS = re.compile(r"#'[01]*'B\Z")  # that uniqueMember may have after a DN, RFC 4517 section 3.3.21
_FILETIME_DAY = 864_000_000_000  # 100 ns; AD counts them from 1601
_DAYS_1601_TO_1970 = 134_774
_NEVER = (0, _BIGGEST)


def attributes(section: LdapSection) -> list[str]:
    """Names of the attributes that are read."""
    names = {
        getattr(section, name) for name in section.__struct_fields__ if name.endswith("_attribute")
    }
    # Where it exists the server works it out for each entry.
    unused = {section.member_of_attribute} if section.members != "member_of" else set()
    return sorted(filter(None, names - unused))


def directory(
    section: LdapSection, people: Sequence[Named], groups: Sequence[Named], now: int
) -> Directory:
    """Make a directory of all entries of people and of groups.

    Args:
        section: what their attributes mean.
        people: DN and attributes of each.
        groups: likewise.
        now: epoch seconds, for accounts that expire.

    Raises:
        DirectoryError: when an entry lacks what it must have, or two claim the same.
    """
    found = tuple(person_entry(dn, entry, section, now) for dn, entry in people)
    by_name = {person.username.lower(): person.dn for person in found}
    listed = _told_by_members(section, [*people, *groups])
    return Directory(
        found, tuple(_group(dn, entry, section, by_name, listed) for dn, entry in groups)
    )


def person_entry(dn: str, entry: Entry, section: LdapSection, now: int) -> PersonEntry:
    """Make a person of an entry's raw attributes; `now` in epoch seconds.

    Raises:
        DirectoryError: when the immutable id or the user name is missing, or a number is none.
    """
    return PersonEntry(
        dn=normal_dn(dn),
        directory_id=_identity(dn, entry, section),
        username=_required(dn, entry, section.username_attribute),
        uid=_number(dn, entry, section.uid_attribute),
        display_name=_first(entry, section.name_attribute),
        mail=_first(entry, section.mail_attribute),
        active=not expired(_expiry(dn, entry, section.expire_attribute), now),
        department=_first(entry, section.department_attribute),
    )


def group_entry(dn: str, entry: Entry, section: LdapSection) -> GroupEntry:
    """Make a group of an entry's raw attributes, with people and groups that it names by DN.

    Raises:
        DirectoryError: when the immutable id or the name is missing.
    """
    return _group(dn, entry, section, {}, {})


def _group(
    dn: str,
    entry: Entry,
    section: LdapSection,
    by_name: Mapping[str, str],
    listed: Mapping[str, Sequence[str]],
) -> GroupEntry:
    if section.members == "member_of":
        members = tuple(listed.get(normal_dn(dn), ()))
    else:
        by_dn = section.members == "dn"
        members = _those(entry, section.member_attribute, by_name, by_dn=by_dn)
    return GroupEntry(
        dn=normal_dn(dn),
        directory_id=_identity(dn, entry, section),
        name=_required(dn, entry, section.group_name_attribute),
        members=members,
        owners=_those(entry, section.owner_attribute, by_name, by_dn=None),
    )


def _told_by_members(section: LdapSection, entries: Iterable[Named]) -> dict[str, list[str]]:
    """By group, the people and groups that say they are in it."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    if section.members == "member_of":
        for dn, entry in entries:
            for group in _values(entry, section.member_of_attribute):
                found[normal_dn(group)].append(normal_dn(dn))
    return found


def _those(
    entry: Entry, attribute: str, by_name: Mapping[str, str], *, by_dn: bool | None
) -> tuple[str, ...]:
    """DNs that an attribute has as such or, where `by_dn` is false, as user names; None: either."""
    found = []
    for value in _values(entry, attribute):
        named = by_dn is False or (by_dn is None and "=" not in value)
        # A name of nobody stays as it is: one that is neither a person nor a group.
        found.append(
            by_name.get(value.lower(), value) if named else normal_dn(_BITS.sub("", value))
        )
    return tuple(found)


def _identity(dn: str, entry: Entry, section: LdapSection) -> str:
    """What identifies an entry for ever; AD's objectGUID is 16 bytes and no text."""
    values = entry.get(section.id_attribute) or ()
    if values and section.id_attribute.lower() == "objectguid" and len(values[0]) == 16:
        return str(uuid.UUID(bytes_le=values[0]))
    return _required(dn, entry, section.id_attribute)


def _expiry(dn: str, entry: Entry, attribute: str) -> int | None:
    """Day of expiry, in days since 1970."""
    number = _number(dn, entry, attribute)
    if attribute.lower() != "accountexpires" or number is None:
        return number
    return None if number in _NEVER else number // _FILETIME_DAY - _DAYS_1601_TO_1970


def _values(entry: Entry, attribute: str) -> list[str]:
    return [_text(value) for value in entry.get(attribute) or ()]


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


def _text(value: bytes) -> str:
    """PostgreSQL stores no NUL."""
    return value.decode("utf-8", "replace").replace("\0", "\ufffd")
