"""The ingest of sacct into the ledger: incremental, streamed, safe to interrupt and to repeat.

A thread reads the next rows from sacct while the last ones are entered.
"""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

import msgspec
from sqlalchemy import Connection, delete, select, update

from slurmkit.errors import BadInput, SlurmError
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.capabilities import read_slurm_config
from slurmkit_accounting.gpu_use.capacity import read_capacity, record_capacity
from slurmkit_accounting.ingest import suspended
from slurmkit_accounting.ingest.enter import (
    COUNT_NAMES,
    IngestCounts,
    OngoingIngest,
    begin_ingest,
    enter_batch,
    find_or_add_cluster,
)
from slurmkit_accounting.ingest.node_events import (
    begin_of_events,
    read_node_events,
    record_node_events,
    record_reading,
)
from slurmkit_accounting.ingest.retract import ExpectedRuns
from slurmkit_accounting.ingest.steps import enter_steps, enter_summaries
from slurmkit_accounting.ledger.coverage import CoveredSpan, add_span, load_spans
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.runs import clusters, ingests, spans
from slurmkit_accounting.sacct.query import (
    Fetched,
    SacctReader,
    TimeWindow,
    WindowDone,
    parse_fetched,
    partial_view_error,
    sacct_layout,
    split_into_days,
    user_limited_to_own_jobs,
)
from slurmkit_accounting.sacct.rows import RowBatch
from slurmkit_accounting.sacct.steps import StepBatch
from slurmkit_accounting.sacct.values import NodeGpus

FIRST_DAYS = 30
# A row can still change after its end: late messages of slurmctld, a runaway job put right.
OVERLAP_SECONDS = 48 * 3600
_HALTED = 1000  # runs whose suspensions are looked up in one transaction
_FIRST_EPOCH = 1_000_000  # the earliest time that sacct takes as `uts…`, parse_time.c
_BATCH = 10_000
_AHEAD = 100  # thousands of lines fetched in advance, so that sacct need not wait for the database

Progress = Callable[[IngestCounts, float], None]
ItemT = TypeVar("ItemT")
_LOOK_UP = 0.1  # seconds; how often a thread with a full queue checks whether to stop
_GIVE_UP = 5.0  # seconds to wait for a silent command; after that it ends with this process


class Ingested(msgspec.Struct, frozen=True):
    """Result of a finished ingest.

    Attributes:
        window: epoch seconds, [from, to). Runs still open from before were read again by id.
        first: whether it was the first ingest of the cluster.
        books_begin: epoch seconds; the ledger has the cluster's jobs from then on.
        seconds: duration of the ingest.
        gone: number of runs that sacct no longer shows, as of this ingest. They still count.
        only: the one user whose runs were read; empty if all users' runs were.
        no_outages: why the outages of nodes could not be read; empty if they were.
    """

    cluster: str
    window: tuple[int, int]
    entered: IngestCounts
    first: bool
    books_begin: int
    seconds: float
    gone: int = 0
    only: str = ""
    no_outages: str = ""


class IngestSource(msgspec.Struct, frozen=True):
    """The cluster whose runs sacct shows.

    Attributes:
        tracks_gpus: whether AccountingStorageTRES has gres/gpu; None if unknown.
        only: the one user whose runs it shows; empty if it shows all users' runs.
    """

    cluster: str
    tracks_gpus: bool | None
    only: str


def ingest(
    ledger: Ledger,
    slurm: SlurmCommands,
    *,
    since: int | None = None,
    progress: Progress = lambda _entered, _part: None,
    steps: bool = True,
    private: bool = False,
) -> Ingested:
    """Bring the ledger up to date with slurmdbd.

    Args:
        ledger: open for writing.
        slurm: runs the Slurm commands.
        since: epoch seconds to begin at. By default the end of the first span without a gap, less
            the overlap of 48 hours; or 30 days ago.
        progress: called after each committed batch, with the counts so far and the done part of
            the window, 0 to 1.
        steps: whether to read steps too, for efficiency reports.
        private: whether the ledger belongs to one person. It may then have that person's runs only,
            if slurmdbd shows no others.

    Raises:
        BadInput: when `since` is in the future.
        SlurmError: when Slurm does not answer, or does not show everybody's jobs. Committed
            batches stay, and the next ingest continues after them.
        LedgerError: when another ingest is running, or the database fails.
    """
    with hold_ledger_lock(ledger, "ingest"), rare_garbage_collection():
        begun, started = time.monotonic(), int(time.time())
        source = check_source(slurm, since, private=private)
        _store_source(ledger, source)
        name, only = source.cluster, source.only
        current, window, first = _begin(ledger, name, since, started)
        current = msgspec.structs.replace(
            current, shapes=NodeGpus(slurm, started - OVERLAP_SECONDS)
        )
        capacity = read_capacity(slurm)
        with ledger.transaction() as connection:
            events_begin = begin_of_events(connection, current.cluster, name, window[0])
        outages = read_node_events(slurm, name, events_begin)
        sacct = SacctReader(slurm, steps=steps, user=only)
        reading = _SacctIngest(ledger, current, window, progress)
        reading.enter(sacct.windows(reading.days))
        reading.enter(sacct.jobs(reading.missing_jobs()))
        gone = reading.mark_gone()
        _place_suspensions(ledger, slurm, current.cluster)
        with ledger.transaction() as connection:
            finish_ingest(connection, current, reading.total)
            if capacity is not None:
                record_capacity(connection, current.cluster, capacity, started)
            if outages.events is not None:
                record_node_events(
                    connection, current.cluster, outages.events, started, outages.nodes
                )
            record_reading(connection, name, events_begin, started, outages.error)
            books_begin = load_spans(connection, current.cluster)[0].begin
        seconds = time.monotonic() - begun
        return Ingested(
            name, window, reading.total, first, books_begin, seconds, gone, only, outages.error
        )


