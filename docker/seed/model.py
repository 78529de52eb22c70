"""The seed file as typed values, checked when read."""

import tomllib
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class SeedError(Exception):
    """The seed file, or a system it is applied to, is not as it must be."""


@dataclass(frozen=True)
class Group:
    """A group of people; a Slurm account unless it is nested in another group."""

    name: str
    description: str
    number: int
    pi: str = ""
    within: str = ""
    fairshare: int = 1
    qos: list[str] = field(default_factory=lambda: ["normal"])
    limits: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Qos:
    """A quality of service of Slurm."""

    name: str
    priority: int = 0
    preempt: list[str] = field(default_factory=list)
    preempt_mode: str = "cluster"
    limits: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Person:
    """Somebody with an account in LDAP."""

    name: str
    full_name: str
    number: int
    groups: list[str]
    admin: str = "None"
    left: date | None = None


@dataclass(frozen=True)
class Seed:
    """Everything the seed file says."""

    groups: dict[str, Group]
    qos: dict[str, Qos]
    people: dict[str, Person]

    @property
    def active(self) -> list[Person]:
        """People who have not left."""
        return [person for person in self.people.values() if person.left is None]

    @property
    def accounts(self) -> list[Group]:
        """Groups that are Slurm accounts."""
        return [group for group in self.groups.values() if not group.within]

    def account_of(self, group: str) -> str:
        """The Slurm account that the people of a group use."""
        return self.groups[group].within or group

    def members(self, group: str) -> list[str]:
        """Active people who are in a group directly."""
        return [person.name for person in self.active if group in person.groups]

    def account_members(self, account: str) -> list[str]:
        """Active people of a group and of the groups nested in it."""
        return [p.name for p in self.active if account in map(self.account_of, p.groups)]

    def subgroups(self, group: str) -> list[str]:
        """Groups nested in a group."""
        return [other.name for other in self.groups.values() if other.within == group]


def read(path: Path) -> Seed:
    """Read and check a seed file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        seed = Seed(
            groups=_by_name(Group, table.get("group", [])),
            qos=_by_name(Qos, table.get("qos", [])),
            people=_by_name(Person, table.get("person", [])),
        )
    except (OSError, tomllib.TOMLDecodeError, TypeError) as error:
        raise SeedError(f"{path.name}: {error}") from error
    _check(seed, path.name)
    return seed


def _by_name(kind: type[T], rows: list[dict[str, Any]]) -> dict[str, T]:
    return {row["name"]: kind(**row) for row in rows}


def _check(seed: Seed, file: str) -> None:
    for person in seed.people.values():
        _known(person.groups, seed.groups, f"{file}: person {person.name}: group")
        if person.left is None and not person.groups:
            raise SeedError(f"{file}: person {person.name} has no group and has not left")
    for group in seed.groups.values():
        _known([group.pi] if group.pi else [], seed.people, f"{file}: group {group.name}: pi")
        _known([group.within] if group.within else [], seed.groups, f"{file}: {group.name}: within")
        _known(group.qos, seed.qos, f"{file}: group {group.name}: qos")
    numbers = [person.number for person in seed.people.values()]
    if len(set(numbers)) != len(numbers):
        raise SeedError(f"{file}: two people have the same number")


def _known(names: list[str], known: dict[str, Any], what: str) -> None:
    for name in names:
        if name not in known:
            raise SeedError(f"{what} {name!r} is not in the file")
