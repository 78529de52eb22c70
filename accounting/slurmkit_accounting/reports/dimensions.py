"""The dimensions of reports: PI, group, user, partition, GPU type, ... of each usage key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, select

from slurmkit_accounting.calendar import UNITS
from slurmkit_accounting.ledger.bulk_write import in_values
from slurmkit_accounting.ledger.database import once
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.ledger.schema.usage import usage_keys
from slurmkit_accounting.people.pi import Owner, People
from slurmkit_accounting.reports.question import Scope
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.usage.bins import UNKNOWN_UID, UsageKey
from slurmkit_accounting.usage.keys import load_keys, load_owning_keys

UNMAPPED = "unmapped"
NO_GROUP, NO_DEPARTMENT = "no group", "no department"
KEY_DIMENSIONS = (
    "pi", "group", "department", "user", "account", "cluster", "partition", "qos", "gpu_type",
    "state",
)  # fmt: skip
ALL_DIMENSIONS = (*KEY_DIMENSIONS, *UNITS)


def dimension_name(name: str) -> str:
    """Return the name of a dimension's column: `gpu_type` for `gpu-type`, as options spell it."""
    return name.replace("-", "_")


def load_cluster_names(connection: Connection) -> dict[int, str]:
    """Load the names of clusters by id; nobody may change them."""
    query = select(clusters.c.id, clusters.c.name)
    return once(
        connection,
        "cluster names",
        lambda: {row[0]: row[1] for row in connection.execute(query)},
    )


class RunOwner(NamedTuple):
    """Who ran some runs (id in table `people`, None if unknown), and the PI who is charged."""

    person: int | None
    pi: Owner


class Dimensions:
    """Dimension values of usage keys, from people and clusters loaded once.

    Attributes:
        people: people and groups over time.
        clusters: cluster names by id.
    """

    def __init__(self, connection: Connection, rates: Rates) -> None:
        self.people = People.load(connection)
        self.clusters = load_cluster_names(connection)
        self._rates = rates
        self._owners: dict[tuple[object, ...], RunOwner] = {}
        self._of: dict[str, Callable[[UsageKey], str]] = {
            "pi": lambda key: self.owner(key).pi.name,
            "group": self._group,
            "department": self._department,
            "cluster": lambda key: self.clusters[key.cluster_id],
            "gpu_type": lambda key: rates.kind(key.gpu_type, key.partition).name,
        }

    def of(self, name: str, key: UsageKey) -> str:
        """Return the value of a dimension, one of `KEY_DIMENSIONS`."""
        look_up = self._of.get(name)
        return look_up(key) if look_up else str(getattr(key, name))

    def owner(self, key: UsageKey) -> RunOwner:
        """Return the person who ran these runs, and the PI to whom they are charged."""
        user = (key.cluster_id, key.account, key.user, key.uid, key.era)
        if user not in self._owners:
            uid = None if key.uid == UNKNOWN_UID else key.uid
            person = self.people.person(key.user, uid, key.era)
            pi = self.people.pi(key.cluster_id, key.account, key.user, uid, key.era)
            self._owners[user] = RunOwner(person, pi)
        return self._owners[user]

    def is_unmapped(self, key: UsageKey) -> bool:
        """Return whether these runs have no PI."""
        return self.owner(key).pi.via == UNMAPPED

    def shown(self, key: UsageKey, scope: Scope) -> bool:
        """Return whether a reader may see these runs."""
        if scope.is_everything:
            return True
        person, pi = self.owner(key)
        return scope.shows(person, pi.person_id, key.uid)

    def shown_keys(self, connection: Connection, scope: Scope) -> list[tuple[int, UsageKey]]:
        """Return the ids and usage keys that a reader may see; nobody may change them."""
        return once(connection, ("shown keys", scope), lambda: self._load_shown(connection, scope))

    def _load_shown(self, connection: Connection, scope: Scope) -> list[tuple[int, UsageKey]]:
        if scope.is_everything:
            return list(load_keys(connection))
        # Most readers see a few users of many, and the database finds the keys of these faster.
        users = {key.user for key in load_owning_keys(connection) if self.shown(key, scope)}
        of_users = in_values(connection, usage_keys.c.user, users)
        return [pair for pair in load_keys(connection, of_users) if self.shown(pair[1], scope)]

    def matches(self, key: UsageKey, filters: Mapping[str, Collection[str]]) -> bool:
        """Return whether these runs match the filters; time filters are ignored."""
        return all(
            self.of(name, key) in values for name, values in filters.items() if name not in UNITS
        )

    def _group(self, key: UsageKey) -> str:
        """Return one group value per run, so that rows add up.

        It is the group named like the run's account, else all groups of the person, by `+`.
        """
        person = self.owner(key).person
        if person is None:
            return UNMAPPED
        names = self.people.groups(person, key.era)
        named = [name for name in names if name.lower() == key.account.lower()]
        return "+".join(sorted(named or names)) or NO_GROUP

    def _department(self, key: UsageKey) -> str:
        person = self.owner(key).person
        if person is None:
            return UNMAPPED
        return self.people.department(person, key.era) or NO_DEPARTMENT
