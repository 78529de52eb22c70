"""Allocations and their entries, as the ledger has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, select

from slurmkit.config.files import load_tables
from slurmkit.errors import BadInput
from slurmkit_accounting.allocations.amounts import UNIT_NAMES, Unit, format_hours
from slurmkit_accounting.allocations.draws import Pot
from slurmkit_accounting.config import ProjectSection
from slurmkit_accounting.ledger.schema.allocations import allocation_entries, allocations

HolderKind = Literal["account", "pi", "project"]
EntryKind = Literal["grant", "top-up", "transfer", "refund", "carry-over", "expiry"]
HOLDER_KINDS: tuple[HolderKind, ...] = ("account", "pi", "project")
_HOLDER_WORDS = {"account": "account", "pi": "PI", "project": "project"}


class Holder(msgspec.Struct, frozen=True, order=True):
    """Who an allocation is for.

    Attributes:
        kind: `account`, `pi` or `project`.
        name: name of the Slurm account (lower case), user name of the PI, or name of the project.
    """

    kind: HolderKind
    name: str

    def __str__(self) -> str:
        """Return the name for people: `account vision`, `PI vogel`."""
        return f"{_HOLDER_WORDS[self.kind]} {self.name}"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One row of an allocation's history; it is never changed.

    Attributes:
        amount_ms: what it adds, in thousandths of a unit-second.
        at: epoch seconds at which it was entered.
        who: user name of who entered it.
        finish: of an expiry: when the allocation ends.
        pair: the same for both sides of a transfer or carry-over.
        job_id: of a refund: the job.
    """

    id: int
    allocation: int
    kind: EntryKind
    amount_ms: int
    at: int
    who: str
    why: str
    finish: int | None = None
    pair: str | None = None
    cluster_id: int | None = None
    job_id: str | None = None


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation with all its entries, in the order in which they were stored.

    Attributes:
        begin: epoch seconds from which use counts.
        granted_to: epoch seconds of the end it was granted with; None is open.
    """

    id: int
    holder: Holder
    unit: Unit
    begin: int
    granted_to: int | None
    entries: tuple[Entry, ...] = ()

    @property
    def amount_ms(self) -> int:
        """All that was granted and followed."""
        return sum(entry.amount_ms for entry in self.entries)

    @property
    def finish(self) -> int | None:
        """When it ends: the earliest of its grant and its expiries."""
        ends = [self.granted_to, *(entry.finish for entry in self.entries)]
        return min((end for end in ends if end is not None), default=None)

    @property
    def pot(self) -> Pot:
        """What draws need of it."""
        return Pot(self.id, self.begin, self.finish, self.amount_ms)

    @property
    def unit_name(self) -> str:
        """The unit for people."""
        return UNIT_NAMES[self.unit]

    def is_in_force(self, now: int) -> bool:
        """Return whether use counts for it at a time."""
        return self.begin <= now < self.pot.end


def load_allocations(connection: Connection, *where: ColumnElement[bool]) -> tuple[Allocation, ...]:
    """Load the allocations that meet the conditions, each with all its entries, by id."""
    entries: dict[int, list[Entry]] = defaultdict(list)
    names = [column for column in allocation_entries.c if column.name != "identity"]
    query = select(*names).join(allocations).where(*where).order_by(allocation_entries.c.id)
    for row in connection.execute(query):
        facts = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's own name for it
        entry = Entry(allocation=facts.pop("allocation_id"), **facts)
        entries[entry.allocation].append(entry)
    query = select(allocations).where(*where).order_by(allocations.c.id)
    return tuple(
        Allocation(
            id=row.id,
            holder=Holder(row.holder_kind, row.holder),
            unit=row.unit,
            begin=row.begin,
            granted_to=row.finish,
            entries=tuple(entries[row.id]),
        )
        for row in connection.execute(query)
    )


def load_allocation(connection: Connection, number: int) -> Allocation:
    """Load one allocation.

    Raises:
        BadInput: when there is none with this number.
    """
    found = load_allocations(connection, allocations.c.id == number)
    if not found:
        raise BadInput(
            f"there is no allocation {number}; list them with: slurmkit allocation show --all"
        )
    return found[0]


def of_one_holder(connection: Connection, holder: Holder, unit: Unit) -> tuple[Allocation, ...]:
    """Load all allocations of a holder in one unit."""
    table = allocations.c
    return load_allocations(
        connection,
        table.holder_kind == holder.kind,
        table.holder == holder.name,
        table.unit == unit,
    )


def make_holder(kind: HolderKind, name: str) -> Holder:
    """Return a holder, with the name as it is stored.

    Raises:
        BadInput: for an empty name, and for a project that is not configured.
    """
    plain = name.strip()
    if not plain or not plain.isprintable():
        raise BadInput(f"{name!r} cannot be the name of an {_HOLDER_WORDS[kind]}")
    if kind == "project":
        accounts_of_project(plain)
    return Holder(kind, plain.lower() if kind == "account" else plain)


def load_projects() -> dict[str, frozenset[str]]:
    """Return the accounts of each project, in lower case, from `[project.NAME]`.

    Raises:
        BadConfig: for a wrong section.
    """
    sections = load_tables("project", ProjectSection)
    return {
        name: frozenset(account.lower() for account in section.accounts)
        for name, section in sections.items()
    }


def accounts_of_project(name: str) -> frozenset[str]:
    """Return the accounts of one project.

    Raises:
        BadInput: when it is not configured, or has no account.
    """
    projects = load_projects()
    if not projects.get(name):
        known = ", ".join(sorted(projects)) or "none"
        raise BadInput(
            f"there is no project {name!r} with accounts (known: {known}); write [project.{name}]"
            ' with accounts = ["NAME"] into the configuration of the ledger'
        )
    return projects[name]


def holders_of(found: Iterable[Allocation]) -> list[tuple[Holder, Unit]]:
    """Return each holder and unit once, in order."""
    return sorted({(one.holder, one.unit) for one in found})


def overdraft_words(allocation: Allocation, left_ms: int) -> str:
    """Say that an allocation ended overdrawn, and that no other one pays for it."""
    return (
        f"allocation {allocation.id} of {allocation.holder} ended overdrawn by"
        f" {format_hours(-left_ms)} {allocation.unit_name}; no other allocation pays for them"
    )
