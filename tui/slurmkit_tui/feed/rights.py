"""Rights of the person at the screen: on own jobs, on other people's jobs, on nodes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from slurmkit.errors import SlurmError
from slurmkit.slurm.commands import SlurmCommands

AdminLevel = Literal["none", "operator", "administrator"]
_LEVELS: tuple[AdminLevel, ...] = ("none", "operator", "administrator")
SUPERUSERS = frozenset({"root", "slurm"})


class Rights(msgspec.Struct, frozen=True):
    """Rights of a person.

    Attributes:
        level: Slurm's AdminLevel. None while unknown; then the TUI refuses nothing and Slurm
            decides.
        accounts: accounts whose coordinator the person is.
    """

    me: str = ""
    level: AdminLevel | None = None
    accounts: tuple[str, ...] = ()

    def refusal(self, row: Any, needs: AdminLevel) -> str:
        """Return why the person may not change a row; empty if allowed or unknown.

        Args:
            row: a job or a node.
            needs: the AdminLevel required even for an own row.
        """
        if self.level is None or self.level == "administrator":
            return ""
        if _LEVELS.index(self.level) < _LEVELS.index(needs):
            return f"only Slurm's {needs}s may do this"
        owner, account = getattr(row, "user", self.me), getattr(row, "account", "")
        if self.level == "operator" or owner == self.me or account in self.accounts:
            return ""
        return (
            f"job {row.job_id} is {owner}'s; only {owner}, coordinators of its account"
            " and Slurm's operators may change it"
        )


NO_KNOWN_RIGHTS = Rights()


def read_rights(slurm: SlurmCommands, me: str) -> Rights:
    """Read a person's rights from slurmdbd; without slurmdbd they are unknown."""
    if me in SUPERUSERS:
        return Rights(me, "administrator")
    try:
        output = slurm.run(
            ["sacctmgr", "--noheader", "--parsable2", "show", "user", f"name={me}", "WithCoord",
             "format=AdminLevel,Coord"]
        )  # fmt: skip
    except SlurmError:
        return Rights(me)
    if not output.strip():  # a person without an entry in slurmdbd
        return Rights(me, "none")
    level, _, accounts = output.strip().splitlines()[0].partition("|")
    known: AdminLevel = next((each for each in _LEVELS if each == level.lower()), "none")
    return Rights(me, known, tuple(filter(None, accounts.split(","))))
