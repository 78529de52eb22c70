"""`budgets.toml`: how many GPU-hours a PI has in a period.

[[budget]]
pi = "vogel"
gpu_hours = 50000
from = 2026-01-01
to = 2027-01-01      # not included
"""

from __future__ import annotations

import datetime as dt
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from slurmkit.config import config_paths, load_section
from slurmkit.errors import BadConfig
from slurmkit_accounting.config import LedgerSection

NAME = "budgets.toml"


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPU-hours that a PI has from a day until before another."""

    pi: str
    gpu_hours: Annotated[float, msgspec.Meta(gt=0)]
    begin: dt.date = msgspec.field(name="from")
    end: dt.date = msgspec.field(name="to")

    def __post_init__(self) -> None:
        if self.begin >= self.end:
            raise ValueError(f"the budget of {self.pi} ends before it begins")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    budget: tuple[Budget, ...] = ()


def load_budgets() -> tuple[Budget, ...]:
    """Every budget of the file named by `[ledger] budgets`, else beside the configuration.

    Raises:
        BadConfig: when the file cannot be read, or is none of budgets.
    """
    path = budgets_path()
    if path is None:
        return ()
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File).budget
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfig(f"cannot read the budgets {path}: {error}") from error
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}: {error}; a [[budget]] has pi, gpu_hours, from and to") from error
    return found


def budgets_path() -> Path | None:
    """Where budgets are; None where nobody has written any."""
    named = load_section("ledger", LedgerSection).budgets
    if named:
        return Path(named)
    beside = [path.parent / NAME for path in config_paths()]
    return next((path for path in reversed(beside) if path.exists()), None)
