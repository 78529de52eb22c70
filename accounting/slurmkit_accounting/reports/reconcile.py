"""`report reconcile`: compare the ledger with sreport, and split the difference by cause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, select

from slurmkit.errors import BadInput
from slurmkit.slurm.commands import SlurmCommands
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.ledger.schema.usage import HOUR
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.model import Column, Meta, Report
from slurmkit_accounting.sacct.sreport import (
    TimeSpan,
    end_of_sreport_data,
    read_dropped_seconds,
    read_idle_seconds,
    read_rollup_time,
    read_used_seconds,
)
from slurmkit_accounting.usage.partial import (
    PartialUsage,
    load_open_runs,
    split_usage,
    usage_of_retracted_runs,
    usage_while_suspended,
)
from slurmkit_accounting.usage.query import SUM_INDEX, UsageQuery, query_usage

# The sum of usage that matches each TRES of sreport.
SUM_OF_TRES = {"gres/gpu": "gpu_seconds", "cpu": "cpu_seconds"}
_PARTS = ("shard", "mps")  # sreport does not count these as gres/gpu
COLUMNS = (
    Column("cluster"),
    Column("what"),
    Column("seconds", "count"),
    Column("hours", "hours"),
    Column("why"),
)


class _LedgerSeconds:
    """Usage of one cluster in the ledger, in seconds of one TRES."""

    def __init__(self, connection: Connection, cluster: int, tres: str, now: int) -> None:
        self.connection = connection
        self._cluster, self._place, self._now = cluster, SUM_INDEX[SUM_OF_TRES[tres]], now

    def held(self, span: TimeSpan) -> dict[str, int]:
        """Return the seconds held within a span: all, of requeued runs, and without an account."""
        cells = query_usage(self.connection, UsageQuery(span, self._now))
        used = [PartialUsage(part, key, sums) for (part, key), sums in cells.items()]
        return {
            "all": self.sum(used),
            "requeued": self.sum(one for one in used if one.key.state == "REQUEUED"),
            "no account": self.sum(one for one in used if not one.key.account),
        }

    def running(self, span: TimeSpan) -> tuple[int, int]:
        """Return the seconds that open runs held up to now, and will hold up to the span's end."""
        now, later = (
            self.sum(split_usage(load_open_runs(self.connection, until), span))
            for until in (self._now, max(self._now, span[1]))
        )
        return now, later

    def suspended(self, span: TimeSpan) -> int:
        """Return the seconds held while suspended."""
        return self.sum(usage_while_suspended(self.connection, span, None))

    def retracted(self, span: TimeSpan) -> int:
        """Return the seconds of runs that were taken out of the ledger."""
        return self.sum(usage_of_retracted_runs(self.connection, span, self._now))

    def sum(self, used: Iterable[PartialUsage]) -> int:
        """Add up the seconds of the cluster and TRES."""
        return sum(
            one.sums[self._place]
            for one in used
            if one.key.cluster_id == self._cluster
            and (one.key.gpu_type.partition(":")[0] not in _PARTS or self._place != 0)
        )


