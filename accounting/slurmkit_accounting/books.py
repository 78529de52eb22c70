"""Enter runs into the ledger: new ones, changed ones with what they said before, rejects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from slurmkit_accounting.bins import Eras
from slurmkit_accounting.bins import Key as UsageKey
from slurmkit_accounting.bulk import among, insert_rows, update_rows
from slurmkit_accounting.columns import Layout
from slurmkit_accounting.coverage import Span, covered, within
from slurmkit_accounting.fresh import held_columns, insert_new, part
from slurmkit_accounting.redone import mark_redone
from slurmkit_accounting.rejects import keep_rejects, read_after_all
from slurmkit_accounting.rows import Batch, Columns, Key, Run
from slurmkit_accounting.schema import clusters, ingests, revisions, runs
from slurmkit_accounting.shapes import Shapes
from slurmkit_accounting.steps import measure
from slurmkit_accounting.stored import Stored, find, find_by_submit, held_runs, read_runs
from slurmkit_accounting.upkeep import Change, eras

COUNTS = ("read", "new", "changed", "rejected")
_FINGERPRINT = Run._fields.index("fingerprint")


class Entered(msgspec.Struct):
    """What became of rows that were read.

    Attributes:
        read: rows, rejected ones included.
        new: rows the ledger did not have.
        changed: rows that said something else before; that is kept as a revision.
        rejected: lines that could not be read.
        why: the reason of the first of them.
    """

    read: int = 0
    new: int = 0
    changed: int = 0
    rejected: int = 0
    why: str = ""

    def __iadd__(self, other: Entered) -> Entered:
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.why = self.why or other.why
        return self


class Ingest(msgspec.Struct, frozen=True):
    """The ingest that rows are entered by.

    Attributes:
        id: its number, like that of its cluster.
        started: epoch seconds.
        seen: epoch seconds at which the runs without an end were there that it reads; 0 for a
            file, which does not say before its end.
        open: numbers of those that it met while `seen` was not known.
        keys: numbers of the keys of usage that it has met.
        shapes: of the nodes as they are, for what sacct shows now.
    """

    id: int
    cluster: int
    started: int
    seen: int
    open: set[int] = msgspec.field(default_factory=set)
    keys: dict[UsageKey, int] = msgspec.field(default_factory=dict)
    shapes: Shapes | None = None


class _Under(msgspec.Struct):
    """A transaction under way: what it knows, and what it writes when all rows are read.

    Attributes:
        eras: see `bins.Eras`.
        settled: spans that sacct was asked for itself, for lines of the past.
        usage: what becomes of usage.
        jobs: of the runs that were written.
    """

    eras: Eras
    settled: Sequence[Span]
    usage: Change = msgspec.field(default_factory=Change)
    jobs: set[int] = msgspec.field(default_factory=set)


class _Changes(msgspec.Struct):
    """What is to be written of runs that the ledger has."""

    changed: list[tuple[int, Run, Run]] = msgspec.field(default_factory=list)  # id, before, after
    same: list[tuple[int, int]] = msgspec.field(default_factory=list)  # id, fingerprint


def cluster_id(connection: Connection, name: str) -> int:
    """Find a cluster's number, giving it one when it is new."""
    kind = sqlite if connection.dialect.name == "sqlite" else postgresql
    connection.execute(kind.insert(clusters).values(name=name).on_conflict_do_nothing())
    return int(
        connection.execute(select(clusters.c.id).where(clusters.c.name == name)).scalar_one()
    )


def begin_ingest(connection: Connection, cluster: int, started: int, **facts: Any) -> Ingest:
    """Write down that an ingest begins; one of sacct, which shows what is there now."""
    values = {"cluster_id": cluster, "started": started, **facts}
    made = connection.execute(insert(ingests).values(values))
    (number,) = made.inserted_primary_key or (0,)
    return Ingest(number, cluster, started, started)


def enter(connection: Connection, ingest: Ingest, how: Layout, batch: Batch) -> Entered:
    """Enter one batch of one ingest; entering it again changes nothing."""
    return enter_all(connection, ingest, how, [batch])


def enter_all(
    connection: Connection, ingest: Ingest, how: Layout, batches: Iterable[Batch]
) -> Entered:
    """Enter batches of one ingest; what they add to usage is written once, after the last."""
    settled = covered(connection, ingest.cluster) if how.dated else []
    under, total = _Under(eras(connection), settled), Entered()
    for batch in batches:
        total += _enter(connection, ingest, under, how, batch)
        del batch  # before the next one is made, see `Dump.batches`
    _redo(connection, ingest.cluster, under.jobs, under.usage)
    under.usage.write(connection, ingest.keys)
    return total


def _enter(
    connection: Connection, ingest: Ingest, under: _Under, how: Layout, batch: Batch
) -> Entered:
    keys = how.keys(batch)
    last = {key: place for place, key in enumerate(keys) if key is not None}
    known = find(connection, ingest.cluster, last)
    unknown = {key: place for key, place in last.items() if key not in known} if known else last
    known |= find_by_submit(
        connection, ingest.cluster, unknown, lambda place: how.pair(batch.row(place))
    )
    # Of new runs alone there is nothing to choose from.
    fresh = not known and len(last) == len(keys)
    columns, bad = how.columns(batch if fresh else _unread(batch, keys, last, known))
    if ingest.shapes:
        ingest.shapes.look(columns)
    bad = [*batch.rejects, *bad]
    new, old = part(columns, known)
    changes = _compare(connection, how, [(known[run.key], run) for run in old], under.settled)
    _add(connection, ingest, under, new)
    _write(connection, ingest, under, changes)
    met = [known[key] for key in last if key in known] if known else []
    _saw(connection, ingest, met, changes)
    if not how.dated:
        _back(connection, [one.id for one in met if one.gone])
    broken = {reject.key for reject in bad}
    good = last.keys() - broken if broken else last.keys()
    read_after_all(connection, ingest.cluster, ingest.id, good)
    keep_rejects(connection, ingest.cluster, ingest.id, bad)
    counts = len(new["submit"]), len(changes.changed), len(bad)
    return Entered(len(batch), *counts, bad[0].reason if bad else "")


