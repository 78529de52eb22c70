"""What the person at the screen may do: to their own jobs, to everybody's, to nodes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm

Level = Literal["none", "operator", "administrator"]
_LEVELS: tuple[Level, ...] = ("none", "operator", "administrator")
SUPERUSERS = frozenset({"root", "slurm"})


class Rights(msgspec.Struct, frozen=True):
    """Rights of a person.

    Attributes:
        level: Slurm's AdminLevel; None while unknown, when nothing is refused on our side and
            Slurm has the word.
        accounts: whose coordinator they are.
    """

    me: str = ""
    level: Level | None = None
    accounts: tuple[str, ...] = ()

    def refusal(self, row: Any, needs: Level) -> str:
        """Why something may not be done to a row; empty when it may, or nobody knows.

        Args:
            row: a job or a node.
            needs: the level it takes whosever the row is.
        """
        if self.level is None or self.level == "administrator":
            return ""
        if _LEVELS.index(self.level) < _LEVELS.index(needs):
            return f"only Slurm's {needs}s may"
        owner, account = getattr(row, "user", self.me), getattr(row, "account", "")
        if self.level == "operator" or owner == self.me or account in self.accounts:
            return ""
        return f"job {row.job_id} is {owner}'s; only they and Slurm's operators may"


UNKNOWN_RIGHTS = Rights()


def read_rights(slurm: Slurm, me: str) -> Rights:
    """Ask slurmdbd what somebody may do; without one nobody knows."""
    if me in SUPERUSERS:
        return Rights(me, "administrator")
    try:
        said = slurm.run(
            ["sacctmgr", "--noheader", "--parsable2", "show", "user", f"name={me}", "WithCoord",
             "format=AdminLevel,Coord"]
        )  # fmt: skip
    except SlurmError:
        return Rights(me)
    if not said.strip():  # Slurm knows them only by their jobs
        return Rights(me, "none")
    level, _, accounts = said.strip().splitlines()[0].partition("|")
    known: Level = next((each for each in _LEVELS if each == level.lower()), "none")
    return Rights(me, known, tuple(filter(None, accounts.split(","))))
