"""Bring all a ledger knows of people up to date, in one transaction: all of it or nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import msgspec
from sqlalchemy import Connection, func, insert, select

from slurmkit.errors import DirectoryError
from slurmkit_accounting.coordinators import Coordinator, keep_coordinators
from slurmkit_accounting.dated import Change
from slurmkit_accounting.directory_sync import DirectorySync, Gone
from slurmkit_accounting.eras import add_eras, lock_table
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.moves import Move, moves
from slurmkit_accounting.overrides import Override, keep_overrides
from slurmkit_accounting.people import Directory
from slurmkit_accounting.pi import People
from slurmkit_accounting.schema.people import people_syncs
from slurmkit_accounting.upkeep import rekey

_NAMED = 5  # of those that would vanish


class Told(msgspec.Struct, frozen=True):
    """What was heard of people; None leaves what is known as it is.

    Attributes:
        directory: read in full.
        overrides: everything in the site's file.
        coordinators: by cluster, everything that its Slurm says.
    """

    directory: Directory | None = None
    overrides: tuple[Override, ...] | None = None
    coordinators: Mapping[str, frozenset[Coordinator]] | None = None


class Synced(msgspec.Struct, frozen=True):
    """What a sync did.

    Attributes:
        changes: people first.
        moves: usage that belongs to somebody else now; worked out by a dry run only.
        refusal: of a dry run, why it would not be applied without being forced; else empty.
    """

    changes: tuple[Change, ...]
    moves: tuple[Move, ...] = ()
    refusal: str = ""


def sync_people(
    ledger: Ledger,
    told: Told,
    *,
    now: int | None = None,
    dry_run: bool = False,
    max_vanish: float = 1.0,
) -> Synced:
    """Apply what was heard of people in one transaction, and count usage under its new eras.

    Args:
        ledger: open for writing.
        told: what was heard.
        now: epoch seconds of the sync; the clock's when left out.
        dry_run: say what would change, and change nothing.
        max_vanish: the share of known people, or of known groups, that may be gone at once. At
            least half of them may lose their groups, owners or numbers.

    Raises:
        DirectoryError: when more would be gone; nothing is changed then.
        LedgerError: when the database fails; nothing is changed then.
    """
    with ledger.transaction(rehearsal=dry_run) as connection:
        lock_table(connection, people_syncs, "EXCLUSIVE")  # of two syncs the second one waits
        before = People.load(connection) if dry_run else None
        at = _not_before_the_last(connection, now or int(time.time()))
        connection.execute(insert(people_syncs), {"at": at})
        changes, gone = _apply(connection, told, at)
        refusal = "; ".join(_too_many(gone, max_vanish))
        if refusal and not dry_run:
            raise DirectoryError(refusal)
        since = add_eras(connection)
        if since is not None:
            rekey(connection, since)
        moved = moves(connection, before) if before else ()
        return Synced(changes, moved, refusal)


def _apply(connection: Connection, told: Told, at: int) -> tuple[tuple[Change, ...], list[Gone]]:
    changes: list[Change] = []
    gone: list[Gone] = []
    if told.directory is not None:
        sync = DirectorySync(connection, told.directory, at)
        changes += sync.apply()
        gone = sync.gone
    if told.overrides is not None:
        changes += keep_overrides(connection, told.overrides)
    if told.coordinators is not None:
        changes += keep_coordinators(connection, told.coordinators, at)
    return tuple(changes), gone


def _not_before_the_last(connection: Connection, now: int) -> int:
    """A clock that was put back must not end a fact before it began."""
    last: int | None = connection.scalar(select(func.max(people_syncs.c.at)))
    return max(now, last or 0)


def _too_many(gone: list[Gone], max_vanish: float) -> Iterator[str]:
    for one in gone:
        share = max(max_vanish, one.least)
        if len(one.names) > share * one.known:
            more = ", ..." if len(one.names) > _NAMED else ""
            allows = "that [ldap] max_vanish allows" if share == max_vanish else "that may be so"
            yield (
                f"{len(one.names)} of {one.known} {one.what}"
                f" ({', '.join(one.names[:_NAMED])}{more}), more than the share of {share:g}"
                f" {allows}; nothing was changed: check [ldap] {one.keys} and what bind_dn may"
                " read, or, if it is right, run it once with --force"
            )