def _unread(
    batch: Batch, keys: Sequence[Key | None], last: Mapping[Key, int], known: Mapping[Key, Stored]
) -> Batch:
    """The last row of each run, unless it was read before; and rows of no known run."""
    prints = batch.fingerprints
    places = [
        place
        for key, place in last.items()
        if (one := known.get(key)) is None or one.fingerprint != prints[place]
    ]
    places += [place for place, key in enumerate(keys) if key is None]
    return batch if places == list(range(len(keys))) else batch.some(places)


def _compare(
    connection: Connection,
    how: Layout,
    old: Sequence[tuple[Stored, Run]],
    settled: Sequence[Span],
) -> _Changes:
    """Tell runs that were read again; of old lines, with the spans that sacct was asked for."""
    found = _Changes()
    before = read_runs(connection, [stored.id for stored, _ in old])
    for stored, run in old:
        number, was = stored.id, before[stored.id]
        stays = not stored.gone and within(settled, was.end)
        after = was if stays else _merged(how, was, run)
        if after[:_FINGERPRINT] != was[:_FINGERPRINT]:
            found.changed.append((number, was, after))
        else:
            found.same.append((number, after.fingerprint))
    return found


def _merged(how: Layout, was: Run, run: Run) -> Run:
    """What is stored now: a line says nothing of the fields it lacks, an old one not the last."""
    if how.dated and _progress(run) < _progress(was):
        return was
    if len(how.given) != len(Run._fields):
        pairs = zip(Run._fields, was, run, strict=True)
        run = Run._make(b if name in how.given else a for name, a, b in pairs)
    # What its nodes said of the same run when they were asked.
    same = (run.alloc_tres, run.node_list) == (was.alloc_tres, was.node_list)
    return run._replace(doubt=was.doubt) if same and run.doubt is None else run


def _progress(run: Run) -> int:
    return 2 if run.end is not None else int(run.start is not None)


def _add(connection: Connection, ingest: Ingest, under: _Under, new: Columns) -> None:
    if not new["submit"]:
        return
    insert_new(connection, (ingest.cluster, ingest.id), ingest.seen, new)
    under.usage.put_columns(held_columns(ingest.cluster, new, under.eras))
    under.jobs.update(new["job_id_raw"])


def _write(connection: Connection, ingest: Ingest, under: _Under, changes: _Changes) -> None:
    if changes.same:
        update_rows(connection, runs, ("id", "fingerprint"), changes.same)
    if not changes.changed:
        return
    numbers = [number for number, _, _ in changes.changed]
    under.usage.take(held_runs(connection, numbers))
    _revise(connection, ingest, changes.changed)
    under.usage.put(held_runs(connection, numbers))
    measure(connection, numbers)
    under.jobs.update(run.job_id_raw for _, _, run in changes.changed)


def redo(connection: Connection, cluster: int, jobs: Collection[int]) -> None:
    """Set anew which runs of some jobs were redone, and count them so."""
    usage = Change()
    _redo(connection, cluster, jobs, usage)
    usage.write(connection, {})


def _redo(connection: Connection, cluster: int, jobs: Collection[int], usage: Change) -> None:
    turned = held_runs(connection, mark_redone(connection, cluster, jobs))
    usage.take([run._replace(redone=not run.redone) for run in turned])
    usage.put(turned)


def _revise(
    connection: Connection, ingest: Ingest, changed: Sequence[tuple[int, Run, Run]]
) -> None:
    kept = [(number, ingest.id, _differences(was, run)) for number, was, run in changed]
    insert_rows(connection, revisions, ("run_id", "ingest_id", "old"), kept)
    values = [(number, *run) for number, _, run in changed]
    update_rows(connection, runs, ("id", *Run._fields), values)
    ended = [(number, None) for number, _, run in changed if run.end is not None]
    update_rows(connection, runs, ("id", "last_seen"), ended)


def _differences(old: Run, new: Run) -> str:
    pairs = zip(Run._fields, old, new, strict=True)
    changed = {name: a for name, a, b in pairs if a != b and name != "fingerprint"}
    return msgspec.json.encode(changed).decode()


def _saw(connection: Connection, ingest: Ingest, seen: Sequence[Stored], changes: _Changes) -> None:
    """Runs without an end that are still there, or again."""
    still = {one.id for one in seen if one.open}
    still |= {number for number, _, run in changes.changed if run.end is None}
    if not ingest.seen:
        ingest.open.update(still)
    elif still:
        see(connection, sorted(still), ingest.seen)


def see(connection: Connection, numbers: Sequence[int], moment: int) -> None:
    """Those of some runs that have no end were there at a moment."""
    earlier = or_(runs.c.last_seen.is_(None), runs.c.last_seen < moment)
    where = (among(connection, runs.c.id, numbers), runs.c.end.is_(None), earlier)
    connection.execute(update(runs).where(*where).values(last_seen=moment))


def _back(connection: Connection, numbers: Sequence[int]) -> None:
    """Sacct shows them again."""
    if numbers:
        where = among(connection, runs.c.id, numbers)
        connection.execute(update(runs).where(where).values(gone_since=None))
