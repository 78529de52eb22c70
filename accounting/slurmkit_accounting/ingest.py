"""Read sacct into the ledger: incremental, streamed, and safe to interrupt or repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import TypeVar

import msgspec
from sqlalchemy import Connection, insert, select, update

from slurmkit.errors import BadInput, SlurmError
from slurmkit.queue.rows import record_mark
from slurmkit.site import read_site
from slurmkit.slurm import Slurm
from slurmkit_accounting.books import COUNTS, Entered, cluster_id, enter, open_runs
from slurmkit_accounting.coverage import cover, covered
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.locks import alone
from slurmkit_accounting.sacct_rows import Reject, Run, read_rows, sacct_argv
from slurmkit_accounting.schema import clusters, ingests

FIRST_DAYS = 30
# A row can still change after its end: late messages of slurmctld, a runaway job put right.
OVERLAP_SECONDS = 48 * 3600
_FIRST_EPOCH = 1_000_000  # `uts` takes none before, parse_time.c
_BATCH = 2000
_IDS_PER_CALL = 1000

ItemT = TypeVar("ItemT")
Progress = Callable[[Entered], None]


class Ingested(msgspec.Struct, frozen=True):
    """One finished ingest.

    Attributes:
        window: epoch seconds, [from, to); rows still open from before were read again by id.
        first: whether it was the cluster's first.
        books_begin: epoch seconds from which on the cluster's jobs are in the books.
        seconds: how long it took.
    """

    cluster: str
    window: tuple[int, int]
    entered: Entered
    first: bool
    books_begin: int
    seconds: float


def ingest(
    ledger: Ledger,
    slurm: Slurm,
    *,
    since: int | None = None,
    progress: Progress = lambda _: None,
) -> Ingested:
    """Bring the ledger up to date with slurmdbd.

    Args:
        ledger: open for writing.
        slurm: the border to Slurm.
        since: epoch seconds to begin at; by default the end of what was read without a hole,
            less the overlap, or 30 days ago.
        progress: called after each committed batch.

    Raises:
        BadInput: when `since` is in the future.
        SlurmError: when Slurm does not answer; what was committed before stays.
        LedgerError: when another ingest is running, or the database fails.
    """
    with alone(ledger, "ingest"):
        begun, started = time.monotonic(), int(time.time())
        name = _meet_cluster(ledger, slurm)
        number, window, first = _begin(ledger, name, since, started)
        total = Entered()
        for done in _enter_all(ledger, slurm, number, window):
            total += done
            progress(total)
        books_begin = _finish(ledger, number, total)
        return Ingested(name, window, total, first, books_begin, time.monotonic() - begun)


def _meet_cluster(ledger: Ledger, slurm: Slurm) -> str:
    site = read_site(slurm)
    if not site.cluster_name:
        raise SlurmError("scontrol show config names no ClusterName; is Slurm set up here?")
    with ledger.transaction() as connection:
        where = clusters.c.id == cluster_id(connection, site.cluster_name)
        connection.execute(update(clusters).where(where).values(tracks_gpus=site.tracks_gpus))
    return site.cluster_name


def _begin(
    ledger: Ledger, cluster: str, since: int | None, started: int
) -> tuple[int, tuple[int, int], bool]:
    if since is not None and since > started:
        raise BadInput("--since is in the future; name a date that has begun")
    with ledger.transaction() as connection:
        which = cluster_id(connection, cluster)
        # Where there is a gap, from there on.
        known = covered(connection, which)
        usual = known[0][1] - OVERLAP_SECONDS if known else started - FIRST_DAYS * 86400
        window = (max(min(usual, started) if since is None else since, _FIRST_EPOCH), started)
        row = {"cluster_id": which, "started": started, "window_from": window[0]}
        made = connection.execute(insert(ingests).values(**row, window_to=window[1]))
        (number,) = made.inserted_primary_key or (0,)
        return number, window, not known


def _enter_all(
    ledger: Ledger, slurm: Slurm, number: int, window: tuple[int, int]
) -> Iterator[Entered]:
    with ledger.transaction() as connection:
        which = select(ingests.c.cluster_id).where(ingests.c.id == number)
        still_open = open_runs(connection, connection.execute(which).scalar_one())
    selections: list[tuple[str, ...]] = [("-S", f"uts{window[0]}", "-E", f"uts{window[1]}")]
    for rows in _batches(slurm, selections):
        for row in rows:
            if isinstance(row, Run):
                still_open.pop(row.key, None)
        yield _enter(ledger, number, rows)
    # What is open in the ledger and was not in the window may have ended before it.
    numbers = sorted(set(still_open.values()))
    by_id = [(f"--jobs={','.join(map(str, ids))}",) for ids in _chunks(numbers, _IDS_PER_CALL)]
    for rows in _batches(slurm, by_id):
        yield _enter(ledger, number, rows)


def _batches(
    slurm: Slurm, selections: Iterable[tuple[str, ...]]
) -> Iterator[tuple[Run | Reject, ...]]:
    for selection in selections:
        mark = record_mark()
        # Closed at once on an interrupt, so that sacct does not run on.
        with closing(slurm.stream(sacct_argv(mark, *selection))) as lines:
            yield from _chunks(read_rows(lines, mark), _BATCH)


def _chunks(items: Iterable[ItemT], size: int) -> Iterator[tuple[ItemT, ...]]:
    rest = iter(items)
    while chunk := tuple(islice(rest, size)):
        yield chunk


def _enter(ledger: Ledger, number: int, rows: tuple[Run | Reject, ...]) -> Entered:
    with ledger.transaction() as connection:
        return enter(connection, number, rows)


def _finish(ledger: Ledger, number: int, total: Entered) -> int:
    """Keep the counts, and return where the cluster's books begin."""
    with ledger.transaction() as connection:
        counts = {f"rows_{name}": getattr(total, name) for name in COUNTS}
        values = {"ended": int(time.time()), **counts}
        connection.execute(update(ingests).where(ingests.c.id == number).values(**values))
        return _cover(connection, number)


def _cover(connection: Connection, number: int) -> int:
    """Join what the ingest read to what its cluster's books cover; return where they begin."""
    columns = (ingests.c.cluster_id, ingests.c.window_from, ingests.c.window_to)
    cluster, *window = connection.execute(select(*columns).where(ingests.c.id == number)).one()
    cover(connection, cluster, (window[0], window[1]))
    return covered(connection, cluster)[0][0]
