"""What is left of each allocation, of all holders or of those that concern one user."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection

from slurmkit.errors import NotAllowed
from slurmkit_accounting.allocations.amounts import Unit
from slurmkit_accounting.allocations.draws import Draws, draw_use, edges_of, share_out
from slurmkit_accounting.allocations.model import (
    Allocation,
    Entry,
    Holder,
    holders_of,
    load_allocations,
    overdraft_words,
)
from slurmkit_accounting.allocations.pace import HISTORY_DAYS, Pace, check_past, find_pace
from slurmkit_accounting.allocations.uses import (
    Claims,
    Holders,
    Runner,
    Uses,
    load_claims,
    load_uses,
)
from slurmkit_accounting.calendar import host_zone_or_utc, months_back
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import ingests
from slurmkit_accounting.ledger.schema.usage import DAY
from slurmkit_accounting.remote.served import also_remote
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from slurmkit_accounting.usage.bins import UNKNOWN_UID
from slurmkit_accounting.usage.partial import load_last_ingests

OVERDRAFT_DAYS = 90  # for which the overdraft of an allocation that ended is shown
MEMBER_DAYS = 90  # who had a run under an account in so many days sees its balance


class AllocationBalance(msgspec.Struct, frozen=True):
    """One allocation of a holder.

    Attributes:
        state: `in force`, `ended` or `not begun`.
        used_ms: what was charged to it.
        left_ms: of what was granted; what an ended one had left has expired.
    """

    id: int
    begin: int
    finish: int | None
    state: str
    granted_ms: int
    used_ms: int
    left_ms: int


class UserUse(msgspec.Struct, frozen=True):
    """What one user used of the allocations in force."""

    user: str
    used_ms: int


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """What a holder has left, in thousandths of a unit-second.

    Attributes:
        granted_ms: of the allocations in force: grants, top-ups, transfers, refunds.
        used_ms: what ended and running jobs used of them so far.
        running_ms: the part of `used_ms` that jobs used that still run.
        may_use_ms: what running jobs may still use, up to their time limits: an upper bound.
        reserved_ms: what waiting jobs may use, up to their time limits: an upper bound.
        without_limit: running and waiting jobs for which no bound is known.
        left_ms: granted less used; negative if overdrawn.
        outside_ms: used since the first allocation while none was in force; charged to none.
        mine_ms: what the user who asks used of `used_ms`.
        users: what others used, as far as the reader may see whose it was.
        accounts: accounts whose use counts, as far as the ledger knows; for operators.
        members: users whose use counts: members of the groups, and who had a run in the last 90
            days; None unless an operator asks for it.
        shared: those of them that also have use of another PI; only for a PI.
        newest_entry: number of the newest entry.
        pace: None if the history is shorter than four weeks.
        allocations: those in force, and others if they were asked for.
        last_entry: epoch seconds of the newest grant, top-up, ...
        notes: what could not be counted, in words.
    """

    holder: Holder
    unit: Unit
    granted_ms: int
    used_ms: int
    running_ms: int
    may_use_ms: int
    reserved_ms: int
    without_limit: int
    left_ms: int
    outside_ms: int
    mine_ms: int
    users: tuple[UserUse, ...]
    pace: Pace | None
    allocations: tuple[AllocationBalance, ...]
    last_entry: int
    newest_entry: int
    accounts: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    members: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def finish(self) -> int | None:
        """When the last allocation in force ends; None is open, or there is none."""
        ends = [one.finish for one in self.allocations if one.state == "in force"]
        return None if None in ends else max((end for end in ends if end), default=None)


class Balances(msgspec.Struct, frozen=True, kw_only=True):
    """Balances and the age of their data.

    Attributes:
        taken: epoch seconds.
        source: the ledger.
        last_ingest: when the jobs were last read from Slurm, of the cluster read longest ago; None
            for never.
        everything: whether these are all balances, not only those that concern the user.
    """

    rows: tuple[Balance, ...]
    taken: int
    source: str
    last_ingest: int | None
    everything: bool


class AllocationHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations with every entry; only operators and the PI see of which job a refund is."""

    rows: tuple[Allocation, ...]
    taken: int
    source: str


