"""The sync of a ledger's people with all sources, in one transaction.

The sources are the directory, the coordinators of Slurm's accounts, and overrides of PIs by account
or user, from the file that `[ledger] overrides` names:

[[override]]
account = "climate"        # or user, or both
user = "bob"
pi = "chen"
valid_from = 2026-01-01    # optional; without it, always
valid_to = 2026-07-01      # not included; optional; without it, still valid
"""

from __future__ import annotations

import datetime as dt
import time
import tomllib
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, func, insert, select

from slurmkit.config.files import did_you_mean, has_section, load_section
from slurmkit.errors import BadConfig, DirectoryError, SlurmError
from slurmkit.slurm.commands import SlurmCommands
from slurmkit_accounting.calendar import Zone, host_zone_or_utc
from slurmkit_accounting.config import LdapSection, LedgerSection, read_bind_password
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.people import people_syncs, pi_overrides
from slurmkit_accounting.people import ldap
from slurmkit_accounting.people.coordinators import (
    Coordinator,
    read_coordinators,
    store_coordinators,
)
from slurmkit_accounting.people.dated import PeopleChange, add_eras, lock_table
from slurmkit_accounting.people.directory_sync import DirectorySync, VanishedEntries
from slurmkit_accounting.people.model import Directory, directory_warnings
from slurmkit_accounting.people.pi import People
from slurmkit_accounting.people.unmapped import UsageMove, find_usage_moves
from slurmkit_accounting.usage.tables import RunProgress, no_progress, rekey_usage

_NAMED = 5  # names in the error when too many would vanish


class PeopleData(msgspec.Struct, frozen=True):
    """Data about people from all sources; None leaves the stored data as it is.

    Attributes:
        directory: read in full.
        overrides: all entries of the site's file.
        coordinators: all coordinators of each cluster.
    """

    directory: Directory | None = None
    overrides: tuple[PiOverride, ...] | None = None
    coordinators: Mapping[str, frozenset[Coordinator]] | None = None


class PeopleSync(msgspec.Struct, frozen=True):
    """Result of a sync.

    Attributes:
        changes: all changes, people first.
        moves: usage that moves to another PI; computed in a dry run only.
        refusal: in a dry run, why the sync would need to be forced; otherwise empty.
    """

    changes: tuple[PeopleChange, ...]
    moves: tuple[UsageMove, ...] = ()
    refusal: str = ""


def sync_people(
    ledger: Ledger,
    data: PeopleData,
    *,
    now: int | None = None,
    dry_run: bool = False,
    max_vanish: float = 1.0,
    progress: RunProgress = no_progress,
) -> PeopleSync:
    """Apply data about people in one transaction, and move usage to its new eras.

    Args:
        ledger: open for writing.
        data: the data from all sources.
        now: epoch seconds of the sync; the current time when left out.
        dry_run: return what would change, and change nothing.
        max_vanish: the share of known people, or of known groups, that may vanish at once. At
            least half of them may lose their groups, owners or uids.
        progress: called with the number of runs whose usage was looked at, and of all.

    Raises:
        DirectoryError: when more would vanish; nothing is changed then.
        LedgerError: when the database fails; nothing is changed then.
    """
    with ledger.transaction(rehearsal=dry_run) as connection:
        lock_table(connection, people_syncs, "EXCLUSIVE")  # a second sync waits here
        before = People.load(connection) if dry_run else None
        at = _not_before_the_last(connection, now or int(time.time()))
        connection.execute(insert(people_syncs), {"at": at})
        changes, gone = _apply_data(connection, data, at)
        refusal = "; ".join(_too_many(gone, max_vanish))
        if refusal and not dry_run:
            raise DirectoryError(refusal)
        since = add_eras(connection)
        if since is not None:
            rekey_usage(connection, since, progress)
        moved = find_usage_moves(connection, before) if before else ()
        return PeopleSync(changes, moved, refusal)


def _apply_data(
    connection: Connection, data: PeopleData, at: int
) -> tuple[tuple[PeopleChange, ...], list[VanishedEntries]]:
    changes: list[PeopleChange] = []
    gone: list[VanishedEntries] = []
    if data.directory is not None:
        sync = DirectorySync(connection, data.directory, at)
        changes += sync.apply()
        gone = sync.gone
    if data.overrides is not None:
        changes += store_overrides(connection, data.overrides)
    if data.coordinators is not None:
        changes += store_coordinators(connection, data.coordinators, at)
    return tuple(changes), gone


