"""Where people and groups are in a directory, from what its server and Slurm's accounts say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurmkit.errors import DirectoryError
from slurmkit_accounting.config import LdapSection
from slurmkit_accounting.people.ldap import SURVEYED, DirectorySurvey, survey_directory
from slurmkit_accounting.people.ldap_entries import LdapEntry
from slurmkit_accounting.site_setup.config_text import ConfigValue, ProposedValue

_COMMA = re.compile(r"(?<!\\),")
_SHARE, _FEW = 0.1, 10  # of the entries, and entries, from which on a second subtree counts
_SHOWN = 3


class _EntryKind(NamedTuple):
    """A kind of entries, and the keys of `[ldap]` that it needs; see docs/ledger-people.md."""

    search_filter: str
    settings: Mapping[str, ConfigValue]


_AD_PEOPLE = "(&(objectCategory=person)(objectClass=user))"
_PEOPLE = (
    _EntryKind(
        _AD_PEOPLE,
        {
            "people_filter": _AD_PEOPLE,
            "id_attribute": "objectGUID",
            "username_attribute": "sAMAccountName",
            "name_attribute": "displayName",
            "department_attribute": "department",
            "expire_attribute": "accountExpires",
            "page_size": 1000,
        },
    ),
    _EntryKind("(objectClass=posixAccount)", {}),
)
_IPA_GROUPS = "(&(objectClass=ipaUserGroup)(memberManager=*))"
# The first one counts if several have as many groups that are named as a Slurm account.
_GROUPS = (
    _EntryKind(
        _IPA_GROUPS,
        {
            "groups_filter": _IPA_GROUPS,
            "id_attribute": "ipaUniqueID",
            "owner_attribute": "memberManager",
            "expire_attribute": "",
        },
    ),
    _EntryKind("(objectClass=groupOfNames)", {}),
    _EntryKind(
        "(objectClass=groupOfUniqueNames)",
        {"groups_filter": "(objectClass=groupOfUniqueNames)", "member_attribute": "uniqueMember"},
    ),
    _EntryKind(
        "(objectClass=group)",
        {
            "groups_filter": "(objectClass=group)",
            "group_name_attribute": "sAMAccountName",
            "owner_attribute": "managedBy",
        },
    ),
    _EntryKind(
        "(objectClass=posixGroup)",
        {
            "groups_filter": "(objectClass=posixGroup)",
            "members": "username",
            "member_attribute": "memberUid",
        },
    ),
)
_NAMES = ("cn", "sAMAccountName")
_OWNER = "owner_attribute"
# Keys that hold for people and for groups.
_SHARED = frozenset(("id_attribute", "expire_attribute", "page_size"))
_OF_PEOPLE, _OF_GROUPS = (
    frozenset((f"{what}_base", f"{what}_filter")) for what in ("people", "groups")
)


def propose_subtrees(
    section: LdapSection, password: str, accounts: Collection[str], present: Collection[str] = ()
) -> list[ProposedValue]:
    """Ask a directory for the subtrees of people and of groups, and how it stores them.

    Args:
        section: `[ldap]`, as far as it is known: at least `uri`.
        password: of `bind_dn`.
        accounts: names of the accounts in Slurm: groups that have these names are the right ones.
        present: keys of `[ldap]` in the site's files. Where the subtree or the filter of people is
            one of them, no other setting of people is proposed; the same holds for groups.

    Raises:
        BadConfig: when the URI is invalid.
        DirectoryError: when no server can be read, or it shows no people or no groups.
    """
    filters = [kind.search_filter for kind in (*_PEOPLE, *_GROUPS)]
    owners = {_owner_attribute(kind, section) for kind in _GROUPS}
    survey = survey_directory(section, password, filters, (*_NAMES, *sorted(owners)))
    return choose_subtrees(survey, section, accounts, present)


def choose_subtrees(
    survey: DirectorySurvey,
    section: LdapSection,
    accounts: Collection[str],
    present: Collection[str] = (),
) -> list[ProposedValue]:
    """Return what follows from a survey; see `propose_subtrees`."""
    by_key: dict[str, ProposedValue] = {}
    for own, proposed in (
        (_OF_PEOPLE, _of_people(survey, section)),
        (_OF_GROUPS, _of_groups(survey, section, accounts)),
    ):
        if own.isdisjoint(present):
            for each in proposed:
                by_key.setdefault(each.key, each)
    if not (_OF_PEOPLE | _OF_GROUPS).isdisjoint(present):
        # They would change the meaning of the half that is in the file.
        return [each for each in by_key.values() if each.key not in _SHARED]
    return list(by_key.values())


def _of_people(survey: DirectorySurvey, section: LdapSection) -> Iterator[ProposedValue]:
    kind = next((kind for kind in _PEOPLE if survey.entries[kind.search_filter]), None)
    if kind is None:
        raise _nothing_error(survey, section, "people", _PEOPLE)
    entries = survey.entries[kind.search_filter]
    base, below = _common_base(entries)
    source = f"{survey.url}: {_count(below, entries)} with {kind.search_filter} are below it"
    yield ProposedValue("ldap", "people_base", base, source)
    yield from _settings(survey, kind)


def _of_groups(
    survey: DirectorySurvey, section: LdapSection, accounts: Collection[str]
) -> Iterator[ProposedValue]:
    wanted = {name.lower() for name in accounts}
    found = [(kind, survey.entries[kind.search_filter]) for kind in _GROUPS]
    found = [(kind, entries) for kind, entries in found if entries]
    if not found:
        raise _nothing_error(survey, section, "groups", _GROUPS)

    def fitness(one: tuple[_EntryKind, list[LdapEntry]]) -> tuple[int, int, bool]:
        kind, entries = one
        named = [entry for entry in entries if _names(entry) & wanted]
        owner = _owner_attribute(kind, section)
        owned = sum(_has(entry, owner) for entry in named)
        return owned, len(named), any(_has(entry, owner) for entry in entries)

    kind, entries = max(found, key=fitness)  # the first of several that are alike
    owned, count, _ = fitness((kind, entries))
    named = [entry for entry in entries if _names(entry) & wanted]
    base, below = _common_base(named or entries)
    how = f"{_count(below, named or entries)} with {kind.search_filter}"
    if named:
        some = sorted({name for entry in named for name in _names(entry) & wanted})
        shown = ", ".join(some[:_SHOWN]) + (", ..." if len(some) > _SHOWN else "")
        how += f" and the name of a Slurm account ({shown}) are below it, {owned} with an owner"
    else:
        how += " are below it; none has the name of a Slurm account"
    for other, others in found:
        if (more := fitness((other, others))[1]) > count:
            other_base, _ = _common_base([each for each in others if _names(each) & wanted])
            how += (
                f"; {other_base} has {more} such groups with {other.search_filter}, fewer with an"
            )
            how += " owner"
    yield ProposedValue("ldap", "groups_base", base, f"{survey.url}: {how}")
    yield from _settings(survey, kind)


def _settings(survey: DirectorySurvey, kind: _EntryKind) -> Iterator[ProposedValue]:
    source = f"{survey.url}: it has entries with {kind.search_filter}"
    for key, value in kind.settings.items():
        yield ProposedValue("ldap", key, value, source)


def _owner_attribute(kind: _EntryKind, section: LdapSection) -> str:
    return str(kind.settings.get(_OWNER, section.owner_attribute))


def _has(entry: LdapEntry, attribute: str) -> bool:
    return any(name.lower() == attribute.lower() and values for name, values in entry[1].items())


def _names(entry: LdapEntry) -> set[str]:
    """Return the names of a group, in lower case."""
    wanted = {name.lower() for name in _NAMES}
    return {
        value.decode("utf-8", "replace").lower()
        for name, values in entry[1].items()
        if name.lower() in wanted
        for value in values
    }


def _common_base(entries: Sequence[LdapEntry]) -> tuple[str, int]:
    """Return the subtree that holds entries, and how many of them are in it.

    Subtrees with few of the entries are left out, for example the one of service accounts.
    """
    parents = [_parts(dn)[1:] for dn, _ in entries]
    counts = Counter(map(_lower, parents))
    least = max(_SHARE * len(entries), _FEW)
    frequent = {parent for parent, count in counts.items() if count >= least}
    frequent |= {counts.most_common(1)[0][0]}
    base: tuple[str, ...] | None = None
    for parent in parents:
        if _lower(parent) in frequent:
            base = parent if base is None else _common_end(base, parent)
    base = base or ()
    below = sum(_lower(parent)[len(parent) - len(base) :] == _lower(base) for parent in parents)
    return ",".join(base), below


def _common_end(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    length = 0
    while length < min(len(a), len(b)) and a[-1 - length].lower() == b[-1 - length].lower():
        length += 1
    return a[len(a) - length :]


def _parts(dn: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in _COMMA.split(dn))


def _count(below: int, entries: Sequence[object]) -> str:
    limit = " that were looked at" if len(entries) >= SURVEYED else ""
    return f"{below} of {len(entries)} entries{limit}"


def _lower(parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.lower() for part in parts)


def _nothing_error(
    survey: DirectorySurvey, section: LdapSection, what: str, kinds: Sequence[_EntryKind]
) -> DirectoryError:
    asked = ", ".join(kind.search_filter for kind in kinds)
    return DirectoryError(
        f"{survey.url} shows no {what} ({asked}) to {section.bind_dn or 'anonymous'}; name another"
        f" account with --ldap-bind-dn and --ldap-password-file, or the subtree in [ldap]"
        f" {what}_base"
    )
