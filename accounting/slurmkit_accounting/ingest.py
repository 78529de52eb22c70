"""Read sacct into the ledger: incremental, streamed, and safe to interrupt or repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

import msgspec
from sqlalchemy import Connection, delete, select, update

from slurmkit.errors import BadInput, SlurmError
from slurmkit.site import read_site
from slurmkit.slurm import Slurm
from slurmkit_accounting import suspended
from slurmkit_accounting.absent import Expected
from slurmkit_accounting.ahead import ahead
from slurmkit_accounting.books import COUNTS, Entered, Ingest, begin_ingest, cluster_id, enter
from slurmkit_accounting.collector import seldom_collected
from slurmkit_accounting.coverage import cover, covered
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.locks import alone
from slurmkit_accounting.privacy import only_own, partial_view
from slurmkit_accounting.rows import Batch
from slurmkit_accounting.sacct_rows import layout
from slurmkit_accounting.schema import clusters, ingests, spans
from slurmkit_accounting.shapes import Shapes
from slurmkit_accounting.steps import enter_steps
from slurmkit_accounting.steps_rows import StepBatch
from slurmkit_accounting.windows import Done, Fetched, Sacct, batches, days

FIRST_DAYS = 30
# A row can still change after its end: late messages of slurmctld, a runaway job put right.
OVERLAP_SECONDS = 48 * 3600
_HALTED = 1000  # runs whose suspended time is placed at once
_FIRST_EPOCH = 1_000_000  # `uts` takes none before, parse_time.c
_BATCH = 10_000
_AHEAD = 100  # thousands of lines: as long as some are stored, the next command need not wait

Progress = Callable[[Entered, float], None]


class Ingested(msgspec.Struct, frozen=True):
    """One finished ingest.

    Attributes:
        window: epoch seconds, [from, to); rows still open from before were read again by id.
        first: whether it was the cluster's first.
        books_begin: epoch seconds from which on the cluster's jobs are in the books.
        seconds: how long it took.
        gone: runs that sacct does not show any more, as of this ingest; they still count.
        only: whose runs alone were read; empty for everybody's.
    """

    cluster: str
    window: tuple[int, int]
    entered: Entered
    first: bool
    books_begin: int
    seconds: float
    gone: int = 0
    only: str = ""


def ingest(
    ledger: Ledger,
    slurm: Slurm,
    *,
    since: int | None = None,
    progress: Progress = lambda _entered, _part: None,
    steps: bool = True,
    private: bool = False,
) -> Ingested:
    """Bring the ledger up to date with slurmdbd.

    Args:
        ledger: open for writing.
        slurm: the border to Slurm.
        since: epoch seconds to begin at; by default the end of what was read without a gap,
            less the overlap, or 30 days ago.
        progress: called after each committed batch, with what was entered so far and the part of
            the window that is done, 0 to 1.
        steps: whether to read steps too, for efficiency.
        private: whether the ledger is a person's own, and may have theirs alone where slurmdbd
            shows no others.

    Raises:
        BadInput: when `since` is in the future.
        SlurmError: when Slurm does not answer, or does not show everybody's jobs; what was
            committed before stays, and the next ingest goes on from there.
        LedgerError: when another ingest is running, or the database fails.
    """
    with alone(ledger, "ingest"), seldom_collected():
        begun, started = time.monotonic(), int(time.time())
        name, only = _meet_cluster(ledger, slurm, private=private)
        which, window, first = _begin(ledger, name, since, started)
        which = msgspec.structs.replace(which, shapes=Shapes(slurm, started - OVERLAP_SECONDS))
        reading = _Reading(ledger, Sacct(slurm, steps=steps, user=only), which, progress)
        reading.windows(window)
        gone = reading.absent()
        _place_suspensions(ledger, slurm, which.cluster)
        books_begin = _finish(ledger, which, reading.total)
        seconds = time.monotonic() - begun
        return Ingested(name, window, reading.total, first, books_begin, seconds, gone, only)


def back(ledger: Ledger, slurm: Slurm, seconds: int) -> int | None:
    """Where to begin so that as much is read again, no further back than the books go.

    Returns:
        Epoch seconds; None where nothing was read yet.
    """
    name = read_site(slurm).cluster_name
    with ledger.transaction() as connection:
        known = covered(connection, cluster_id(connection, name)) if name else []
    if not known:
        return None
    begin, end = known[0]
    return max(begin, min(int(time.time()) - seconds, end))


class _Reading:
    """One ingest under way."""

    def __init__(self, ledger: Ledger, sacct: Sacct, which: Ingest, progress: Progress) -> None:
        self.total = Entered()
        self._ledger = ledger
        self._sacct = sacct
        self._how = layout()
        self._ingest = which
        self._progress = progress
        self._part = 0.0
        with ledger.transaction() as connection:
            self._expected = Expected(connection, which.cluster)

    def windows(self, window: tuple[int, int]) -> None:
        """Read a window day by day; each is committed before the next is."""
        begin, end = window
        parts = days(begin, end)
        left = iter(parts)
        with self._ledger.transaction() as connection:
            self._expected.add_ended(connection, next(left))
        for item in self._read(self._sacct.windows(parts)):
            done = item.window.end
            self._part = (done - begin) / max(end - begin, 1)
            with self._ledger.transaction() as connection:
                cover(connection, self._ingest.cluster, (item.window.begin, done))
                mine = ingests.c.id == self._ingest.id
                connection.execute(update(ingests).where(mine).values(done_to=done))
                if following := next(left, None):
                    self._expected.add_ended(connection, following)

    def absent(self) -> int:
        """Ask by id for what should have come and did not; return how many are gone."""
        for _ in self._read(self._sacct.jobs(self._expected.jobs())):
            pass
        with self._ledger.transaction() as connection:
            return self._expected.mark_gone(connection, self._ingest.started)

    def _read(self, source: Generator[Fetched, None, None]) -> Iterator[Done]:
        with closing(ahead(source, _AHEAD)) as items:
            for item in batches(items, self._how, _BATCH):
                if isinstance(item, Done):
                    yield item
                    continue
                with self._ledger.transaction() as connection:
                    self._enter(connection, item)
                self._progress(self.total, self._part)

    def _enter(self, connection: Connection, item: Batch | StepBatch) -> None:
        if isinstance(item, StepBatch):
            enter_steps(connection, self._ingest.cluster, item.steps)
            return
        self.total += enter(connection, self._ingest, self._how, item)
        self._expected.came(self._how.keys(item))
        if self._expected.by_submit:
            self._expected.came(map(self._how.pair, item.rows))


def _place_suspensions(ledger: Ledger, slurm: Slurm, cluster: int) -> None:
    with ledger.transaction() as connection:
        halted = suspended.unplaced(connection, cluster)
    for first in range(0, len(halted), _HALTED):
        some = halted[first : first + _HALTED]
        rows = suspended.place(slurm, some)
        with ledger.transaction() as connection:
            suspended.keep(connection, some, rows)


def _meet_cluster(ledger: Ledger, slurm: Slurm, *, private: bool) -> tuple[str, str]:
    """The cluster's name, and whose runs alone may be read of it."""
    site = read_site(slurm)
    if not site.cluster_name:
        raise SlurmError("scontrol show config names no ClusterName; is Slurm set up here?")
    only = only_own(slurm)
    if only and not private:
        raise partial_view(only)
    with ledger.transaction() as connection:
        number = cluster_id(connection, site.cluster_name)
        _limit(connection, number, only)
        values = {"tracks_gpus": site.tracks_gpus, "only_user": only or None}
        connection.execute(update(clusters).where(clusters.c.id == number).values(values))
    return site.cluster_name, only


