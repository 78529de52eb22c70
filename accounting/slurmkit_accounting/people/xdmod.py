"""Files for Open XDMoD: names of users and accounts, and the hierarchy of departments and PIs.

Formats: docs/hierarchy.md of XDMoD 11 and its guide to user names. They have no dates, so they show
people and groups as they are now.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from sqlalchemy import Connection, select

from slurmkit.config.paths import describe_write_error, write_private_file
from slurmkit.errors import BadInput
from slurmkit_accounting.ledger.schema.people import people, usernames
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.ledger.schema.usage import usage_keys
from slurmkit_accounting.people.pi import People, pick_lowest

NAMES, HIERARCHY, GROUPS = "names.csv", "hierarchy.csv", "group-to-hierarchy.csv"
_NO_DEPARTMENT, _NO_PI = "No department", "No PI"
_READABLE = 0o644

Rows = tuple[tuple[str, ...], ...]


class XdmodFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of the three files.

    Attributes:
        names: user name or account, first name, last name. An account has the name of its PI.
        hierarchy: key, name and key of the parent: the unit, its departments, their PIs.
        groups: account, and the key of its PI.
        without_pi: accounts with runs that have no PI now.
    """

    names: Rows
    hierarchy: Rows
    groups: Rows
    without_pi: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Write the files, each whole or not at all.

        Raises:
            BadInput: when a file cannot be written.
        """
        for name, rows in ((NAMES, self.names), (HIERARCHY, self.hierarchy), (GROUPS, self.groups)):
            path = folder / name
            try:
                folder.mkdir(parents=True, exist_ok=True)
                write_private_file(path, _csv(rows))
                path.chmod(_READABLE)  # XDMoD reads them as another user
            except OSError as error:
                raise BadInput(f"cannot write {path}: {describe_write_error(error)}") from error


def load_xdmod_files(connection: Connection, unit: str, now: int) -> XdmodFiles:
    """Load who has which name now, and the PI of each account that has runs.

    Args:
        connection: of the ledger.
        unit: the top of the hierarchy, e.g. the university.
        now: epoch seconds.
    """
    known = People.load(connection)
    persons = connection.execute(select(people.c.id, people.c.display_name))
    spelled = {number: name or known.label(number) for number, name in persons}
    numbers = list(connection.scalars(select(clusters.c.id)))
    accounts = sorted(filter(None, set(connection.scalars(select(usage_keys.c.account)))))
    pis = {each: pick_lowest(known.pis_of_account(each, numbers, now)) for each in accounts}
    departments = {
        pi: (known.department(pi, now) or _NO_DEPARTMENT) if pi is not None else _NO_DEPARTMENT
        for pi in pis.values()
    }
    users = {
        row.username: spelled[row.person_id]
        for row in connection.execute(select(usernames).order_by(usernames.c.id))
    }
    of_accounts = {
        account: spelled[pi]
        for account, pi in pis.items()
        if pi is not None and account not in users
    }
    names = {**users, **of_accounts}
    return XdmodFiles(
        names=tuple((name, *_first_and_last(names[name])) for name in sorted(names)),
        hierarchy=(
            ("unit", unit, ""),
            *((f"department {name}", name, "unit") for name in sorted(set(departments.values()))),
            *sorted(
                (_key(known, pi), _NO_PI if pi is None else spelled[pi], f"department {department}")
                for pi, department in departments.items()
            ),
        ),
        groups=tuple((account, _key(known, pi)) for account, pi in pis.items()),
        without_pi=tuple(account for account, pi in pis.items() if pi is None),
    )


def _key(known: People, pi: int | None) -> str:
    return "no pi" if pi is None else f"pi {known.label(pi)}"


def _first_and_last(name: str) -> tuple[str, str]:
    """Split a display name: `Vogel, Vera` at the comma, else the last word is the last name."""
    last, comma, first = name.partition(",")
    if not comma:
        first, _, last = name.strip().rpartition(" ")
    return first.strip(), last.strip()


def _csv(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
