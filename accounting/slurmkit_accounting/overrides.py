"""The site's own word on whose an account or a user is: the file that `[ledger] overrides` names.

[[override]]
account = "climate"        # or user, or both
user = "bob"
pi = "chen"
valid_from = 2026-01-01    # may be left out: always was
valid_to = 2026-07-01      # not included; may be left out: still is
"""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, insert, select

from slurmkit.config import nearest
from slurmkit.errors import BadConfig
from slurmkit_accounting.dated import Change
from slurmkit_accounting.schema.people import pi_overrides
from slurmkit_accounting.zones import Zone, zone_or_utc


class Override(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """Whose runs of an account, of a user, or of a user in an account are.

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
        """As a change is shown: `chen for bob in climate`."""
        whom = " in ".join(filter(None, (self.user, self.account)))
        return f"{self.pi} for {whom}"


def read_overrides(path: Path, zone: Zone | None = None) -> tuple[Override, ...]:
    """Read the file of overrides.

    Args:
        path: of a TOML file with tables `[[override]]`.
        zone: what its dates mean; the host's zone when left out.

    Raises:
        BadConfig: when it cannot be read or meant, or two entries say different things.
    """
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadConfig(f"[ledger] overrides: cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfig(f"[ledger] overrides: {path} is not TOML: {error}") from error
    tables = found.pop("override", [])
    if found or not (isinstance(tables, list) and all(isinstance(one, dict) for one in tables)):
        raise BadConfig(f"{path}: write each entry under a line [[override]], and nothing else")
    return tuple(_checked(path, tables, zone or zone_or_utc()))


def keep_overrides(connection: Connection, wanted: tuple[Override, ...]) -> Iterator[Change]:
    """Make the stored overrides those of the file, and say what changed."""
    fields = Override.__struct_fields__
    query = select(pi_overrides.c.id, *(pi_overrides.c[name] for name in fields))
    stored = {
        Override(**dict(zip(fields, facts, strict=True))): number
        for number, *facts in connection.execute(query)
    }
    added = [one for one in wanted if one not in stored]
    closed = [one for one in stored if one not in wanted]
    if closed:  # the file has its own dates: what it does not say any more never was
        numbers = [stored[one] for one in closed]
        connection.execute(delete(pi_overrides).where(pi_overrides.c.id.in_(numbers)))
    if added:
        connection.execute(insert(pi_overrides), [msgspec.structs.asdict(one) for one in added])
    for what, some in (("added", added), ("closed", closed)):
        yield from (Change("override", what, said) for said in sorted(map(str, some)))


def _checked(path: Path, tables: list[dict[str, Any]], zone: Zone) -> list[Override]:
    found = [_override(f"{path}: entry {number}", table, zone)
             for number, table in enumerate(tables, start=1)]  # fmt: skip
    for (first, one), (second, other) in combinations(enumerate(found, start=1), 2):
        if (one.account, one.user) == (other.account, other.user) and _overlap(one, other):
            raise BadConfig(
                f"{path}: entries {first} and {second} both say whose {one.user or one.account} is"
                " at the same time; give them dates that do not overlap, or take one out"
            )
    return found


def _override(where: str, table: dict[str, Any], zone: Zone) -> Override:
    for key in table:
        if key not in Override.__struct_fields__:
            raise BadConfig(
                f"{where} has no key {key!r}; {nearest(key, [*Override.__struct_fields__], 'keys')}"
            )
    texts = {name: table.get(name, "") for name in ("account", "user", "pi")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise BadConfig(f"{where}: {name} is not a text; put it in quotes")
    if not texts["pi"] or not (texts["account"] or texts["user"]):
        raise BadConfig(f"{where} needs pi, and account or user or both")
    since, until = (
        _epoch(where, name, table.get(name), zone) for name in ("valid_from", "valid_to")
    )
    if until is not None and until <= (since or 0):
        raise BadConfig(f"{where}: valid_to is not after valid_from")
    texts["account"] = texts["account"].lower()  # as sacctmgr keeps accounts
    return Override(**texts, valid_from=since or 0, valid_to=until)


def _epoch(where: str, name: str, value: object, zone: Zone) -> int | None:
    if value is None:
        return None
    if not isinstance(value, dt.date):
        raise BadConfig(f"{where}: {name} is not a date; write it without quotes: 2026-01-31")
    return zone.epoch(value.isoformat())


def _overlap(one: Override, other: Override) -> bool:
    ends = [float("inf") if each.valid_to is None else each.valid_to for each in (one, other)]
    return one.valid_from < ends[1] and other.valid_from < ends[0]
