"""Enter runs into the ledger: new ones, changed ones with what they said before, rejects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import Connection, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from slurmkit_accounting.bins import Held
from slurmkit_accounting.bins import Key as UsageKey
from slurmkit_accounting.bulk import among, insert_rows, update_rows
from slurmkit_accounting.columns import Layout
from slurmkit_accounting.coverage import Span, covered, within
from slurmkit_accounting.redone import mark_redone
from slurmkit_accounting.rejects import keep_rejects, read_after_all
from slurmkit_accounting.rows import Batch, Key, Run
from slurmkit_accounting.schema import clusters, ingests, revisions, runs
from slurmkit_accounting.steps import measure
from slurmkit_accounting.stored import Stored, find, find_by_submit, held_runs, read_runs
from slurmkit_accounting.upkeep import change, eras

COUNTS = ("read", "new", "changed", "rejected")
# The columns of a run that its usage depends on, in the order of `Held`.
_FIRST, _LAST = Run._fields.index("user"), Run._fields.index("energy_joules") + 1
# Not redone, nothing measured: no line says so.
_NOT_OF_A_LINE = (False, None, None, None)
_RARE = ("energy_joules", "cancelled_by", "doubt")
_USUAL = [name for name in Run._fields if name not in _RARE]
_usual = itemgetter(*map(Run._fields.index, _USUAL))
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
    """

    id: int
    cluster: int
    started: int
    seen: int
    open: set[int] = msgspec.field(default_factory=set)
    keys: dict[UsageKey, int] = msgspec.field(default_factory=dict)


class _Changes(msgspec.Struct):
    """What is to be written of a batch."""

    new: list[Run] = msgspec.field(default_factory=list)
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
    keys = how.keys(batch.rows)
    last = {key: place for place, key in enumerate(keys) if key is not None}
    known = find(connection, ingest.cluster, last)
    unknown = {key: batch.rows[place] for key, place in last.items() if key not in known}
    known |= find_by_submit(connection, ingest.cluster, unknown, how.pair)
    prints = batch.fingerprints
    unread = [
        place
        for key, place in last.items()
        if (one := known.get(key)) is None or one.fingerprint != prints[place]
    ]
    unread += [place for place, key in enumerate(keys) if key is None]
    some = Batch([batch.rows[place] for place in unread], [prints[place] for place in unread], [])
    read, bad = how.runs(some)
    bad = [*batch.rejects, *bad]
    settled = covered(connection, ingest.cluster) if how.dated else []
    changes = _compare(connection, how, known, (read, settled))
    _write(connection, ingest, changes)
    _saw(connection, ingest, [known[key] for key in last if key in known], changes)
    if not how.dated:
        _back(connection, [known[key].id for key in last if key in known and known[key].gone])
    broken = {reject.key for reject in bad}
    read_after_all(connection, ingest.cluster, ingest.id, last.keys() - broken)
    keep_rejects(connection, ingest.cluster, ingest.id, bad)
    counts = len(changes.new), len(changes.changed), len(bad)
    return Entered(len(batch), *counts, bad[0].reason if bad else "")


def _compare(
    connection: Connection,
    how: Layout,
    known: dict[Key, Stored],
    read: tuple[Iterable[Run], Sequence[Span]],
) -> _Changes:
    """Tell runs that were read; of old lines, with the spans that sacct was asked for itself."""
    found = _Changes()
    old: list[tuple[Stored, Run]] = []
    for run in read[0]:
        stored = known.get(run.key)
        if stored is None:
            found.new.append(run)
        else:
            old.append((stored, run))
    before = read_runs(connection, [stored.id for stored, _ in old])
    for stored, run in old:
        number, was = stored.id, before[stored.id]
        settled = not stored.gone and within(read[1], was.end)
        after = was if settled else _merged(how, was, run)
        if after[:_FINGERPRINT] != was[:_FINGERPRINT]:
            found.changed.append((number, was, after))
        else:
            found.same.append((number, after.fingerprint))
    return found


def _merged(how: Layout, was: Run, run: Run) -> Run:
    """What is stored now: a line says nothing of the fields it lacks, an old one not the last."""
    if how.dated and _progress(run) < _progress(was):
        return was
    if len(how.given) == len(Run._fields):
        return run
    return Run._make(
        (b if name in how.given else a for name, a, b in zip(Run._fields, was, run, strict=True))
    )


def _progress(run: Run) -> int:
    return 2 if run.end is not None else int(run.start is not None)


def _write(connection: Connection, ingest: Ingest, changes: _Changes) -> None:
    if changes.same:
        update_rows(connection, runs, ("id", "fingerprint"), changes.same)
    if not (changes.new or changes.changed):
        return
    cluster = ingest.cluster
    _insert(connection, ingest, changes.new)
    old = held_runs(connection, [number for number, _, _ in changes.changed])
    _revise(connection, ingest, changes.changed)
    in_eras = eras(connection).each([run.submit for run in changes.new])
    added = [
        tuple.__new__(Held, (cluster, *run[_FIRST:_LAST], *_NOT_OF_A_LINE, era))
        for run, era in zip(changes.new, in_eras, strict=True)
    ]
    again = held_runs(connection, [number for number, _, _ in changes.changed])
    change(connection, old, [*added, *again], ingest.keys)
    measure(connection, [number for number, _, _ in changes.changed])
    written = [*changes.new, *(run for _, _, run in changes.changed)]
    redo(connection, cluster, {run.job_id_raw for run in written})


def _insert(connection: Connection, ingest: Ingest, new: Sequence[Run]) -> None:
    # Most runs have ended and are nothing special. Python's driver takes as long for one None as
    # for all other values of a row, so of these the columns that would be None are left out.
    plain: list[Run] = []
    rare: list[Run] = []
    for run in new:
        (plain if _plain(run) else rare).append(run)
    cluster, number = ingest.cluster, ingest.id
    ours = ("cluster_id", "first_ingest_id")
    rows = [(cluster, number, *_usual(run)) for run in plain]
    insert_rows(connection, runs, (*ours, *_USUAL), rows)
    seen = [(cluster, number, *run, None if run.end else ingest.seen) for run in rare]
    insert_rows(connection, runs, (*ours, *Run._fields, "last_seen"), seen)


def _plain(run: Run) -> bool:
    return (
        run.energy_joules is None
        and run.cancelled_by is None
        and run.doubt is None
        and run.end is not None
    )


def redo(connection: Connection, cluster: int, jobs: Collection[int]) -> None:
    """Set anew which runs of some jobs were redone, and count them so."""
    turned = held_runs(connection, mark_redone(connection, cluster, jobs))
    change(connection, [run._replace(redone=not run.redone) for run in turned], turned)


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
