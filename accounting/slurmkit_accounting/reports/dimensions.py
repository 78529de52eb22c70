"""What usage is summed by: whose each usage key is, and what it is of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from sqlalchemy import Connection, select

from slurmkit_accounting.bins import UNKNOWN_UID, Key
from slurmkit_accounting.pi import Owner, People
from slurmkit_accounting.reports.periods import UNITS
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.reports.scope import Scope
from slurmkit_accounting.schema import clusters

UNMAPPED = "unmapped"
NO_GROUP, NO_DEPARTMENT = "no group", "no department"
OF_KEYS = (
    "pi", "group", "department", "user", "account", "cluster", "partition", "qos", "gpu-type",
    "state",
)  # fmt: skip
ALL = (*OF_KEYS, *UNITS)


class Dimensions:
    """Answers for usage keys, from memory.

    Attributes:
        people: who was who.
        clusters: names by number.
    """

    def __init__(self, connection: Connection, rates: Rates) -> None:
        self.people = People.load(connection)
        self.clusters: dict[int, str] = {
            row[0]: row[1] for row in connection.execute(select(clusters.c.id, clusters.c.name))
        }
        self._rates = rates
        self._owners: dict[tuple[object, ...], tuple[int | None, Owner]] = {}
        self._of: dict[str, Callable[[Key], str]] = {
            "pi": lambda key: self.owner(key)[1].name,
            "group": self._group,
            "department": self._department,
            "cluster": lambda key: self.clusters[key.cluster_id],
            "gpu-type": lambda key: rates.kind(key.gpu_type, key.partition).name,
        }

    def of(self, name: str, key: Key) -> str:
        """The value of a dimension, one of `OF_KEYS`."""
        found = self._of.get(name)
        return found(key) if found else str(getattr(key, name))

    def owner(self, key: Key) -> tuple[int | None, Owner]:
        """The person whose runs these are, and whom they are charged to."""
        asked = (key.cluster_id, key.account, key.user, key.uid, key.era)
        if asked not in self._owners:
            uid = None if key.uid == UNKNOWN_UID else key.uid
            person = self.people.person(key.user, uid, key.era)
            pi = self.people.pi(key.cluster_id, key.account, key.user, uid, key.era)
            self._owners[asked] = (person, pi)
        return self._owners[asked]

    def is_unmapped(self, key: Key) -> bool:
        """Whether these runs have no PI."""
        return self.owner(key)[1].via == UNMAPPED

    def shown(self, key: Key, scope: Scope) -> bool:
        """Whether a reader may see these runs."""
        if scope.is_everything:
            return True
        person, pi = self.owner(key)
        return scope.shows(person, pi.person_id, key.uid)

    def matches(self, key: Key, filters: Mapping[str, Collection[str]]) -> bool:
        """Whether these runs are what filters ask for; days, weeks and months are not looked at."""
        return all(
            self.of(name, key) in values for name, values in filters.items() if name not in UNITS
        )

    def _group(self, key: Key) -> str:
        """One for each run, so that rows add up: the group named like its account, if any."""
        person, _ = self.owner(key)
        if person is None:
            return UNMAPPED
        names = self.people.groups(person, key.era)
        named = [name for name in names if name.lower() == key.account.lower()]
        return "+".join(sorted(named or names)) or NO_GROUP

    def _department(self, key: Key) -> str:
        person, _ = self.owner(key)
        if person is None:
            return UNMAPPED
        return self.people.department(person, key.era) or NO_DEPARTMENT
