"""Makes the entries of LDAP equal to the seed, writing only what differs."""

import base64
import hashlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from model import Group, Person, Seed

BASE = "dc=lab,dc=example"
UNITS = {unit: f"ou={unit},{BASE}" for unit in ("people", "research", "groups")}
EVERYONE = "people"  # everybody's primary group
EVERYONE_NUMBER = 20000
SECRETS = Path("/secrets")
PASSWORD_ATTRIBUTE = "userPassword"  # noqa: S105 - the name, not a password

Entry = dict[str, list[str]]
Entries = dict[str, Entry]


def wanted(seed: Seed) -> Entries:
    """The entries that the seed describes, parents first."""
    entries: Entries = {
        dn: {"objectClass": ["organizationalUnit"], "ou": [unit]} for unit, dn in UNITS.items()
    }
    for person in seed.people.values():
        entries[person_dn(person.name)] = _person(person)
    for group in seed.groups.values():
        if group.pi:
            entries[f"cn={group.name},{UNITS['research']}"] = _research_group(seed, group)
        members = seed.account_members(group.name) if not group.within else seed.members(group.name)
        entries[f"cn={group.name},{UNITS['groups']}"] = _unix_group(
            group.name, group.number, members
        )
    entries[f"cn={EVERYONE},{UNITS['groups']}"] = _unix_group(EVERYONE, EVERYONE_NUMBER, [])
    return entries


def person_dn(name: str) -> str:
    """The DN of a person."""
    return f"uid={name},{UNITS['people']}"


def _person(person: Person) -> Entry:
    given, _, family = person.full_name.partition(" ")
    entry = {
        "objectClass": ["inetOrgPerson", "posixAccount", "shadowAccount"],
        "uid": [person.name],
        "cn": [person.full_name],
        "givenName": [given],
        "sn": [family or given],
        "mail": [f"{person.name}@lab.example"],
        "uidNumber": [str(person.number)],
        "gidNumber": [str(EVERYONE_NUMBER)],
        "homeDirectory": [f"/home/{person.name}"],
        "loginShell": ["/bin/bash" if person.left is None else "/usr/sbin/nologin"],
    }
    if person.left is not None:
        entry["shadowExpire"] = [str((person.left - date(1970, 1, 1)).days)]
    return entry


def _research_group(seed: Seed, group: Group) -> Entry:
    members = [person_dn(name) for name in seed.members(group.name)]
    members += [f"cn={name},{UNITS['research']}" for name in seed.subgroups(group.name)]
    return {
        "objectClass": ["groupOfNames"],
        "cn": [group.name],
        "description": [group.description],
        "owner": [person_dn(group.pi)],
        "member": members,
    }


def _unix_group(name: str, number: int, members: list[str]) -> Entry:
    entry = {"objectClass": ["posixGroup"], "cn": [name], "gidNumber": [str(number)]}
    if members:
        entry["memberUid"] = members
    return entry


def differences(want: Entries, have: Entries) -> Iterator[str]:
    """LDIF change records that turn what the directory has into what is wanted."""
    for dn, entry in want.items():
        if dn not in have:
            yield _record(dn, "add", *(_line(k, v) for k, vs in entry.items() for v in vs))
        elif changes := _changes(entry, have[dn]):
            yield _record(dn, "modify", *changes)
    for dn in sorted(have.keys() - want.keys(), key=len, reverse=True):
        yield _record(dn, "delete")


def _changes(want: Entry, have: Entry) -> list[str]:
    lines: list[str] = []
    for name in sorted((want.keys() | have.keys()) - {PASSWORD_ATTRIBUTE}):
        values = want.get(name, [])
        if sorted(values) != sorted(have.get(name, [])):
            lines += [f"replace: {name}", *(_line(name, value) for value in values), "-"]
    return lines


def passwords(seed: Seed, have: Entries) -> Iterator[str]:
    """Change records for people whose password is not the one in the cluster's secrets.

    Who left has none.
    """
    for person in seed.people.values():
        stored = have.get(person_dn(person.name), {}).get(PASSWORD_ATTRIBUTE, [""])[0]
        if person.left is None:
            password = _password(person.name)
            if not _verifies(password, stored):
                hashed = _line(PASSWORD_ATTRIBUTE, _hashed(password, os.urandom(8)))
                yield _set_password(person.name, hashed)
        elif stored:
            yield _set_password(person.name)


def _set_password(name: str, *lines: str) -> str:
    return _record(person_dn(name), "modify", f"replace: {PASSWORD_ATTRIBUTE}", *lines, "-")


def _forget_passwords(seed: Seed) -> None:
    active = {person.name for person in seed.active}
    for file in (SECRETS / "people").glob("*.password"):
        if file.stem not in active:
            file.unlink()


def _password(name: str) -> str:
    folder = SECRETS / "people"
    file = folder / f"{name}.password"
    if not file.exists():
        new = folder / "new"
        new.touch(mode=0o600)
        new.write_text(secrets.token_hex(8), encoding="ascii")
        new.rename(file)
    return file.read_text(encoding="ascii")


def _hashed(password: str, salt: bytes) -> str:
    digest = hashlib.sha1(password.encode() + salt, usedforsecurity=False).digest()
    return "{SSHA}" + base64.b64encode(digest + salt).decode()


def _verifies(password: str, stored: str) -> bool:
    if not stored.startswith("{SSHA}"):
        return False
    salt = base64.b64decode(stored.removeprefix("{SSHA}"))[20:]
    return _hashed(password, salt) == stored


def _record(dn: str, kind: str, *lines: str) -> str:
    return "\n".join([f"dn: {dn}", f"changetype: {kind}", *lines]) + "\n"


def _line(name: str, value: str) -> str:
    if value.isascii() and value.isprintable() and value[:1] not in (" ", ":", "<"):
        return f"{name}: {value}"
    return f"{name}:: {base64.b64encode(value.encode()).decode()}"


def parse(ldif: str) -> Entries:
    """The entries of LDIF text whose lines are not wrapped."""
    entries: Entries = {}
    for block in ldif.strip().split("\n\n"):
        entry: Entry = {}
        for line in filter(None, block.splitlines()):
            name, _, value = line.partition(":")
            if value.startswith(":"):
                value = base64.b64decode(value[1:]).decode()
            entry.setdefault(name, []).append(value.strip())
        if entry:
            entries[entry.pop("dn")[0]] = entry
    return entries


def _ldap(command: str, *arguments: str, text: str = "") -> str:
    bind = ["-x", "-ZZ", "-H", "ldap://ldap", "-D", f"cn=admin,{BASE}"]
    argv = [command, *bind, "-y", str(SECRETS / "ldap-admin.password"), *arguments]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.SubprocessError(f"{command}: {done.stderr.strip()}")
    return done.stdout


def _stored() -> Entries:
    under = "(|" + "".join(f"(entryDN:dnSubtreeMatch:={dn})" for dn in UNITS.values()) + ")"
    return parse(_ldap("ldapsearch", "-LLL", "-o", "ldif_wrap=no", "-b", BASE, under, "*"))


def apply(seed: Seed) -> int:
    """Make the directory equal to the seed; returns how many entries were changed."""
    changes = list(differences(wanted(seed), _stored()))
    if changes:
        _ldap("ldapmodify", text="\n".join(changes))
    resets = list(passwords(seed, _stored()))
    if resets:
        _ldap("ldapmodify", text="\n".join(resets))
    _forget_passwords(seed)
    return len(changes) + len(resets)
