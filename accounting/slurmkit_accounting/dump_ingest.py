"""Read a file of sacct's lines into the ledger."""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO

import msgspec
from sqlalchemy import Connection, select, text, update

from slurmkit_accounting.books import Entered, Ingest, begin_ingest, cluster_id, enter_all, see
from slurmkit_accounting.columns import Layout
from slurmkit_accounting.dump import Dump
from slurmkit_accounting.ingest import finish_ingest
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.localtimes import LocalTimes
from slurmkit_accounting.locks import alone
from slurmkit_accounting.moves import WHOLE_GPUS
from slurmkit_accounting.rows import Batch
from slurmkit_accounting.schema import OPEN, clusters, ingests, runs, usage_keys
from slurmkit_accounting.zones import Zone, zone_called


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
        ledger = ledger.trusting()
        with ledger.transaction() as connection:
            cluster = cluster_id(connection, file.cluster)
            facts: dict[str, Any] = {"source": file.name, "layout": layout_text(file)}
            facts |= {"window_from": started, "window_to": started}
            which = begin_ingest(connection, cluster, started, **facts)
            which = msgspec.structs.replace(which, seen=0)
        batches = map(span.add, dump.batches())
        while not dump.over:
            with ledger.transaction() as connection:
                total += enter_all(connection, which, dump.how, islice(batches, _BLOCKS))
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


def layout_text(file: File) -> str:
    """How its lines are read, as it is kept; see `layout_of`."""
    return msgspec.json.encode({"fields": file.fields, "zone": file.zone.name}).decode()


def layout_of(text: str) -> Layout:
    """How lines of a file that was read before are read.

    Raises:
        BadInput: where its time zone is not known here.
    """
    kept = msgspec.json.decode(text)
    where = zone_called(kept["zone"])
    return Layout(kept["fields"], LocalTimes(where), where.name)


def _finish(ledger: Ledger, which: Ingest, total: Entered, span: _Span) -> None:
    with ledger.transaction() as connection:
        finish_ingest(connection, which, total)
        if window := span.window():
            ours = (runs.c.first_ingest_id == which.id, runs.c.cluster_id == which.cluster)
            new = connection.scalars(select(runs.c.id).where(text(OPEN), *ours))
            see(connection, sorted(which.open.union(new)), window[1])
            _tracks_gpus(connection, which.cluster)
            values = {"window_from": window[0], "window_to": window[1], "done_to": window[1]}
            connection.execute(update(ingests).where(ingests.c.id == which.id).values(**values))


_BLOCKS = 8  # of a transaction, some 60,000 rows: of fewer, usage would be written more often


def _tracks_gpus(connection: Connection, cluster: int) -> None:
    """A cluster that counted GPUs tracks them; one that shows none may only not have told."""
    unknown = (clusters.c.id == cluster, clusters.c.tracks_gpus.is_(None))
    some = select(usage_keys.c.id).where(usage_keys.c.cluster_id == cluster, WHOLE_GPUS)
    connection.execute(update(clusters).where(*unknown, some.exists()).values(tracks_gpus=True))


_DIGITS = re.compile(r"\d\d").match  # 0 is no time


class _Span:
    """The first Submit and the last of all times, of texts: all of a file's are of one form."""

    def __init__(self, dump: Dump) -> None:
        fields = list(dump.how.fields)
        self._read = dump.how.time
        self._first = fields.index("Submit")
        self._lasts = [fields.index(name) for name in ("Submit", "Start", "End") if name in fields]
        self._texts: tuple[str, str] | None = None

    def add(self, batch: Batch) -> Batch:
        """Take more rows into account."""
        first = _chosen(min, batch, self._first)
        if first:
            lasts = [_chosen(max, batch, place) for place in self._lasts]
            before = self._texts or (first, first)
            self._texts = min(first, before[0]), max(*lasts, before[1])
        return batch

    def window(self) -> tuple[int, int] | None:
        """Epoch seconds; None where there was no row."""
        try:
            first, last = (self._read(text) for text in self._texts or ())
        except ValueError:
            return None
        return None if first is None or last is None else (first, last)


def _chosen(choose: Callable[..., str], batch: Batch, place: int) -> str:
    """The first or last time of a field; empty where there is none."""
    texts = batch.texts[place] if batch.texts else ()
    found = choose(texts, default="")
    return found if _DIGITS(found) else choose(filter(_DIGITS, texts), default="")


def _size(stream: BinaryIO) -> int:
    """Bytes; 0 where a stream does not say."""
    try:
        return os.fstat(stream.fileno()).st_size
    except OSError:
        return 0