def _limit(connection: Connection, cluster: int, only: str) -> None:
    """See that all there is of a cluster are one person's runs, or everybody's."""
    before = connection.scalar(select(clusters.c.only_user).where(clusters.c.id == cluster)) or ""
    if only == before:
        return
    some = connection.scalar(select(ingests.c.id).where(ingests.c.cluster_id == cluster).limit(1))
    if only and some is not None:
        raise partial_view(only)
    # Now that all are shown, what was read of one person's has to be read again.
    connection.execute(delete(spans).where(spans.c.cluster_id == cluster))


def _begin(
    ledger: Ledger, cluster: str, since: int | None, started: int
) -> tuple[Ingest, tuple[int, int], bool]:
    if since is not None and since > started:
        raise BadInput("--since is in the future; name a date that has begun")
    with ledger.transaction() as connection:
        which = cluster_id(connection, cluster)
        # Where there is a gap, from there on.
        known = covered(connection, which)
        usual = known[0][1] - OVERLAP_SECONDS if known else started - FIRST_DAYS * 86400
        ours = (ingests.c.cluster_id == which, ingests.c.ended.is_not(None))
        finished = connection.scalar(select(ingests.c.id).where(*ours).limit(1))
        begin = max(min(usual, started) if since is None else since, _FIRST_EPOCH)
        made = begin_ingest(connection, which, started, window_from=begin, window_to=started)
        return made, (begin, started), not finished


def _finish(ledger: Ledger, which: Ingest, total: Entered) -> int:
    """Keep the counts, and return where the cluster's books begin."""
    with ledger.transaction() as connection:
        finish_ingest(connection, which, total)
        return covered(connection, which.cluster)[0][0]


def finish_ingest(connection: Connection, which: Ingest, total: Entered, **facts: int) -> None:
    """Write down that an ingest came to its end."""
    counts = {f"rows_{name}": getattr(total, name) for name in COUNTS}
    values = {"ended": int(time.time()), **counts, **facts}
    connection.execute(update(ingests).where(ingests.c.id == which.id).values(**values))
