"""Read a file of sacct's lines into the ledger."""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import BinaryIO

import msgspec
from sqlalchemy import select, text, update

from slurmkit_accounting.books import Entered, Ingest, begin_ingest, cluster_id, enter, see
from slurmkit_accounting.dump import Dump
from slurmkit_accounting.ingest import finish_ingest
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.locks import alone
from slurmkit_accounting.rows import Batch
from slurmkit_accounting.schema import OPEN, ingests, runs
from slurmkit_accounting.zones import Zone


class File(msgspec.Struct, frozen=True):
    """A file to read, and how it is to be understood.

    Attributes:
        cluster: whose jobs they are.
        fields: sacct's names of its fields, in order.
        delimiter: between two fields.
        zone: of times without an offset.
        header: whether its first line names the fields.
    """

    name: str
    stream: BinaryIO
    cluster: str
    fields: Sequence[str]
    delimiter: str
    zone: Zone
    header: bool = False


class Loaded(msgspec.Struct, frozen=True):
    """A file that was read.

    Attributes:
        window: epoch seconds of the first Submit and the last time in it; None without rows.
        steps: lines of steps, which are left out.
        seconds: how long it took.
    """

    cluster: str
    entered: Entered
    window: tuple[int, int] | None
    steps: int
    seconds: float


def ingest_file(
    ledger: Ledger,
    file: File,
    progress: Callable[[Entered, float], None] = lambda _entered, _part: None,
) -> Loaded:
    """Enter a file's rows; entering it again changes nothing.

    A file is of the past: a row without an end never takes the place of one that has ended, and
    runs up to the last time in the file. What sacct itself said of a run that has ended stays.

    Raises:
        BadInput: for a header that names other fields.
        LedgerError: when another ingest is running, or the database fails.
    """
    begun, started = time.monotonic(), int(time.time())
    dump = Dump(file.stream, file.fields, file.delimiter, file.zone)
    if file.header:
        dump.skip_header()
    total, size, span = Entered(), _size(file.stream), _Span(dump)
    with alone(ledger, "ingest"), _without_collector():
        with ledger.transaction() as connection:
            cluster = cluster_id(connection, file.cluster)
            facts = {"source": file.name, "window_from": started, "window_to": started}
            which = begin_ingest(connection, cluster, started, **facts)
            which = msgspec.structs.replace(which, seen=0)
        for batch in dump.batches():
            with ledger.transaction() as connection:
                total += enter(connection, which, dump.how, batch)
            span.add(batch)
            progress(total, dump.done / size if size else 0.0)
        _finish(ledger, which, total, span)
    return Loaded(file.cluster, total, span.window(), dump.steps, time.monotonic() - begun)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of tuples hold no cycles, and looking for some in them takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _finish(ledger: Ledger, which: Ingest, total: Entered, span: _Span) -> None:
    with ledger.transaction() as connection:
        finish_ingest(connection, which, total)
        if window := span.window():
            ours = (runs.c.first_ingest_id == which.id, runs.c.cluster_id == which.cluster)
            new = connection.scalars(select(runs.c.id).where(text(OPEN), *ours))
            see(connection, sorted(which.open.union(new)), window[1])
            values = {"window_from": window[0], "window_to": window[1], "done_to": window[1]}
            connection.execute(update(ingests).where(ingests.c.id == which.id).values(**values))


_DIGITS = re.compile(r"\d\d").match  # 0 is no time


class _Span:
    """The first Submit and the last of all times, of texts: all of a file's are of one form."""

    def __init__(self, dump: Dump) -> None:
        fields = list(dump.how.fields)
        self._read = dump.how.time
        self._first = fields.index("Submit")
        self._lasts = [fields.index(name) for name in ("Submit", "Start", "End") if name in fields]
        self._texts: tuple[str, str] | None = None

    def add(self, batch: Batch) -> None:
        """Take more rows into account."""
        firsts = _digits(batch, self._first)
        if firsts:
            lasts = [max(texts) for place in self._lasts if (texts := _digits(batch, place))]
            before = self._texts or (firsts[0], firsts[0])
            self._texts = min([*firsts, before[0]]), max([*lasts, before[1]])

    def window(self) -> tuple[int, int] | None:
        """Epoch seconds; None where there was no row."""
        try:
            first, last = (self._read(text) for text in self._texts or ())
        except ValueError:
            return None
        return None if first is None or last is None else (first, last)


def _digits(batch: Batch, place: int) -> list[str]:
    """Texts of a field that may be times."""
    return list(filter(_DIGITS, map(itemgetter(place), batch.rows)))


def _size(stream: BinaryIO) -> int:
    """Bytes; 0 where a stream does not say."""
    try:
        return os.fstat(stream.fileno()).st_size
    except OSError:
        return 0
