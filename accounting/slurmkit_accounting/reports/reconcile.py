"""`report reconcile`: the books beside sreport, and the difference split by cause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, select

from slurmkit.errors import BadInput
from slurmkit.slurm import Slurm
from slurmkit_accounting.held import Found, of_open_runs, of_retracted_runs, while_suspended
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.query import AT, Asked, usage
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.model import Column, Meta, Report
from slurmkit_accounting.schema import HOUR, clusters
from slurmkit_accounting.sreport import Span, idle_seconds, rollup, told_upto, used_seconds
from slurmkit_accounting.zones import Zone

# Columns of usage, and which GPU types sreport counts under the name.
TRES = {"gres/gpu": "gpu_seconds", "cpu": "cpu_seconds"}
_PARTS = ("shard", "mps")
COLUMNS = (
    Column("cluster"),
    Column("what"),
    Column("seconds", "count"),
    Column("hours", "hours"),
    Column("why"),
)


class _Books:
    """Sums of one cluster's books, in seconds of one TRES."""

    def __init__(self, connection: Connection, cluster: int, tres: str, now: int) -> None:
        self.connection = connection
        self._cluster, self._place, self._now = cluster, AT[TRES[tres]], now

    def held(self, span: Span, now: int | None = None) -> dict[str, int]:
        """Held within a span: all, and what of it is of some kinds."""
        cells = usage(self.connection, Asked(span, self._now if now is None else now))
        found = [Found(part, key, sums) for (part, key), sums in cells.items()]
        return {
            "all": self.sum(found),
            "requeued": self.sum(one for one in found if one.key.state == "REQUEUED"),
            "no account": self.sum(one for one in found if not one.key.account),
        }

    def running(self, span: Span) -> tuple[int, int]:
        """What runs without an end held up to now, and would hold up to the span's end."""
        upto = max(self._now, span[1])
        found = (of_open_runs(self.connection, span, now) for now in (self._now, upto))
        now, later = map(self.sum, found)
        return now, later

    def suspended(self, span: Span) -> int:
        """Held while suspended."""
        return self.sum(while_suspended(self.connection, span, None))

    def retracted(self, span: Span) -> int:
        """Of runs that were taken out of the books."""
        return self.sum(of_retracted_runs(self.connection, span, self._now))

    def sum(self, found: Iterable[Found]) -> int:
        """Seconds of the TRES."""
        return sum(
            one.sums[self._place]
            for one in found
            if one.key.cluster_id == self._cluster
            and (one.key.gpu_type.partition(":")[0] not in _PARTS or self._place != 0)
        )


def reconcile_report(
    ledger: Ledger, slurm: Slurm, window: Span, *, zone: Zone, tres: str, now: int
) -> Report:
    """Compare every cluster of the books that this Slurm knows, up to sreport's last rollup.

    Raises:
        BadInput: for a TRES that is not compared, and a window without a full hour.
        LedgerError: when the ledger cannot be read, or sreport has no such TRES.
        SlurmError: when Slurm does not answer.
    """
    if tres not in TRES:
        raise BadInput(f"{tres!r} is not compared with sreport; any of {', '.join(TRES)} is")
    rows: list[dict[str, Any]] = []
    notes = []
    with ledger.transaction() as connection:
        for number, name in connection.execute(select(clusters.c.id, clusters.c.name)).all():
            rolled = rollup(slurm, name)
            upto = told_upto((window[0], min(window[1], rolled.at)), now)
            notes.append(f"{name}: rolled up to {zone.show(rolled.at)} ({rolled.source})")
            if upto - upto % HOUR <= window[0]:
                raise BadInput(f"sreport of {name} knows nothing of this window yet")
            books = _Books(connection, number, tres, now)
            span = (window[0], upto)
            rows += [{"cluster": name, **row} for row in _rows(books, slurm, (name, tres), span)]
        meta = Meta(
            report="reconcile",
            by=("cluster",),
            notes=(*notes, "books: --suspended charge; the rows between are what sreport adds"),
            **provenance.of_books(ledger, connection, now),
            **provenance.of_window(connection, window, zone, now),
        )
    return Report(meta, COLUMNS, tuple(rows))


def _rows(
    books: _Books, slurm: Slurm, what: tuple[str, str], span: Span
) -> Iterable[dict[str, Any]]:
    cluster, tres = what
    hours = (span[0] - span[0] % HOUR, span[1] - span[1] % HOUR)
    held, rounded = books.held(span), books.held(hours)
    theirs = used_seconds(slurm, cluster, tres, hours)
    now, later = books.running(hours)
    suspended = books.suspended(hours)
    causes = {
        "reservations": (idle_seconds(slurm, cluster, tres, hours), "held by reservations, idle"),
        "suspended": (
            -suspended if tres == "cpu" else 0,
            f"{suspended} s while suspended: "
            + ("sreport leaves CPUs out" if tres == "cpu" else "in both, as sreport charges GPUs"),
        ),
        "running": (later - now, f"{now} s in both; sreport knows them to the end of its hour"),
        "requeued": (0, f"{held['requeued']} s of requeued runs, in both"),
        "unmapped": (-held["no account"], "runs without an account, which sreport leaves out"),
        "retracted": (books.retracted(hours), "taken out of the books by ledger retract"),
        "rounding": (rounded["all"] - held["all"], "edges within an hour: sreport knows full ones"),
    }
    unexplained = theirs - held["all"] - sum(amount for amount, _ in causes.values())
    yield _line("books", held["all"], "of the ledger")
    for cause, (amount, why) in causes.items():
        yield _line(cause, amount, why)
    yield _line("unexplained", unexplained, "" if unexplained == 0 else _UNEXPLAINED)
    yield _line("sreport", theirs, f"sreport cluster AccountUtilizationByUser -T {tres}")


_UNEXPLAINED = (
    "what changed since the last ingest or rollup, was purged, is of deleted accounts, resized"
    " or rejected"
)


def _line(what: str, seconds: int, why: str) -> dict[str, Any]:
    return {"what": what, "seconds": seconds, "hours": seconds / HOUR, "why": why}