def begin_of_reread(ledger: Ledger, slurm: SlurmCommands, seconds: int) -> int | None:
    """Return where to begin to read the last `seconds` again, but not before the ledger begins.

    Returns:
        Epoch seconds; None if nothing was read yet.
    """
    name = read_slurm_config(slurm).cluster_name
    with ledger.transaction() as connection:
        known = load_spans(connection, find_or_add_cluster(connection, name)) if name else []
    if not known:
        return None
    begin, end = known[0]
    return max(begin, min(int(time.time()) - seconds, end))


class _SacctIngest:
    """One ingest of sacct in progress.

    Attributes:
        days: the parts of the window, in the order in which they are read.
        total: counts of the rows entered so far.
    """

    def __init__(
        self, ledger: Ledger, current: OngoingIngest, window: tuple[int, int], progress: Progress
    ) -> None:
        self.days = split_into_days(*window)
        self.total = IngestCounts()
        self._ledger = ledger
        self._layout = sacct_layout()
        self._ingest = current
        self._window = window
        self._progress = progress
        self._part = 0.0
        self._days_to_expect = iter(self.days)
        with ledger.transaction() as connection:
            self._expected = ExpectedRuns(connection, current.cluster)
            self._expect_next_day(connection)

    def enter(self, fetched: Generator[Fetched, None, None]) -> None:
        """Enter what sacct prints: read, parse, upsert with usage, and note the coverage.

        Each batch, and each day that was read completely, is committed in its own transaction.
        """
        with closing(read_ahead(fetched, _AHEAD)) as lines:
            for item in parse_fetched(lines, self._layout, _BATCH):
                with self._ledger.transaction() as connection:
                    if isinstance(item, WindowDone):
                        self._cover_day(connection, item.window)
                    elif isinstance(item, StepBatch):
                        enter_steps(connection, self._ingest.cluster, item.steps)
                        enter_summaries(connection, self._ingest.cluster, item.summaries)
                    else:
                        self._enter_runs(connection, item)
                if not isinstance(item, WindowDone):
                    self._progress(self.total, self._part)

    def missing_jobs(self) -> list[int]:
        """Return the JobIDRaw of the runs that were expected in the window, but not read."""
        return self._expected.jobs()

    def mark_gone(self) -> int:
        """Mark the expected runs that sacct does not show even by id; return their number."""
        with self._ledger.transaction() as connection:
            return self._expected.mark_gone(connection, self._ingest.started)

    def _enter_runs(self, connection: Connection, batch: RowBatch) -> None:
        """Upsert a batch of runs with their usage, and note that they were read."""
        self.total += enter_batch(connection, self._ingest, self._layout, batch)
        self._expected.mark_read(self._ingest.shown)
        self._ingest.shown.clear()

    def _cover_day(self, connection: Connection, day: TimeWindow) -> None:
        """Note that a day was read completely, and prepare the next day."""
        begin, end = self._window
        self._part = (day.end - begin) / max(end - begin, 1)
        add_span(connection, self._ingest.cluster, CoveredSpan(day.begin, day.end))
        mine = ingests.c.id == self._ingest.id
        connection.execute(update(ingests).where(mine).values(done_to=day.end))
        self._expect_next_day(connection)

    def _expect_next_day(self, connection: Connection) -> None:
        """Expect the stored runs that ended in the next day, before sacct prints that day."""
        if day := next(self._days_to_expect, None):
            self._expected.add_ended(connection, day)


