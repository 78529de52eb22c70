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
    """

    dn: str
    directory_id: str
    username: str
    uid: int | None
    display_name: str
    mail: str
    active: bool


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
        _refuse_doubles("user name", ((one.username, one.dn) for one in self.people))
        numbers = ((str(one.uid), one.dn) for one in self.people if one.uid is not None)
        _refuse_doubles("uid number", numbers)
        _refuse_doubles("group name", ((one.name.lower(), one.dn) for one in self.groups))


def expired(shadow_expire: int | None, now: int) -> bool:
    """Whether an account has expired by `shadowExpire`, in days since 1970; shadow(5), -1 never."""
    if shadow_expire is None or shadow_expire < 0:
        return False
    return shadow_expire <= now // DAY_SECONDS


def people_of_groups(directory: Directory) -> dict[str, set[str]]:
    """DNs of the people in each group, by the group's DN.

    Members of nested groups and owners are members. Groups may contain each other.
    """
    groups = {group.dn: group for group in directory.groups}
    people = {person.dn for person in directory.people}
    return {dn: _reached(dn, groups) & people for dn in groups}


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


def _reached(start: str, groups: Mapping[str, GroupEntry]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        dn = waiting.pop()
        if dn not in seen:  # groups that contain each other end here
            seen.add(dn)
            group = groups.get(dn)
            waiting += (*group.members, *group.owners) if group else ()
    return seen


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
