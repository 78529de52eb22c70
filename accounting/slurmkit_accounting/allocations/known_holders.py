"""Check that the ledger knows the PI or the account of a grant, so that its use can count."""

from __future__ import annotations

from sqlalchemy import Connection, select, text

from slurmkit.config.files import similar_names
from slurmkit.errors import BadInput
from slurmkit_accounting.allocations.model import Holder
from slurmkit_accounting.ledger.schema.people import coordinators, group_names, pi_overrides
from slurmkit_accounting.ledger.schema.runs import OPEN, runs
from slurmkit_accounting.ledger.schema.usage import usage_keys
from slurmkit_accounting.people.pi import People


def check_known(connection: Connection, holder: Holder) -> None:
    """Check the name of an account or PI; the accounts of a project are configured.

    Raises:
        BadInput: when no run, group, override or coordinator has this account, or nobody is or can
            be this PI.
    """
    if holder.kind == "project":
        return
    names = _accounts(connection) if holder.kind == "account" else _pis(connection)
    if holder.name in names:
        return
    near = _nearest(holder.name, names)
    hint = f"; did you mean {near!r}?" if near else "."
    raise BadInput(
        f"the ledger does not know {holder}, so nothing would count for this allocation{hint}"
        " If the name is right, and its jobs are still to come, add --new"
    )


def _nearest(name: str, known: set[str]) -> str | None:
    same = sorted(each for each in known if each.lower() == name.lower())
    return next(iter([*same, *similar_names(name, known)]), None)


def _accounts(connection: Connection) -> set[str]:
    """Return all accounts of runs, groups, overrides and coordinators, in lower case."""
    queries = (
        select(usage_keys.c.account).distinct(),
        select(runs.c.account).where(text(OPEN)).distinct(),
        select(group_names.c.name).distinct(),
        select(pi_overrides.c.account).distinct(),
        select(coordinators.c.account).distinct(),
    )
    return {name.lower() for query in queries for name in connection.scalars(query) if name}


def _pis(connection: Connection) -> set[str]:
    """Return the names of everybody in the directory, and of PIs whom it does not have."""
    people = People.load(connection)
    named = {
        name
        for query in (select(pi_overrides.c.pi).distinct(), select(coordinators.c.user).distinct())
        for name in connection.scalars(query)
        if not people.is_known(name)
    }
    return named | people.labels()