def _place_suspensions(ledger: Ledger, slurm: SlurmCommands, cluster: int) -> None:
    with ledger.transaction() as connection:
        suspended.place_suspensions_of_open_runs(connection, cluster)
        halted = suspended.load_unknown_suspensions(connection, cluster)
    for first in range(0, len(halted), _HALTED):
        some = halted[first : first + _HALTED]
        rows = suspended.locate_suspensions(slurm, some)
        with ledger.transaction() as connection:
            suspended.store_suspensions(connection, some, rows)


def check_source(slurm: SlurmCommands, since: int | None, *, private: bool) -> IngestSource:
    """Check that an ingest of sacct can begin, and whose runs it may read.

    Raises:
        BadInput: when `since` is in the future.
        SlurmError: when Slurm does not answer, or does not show everybody's jobs.
    """
    if since is not None and since > time.time():
        raise BadInput("--since is in the future; give today's date or an earlier one")
    site = read_slurm_config(slurm)
    if not site.cluster_name:
        raise SlurmError("scontrol show config names no ClusterName; is Slurm set up here?")
    only = user_limited_to_own_jobs(slurm)
    if only and not private:
        raise partial_view_error(only)
    return IngestSource(site.cluster_name, site.tracks_gpus, only)


def _store_source(ledger: Ledger, source: IngestSource) -> None:
    """Store what is known about the cluster."""
    with ledger.transaction() as connection:
        number = find_or_add_cluster(connection, source.cluster)
        _set_only_user(connection, number, source.only)
        values = {"tracks_gpus": source.tracks_gpus, "only_user": source.only or None}
        connection.execute(update(clusters).where(clusters.c.id == number).values(values))


def _set_only_user(connection: Connection, cluster: int, only: str) -> None:
    """Make sure that a cluster has either one person's runs or everybody's, never a mixture."""
    before = connection.scalar(select(clusters.c.only_user).where(clusters.c.id == cluster)) or ""
    if only == before:
        return
    some = connection.scalar(select(ingests.c.id).where(ingests.c.cluster_id == cluster).limit(1))
    if only and some is not None:
        raise partial_view_error(only)
    # Everybody's runs are shown now: read the spans again that were read for one person.
    connection.execute(delete(spans).where(spans.c.cluster_id == cluster))


def _begin(
    ledger: Ledger, cluster: str, since: int | None, started: int
) -> tuple[OngoingIngest, tuple[int, int], bool]:
    with ledger.transaction() as connection:
        number = find_or_add_cluster(connection, cluster)
        # Continue where the first gap begins.
        known = load_spans(connection, number)
        usual = known[0].finish - OVERLAP_SECONDS if known else started - FIRST_DAYS * 86400
        ours = (ingests.c.cluster_id == number, ingests.c.ended.is_not(None))
        finished = connection.scalar(select(ingests.c.id).where(*ours).limit(1))
        begin = max(min(usual, started) if since is None else since, _FIRST_EPOCH)
        new = begin_ingest(connection, number, started, window_from=begin, window_to=started)
        return new, (begin, started), not finished


def finish_ingest(
    connection: Connection, current: OngoingIngest, total: IngestCounts, **facts: int
) -> None:
    """Store the counts of an ingest and the time of its end."""
    counts = {f"rows_{name}": getattr(total, name) for name in COUNT_NAMES}
    values = {"ended": int(time.time()), **counts, **facts}
    connection.execute(update(ingests).where(ingests.c.id == current.id).values(**values))


class _End:
    """The end of the source, with the exception that ended it."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def read_ahead(source: Generator[ItemT, None, None], items: int) -> Generator[ItemT, None, None]:
    """Yield the items of `source`, which runs in a thread up to `items` ahead.

    An exception of the source is raised here. Closing this generator closes the source too.
    """
    fetched: queue.Queue[ItemT | _End] = queue.Queue(items)
    unwanted = threading.Event()

    def put(item: ItemT | _End) -> None:
        while not unwanted.is_set():
            try:
                fetched.put(item, timeout=_LOOK_UP)
            except queue.Full:
                continue
            break

    def work() -> None:
        end = _End(None)
        try:
            with closing(source):
                for item in source:
                    put(item)
                    if unwanted.is_set():
                        break
        except BaseException as error:  # noqa: BLE001  raised again by the reader
            end = _End(error)
        put(end)

    worker = threading.Thread(target=work, name="read ahead", daemon=True)
    worker.start()
    try:
        while not isinstance(item := fetched.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        unwanted.set()
        worker.join(_GIVE_UP)


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Run the garbage collector a hundred times less often.

    Millions of rows have no cycles, and searching them takes a fifth of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
