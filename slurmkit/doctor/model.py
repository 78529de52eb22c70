"""A check, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from slurmkit.doctor.case import Case

Severity = Literal["ok", "note", "warning", "error", "unknown"]


class Diagnosis(msgspec.Struct, frozen=True):
    """What a check found.

    Attributes:
        check: short stable name of the check.
        severity: `error` when people cannot work or are told wrong numbers, `warning` for what
            will hurt them, `note` for what they do without; `unknown` when it cannot be checked.
        message: what is the case, with the setting and its value.
        meaning: what that means for the people who use the cluster.
        fix: the exact setting to change, or the command to run.
        where: in which file, or as whom.
    """

    check: str
    severity: Severity
    message: str
    meaning: str = ""
    fix: str = ""
    where: str = ""


class Found(msgspec.Struct, frozen=True):
    """A diagnosis before it bears the name of its check."""

    severity: Severity
    message: str
    meaning: str = ""
    fix: str = ""
    where: str = "slurm.conf"


class Check(msgspec.Struct, frozen=True):
    """One thing to look at.

    Attributes:
        name: short and stable, e.g. `gpu-tres`.
        fine: said when nothing is found.
        look: yields what is wrong; raises a SlurmkitError when it cannot look.
    """

    name: str
    fine: str
    look: Callable[[Case], Iterator[Found]]
