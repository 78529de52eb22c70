"""What sreport says: the seconds of a TRES, of reservations that stood idle, and up to when."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

import msgspec

from slurmkit.errors import LedgerError, Refused
from slurmkit.slurm import Slurm
from slurmkit_accounting.schema import HOUR

Span = tuple[int, int]
_CLUSTER = re.compile(r"Cluster '(?P<name>[^']*)' rollup statistics")
_HOUR = re.compile(r"^Hour\s+last ran .*\((?P<at>\d+)\)", re.MULTILINE)
_DAEMON = re.compile(r"^Internal DBD rollup last ran .*\((?P<at>\d+)\)", re.MULTILINE)
_USED = "Cluster,Account,Login,TresName,Used"
_IDLE = "Cluster,Name,TresName,Idle"


class Rollup(msgspec.Struct, frozen=True):
    """Up to when sreport knows a cluster's usage.

    Attributes:
        at: epoch seconds of a full hour.
        source: what says so, in words.
    """

    at: int
    source: str


def rollup(slurm: Slurm, cluster: str) -> Rollup:
    """Ask slurmdbd how far it has rolled usage up; only operators may ask."""
    try:
        said = slurm.run(["sacctmgr", "show", "stats"])
    except Refused:
        return Rollup(_full_hour(int(time.time())), "the last full hour; only operators may ask")
    return read_rollup(said, cluster) or Rollup(_full_hour(int(time.time())), "the last full hour")


def read_rollup(said: str, cluster: str) -> Rollup | None:
    """Read `sacctmgr show stats`."""
    sections = _CLUSTER.split(said)
    for name, text in zip(sections[1::2], sections[2::2], strict=True):
        if name == cluster and (found := _HOUR.search(text)):
            return Rollup(_full_hour(int(found["at"])), "sacctmgr show stats, of this cluster")
    found = _DAEMON.search(said)
    return found and Rollup(_full_hour(int(found["at"])), "sacctmgr show stats, of slurmdbd")


def told_upto(span: Span, now: int) -> int:
    """Up to when sreport tells of a span: the hour that goes on only when it is all that is asked.

    However far usage was rolled up, sreport ends at the last full hour; a span that begins after
    it is given that one hour.
    """
    this_hour = _full_hour(now)
    return min(span[1], this_hour if span[0] < this_hour else this_hour + HOUR)


def used_seconds(slurm: Slurm, cluster: str, tres: str, span: Span) -> int:
    """Seconds of a TRES that all accounts used.

    Raises:
        LedgerError: when sreport knows no such TRES there.
    """
    words = ("cluster", "AccountUtilizationByUser")
    rows = _ask(slurm, words, (cluster, tres, _USED), span)
    # Every account holds those below it; the tree's root is everything.
    found = [int(row[4]) for row in rows if row[1:4] == ["root", "", tres]]
    if not found and list(rows):
        raise LedgerError(f"sreport has no {tres} of {cluster}; is it in AccountingStorageTRES?")
    return sum(found)


def idle_seconds(slurm: Slurm, cluster: str, tres: str, span: Span) -> int:
    """Seconds of a TRES that reservations held and no job used."""
    rows = _ask(slurm, ("reservation", "Utilization"), (cluster, tres, _IDLE), span)
    return sum(int(row[3]) for row in rows if row[2] == tres)


def _ask(
    slurm: Slurm, words: tuple[str, str], what: tuple[str, str, str], span: Span
) -> list[list[str]]:
    cluster, tres, fields = what
    asked = [f"clusters={cluster}", f"Start=uts{span[0]}", f"End=uts{span[1]}", f"Format={fields}"]
    said = slurm.run(["sreport", "-nP", "-t", "Seconds", "-T", tres, *words, *asked])
    return [line.split("|") for line in _lines(said)]


def _lines(said: str) -> Iterable[str]:
    return filter(None, map(str.strip, said.splitlines()))


def _full_hour(at: int) -> int:
    return at - at % HOUR