@also_remote
def balances(
    ledger: Ledger,
    *,
    holder: Holder | None = None,
    everything: bool = False,
    ended: bool = False,
    members: bool = False,
    now: int | None = None,
    uid: int = -1,
    scope: Scope = EVERYTHING,
) -> Balances:
    """Return the balances that concern a user, or all of them.

    A user sees the balance of each account in which they are or had a run in the last 90 days, of
    the PIs and projects of these accounts, and their own use. Whose the rest of the use was is
    shown to the PI and to operators.

    Args:
        ledger: an open ledger.
        holder: only this one.
        everything: all balances, as far as the reader may see them; else those of the user.
        ended: also show allocations that ended or have not begun.
        members: also name the users whose use counts, if the reader sees everything.
        now: epoch seconds; the current time when left out.
        uid: the user; the service sets it.
        scope: which usage the reader may see.

    Raises:
        BadConfig: for weights or projects that cannot be read.
        BadInput: for a time from a user who does not see everything.
        LedgerError: when the ledger cannot be read.
    """
    # Who has a uid, and who is a member, changes with time: only operators may ask about another.
    if now is not None and not scope.is_everything:
        raise NotAllowed("only operators may ask for the balances of another time")
    when, user = int(time.time()) if now is None else now, os.getuid() if uid < 0 else uid
    with ledger.transaction() as connection:
        reader = _Reader(connection, user, scope, when, everything=everything)
        rows = []
        found = load_allocations(connection)
        for unit in sorted({one.unit for one in found}):
            of_unit = [one for one in found if one.unit == unit]
            more = _of_unit(reader, unit, of_unit, only=holder, ended=ended, members=members)
            rows += more
        read_at = load_last_ingests(connection, ingests.c.source == "sacct")
    return Balances(
        rows=tuple(rows),
        taken=when,
        source=f"ledger {ledger.source}",
        last_ingest=min(read_at.values(), default=None),
        everything=everything,
    )


@also_remote
def allocation_history(
    ledger: Ledger,
    *,
    allocation: int | None = None,
    holder: Holder | None = None,
    uid: int = -1,
    scope: Scope = EVERYTHING,
) -> AllocationHistory:
    """Return allocations with all their entries, as far as the reader may see them.

    Args:
        ledger: an open ledger.
        allocation: only this one.
        holder: only those of this holder.
        uid: the user; the service sets it.
        scope: which usage the reader may see.

    Raises:
        LedgerError: when the ledger cannot be read.
    """
    when, user = int(time.time()), os.getuid() if uid < 0 else uid
    with ledger.transaction() as connection:
        reader = _Reader(connection, user, scope, when, everything=True)
        chosen = [
            one
            for one in load_allocations(connection)
            if allocation in (None, one.id) and holder in (None, one.holder)
        ]
        uses = {
            unit: load_uses(connection, unit, _days(when), when)
            for unit in {one.unit for one in chosen}
        }
        rows = tuple(
            one if reader.sees_names(one.holder) else _without_jobs(one)
            for one in chosen
            if reader.may_see(one.holder, reader.my_accounts(uses[one.unit]))
        )
    return AllocationHistory(rows=rows, taken=when, source=f"ledger {ledger.source}")


def _without_jobs(allocation: Allocation) -> Allocation:
    """Hide of which job a refund is, and the reason, which may name people."""
    entries = tuple(_anonymous(entry) for entry in allocation.entries)
    return msgspec.structs.replace(allocation, entries=entries)


def _anonymous(entry: Entry) -> Entry:
    if entry.kind != "refund":
        return entry
    return msgspec.structs.replace(entry, job_id=None, why="")


