"""Enter grants, top-ups, transfers, refunds, carry-overs and expiries: each is a further row.

Each function runs one transaction, and takes turns with all other writers. So two operators never
give the same hours away twice. The service calls the same functions for operators only.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, insert, select

from slurmkit.errors import BadInput, NotAllowed
from slurmkit.formats.job_ids import check_job_id
from slurmkit_accounting.allocations.amounts import Unit, format_hours, plain_hours
from slurmkit_accounting.allocations.draws import draw_use, edges_of
from slurmkit_accounting.allocations.known_holders import check_known
from slurmkit_accounting.allocations.model import (
    Allocation,
    Entry,
    EntryKind,
    Holder,
    HolderKind,
    load_allocation,
    load_allocations,
    make_holder,
    of_one_holder,
    overdraft_words,
)
from slurmkit_accounting.allocations.refunds import find_refundable
from slurmkit_accounting.allocations.uses import Holders, load_uses
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.allocations import allocation_entries, allocations
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.remote.served import changes_remote
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from slurmkit_accounting.usage.partial import load_last_ingests

_LONGEST_WHY = 500  # characters
_MOST_MS = 2**60
OLDEST_SECONDS = 3 * 3600  # of the last reading of jobs, before a transfer; sites read each hour
_SAME_SECONDS = 86400  # an entry with the same content within this time is probably a mistake


class Posting(msgspec.Struct, frozen=True, kw_only=True):
    """Who enters something, and why.

    Attributes:
        why: the reason; one line.
        identity: the same when a change is sent again; it is then not entered again.
        again: whether the same may be entered although it was within the last day.
        known: of a grant: whether a PI or an account is refused that the ledger does not know.
    """

    why: str
    identity: str
    again: bool = False
    known: bool = False


class Posted(msgspec.Struct, frozen=True):
    """What was entered.

    Attributes:
        allocations: the allocations concerned, as they are now.
        entries: the new entries; those entered before if `repeated`.
        repeated: whether this was sent before, and nothing was entered now.
        notes: what the operator should know, in words.
    """

    allocations: tuple[Allocation, ...]
    entries: tuple[Entry, ...]
    repeated: bool = False
    notes: tuple[str, ...] = ()


@changes_remote
def grant_allocation(
    ledger: Ledger,
    holder_kind: HolderKind,
    holder: str,
    amount_ms: int,
    begin: int,
    posting: Posting,
    *,
    finish: int | None = None,
    unit: Unit = "gpu",
    uid: int = -1,
    scope: Scope = EVERYTHING,
) -> Posted:
    """Grant an allocation.

    Args:
        ledger: a ledger open for writing.
        holder_kind: `account`, `pi` or `project`.
        holder: its name.
        amount_ms: thousandths of a unit-second.
        begin: epoch seconds from which use counts.
        posting: why.
        finish: epoch seconds at which it ends; None is open.
        unit: `gpu` or `billing`.
        uid: who does it; the service sets it.
        scope: what that user may see; only who sees everything may change allocations.

    Raises:
        BadInput: for a wrong amount or time, an unknown holder, the same grant twice, or a user who
            may not do it.
        LedgerError: when the ledger cannot be written.
    """
    with _Change(ledger, posting, uid, scope) as change:
        whose = make_holder(holder_kind, holder)
        _check_amount(amount_ms)
        _check_span(begin, finish)
        wanted = (whose, unit, begin, finish)
        if before := change.find_repeated(
            lambda done: (
                _facts(done) == {(done.allocations[0].id, "grant", amount_ms)}
                and _terms(done.allocations[0]) == wanted
            )
        ):
            return before
        if posting.known:
            check_known(change.connection, whose)
        table = allocations.c
        alike = (
            table.holder_kind == whose.kind, table.holder == whose.name, table.unit == unit,
            table.begin == begin,
            table.finish.is_(None) if finish is None else table.finish == finish,
        )  # fmt: skip
        change.refuse_twin("grant", amount_ms, *alike)
        return change.grant(whose, unit, amount_ms, (begin, finish))


@changes_remote
def grant_once(
    ledger: Ledger,
    holder_kind: HolderKind,
    holder: str,
    amount_ms: int,
    begin: int,
    posting: Posting,
    *,
    finish: int | None = None,
    unit: Unit = "gpu",
    uid: int = -1,
    scope: Scope = EVERYTHING,
) -> Posted:
    """Grant what another program or file grants, unless that was done before. See there.

    It is known by its identity alone: who entered it before, and how much, makes no difference.

    Args:
        ledger: as in `grant_allocation`, like all others.
        holder_kind: see above.
        holder: see above.
        amount_ms: see above.
        begin: see above.
        posting: why, and the name that the grant has there.
        finish: see above.
        unit: see above.
        uid: see above.
        scope: see above.

    Raises:
        BadInput: as there.
        LedgerError: when the ledger cannot be written.
    """
    with _Change(ledger, posting, uid, scope) as change:
        if before := change.entered_before():
            return before
        whose = make_holder(holder_kind, holder)
        _check_amount(amount_ms)
        _check_span(begin, finish)
        if posting.known:
            check_known(change.connection, whose)
        return change.grant(whose, unit, amount_ms, (begin, finish))


@changes_remote
def top_up_allocation(
    ledger: Ledger,
    allocation: int,
    amount_ms: int,
    posting: Posting,
    *,
    uid: int = -1,
    scope: Scope = EVERYTHING,
) -> Posted:
    """Add to an allocation that has not ended. See `grant_allocation`.

    Raises:
        BadInput: as there; when there is no such allocation, or it has ended.
        LedgerError: when the ledger cannot be written.
    """
    with _Change(ledger, posting, uid, scope) as change:
        _check_amount(amount_ms)
        if before := change.find_repeated(
            lambda done: _facts(done) == {(allocation, "top-up", amount_ms)}
        ):
            return before
        _refuse_ended(load_allocation(change.connection, allocation), change.now)
        change.refuse_twin("top-up", amount_ms, allocations.c.id == allocation)
        change.add(allocation, "top-up", amount_ms)
        return change.done(allocation)


@changes_remote
def transfer_allocation(
    ledger: Ledger,
    source: int,
    target: int,
    amount_ms: int,
    posting: Posting,
    *,
    carry_over: bool = False,
    old_ledger: bool = False,
    uid: int = -1,
    scope: Scope = EVERYTHING,
) -> Posted:
    """Move a part of what one allocation has left to another one. See `grant_allocation`.

    Args:
        ledger: as in `grant_allocation`, like `amount_ms`, `posting`, `uid` and `scope`.
        source: the allocation that gives.
        target: the allocation that gets it; it must not have ended.
        amount_ms: at most what `source` has left.
        posting: see above.
        carry_over: whether `source` has ended, and `target` is a later one of the same holder.
        old_ledger: whether to do it although the ledger has not read the latest jobs.
        uid: see above.
        scope: see above.

    Raises:
        BadInput: as there; when units differ, too little is left, the ledger has not read the
            latest jobs, or either may not do this.
        LedgerError: when the ledger cannot be written.
    """
    kind: EntryKind = "carry-over" if carry_over else "transfer"
    with _Change(ledger, posting, uid, scope) as change:
        _check_amount(amount_ms)
        wanted = {(source, kind, -amount_ms), (target, kind, amount_ms)}
        if before := change.find_repeated(lambda done: _facts(done) == wanted):
            return before
        giver = load_allocation(change.connection, source)
        taker = load_allocation(change.connection, target)
        _check_pair(giver, taker, change.now, carry_over=carry_over)
        table = allocation_entries.c
        to_target = select(table.pair).where(table.allocation_id == target)
        change.refuse_twin(
            kind, -amount_ms, table.allocation_id == source, table.pair.in_(to_target)
        )
        if not old_ledger:
            _require_fresh(change.connection, giver, change.now)
        left = left_of(change.connection, giver, change.now)
        if amount_ms > left:
            raise BadInput(
                f"allocation {source} has {format_hours(left)} {giver.unit_name} left, which is"
                f" less than {format_hours(amount_ms)}; give at most that"
            )
        change.add(source, kind, -amount_ms, pair=posting.identity)
        change.add(target, kind, amount_ms, pair=posting.identity)
        return change.done(source, target)


@changes_remote
def refund_job(
    ledger: Ledger,
    job: str,
    posting: Posting,
    *,
    allocation: int | None = None,
    amount_ms: int | None = None,
    cluster: str | None = None,
    all_runs: bool = False,
    uid: int = -1,
    scope: Scope = EVERYTHING,
) -> Posted:
    """Give back what an ended job used, for example because its node died.

    Args:
        ledger: as in `grant_allocation`, like `posting`, `uid` and `scope`.
        job: Slurm's id, `12` (with all its parts), `12_3` or `12+1`.
        posting: see above.
        allocation: which allocation; needed if several paid for the job.
        amount_ms: a part of what the job used; all of it that was not refunded yet when left out.
        cluster: needed if several clusters have had such a job.
        all_runs: of a requeued job, all runs; else only those that were requeued, preempted or lost
            with a node.
        uid: see above.
        scope: see above.

    Raises:
        BadInput: as there; when there is no such job, it runs, no allocation or several paid for
            it, or it was refunded.
        LedgerError: when the ledger cannot be written.
    """
    with _Change(ledger, posting, uid, scope) as change:
        wanted = check_job_id(job)
        if before := change.find_repeated(
            lambda done: _is_refund(done, wanted, allocation, amount_ms)
        ):
            return before
        found = find_refundable(
            change.connection, wanted, cluster, allocation, change.now, all_runs=all_runs
        )
        amount = found.rest_ms if amount_ms is None else amount_ms
        _check_amount(amount)
        payer, table = found.payer, allocation_entries.c
        change.refuse_twin(
            "refund", amount, table.allocation_id == payer.id, table.job_id == wanted,
            table.cluster_id == found.cluster_id,
        )  # fmt: skip
        if amount > found.rest_ms:
            raise BadInput(
                f"job {wanted} used {format_hours(found.used_ms)} {payer.unit_name}, of which"
                f" {format_hours(found.rest_ms)} were not refunded; give at most that"
            )
        change.add(payer.id, "refund", amount, cluster_id=found.cluster_id, job_id=wanted)
        if found.note:
            change.notes.append(found.note)
        if payer.pot.end <= change.now:
            change.notes.append(_ended_refund(change.connection, payer, amount, change.now))
        return change.done(payer.id)


@changes_remote
def expire_allocation(
    ledger: Ledger,
    allocation: int,
    posting: Posting,
    *,
    finish: int | None = None,
    uid: int = -1,
    scope: Scope = EVERYTHING,
) -> Posted:
    """End an allocation, now or at a later time before its end. See `grant_allocation`.

    Raises:
        BadInput: as there; when it has ended, or would end in the past or after its end.
        LedgerError: when the ledger cannot be written.
    """
    with _Change(ledger, posting, uid, scope) as change:
        if before := change.find_repeated(
            lambda done: (
                _facts(done) == {(allocation, "expiry", 0)}
                and finish in (None, done.entries[0].finish)
            )
        ):
            return before
        ended = load_allocation(change.connection, allocation)
        _refuse_ended(ended, change.now)
        at = change.now if finish is None else finish
        if at < max(change.now, ended.begin) or at > ended.pot.end:
            utc = find_zone("UTC")
            until = "" if ended.finish is None else f" and at most {utc.show(ended.finish)}"
            raise BadInput(
                f"the end of allocation {allocation} must be at least"
                f" {utc.show(max(change.now, ended.begin))}{until}"
            )
        change.add(allocation, "expiry", 0, finish=at)
        return change.done(allocation)


class _Change:
    """A transaction that enters rows, after the checks that hold for all of them."""

    def __init__(self, ledger: Ledger, posting: Posting, uid: int, scope: Scope) -> None:
        if not scope.is_everything:
            raise NotAllowed(
                "only operators may change allocations; you can see yours with: slurmkit balance"
            )
        self.why = " ".join(posting.why.split())
        if not self.why or len(self.why) > _LONGEST_WHY or not self.why.isprintable():
            raise BadInput(
                f"say why, in one line of at most {_LONGEST_WHY} characters, e.g. --why 'call 3'"
            )
        identity = posting.identity
        if not identity or len(identity) > 200 or not identity.isprintable():
            raise BadInput("the identity of an entry has 1 to 200 characters; leave it out for one")
        self.now = int(time.time())
        self._posting = posting
        self._who = _name_of(os.getuid() if uid < 0 else uid)
        self._ledger = ledger
        self._new: list[int] = []
        self.notes: list[str] = []

    def __enter__(self) -> _Change:
        self._transaction = self._ledger.transaction()
        self.connection: Connection = self._transaction.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._transaction.__exit__(*error)

    def find_repeated(self, is_same: Callable[[Posted], bool]) -> Posted | None:
        """Return what was entered before with this identity.

        Raises:
            BadInput: when that was another user's, for another reason, or another change.
        """
        before = self.entered_before()
        if before is None:
            return None
        if not is_same(before) or any(
            (one.who, one.why) != (self._who, self.why) for one in before.entries
        ):
            raise BadInput(
                f"{self._posting.identity!r} names another entry: {_describe(before)}; give this"
                " one another name"
            )
        return before

    def entered_before(self) -> Posted | None:
        """Return what was entered before with this identity, by whomever."""
        identity = self._posting.identity
        table = allocation_entries.c
        query = select(table.id, table.allocation_id).where(
            table.identity.in_((identity, _second(identity)))
        )
        rows = self.connection.execute(query).all()
        if not rows:
            return None
        numbers = {row.id for row in rows}
        found = load_allocations(
            self.connection, allocations.c.id.in_({row.allocation_id for row in rows})
        )
        entries = tuple(each for one in found for each in one.entries if each.id in numbers)
        return Posted(found, entries, repeated=True)

    def refuse_twin(self, kind: EntryKind, amount_ms: int, *where: ColumnElement[bool]) -> None:
        """Refuse what was entered before within a day, unless that is wanted."""
        if self._posting.again:
            return
        table = allocation_entries.c
        query = (
            select(table.id, table.at, table.who)
            .join(allocations)
            .where(
                table.kind == kind, table.amount_ms == amount_ms, table.why == self.why,
                table.at > self.now - _SAME_SECONDS, *where,
            )
            .order_by(table.id)
            .limit(1)
        )  # fmt: skip
        twin = self.connection.execute(query).one_or_none()
        if twin is not None:
            raise BadInput(
                f"the same {kind} was entered at {find_zone('UTC').show(twin.at)} by {twin.who}"
                f" (entry {twin.id}); to enter it twice, add --again"
            )

    def grant(
        self, whose: Holder, unit: Unit, amount_ms: int, span: tuple[int, int | None]
    ) -> Posted:
        """Store a grant, and note earlier allocations of its holder that ended overdrawn."""
        values = {
            "holder_kind": whose.kind, "holder": whose.name, "unit": unit, "begin": span[0],
            "finish": span[1],
        }  # fmt: skip
        earlier = of_one_holder(self.connection, whose, unit)
        left = _left_by_id(self.connection, earlier, self.now)
        self.notes += [
            overdraft_words(one, left[one.id]) for one in earlier
            if one.pot.end <= self.now and left[one.id] < 0
        ]  # fmt: skip
        number = self.connection.execute(insert(allocations).values(**values)).inserted_primary_key
        assert number is not None  # noqa: S101 - an insert of one row has one
        self.add(number[0], "grant", amount_ms)
        return self.done(number[0])

    def add(self, allocation: int, kind: EntryKind, amount_ms: int, **more: Any) -> None:
        """Store an entry."""
        identity = self._posting.identity
        values = {
            "allocation_id": allocation, "kind": kind, "amount_ms": amount_ms, "at": self.now,
            "who": self._who, "why": self.why,
            "identity": _second(identity) if self._new else identity,
        }  # fmt: skip
        done = self.connection.execute(insert(allocation_entries).values(**values, **more))
        assert done.inserted_primary_key is not None  # noqa: S101 - an insert of one row has one
        self._new.append(done.inserted_primary_key[0])

    def done(self, *numbers: int) -> Posted:
        """Return what was entered."""
        found = load_allocations(self.connection, allocations.c.id.in_(numbers))
        new = tuple(each for one in found for each in one.entries if each.id in self._new)
        return Posted(found, new, notes=tuple(self.notes))


def _second(identity: str) -> str:
    """Return the identity of the other side of a transfer."""
    return f"{identity}/2"


def _facts(done: Posted) -> set[tuple[int, str, int]]:
    return {(one.allocation, one.kind, one.amount_ms) for one in done.entries}


def _terms(one: Allocation) -> tuple[Holder, Unit, int, int | None]:
    return (one.holder, one.unit, one.begin, one.granted_to)


def _is_refund(done: Posted, job: str, allocation: int | None, amount_ms: int | None) -> bool:
    (one, *_) = done.entries
    return (
        (one.kind, one.job_id) == ("refund", job)
        and allocation in (None, one.allocation)
        and amount_ms in (None, one.amount_ms)
    )


def _describe(done: Posted) -> str:
    """Describe what an identity was used for."""
    by_id = {one.id: one for one in done.allocations}
    zone, words = find_zone("UTC"), []
    for one in done.entries:
        whose = by_id[one.allocation]
        end = "open" if whose.granted_to is None else zone.show(whose.granted_to)
        job = f" of job {one.job_id}" if one.job_id else ""
        words.append(
            f"{one.id} by {one.who} at {zone.show(one.at)}, {one.kind}{job} of"
            f" {format_hours(one.amount_ms)} {whose.unit_name}, allocation {whose.id}"
            f" ({whose.holder}, {zone.show(whose.begin)} to {end}), because: {one.why}"
        )
    return "; ".join(words)


def _name_of(uid: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"uid {uid}"


def _check_amount(amount_ms: int) -> None:
    if not 0 < amount_ms < _MOST_MS:
        raise BadInput("give an amount above 0, in hours, e.g. 1000")


def _check_span(begin: int, finish: int | None) -> None:
    if finish is not None and finish <= begin:
        raise BadInput("the allocation would end before it begins; give --to after --from")


def _refuse_ended(allocation: Allocation, now: int) -> None:
    if allocation.pot.end <= now:
        end = find_zone("UTC").show(allocation.pot.end)
        raise BadInput(
            f"allocation {allocation.id} of {allocation.holder} ended at {end}; grant a new one, or"
            " carry over what it had left"
        )


def _check_pair(giver: Allocation, taker: Allocation, now: int, *, carry_over: bool) -> None:
    """Check that one allocation may give to another."""
    if giver.id == taker.id:
        raise BadInput("both sides are the same allocation; name two")
    if giver.unit != taker.unit:
        raise BadInput(
            f"allocation {giver.id} is in {giver.unit_name}, allocation {taker.id} in"
            f" {taker.unit_name}; they cannot be exchanged"
        )
    _refuse_ended(taker, now)
    if not carry_over:
        _refuse_ended(giver, now)
    elif giver.holder != taker.holder:
        raise BadInput(
            f"allocation {giver.id} is of {giver.holder}, allocation {taker.id} of"
            f" {taker.holder}; only the same holder can carry over, others can transfer"
        )
    elif giver.pot.end > now:
        raise BadInput(
            f"allocation {giver.id} has not ended; use: slurmkit allocation transfer"
            f" {giver.id} {taker.id} HOURS"
        )


def left_of(connection: Connection, allocation: Allocation, now: int) -> int:
    """Return what an allocation has left, or had left when it ended; negative if overdrawn."""
    siblings = of_one_holder(connection, allocation.holder, allocation.unit)
    return _left_by_id(connection, siblings, now)[allocation.id]


def _left_by_id(connection: Connection, siblings: Sequence[Allocation], now: int) -> dict[int, int]:
    """Return what each allocation of one holder in one unit has left."""
    if not siblings:
        return {}
    pots = [one.pot for one in siblings]
    edges = edges_of(pots, now)
    uses = load_uses(connection, siblings[0].unit, edges, now)
    drawn = draw_use(pots, edges, uses.by_part(Holders(connection).runs_of(siblings[0].holder)))
    return {one.id: one.amount_ms - drawn.used_ms[one.id] for one in siblings}


def _require_fresh(connection: Connection, giver: Allocation, now: int) -> None:
    """Refuse a transfer of what jobs that the ledger has not read may have used.

    After the end of an allocation, nothing is charged to it.
    """
    needed = min(now - OLDEST_SECONDS, giver.pot.end)
    ingests = load_last_ingests(connection)
    for number, name in connection.execute(select(clusters.c.id, clusters.c.name)).all():
        read_at = ingests.get(number)
        if read_at is None or read_at < needed:
            when = "never" if read_at is None else f"last at {find_zone('UTC').show(read_at)}"
            raise BadInput(
                f"the ledger read the jobs of cluster {name} {when}, so what allocation {giver.id}"
                " has left is not known; run: slurmkit ledger ingest. To move it all the same, add"
                " --old-ledger"
            )


def _ended_refund(connection: Connection, payer: Allocation, amount_ms: int, now: int) -> str:
    """Say that a refund into an ended allocation releases nothing, and what to do."""
    siblings = of_one_holder(connection, payer.holder, payer.unit)
    left = _left_by_id(connection, siblings, now)[payer.id]
    ended = (
        f"allocation {payer.id} of {payer.holder} ended at {find_zone('UTC').show(payer.pot.end)},"
        " so the refund releases nothing"
    )
    if left <= 0:
        return f"{ended}; it was overdrawn, and has {format_hours(left)} left"
    live = [one.id for one in siblings if one.pot.end > now]
    first = "" if live else "grant a new allocation N, then "
    return (
        f"{ended}; to let {payer.holder} use it, {first}run: slurmkit allocation transfer"
        f" {payer.id} {live[-1] if live else 'N'} {plain_hours(min(amount_ms, left))} --carry-over"
        " --why TEXT"
    )