def _not_before_the_last(connection: Connection, now: int) -> int:
    """Return `now`, but not before the last sync: no fact may end before it began."""
    last: int | None = connection.scalar(select(func.max(people_syncs.c.at)))
    return max(now, last or 0)


def _too_many(gone: list[VanishedEntries], max_vanish: float) -> Iterator[str]:
    """Yield an error for each kind of entry of which too many would vanish."""
    for one in gone:
        share = max(max_vanish, one.least)
        if len(one.names) > share * one.known:
            more = ", ..." if len(one.names) > _NAMED else ""
            of_config = f"[ldap] max_vanish = {share:g} allows"
            limit = of_config if share == max_vanish else f"the accepted share of {share:g}"
            yield (
                f"{len(one.names)} of {one.known} {one.what}"
                f" ({', '.join(one.names[:_NAMED])}{more}), more than {limit};"
                f" nothing was changed: check [ldap] {one.keys} and what bind_dn may read; if the"
                " directory is right, run once: slurmkit ledger people sync --force"
            )


class PeopleSources(msgspec.Struct, frozen=True):
    """Data about people, and messages about it.

    Attributes:
        data: the data, for `sync_people`.
        notes: warnings about groups, and sources that could not be read.
        max_vanish: `[ldap] max_vanish`.
        read: what was read, in words.
    """

    data: PeopleData
    notes: tuple[str, ...]
    max_vanish: float
    read: str


def read_people_sources(slurm: SlurmCommands) -> PeopleSources:
    """Read the directory, the overrides and, where Slurm answers, the coordinators.

    A site without a section `[ldap]` has overrides and coordinators, or coordinators only.

    Raises:
        BadConfig: when the configuration or the overrides are invalid.
        DirectoryError: when the directory cannot be read in full.
        SlurmError: when coordinators are the only source, and Slurm does not answer.
    """
    section = load_section("ldap", LdapSection)
    overrides = load_configured_overrides()
    wanted = has_section("ldap")
    directory = ldap.read_directory(section, read_bind_password(section)) if wanted else None
    data = PeopleData(directory, overrides)
    notes = [*directory_warnings(directory)] if directory else []
    try:
        data = msgspec.structs.replace(data, coordinators=read_coordinators(slurm))
    except SlurmError as error:
        if directory is None and overrides is None:
            raise
        notes.append(f"coordinators could not be read, the known ones stay: {error}")
    if directory is None and overrides is None:
        notes.append(
            "only coordinators of Slurm's accounts were read: the configuration has neither [ldap]"
            " nor [ledger] overrides; for people of a directory: slurmkit setup --ldap-uri URI"
        )
    return PeopleSources(
        data, tuple(notes), section.max_vanish, "; ".join(_read(data, section.uri))
    )


def load_configured_overrides() -> tuple[PiOverride, ...] | None:
    """Load the overrides of the file that `[ledger] overrides` names; None if it names none.

    Raises:
        BadConfig: when it cannot be read or is invalid.
    """
    name = load_section("ledger", LedgerSection).overrides
    return load_overrides(Path(name)) if name else None


def _read(data: PeopleData, uri: str) -> Iterator[str]:
    if data.directory is not None:
        people = format_noun_count(len(data.directory.people), "person", "people")
        yield f"{people} and {format_noun_count(len(data.directory.groups), 'group')} in {uri}"
    if data.overrides is not None:
        yield format_noun_count(len(data.overrides), "override")
    if data.coordinators is not None:
        everybody = frozenset[Coordinator]().union(*data.coordinators.values())
        yield format_noun_count(len(everybody), "coordinator")