def reconcile_report(
    ledger: Ledger, slurm: SlurmCommands, window: TimeSpan, *, zone: Zone, tres: str, now: int
) -> Report:
    """Compare every cluster of the ledger with sreport, up to sreport's last rollup.

    Args:
        ledger: open for reading.
        slurm: runs Slurm's commands.
        window: [from, to), epoch seconds.
        zone: time zone in which times are shown.
        tres: `gres/gpu` or `cpu`.
        now: epoch seconds up to which open runs are counted.

    Raises:
        BadInput: for any other TRES, and for a window without a full hour.
        LedgerError: when the ledger cannot be read, or sreport has no such TRES.
        SlurmError: when Slurm does not answer.
    """
    if tres not in SUM_OF_TRES:
        raise BadInput(f"--tres {tres!r} cannot be compared; choose {' or '.join(SUM_OF_TRES)}")
    rows: list[dict[str, Any]] = []
    notes = []
    begin, end = window
    with ledger.transaction() as connection:
        for number, name in connection.execute(
            select(clusters.c.id, clusters.c.name).order_by(clusters.c.name)
        ).all():
            rolled = read_rollup_time(slurm, name)
            upto = end_of_sreport_data((begin, min(end, rolled.at)), now)
            notes.append(f"{name}: rolled up to {zone.show(rolled.at)} ({rolled.source})")
            if upto - upto % HOUR <= begin:
                raise BadInput(
                    f"sreport has no full hour of this window for {name} yet; choose an earlier"
                    " window, or wait for slurmdbd's next rollup"
                )
            recorded = _LedgerSeconds(connection, number, tres, now)
            span = (begin, upto)
            rows += [
                {"cluster": name, **row}
                for row in _cluster_rows(recorded, slurm, cluster=name, tres=tres, span=span)
            ]
        meta = Meta(
            report="reconcile",
            by=("cluster",),
            definitions=(
                "row ledger: --suspended charge; the rows above sreport add up to sreport",
            ),
            notes=tuple(notes),
            **provenance.ledger_fields(ledger, connection, now),
            **provenance.window_fields(connection, window, zone, now),
        )
    return Report(meta, COLUMNS, tuple(rows))


def _cluster_rows(
    recorded: _LedgerSeconds, slurm: SlurmCommands, *, cluster: str, tres: str, span: TimeSpan
) -> Iterable[dict[str, Any]]:
    """Yield the rows of a cluster: the ledger, each cause of a difference, sreport."""
    hours = (span[0] - span[0] % HOUR, span[1] - span[1] % HOUR)
    held, rounded = recorded.held(span), recorded.held(hours)
    in_sreport = read_used_seconds(slurm, cluster, tres, hours)
    now, later = recorded.running(hours)
    suspended = recorded.suspended(hours)
    causes = {
        "reservations": (
            read_idle_seconds(slurm, cluster, tres, hours),
            "idle in reservations; sreport counts it",
        ),
        "suspended": (
            -suspended if tres == "cpu" else 0,
            f"{suspended} s while suspended: "
            + ("not counted by sreport" if tres == "cpu" else "in both, as sreport charges GPUs"),
        ),
        "running": (later - now, f"{now} s in both; sreport counts on to the end of its hour"),
        "requeued": (0, f"{held['requeued']} s of requeued runs, in both"),
        "unmapped": (-held["no account"], "runs without an account, which sreport leaves out"),
        "retracted": (recorded.retracted(hours), "taken out of the ledger by ledger retract"),
        "rounding": (rounded["all"] - held["all"], "parts of an hour; sreport has full hours only"),
    }
    unexplained = in_sreport - held["all"] - sum(amount for amount, _ in causes.values())
    notes = [_UNEXPLAINED_NOTE] if unexplained else []
    if unexplained and tres == "cpu":
        notes.insert(0, _SPREAD_NOTE)
    if unexplained < 0 < causes["reservations"][0] and (
        most := read_dropped_seconds(slurm, cluster, hours)
    ):
        # Only a limit is known: as a row of its own, it could hide as much of anything else.
        notes.insert(0, f"sreport may lack up to {most} s of idle time in reservations")
    yield _row("ledger", held["all"], "counted by slurmkit")
    for cause, (amount, why) in causes.items():
        yield _row(cause, amount, why)
    yield _row("unexplained", unexplained, "; ".join(notes))
    yield _row("sreport", in_sreport, f"sreport cluster AccountUtilizationByUser -T {tres}")


_UNEXPLAINED_NOTE = (
    "possible causes: changes since the last ingest or rollup; purged, resized or rejected runs;"
    " deleted accounts"
)
# See `place_suspensions_of_open_runs` in `ingest/suspended.py`.
_SPREAD_NOTE = "when a job was suspended is known exactly only once it has ended"


def _row(what: str, seconds: int, why: str) -> dict[str, Any]:
    return {"what": what, "seconds": seconds, "hours": seconds / HOUR, "why": why}
