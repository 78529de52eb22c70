"""Ingest a file of sacct rows into the ledger."""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO, TypeAlias

import msgspec
from sqlalchemy import Connection, select, text, update

from slurmkit.errors import LedgerError
from slurmkit_accounting.calendar import Zone, find_stored_zone
from slurmkit_accounting.ingest.enter import (
    IngestCounts,
    OngoingIngest,
    begin_ingest,
    enter_batch,
    enter_batches,
    find_or_add_cluster,
    mark_seen,
)
from slurmkit_accounting.ingest.ingest import finish_ingest
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.database_errors import is_overflow
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.runs import OPEN, clusters, ingests, runs
from slurmkit_accounting.ledger.schema.usage import usage_keys
from slurmkit_accounting.people.unmapped import WHOLE_GPUS
from slurmkit_accounting.sacct.columns import RowLayout
from slurmkit_accounting.sacct.file import SacctFileReader, forgeable_fields
from slurmkit_accounting.sacct.local_times import LocalTimes
from slurmkit_accounting.sacct.rows import RowBatch

FileProgress: TypeAlias = Callable[[IngestCounts, float], None]


class SacctFile(msgspec.Struct, frozen=True):
    """A file to ingest, and its format.

    Attributes:
        cluster: the cluster of the jobs.
        fields: sacct's names of its fields, in order.
        delimiter: between two fields.
        zone: time zone of times without an offset.
        header: whether the first line names the fields.
    """

    name: str
    stream: BinaryIO
    cluster: str
    fields: Sequence[str]
    delimiter: str
    zone: Zone
    header: bool = False


class IngestedFile(msgspec.Struct, frozen=True):
    """Result of ingesting a file.

    Attributes:
        window: epoch seconds of the first Submit and the last time in it; None without rows.
        steps: number of rows of steps, which are left out.
        forgeable: the fields in which users could write rows of other users, see
            `forgeable_fields`.
        ambiguous: number of rows whose last field has a line break or the delimiter in it.
        seconds: duration.
    """

    cluster: str
    entered: IngestCounts
    window: tuple[int, int] | None
    steps: int
    forgeable: Sequence[str]
    ambiguous: int
    seconds: float


def ingest_file(
    ledger: Ledger,
    file: SacctFile,
    progress: FileProgress = lambda _entered, _part: None,
) -> IngestedFile:
    """Ingest the rows of a file; ingesting the file again changes nothing.

    The rows are from the past. A row without an end never replaces a run that has ended; such a run
    counts up to the last time in the file. Ended runs that were read from sacct itself stay.

    Raises:
        BadInput: for a header that names other fields.
        LedgerError: when another ingest is running, or the database fails.
    """
    begun, started = time.monotonic(), int(time.time())
    begin = file.stream.tell() if file.stream.seekable() else None
    rows = _FileIngest(file, progress)
    with hold_ledger_lock(ledger, "ingest"), _without_collector():
        ledger = ledger.without_foreign_keys()
        with ledger.transaction() as connection:
            cluster = find_or_add_cluster(connection, file.cluster)
            facts: dict[str, Any] = {"source": file.name, "layout": format_layout(file)}
            facts |= {"window_from": started, "window_to": started}
            current = begin_ingest(connection, cluster, started, **facts)
            current = msgspec.structs.replace(current, seen=0)
        try:
            rows.enter(ledger, current, _BLOCKS)
        except LedgerError as error:
            if begin is None or not is_overflow(error.__cause__):
                raise
            # Some row does not fit to what is stored. Block by block it is found, and rejected.
            current.keys.clear()  # some are of the transaction that was rolled back
            file.stream.seek(begin)
            rows = _FileIngest(file, progress, rows.total)
            rows.enter(ledger, current, 1)
        _finish(ledger, current, rows.total, rows.span)
    return IngestedFile(
        cluster=file.cluster,
        entered=rows.total,
        window=rows.span.window(),
        steps=rows.dump.steps,
        forgeable=forgeable_fields(file.fields, file.delimiter),
        ambiguous=rows.dump.ambiguous,
        seconds=time.monotonic() - begun,
    )


