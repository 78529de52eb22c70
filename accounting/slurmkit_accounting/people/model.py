"""People and groups of a directory at one moment, and who is in which group.

Groups may contain groups, also in a cycle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from slurmkit.errors import DirectoryError
from slurmkit_accounting.people.dated import DatedFacts

DAY_SECONDS = 86400


class PersonEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One person.

    Attributes:
        dn: normalised, so that equal names are equal texts; like all DNs here.
        directory_id: immutable id, never used for another entry.
        uid: numeric user id; None when the entry has none.
        active: False once the account has expired.
        department: empty if the entry names none.
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
        name: its Slurm account, in any case; sacctmgr stores accounts in lower case.
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
        _refuse_duplicates("id", ((entry.directory_id, entry.dn) for entry in entries))
        _refuse_duplicates("user name", ((one.username.lower(), one.dn) for one in self.people))
        numbers = ((str(one.uid), one.dn) for one in self.people if one.uid is not None)
        _refuse_duplicates("uid number", numbers)
        _refuse_duplicates("group name", ((one.name.lower(), one.dn) for one in self.groups))


def has_expired(shadow_expire: int | None, now: int) -> bool:
    """Return whether `shadowExpire` has passed: days since 1970, -1 never; shadow(5)."""
    if shadow_expire is None or shadow_expire < 0:
        return False
    return shadow_expire <= now // DAY_SECONDS


def memberships_of_people(directory: Directory) -> set[tuple[str, str]]:
    """Return pairs of DNs: a group and a person who is directly in it; owners are members too."""
    people = {person.dn for person in directory.people}
    return {(group, dn) for group, dn in _all_memberships(directory) if dn in people}


def memberships_of_groups(directory: Directory) -> set[tuple[str, str]]:
    """Return pairs of DNs: a group and the group that contains it; cycles are possible."""
    groups = {group.dn for group in directory.groups}
    return {
        (dn, group) for group, dn in _all_memberships(directory) if dn in groups and dn != group
    }


def pick_owner(group: GroupEntry, people: Mapping[str, PersonEntry]) -> PersonEntry | None:
    """Return the PI of a group: of several owners the first by user name, in any server order."""
    owners = [people[dn] for dn in group.owners if dn in people]
    return min(owners, key=lambda person: person.username, default=None)


def directory_warnings(directory: Directory) -> Iterator[str]:
    """Yield warnings about groups that are allowed but probably a mistake."""
    people = {person.dn: person for person in directory.people}
    known = people.keys() | {group.dn for group in directory.groups}
    for group in directory.groups:
        owners = [dn for dn in group.owners if dn in people]
        if not owners:
            yield f"group {group.name} has no owner in the directory, so its jobs get no PI from it"
        if len(owners) > 1:
            chosen = pick_owner(group, people)
            pi = chosen and chosen.username
            yield f"group {group.name} has {len(owners)} owners; {pi}, the first by name, is PI"
        strangers = sum(dn not in known for dn in group.members)
        if strangers:
            yield f"group {group.name} has {strangers} members that are neither people nor groups"


def _all_memberships(directory: Directory) -> Iterator[tuple[str, str]]:
    """Yield the DN of each group with the DN of each member and owner."""
    for group in directory.groups:
        for dn in (*group.members, *group.owners):
            yield group.dn, dn


def _refuse_duplicates(what: str, claims: Iterable[tuple[str, str]]) -> None:
    """Raise DirectoryError if two entries have the same value; claims are (value, DN)."""
    claims = list(claims)
    counts = Counter(value for value, _ in claims)
    for value, times in counts.items():
        if times > 1:
            holders = " and ".join(dn for claimed, dn in claims if claimed == value)
            raise DirectoryError(
                f"{holders} have the same {what} {value!r}; nothing was changed:"
                " give it to only one of them"
            )


class GroupNesting:
    """Lookup of all groups that a member of some groups is in."""

    def __init__(self, within: DatedFacts[int, int]) -> None:
        """Take `within`: by group, the groups that had it as a member."""
        self._within = within
        self._changes = sorted(set(within.changes()))
        self._known: dict[tuple[int, int], frozenset[int]] = {}

    def around(self, groups: Iterable[int], when: int) -> frozenset[int]:
        """Return the groups and all groups that contain them, directly or through others."""
        found = [self._around(group, when) for group in groups]
        return found[0] if len(found) == 1 else frozenset().union(*found)

    def _around(self, group: int, when: int) -> frozenset[int]:
        # Cached: the result stays the same until a nesting changes, which is rare.
        key = (group, bisect_right(self._changes, when))
        if key not in self._known:
            self._known[key] = frozenset(self._walk(group, when))
        return self._known[key]

    def _walk(self, group: int, when: int) -> set[int]:
        """Collect a group and all that contain it."""
        seen: set[int] = set()
        waiting = [group]
        while waiting:
            one = waiting.pop()
            if one not in seen:  # stops at groups that contain each other
                seen.add(one)
                waiting += self._within.at(one, when)
        return seen
