"""Ask everybody who knows of people: the directory, the site's overrides, Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from slurmkit.config import has_section, load_section
from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm
from slurmkit_accounting import directory as ldap
from slurmkit_accounting.config import LdapSection, LedgerSection
from slurmkit_accounting.coordinators import Coordinator, read_coordinators
from slurmkit_accounting.overrides import Override, read_overrides
from slurmkit_accounting.password import bind_password
from slurmkit_accounting.people import doubts
from slurmkit_accounting.people_sync import Told


class Heard(msgspec.Struct, frozen=True):
    """What was heard, and what to say of it.

    Attributes:
        told: for `sync_people`.
        notes: what was probably not meant, and what could not be asked.
        max_vanish: `[ldap] max_vanish`.
        read: what was read, in words.
    """

    told: Told
    notes: tuple[str, ...]
    max_vanish: float
    read: str


def hear(slurm: Slurm) -> Heard:
    """Read the directory, the overrides and, where Slurm answers, the coordinators.

    A site without a section `[ldap]` may have overrides and coordinators only.

    Raises:
        BadConfig: when the configuration or the overrides cannot be meant.
        DirectoryError: when the directory cannot be read in full.
    """
    section = load_section("ldap", LdapSection)
    overrides = configured_overrides()
    wanted = has_section("ldap") or overrides is None
    directory = ldap.read_directory(section, bind_password(section)) if wanted else None
    told, problem = _with_coordinators(Told(directory, overrides), slurm)
    notes = (*(doubts(directory) if directory else ()), *problem)
    return Heard(told, notes, section.max_vanish, "; ".join(_read(told, section.uri)))


def configured_overrides() -> tuple[Override, ...] | None:
    """The entries of the file that `[ledger] overrides` names; None where it names none.

    Raises:
        BadConfig: when it cannot be read or meant.
    """
    name = load_section("ledger", LedgerSection).overrides
    return read_overrides(Path(name)) if name else None


def _with_coordinators(told: Told, slurm: Slurm) -> tuple[Told, tuple[str, ...]]:
    try:
        found = read_coordinators(slurm)
    except SlurmError as error:
        return told, (f"coordinators were not read, those known stay: {error}",)
    return msgspec.structs.replace(told, coordinators=found), ()


def _read(told: Told, uri: str) -> Iterator[str]:
    if told.directory is not None:
        people = several(len(told.directory.people), "person", "people")
        yield f"{people} and {several(len(told.directory.groups), 'group')} in {uri}"
    if told.overrides is not None:
        yield several(len(told.overrides), "override")
    if told.coordinators is not None:
        everybody = frozenset[Coordinator]().union(*told.coordinators.values())
        yield several(len(everybody), "coordinator")


def several(number: int, one: str, many: str = "") -> str:
    """Write `1 person`, `2 people`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
