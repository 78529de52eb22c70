"""What the person at the screen may do: their own jobs, or everything as an operator."""

from __future__ import annotations

from typing import Any

import msgspec

from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm

_LEVELS = frozenset({"administrator", "operator"})
SUPERUSERS = frozenset({"root", "slurm"})


class Rights(msgspec.Struct, frozen=True):
    """Rights of a person.

    Attributes:
        operator: Slurm's operator or administrator; None while unknown, when nothing is refused
            on our side and Slurm has the word.
        accounts: whose coordinator they are.
    """

    me: str = ""
    operator: bool | None = None
    accounts: tuple[str, ...] = ()

    def refusal(self, row: Any, operators: bool) -> str:  # noqa: FBT001 - a field of Change
        """Why something may not be done to a row; empty when it may, or nobody knows."""
        if self.operator is not False:
            return ""
        if operators:
            return "only Slurm's operators may"
        owner, account = getattr(row, "user", self.me), getattr(row, "account", "")
        if owner == self.me or account in self.accounts:
            return ""
        return f"job {row.job_id} is {owner}'s; only they and Slurm's operators may"


UNKNOWN_RIGHTS = Rights()


def read_rights(slurm: Slurm, me: str) -> Rights:
    """Ask slurmdbd what somebody may do; without one nobody knows."""
    if me in SUPERUSERS:
        return Rights(me, operator=True)
    try:
        said = slurm.run(
            ["sacctmgr", "--noheader", "--parsable2", "show", "user", f"name={me}", "WithCoord",
             "format=AdminLevel,Coord"]
        )  # fmt: skip
    except SlurmError:
        return Rights(me)
    if not said.strip():  # Slurm knows them only by their jobs
        return Rights(me, operator=False)
    level, _, accounts = said.strip().splitlines()[0].partition("|")
    return Rights(me, level.lower() in _LEVELS, tuple(filter(None, accounts.split(","))))
