"""Ask sreport for the used seconds of a TRES, idle reservations, and how far its data goes."""

from __future__ import annotations

import re
import time

import msgspec

from slurmkit.errors import LedgerError, Refused
from slurmkit.slurm.commands import SlurmCommands
from slurmkit_accounting.ledger.schema.usage import HOUR

TimeSpan = tuple[int, int]
_CLUSTER = re.compile(r"Cluster '(?P<name>[^']*)' rollup statistics")
_HOUR = re.compile(r"^Hour\s+last ran .*\((?P<at>\d+)\)", re.MULTILINE)
_DAEMON = re.compile(r"^Internal DBD rollup last ran .*\((?P<at>\d+)\)", re.MULTILINE)
_USED = "Cluster,Account,Login,TresName,Used"
_IDLE = "Cluster,Name,TresName,Idle"


class RollupTime(msgspec.Struct, frozen=True):
    """The time up to which sreport knows a cluster's usage.

    Attributes:
        at: epoch seconds of a full hour.
        source: where the time comes from, in words.
    """

    at: int
    source: str


def read_rollup_time(slurm: SlurmCommands, cluster: str) -> RollupTime:
    """Read from slurmdbd how far it has rolled up usage; only administrators may ask."""
    try:
        output = slurm.run(["sacctmgr", "show", "stats"])
    except Refused:
        return RollupTime(
            _full_hour(int(time.time())),
            "the last full hour; only AdminLevel Administrator sees the exact time",
        )
    return parse_rollup_time(output, cluster) or RollupTime(
        _full_hour(int(time.time())), "the last full hour"
    )


def parse_rollup_time(output: str, cluster: str) -> RollupTime | None:
    """Parse `sacctmgr show stats`; None if it names no rollup."""
    sections = _CLUSTER.split(output)
    for name, text in zip(sections[1::2], sections[2::2], strict=True):
        if name == cluster and (found := _HOUR.search(text)):
            return RollupTime(_full_hour(int(found["at"])), "sacctmgr show stats, of this cluster")
    found = _DAEMON.search(output)
    return found and RollupTime(_full_hour(int(found["at"])), "sacctmgr show stats, of slurmdbd")


def end_of_sreport_data(span: TimeSpan, now: int) -> int:
    """Return where the data of sreport ends within a span, in epoch seconds.

    However far usage was rolled up, sreport ends at the last full hour. Only for a span that begins
    within the current hour does sreport include that hour.
    """
    this_hour = _full_hour(now)
    return min(span[1], this_hour if span[0] < this_hour else this_hour + HOUR)


def read_used_seconds(slurm: SlurmCommands, cluster: str, tres: str, span: TimeSpan) -> int:
    """Read the seconds of a TRES that all accounts used.

    Raises:
        LedgerError: when sreport knows no such TRES of the cluster.
    """
    report = ("cluster", "AccountUtilizationByUser")
    rows = _run_sreport(slurm, report, cluster=cluster, tres=tres, fields=_USED, span=span)
    # An account includes those below it: root has everything.
    found = [int(row[4]) for row in rows if row[1:4] == ["root", "", tres]]
    if not found and rows:
        raise LedgerError(
            f"sreport has no {tres} of {cluster}; check AccountingStorageTRES in slurm.conf"
        )
    return sum(found)


def read_idle_seconds(slurm: SlurmCommands, cluster: str, tres: str, span: TimeSpan) -> int:
    """Read the seconds of a TRES that reservations held and no job used."""
    report = ("reservation", "Utilization")
    rows = _run_sreport(slurm, report, cluster=cluster, tres=tres, fields=_IDLE, span=span)
    return sum(int(row[3]) for row in rows if row[2] == tres)


def read_dropped_seconds(slurm: SlurmCommands, cluster: str, span: TimeSpan) -> int:
    """Return the most seconds of idle time in reservations that sreport may lack.

    For each hour and TRES, slurmdbd divides a reservation's idle time by its associations, and
    drops the remainder (as_mysql_rollup.c, `resv_unused_secs /= assoc_cnt`). GPUs have no idle time
    there unless the reservation itself names them.
    """
    begin, end = span
    options = [f"Clusters={cluster}", f"Start=uts{begin}", f"End=uts{end}"]
    fields = "Format=Associations,Start,End"
    most = 0
    for line in slurm.run(["sacctmgr", "-nP", "show", "reservation", *options, fields]).split():
        associations, first, last = line.split("|")
        count = len(list(filter(None, associations.split(","))))
        until = min(int(last), end) if last.isdigit() else end
        begun = _full_hour(max(int(first), begin)) if first.isdigit() else begin
        hours = -(-max(until - begun, 0) // HOUR)
        most += hours * max(count - 1, 0)
    return most


def _run_sreport(
    slurm: SlurmCommands,
    report: tuple[str, str],
    *,
    cluster: str,
    tres: str,
    fields: str,
    span: TimeSpan,
) -> list[list[str]]:
    """Run a report of sreport, named by two words; return its rows."""
    begin, end = span
    options = [f"clusters={cluster}", f"Start=uts{begin}", f"End=uts{end}", f"Format={fields}"]
    output = slurm.run(["sreport", "-nP", "-t", "Seconds", "-T", tres, *report, *options])
    return [line.split("|") for line in map(str.strip, output.splitlines()) if line]


def _full_hour(at: int) -> int:
    return at - at % HOUR
