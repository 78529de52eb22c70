"""What a directory says about people and groups at one moment; who is in which group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from slurmkit.errors import DirectoryError

DAY_SECONDS = 86400


class PersonEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One person.

    Attributes:
        dn: normalised, so that equal names are equal texts; like all DNs here.
        directory_id: never changes and is never used again.
        uid: numeric, None when the entry has none.
        active: false once the account has expired.
        department: empty where the entry names none.
    """

    dn: str
    directory_id: str
    username: str
    uid: int | None
    display_name: str
    mail: str
    active: bool
    department: str = ""


class GroupEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One research group; `members` may name people and other groups.

    Attributes:
        name: its Slurm account, in any case: sacctmgr keeps accounts in lower case.
    """

    dn: str
    directory_id: str
    name: str
    members: tuple[str, ...]
    owners: tuple[str, ...]


class Directory(msgspec.Struct, frozen=True):
    """A directory read in full.

    Raises:
        DirectoryError: when two entries claim the same name, uid, id or group.
    """

    people: tuple[PersonEntry, ...]
    groups: tuple[GroupEntry, ...]

    def __post_init__(self) -> None:
        entries: list[PersonEntry | GroupEntry] = [*self.people, *self.groups]
        _refuse_doubles("id", ((entry.directory_id, entry.dn) for entry in entries))
        _refuse_doubles("user name", ((one.username.lower(), one.dn) for one in self.people))
        numbers = ((str(one.uid), one.dn) for one in self.people if one.uid is not None)
        _refuse_doubles("uid number", numbers)
        _refuse_doubles("group name", ((one.name.lower(), one.dn) for one in self.groups))


def expired(shadow_expire: int | None, now: int) -> bool:
    """Whether an account has expired by `shadowExpire`, in days since 1970; shadow(5), -1 never."""
    if shadow_expire is None or shadow_expire < 0:
        return False
    return shadow_expire <= now // DAY_SECONDS


def people_in(directory: Directory) -> set[tuple[str, str]]:
    """DNs of each group and of each person who is in it themselves; owners are."""
    people = {person.dn for person in directory.people}
    return {(group, dn) for group, dn in _held(directory) if dn in people}


def groups_within(directory: Directory) -> set[tuple[str, str]]:
    """DNs of each group that is in another one, and of that one; they may contain each other."""
    groups = {group.dn for group in directory.groups}
    return {(dn, group) for group, dn in _held(directory) if dn in groups and dn != group}


def owner_of(group: GroupEntry, people: Mapping[str, PersonEntry]) -> PersonEntry | None:
    """The PI of a group; of several owners the first by user name, whatever the server's order."""
    owners = [people[dn] for dn in group.owners if dn in people]
    return min(owners, key=lambda person: person.username, default=None)


def doubts(directory: Directory) -> Iterator[str]:
    """Say what in a directory is allowed but was probably not meant."""
    people = {person.dn: person for person in directory.people}
    known = people.keys() | {group.dn for group in directory.groups}
    for group in directory.groups:
        owners = [dn for dn in group.owners if dn in people]
        if not owners:
            yield f"group {group.name} has no owner among the people: its jobs have no PI"
        if len(owners) > 1:
            chosen = owner_of(group, people)
            yield f"group {group.name} has {len(owners)} owners: {chosen and chosen.username} is PI"
        strangers = sum(dn not in known for dn in group.members)
        if strangers:
            yield f"group {group.name} has {strangers} members that are neither people nor groups"


def _held(directory: Directory) -> Iterator[tuple[str, str]]:
    for group in directory.groups:
        for dn in (*group.members, *group.owners):
            yield group.dn, dn


def _refuse_doubles(what: str, claims: Iterable[tuple[str, str]]) -> None:
    claims = list(claims)
    counts = Counter(value for value, _ in claims)
    for value, times in counts.items():
        if times > 1:
            holders = " and ".join(dn for claimed, dn in claims if claimed == value)
            raise DirectoryError(
                f"{what} {value!r} is claimed by {holders}; nothing was changed,"
                " give it to one of them only"
            )