class _Reader:
    """Who asks, and which balances they may see."""

    def __init__(
        self, connection: Connection, uid: int, scope: Scope, now: int, *, everything: bool
    ) -> None:
        self.connection = connection
        self.holders = Holders(connection)
        self.scope = scope
        self.now = now
        self._everything = everything
        self._uid = uid
        self._person = self.holders.person_with_uid(uid, now)

    def is_mine(self, runner: Runner) -> bool:
        """Return whether runs are the user's own."""
        person = self.holders.person_of(runner)
        return runner.uid == self._uid if person is None else person == self._person

    def sees_names(self, holder: Holder) -> bool:
        """Return whether the user may see everything about a holder: operators, and its PIs.

        Of a project with several PIs, only who is PI of all its accounts.
        """
        pis = self.holders.pis_of(holder, self.now)
        return self.scope.is_everything or (
            bool(pis) and all(of and all(map(self.scope.shows_group, of)) for of in pis)
        )

    def may_see(self, holder: Holder, mine: Iterable[Runner]) -> bool:
        """Return whether a balance is shown; `mine` is from `my_accounts`."""
        if self._everything and self.scope.is_everything:
            return True
        pis_of_accounts = self.holders.pis_of(holder, self.now)
        own = any(self.scope.shows_group(pi) for pis in pis_of_accounts for pi in pis)
        if own and not self.scope.is_everything:
            return True
        if holder.kind == "pi":
            return any(self.holders.pi_of(runner).name == holder.name for runner in mine)
        accounts = self.holders.accounts_of(holder)
        return any(runner.account.lower() in accounts for runner in mine)

    def my_accounts(self, uses: Uses) -> set[Runner]:
        """Return the user under each account in which they are, or had a run lately."""
        since = self.now - MEMBER_DAYS * DAY
        lately = [
            runner
            for number, (_, last) in enumerate(pairwise(uses.edges))
            if last > since
            for runner in (*uses.ended[number], *uses.running[number])
            if self.is_mine(runner)
        ]
        era = self.holders.eras.of(self.now)
        groups = self.holders.accounts_now(self._person, self.now)
        name = self.holders.people.label(self._person) if self._person is not None else ""
        return {
            *(runner._replace(era=era) for runner in lately),
            *(
                Runner(cluster, group, name, self._uid, era)
                for cluster in self.holders.clusters
                for group in groups
            ),
        }

    def members(self, holder: Holder, uses: Uses) -> tuple[str, ...]:
        """Return the users whose use counts for a holder: of its groups, and who ran lately."""
        counts = self.holders.runs_of(holder)
        since = self.now - MEMBER_DAYS * DAY
        users = {
            runner.user
            for number, (_, last) in enumerate(pairwise(uses.edges))
            if last > since
            for runner in (*uses.ended[number], *uses.running[number])
            if counts(runner)
        }
        people, era = self.holders.people, self.holders.eras.of(self.now)
        for person in people.persons():
            name = people.label(person)
            users |= {
                name
                for group in self.holders.accounts_now(person, self.now)
                for cluster in self.holders.clusters
                if counts(Runner(cluster, group, name, UNKNOWN_UID, era))
            }
        return tuple(sorted(users))


def _days(now: int) -> tuple[int, ...]:
    """Return the midnights (UTC) of the last days, and now; the usage tables have whole days."""
    midnight = now - now % DAY
    days = [midnight - day * DAY for day in range(HISTORY_DAYS, -1, -1)]
    return (*days, now) if now > midnight else tuple(days)


def _of_unit(
    reader: _Reader,
    unit: Unit,
    found: Sequence[Allocation],
    *,
    only: Holder | None,
    ended: bool,
    members: bool,
) -> list[Balance]:
    """Return the balances in one unit; the use of all holders is loaded at once."""
    now = reader.now
    edges = {*_days(now), *edges_of([one.pot for one in found], now)}
    uses = load_uses(reader.connection, unit, tuple(sorted(edges)), now)
    claims = load_claims(reader.connection, unit, now)
    by_holder = defaultdict(list)
    for one in found:
        by_holder[one.holder].append(one)
    mine = reader.my_accounts(uses)
    rows = []
    for holder, _ in holders_of(found):
        some = by_holder[holder]
        live = any(one.is_in_force(now) for one in some)
        if only in (None, holder) and (live or ended) and reader.may_see(holder, mine):
            row = _balance(reader, some, uses, claims, ended=ended)
            if members and reader.scope.is_everything:
                row = msgspec.structs.replace(row, members=reader.members(holder, uses))
            rows.append(row)
    return rows


def _balance(
    reader: _Reader, some: Sequence[Allocation], uses: Uses, claims: Claims, *, ended: bool
) -> Balance:
    """Return the balance of a holder, from all its allocations in one unit."""
    now, holder, unit = reader.now, some[0].holder, some[0].unit
    counts = reader.holders.runs_of(holder)
    amounts = uses.by_part(counts)
    drawn = draw_use([one.pot for one in some], uses.edges, _since(uses, amounts, some))
    live = [one for one in some if one.is_in_force(now)]
    left = sum(one.amount_ms - drawn.used_ms[one.id] for one in live)
    shares = _shares(uses, drawn, live, counts)
    by_runner = shares.ended + shares.running
    mine = sum(amount for runner, amount in by_runner.items() if reader.is_mine(runner))
    return Balance(
        holder=holder,
        unit=unit,
        granted_ms=sum(one.amount_ms for one in live),
        used_ms=sum(drawn.used_ms[one.id] for one in live),
        running_ms=sum(shares.running.values()),
        may_use_ms=_sum(claims.running, counts),
        reserved_ms=_sum(claims.waiting, counts),
        without_limit=_sum(claims.without_limit, counts),
        left_ms=left,
        outside_ms=drawn.outside_ms,
        mine_ms=mine,
        users=_users(reader, by_runner),
        pace=_find_pace(_daily(uses, amounts, now), left, now, live),
        allocations=tuple(
            _one(one, drawn.used_ms[one.id], now) for one in some if ended or one in live
        ),
        last_entry=max(entry.at for one in some for entry in one.entries),
        newest_entry=max(entry.id for one in some for entry in one.entries),
        **_accounts(reader, holder, uses, counts),
        notes=(*uses.notes, *_overdrafts(some, drawn, now)),
    )