class _FileIngest:
    """The rows of a file, and what was entered of them.

    Args:
        file: at its begin.
        progress: called with the counts, and the part of the file that is done.
        entered: what an earlier attempt has entered, which is not new any more.

    Raises:
        BadInput: for a header that names other fields.
    """

    def __init__(
        self, file: SacctFile, progress: FileProgress, entered: IngestCounts | None = None
    ) -> None:
        self.dump = SacctFileReader(file.stream, file.fields, file.delimiter, file.zone)
        if file.header:
            self.dump.skip_header()
        self.total, self.span = IngestCounts(), _TimeRange(self.dump)
        if entered is not None:
            self.total.new, self.total.changed = entered.new, entered.changed
        self._progress, self._size = progress, _size(file.stream)

    def enter(self, ledger: Ledger, current: OngoingIngest, blocks: int) -> None:
        """Enter all rows, that many blocks in each transaction."""
        batches, dump = map(self.span.add, self.dump.batches()), self.dump
        while not dump.over:
            with ledger.transaction() as connection:
                if blocks > 1:
                    some = islice(batches, blocks)
                    self.total += enter_batches(connection, current, dump.how, some)
                elif (batch := next(batches, None)) is not None:
                    self.total += enter_batch(connection, current, dump.how, batch)
            self._progress(self.total, dump.done / self._size if self._size else 0.0)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector: tuples have no cycles, and it takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def format_layout(file: SacctFile) -> str:
    """Format the layout of a file for storage; see `parse_layout`."""
    return msgspec.json.encode({"fields": file.fields, "zone": file.zone.name}).decode()


def parse_layout(text: str) -> RowLayout:
    """Make the layout of a file that was ingested before, from its stored text.

    Raises:
        BadInput: when its time zone is not known on this machine.
    """
    stored = msgspec.json.decode(text)
    zone = find_stored_zone(stored["zone"])
    return RowLayout(stored["fields"], LocalTimes(zone), zone.name)


def _finish(ledger: Ledger, current: OngoingIngest, total: IngestCounts, span: _TimeRange) -> None:
    """Store the counts and the window of a file, and when its runs without an end were seen."""
    with ledger.transaction() as connection:
        finish_ingest(connection, current, total)
        if window := span.window():
            ours = (runs.c.first_ingest_id == current.id, runs.c.cluster_id == current.cluster)
            new = connection.scalars(select(runs.c.id).where(text(OPEN), *ours))
            mark_seen(connection, sorted(current.open.union(new)), window[1])
            _tracks_gpus(connection, current.cluster)
            values = {"window_from": window[0], "window_to": window[1], "done_to": window[1]}
            connection.execute(update(ingests).where(ingests.c.id == current.id).values(**values))


_BLOCKS = 2  # per transaction, some 15,000 rows; of more, memory grows and speed does not


def _tracks_gpus(connection: Connection, cluster: int) -> None:
    """Note that a cluster tracks GPUs, if it counted any; without GPUs it stays unknown."""
    unknown = (clusters.c.id == cluster, clusters.c.tracks_gpus.is_(None))
    some = select(usage_keys.c.id).where(usage_keys.c.cluster_id == cluster, WHOLE_GPUS)
    connection.execute(update(clusters).where(*unknown, some.exists()).values(tracks_gpus=True))


_DIGITS = re.compile(r"\d\d").match  # a single 0 is no time


class _TimeRange:
    """The first Submit and the last time of a file. Texts are compared: all have one form."""

    def __init__(self, dump: SacctFileReader) -> None:
        fields = list(dump.how.fields)
        self._read = dump.how.time
        self._first = fields.index("Submit")
        self._lasts = [fields.index(name) for name in ("Submit", "Start", "End") if name in fields]
        self._texts: tuple[str, str] | None = None

    def add(self, batch: RowBatch) -> RowBatch:
        """Include the rows of a batch, and return the batch."""
        first = _extreme_time(min, batch, self._first)
        if first:
            lasts = [_extreme_time(max, batch, field) for field in self._lasts]
            before = self._texts or (first, first)
            self._texts = min(first, before[0]), max(*lasts, before[1])
        return batch

    def window(self) -> tuple[int, int] | None:
        """Return both times in epoch seconds; None if there was no row."""
        try:
            first, last = (self._read(text) for text in self._texts or ())
        except ValueError:
            return None
        return None if first is None or last is None else (first, last)


def _extreme_time(choose: Callable[..., str], batch: RowBatch, field: int) -> str:
    """Return the first or last time of a field (`min` or `max`); empty if there is none."""
    texts = batch.texts[field] if batch.texts else ()
    found = choose(texts, default="")
    return found if _DIGITS(found) else choose(filter(_DIGITS, texts), default="")


def _size(stream: BinaryIO) -> int:
    """Return the size of a stream in bytes; 0 if unknown."""
    try:
        return os.fstat(stream.fileno()).st_size
    except OSError:
        return 0