def format_noun_count(number: int, one: str, many: str = "") -> str:
    """Format a count with its noun: `1 person`, `2 people`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


class PiOverride(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """The PI of the runs of an account, of a user, or of a user in an account.

    Attributes:
        account: empty for any.
        user: empty for anybody.
        pi: user name of the PI.
        valid_from: epoch seconds; 0 for always.
        valid_to: epoch seconds, not included; None for still.
    """

    account: str = ""
    user: str = ""
    pi: str
    valid_from: int = 0
    valid_to: int | None = None

    def __str__(self) -> str:
        """Format as in a list of changes: `chen for bob in climate`."""
        whom = " in ".join(filter(None, (self.user, self.account)))
        return f"{self.pi} for {whom}"


def load_overrides(path: Path, zone: Zone | None = None) -> tuple[PiOverride, ...]:
    """Load the file of overrides.

    Args:
        path: of a TOML file with tables `[[override]]`.
        zone: time zone of its dates; the host's zone when left out.

    Raises:
        BadConfig: when it cannot be read, is invalid, or two entries contradict each other.
    """
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadConfig(f"[ledger] overrides: cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfig(f"[ledger] overrides: {path} is not TOML: {error}") from error
    tables = found.pop("override", [])
    if found or not (isinstance(tables, list) and all(isinstance(one, dict) for one in tables)):
        raise BadConfig(f"{path}: the file may have only entries, each under a line [[override]]")
    return tuple(_parse_overrides(path, tables, zone or host_zone_or_utc()))


def store_overrides(
    connection: Connection, wanted: tuple[PiOverride, ...]
) -> Iterator[PeopleChange]:
    """Replace the stored overrides by those of the file, and yield the changes."""
    fields = PiOverride.__struct_fields__
    query = select(pi_overrides.c.id, *(pi_overrides.c[name] for name in fields))
    stored = {
        PiOverride(**dict(zip(fields, facts, strict=True))): number
        for number, *facts in connection.execute(query)
    }
    added = [one for one in wanted if one not in stored]
    closed = [one for one in stored if one not in wanted]
    if closed:  # entries have their own dates: a removed entry is deleted, not closed
        numbers = [stored[one] for one in closed]
        connection.execute(delete(pi_overrides).where(pi_overrides.c.id.in_(numbers)))
    if added:
        connection.execute(insert(pi_overrides), [msgspec.structs.asdict(one) for one in added])
    for what, some in (("added", added), ("closed", closed)):
        yield from (PeopleChange("override", what, who) for who in sorted(map(str, some)))


def _parse_overrides(path: Path, tables: list[dict[str, Any]], zone: Zone) -> list[PiOverride]:
    found = [_parse_override(f"{path}: entry {number}", table, zone)
             for number, table in enumerate(tables, start=1)]  # fmt: skip
    for (first, one), (second, other) in combinations(enumerate(found, start=1), 2):
        if (one.account, one.user) == (other.account, other.user) and _overlap(one, other):
            raise BadConfig(
                f"{path}: entries {first} and {second} name a PI of {one.user or one.account} for"
                " the same time; give them dates that do not overlap, or remove one"
            )
    return found


def _parse_override(where: str, table: dict[str, Any], zone: Zone) -> PiOverride:
    for key in table:
        if key not in PiOverride.__struct_fields__:
            raise BadConfig(
                f"{where}: there is no key {key!r};"
                f" {did_you_mean(key, [*PiOverride.__struct_fields__], 'keys')}"
            )
    texts = {name: table.get(name, "") for name in ("account", "user", "pi")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise BadConfig(f"{where}: {name} must be text; put it in quotes")
    if not texts["pi"] or not (texts["account"] or texts["user"]):
        raise BadConfig(f"{where} needs pi, and also account or user (or both)")
    since, until = (
        _epoch(where, name, table.get(name), zone) for name in ("valid_from", "valid_to")
    )
    if until is not None and until <= (since or 0):
        raise BadConfig(f"{where}: valid_to must be later than valid_from")
    texts["account"] = texts["account"].lower()  # sacctmgr stores accounts in lower case
    return PiOverride(**texts, valid_from=since or 0, valid_to=until)


def _epoch(where: str, name: str, value: object, zone: Zone) -> int | None:
    """Convert a TOML date to epoch seconds."""
    if value is None:
        return None
    if not isinstance(value, dt.date):
        raise BadConfig(f"{where}: {name} must be a date; write it without quotes: 2026-01-31")
    return zone.epoch(value.isoformat())


def _overlap(one: PiOverride, other: PiOverride) -> bool:
    ends = [float("inf") if each.valid_to is None else each.valid_to for each in (one, other)]
    return one.valid_from < ends[1] and other.valid_from < ends[0]