def _find_pace(
    daily: Sequence[int], left: int, now: int, live: Sequence[Allocation]
) -> Pace | None:
    """Return the pace, and what is left when the month ends, or the last allocation if earlier."""
    if not live:
        return None
    month_end = months_back(now, -1, host_zone_or_utc())
    last_end = max(one.pot.end for one in live)
    pace = find_pace(daily, left, now, min(month_end, last_end))
    return pace and msgspec.structs.replace(pace, past=check_past(daily))


def _overdrafts(some: Iterable[Allocation], drawn: Draws, now: int) -> Iterator[str]:
    """Say which allocations ended overdrawn lately."""
    for one in some:
        left = one.amount_ms - drawn.used_ms[one.id]
        if left < 0 and now - OVERDRAFT_DAYS * DAY < one.pot.end <= now:
            yield overdraft_words(one, left)


def _since(uses: Uses, amounts: Sequence[int], some: Iterable[Allocation]) -> list[int]:
    """Return what was used in each part, 0 before the first allocation of the holder."""
    first = min(one.begin for one in some)
    begins = uses.edges[:-1]
    return [n if at >= first else 0 for at, n in zip(begins, amounts, strict=True)]


class _Shares(NamedTuple):
    """Who used what allocations in force paid for; `running` is the part of runs without an end."""

    ended: Counter[Runner]
    running: Counter[Runner]


def _shares(
    uses: Uses, drawn: Draws, live: Sequence[Allocation], counts: Callable[[Runner], bool]
) -> _Shares:
    """Return who used what the allocations in force paid for.

    Where an ended allocation paid for some of the use of a day, everybody's use of that day counts
    in part. So the sum is what the allocations in force have used.
    """
    numbers = {one.id for one in live}
    shares = _Shares(Counter(), Counter())
    for ended, running, paid in zip(uses.ended, uses.running, drawn.by_part, strict=True):
        whole = sum(amount for number, amount in paid.items() if number in numbers)
        if not whole:
            continue
        used = [
            (into, runner, amount)
            for into, part in ((shares.ended, ended), (shares.running, running))
            for runner, amount in sorted(part.items())
            if counts(runner)
        ]
        for (into, runner, _), share in zip(
            used, share_out(whole, [amount for _, _, amount in used]), strict=True
        ):
            into[runner] += share
    return shares


def _accounts(
    reader: _Reader, holder: Holder, uses: Uses, counts: Callable[[Runner], bool]
) -> dict[str, tuple[str, ...]]:
    """Return the accounts of a holder, and those that it shares; for who sees everything."""
    if not reader.scope.is_everything:
        return {}
    if holder.kind != "pi":
        return {"accounts": tuple(sorted(reader.holders.accounts_of(holder)))}
    runners = {runner for part in (*uses.ended, *uses.running) for runner in part}
    own = {runner.account.lower() for runner in runners if counts(runner)}
    others = {runner.account.lower() for runner in runners if not counts(runner)}
    return {"accounts": tuple(sorted(own)), "shared": tuple(sorted(own & others))}


def _users(reader: _Reader, by_runner: Counter[Runner]) -> tuple[UserUse, ...]:
    """Return the use of each user that the reader may see, most first."""
    users: Counter[str] = Counter()
    for runner, amount in by_runner.items():
        if amount and reader.holders.shows(reader.scope, runner):
            users[runner.user] += amount
    ordered = sorted(users.items(), key=lambda one: (-one[1], one[0]))
    return tuple(UserUse(user, amount) for user, amount in ordered)


def _sum(amounts: dict[Runner, int], counts: Callable[[Runner], bool]) -> int:
    return sum(amount for runner, amount in amounts.items() if counts(runner))


def _daily(uses: Uses, amounts: Sequence[int], now: int) -> list[int]:
    """Return what was used on each of the last days that are over."""
    midnight = now - now % DAY
    begin = midnight - HISTORY_DAYS * DAY
    days = [0] * HISTORY_DAYS
    for (first, last), amount in zip(pairwise(uses.edges), amounts, strict=True):
        if first >= begin and last <= midnight:
            days[(first - begin) // DAY] += amount
    return days


def _one(allocation: Allocation, used_ms: int, now: int) -> AllocationBalance:
    state = "in force"
    if not allocation.is_in_force(now):
        state = "not begun" if now < allocation.begin else "ended"
    amount = allocation.amount_ms
    return AllocationBalance(
        allocation.id, allocation.begin, allocation.finish, state, amount, used_ms,
        amount - used_ms,
    )  # fmt: skip
