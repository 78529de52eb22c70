"""The columns of the queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slurmkit.states import code
from slurmkit_tui import states
from slurmkit_tui.snapshot import Line

STYLES = frozenset({"cell--mine", "cell--gpus", "cell--muted"})


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        title: its header.
        short: its header on a narrow screen.
        limit: cells it may take; a longer text is cut there, and shown in full by Enter.
        narrow: the same on a narrow screen.
        wide: left out on a narrow screen, as squeue does.
        right: aligned right.
        brief: how a text is shortened on a narrow screen.
        style: the style class of a line's cell, empty for the plain one.
    """

    title: str
    short: str
    limit: int = 16
    narrow: int = 14
    wide: bool = False
    right: bool = False
    brief: Callable[[str], str] = str
    style: Callable[[Line], str] = lambda _: ""


def _user(line: Line) -> str:
    return "cell--mine" if line.mine else ""


def _state(line: Line) -> str:
    return states.style(line.row.state)


def _gpus(line: Line) -> str:
    return "cell--gpus" if line.held else "cell--muted"


def _where(line: Line) -> str:
    return "" if line.row.node_list else "cell--muted"


def _muted(_: Line) -> str:
    return "cell--muted"


COLUMNS = (
    Column("JOBID", "JOBID", limit=22),
    Column("USER", "USER", narrow=10, style=_user),
    Column("ACCOUNT", "ACCT", limit=14, wide=True, style=_muted),
    Column("PARTITION", "PART", limit=14, narrow=9),
    Column("STATE", "ST", brief=code, style=_state),
    Column("TIME", "TIME", right=True),
    Column("LIMIT", "LIMIT", right=True, wide=True, style=_muted),
    Column("NODES", "N", right=True),
    Column("GPUS", "GPU", right=True, style=_gpus),
    Column("WHERE", "WHERE", limit=28, style=_where),
    Column("NAME", "NAME", limit=60, narrow=60),
)
