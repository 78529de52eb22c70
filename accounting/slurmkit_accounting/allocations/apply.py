"""Set the limits in Slurm that enforce the balances, and read them back.

Before sacctmgr runs, the ledger gets a row of what is set; after it, a row of what came of it. A
command that was cut off between the two is finished by the next one, because each looks at what
Slurm has now. Where the counter of a QOS is set to 0, the limit comes first: what is cut off then
leaves too little, never too much.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec
from sqlalchemy import Connection, func, insert, select

from slurmkit.errors import BadInput, LedgerError, NotAllowed, SlurmError
from slurmkit.slurm.commands import SlurmCommands
from slurmkit_accounting.allocations.balance import balances
from slurmkit_accounting.allocations.limit_causes import (
    LastLimit,
    Ledgered,
    UnknownHolder,
    site_remarks,
)
from slurmkit_accounting.allocations.limits import OLDEST, WantedLimit, plan_limits
from slurmkit_accounting.allocations.model import Holder
from slurmkit_accounting.allocations.site import Counter, SlurmSite, read_site
from slurmkit_accounting.allocations.uses import Holders, load_free_qos
from slurmkit_accounting.config import AllocationSection
from slurmkit_accounting.ingest.rejects import SACCT
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.allocations import (
    allocation_limit_outcomes,
    allocation_limits,
    allocations,
)
from slurmkit_accounting.ledger.schema.people import (
    coordinators,
    pi_overrides,
    usernames,
)
from slurmkit_accounting.ledger.schema.runs import clusters, ingests
from slurmkit_accounting.ledger.schema.usage import usage_keys
from slurmkit_accounting.remote.served import AnyLedger, also_remote, changes_remote
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from slurmkit_accounting.reports.rates import GPU_PARTS, Rates
from slurmkit_accounting.usage.bins import NO_GPU
from slurmkit_accounting.usage.partial import load_last_ingests

FRESH = 20 * 60  # seconds; the service reads the jobs every ten minutes
_READ_BACK = (0.2, 0.5, 1, 2, 4)  # seconds; slurmdbd tells slurmctld a moment later


class LimitFacts(msgspec.Struct, frozen=True):
    """What the ledger knows in addition to the balances.

    Attributes:
        clusters: how many clusters the ledger has.
        weighted: GPU types that do not count as one GPU.
        last_ingest: when sacct was last asked for the jobs of this cluster; None for never.
        parts: shards and MPS.
        unknown: holders whose use the ledger cannot find.
        free_qos: QOS whose jobs no allocation pays for.
    """

    last: tuple[LastLimit, ...]
    clusters: int
    weighted: tuple[str, ...]
    last_ingest: int | None
    parts: tuple[str, ...] = ()
    unknown: tuple[UnknownHolder, ...] = ()
    free_qos: tuple[str, ...] = ()


class LimitPlan(msgspec.Struct, frozen=True):
    """What to set, and what to know about it.

    Attributes:
        remarks: about how Slurm enforces limits here.
        old: why the ledger is too old to set limits; empty if it is not.
        stale: the same for a comparison.
        lower_qos: where jobs beyond a balance are moved to; empty if they are not.
    """

    site: SlurmSite
    wanted: tuple[WantedLimit, ...]
    remarks: tuple[str, ...]
    old: str
    stale: str
    lower_qos: str = ""


class AppliedLimit(msgspec.Struct, frozen=True):
    """What came of setting one limit: `set`, or `failed` and why."""

    wanted: WantedLimit
    outcome: str
    why: str = ""


@also_remote
def limit_facts(ledger: Ledger, cluster: str, *, scope: Scope = EVERYTHING) -> LimitFacts:
    """Return the limits that were set last on a cluster, and how the ledger counts.

    Raises:
        BadInput: for a user who does not see everything.
        LedgerError: when the ledger cannot be read.
    """
    _require_operator(scope)
    with ledger.transaction() as connection:
        number = connection.scalar(select(clusters.c.id).where(clusters.c.name == cluster))
        weighted, parts = _weighted_types(connection)
        read_at = load_last_ingests(connection, ingests.c.source == SACCT)
        return LimitFacts(
            last=tuple(_last_limits(connection, cluster)),
            clusters=int(connection.scalar(select(func.count()).select_from(clusters)) or 0),
            weighted=weighted,
            last_ingest=read_at.get(number or 0),
            parts=parts,
            unknown=tuple(_unknown_holders(connection)),
            free_qos=load_free_qos(),
        )


@changes_remote
def record_limit(
    ledger: Ledger,
    cluster: str,
    wanted: WantedLimit,
    *,
    uid: int = -1,
    scope: Scope = EVERYTHING,
) -> int:
    """Record that a limit is about to be set; return the number of the row.

    Raises:
        BadInput: for a user who does not see everything, or an unknown cluster.
        LedgerError: when the ledger cannot be written.
    """
    _require_operator(scope)
    with ledger.transaction() as connection:
        number = connection.scalar(select(clusters.c.id).where(clusters.c.name == cluster))
        if number is None:
            raise BadInput(
                f"the ledger has no cluster {cluster!r}; read its jobs first:"
                " slurmkit ledger ingest"
            )
        done = connection.execute(
            insert(allocation_limits).values(
                cluster_id=number,
                target_kind=wanted.target_kind,
                target=wanted.target,
                tres=wanted.tres,
                before=wanted.before,
                after=wanted.after,
                counted=wanted.counted,
                last_entry=wanted.last_entry,
                at=int(time.time()),
                who=_name_of(os.getuid() if uid < 0 else uid),
            )
        )
        assert done.inserted_primary_key is not None  # noqa: S101 - an insert of one row has one
        return int(done.inserted_primary_key[0])


@changes_remote
def record_limit_outcome(
    ledger: Ledger, limit: int, outcome: str, why: str, *, scope: Scope = EVERYTHING
) -> int:
    """Record what came of setting a limit; return the number of its row.

    Raises:
        BadInput: for a user who does not see everything.
        LedgerError: when the ledger cannot be written.
    """
    _require_operator(scope)
    with ledger.transaction() as connection:
        values = {"limit_id": limit, "at": int(time.time()), "outcome": outcome, "why": why}
        connection.execute(insert(allocation_limit_outcomes).values(**values))
    return limit


def make_plan(
    ledger: AnyLedger,
    slurm: SlurmCommands,
    section: AllocationSection,
    free: Collection[str] = (),
) -> LimitPlan:
    """Read balances and Slurm's counters; return what to set.

    Args:
        ledger: an open ledger.
        slurm: runs the Slurm commands.
        section: what the site wants.
        free: names of accounts or QOS whose allocations have ended, to take their limits away.

    Raises:
        BadInput: for a user who does not see everything; for a limit that cannot be taken away.
        LedgerError: when the ledger cannot be read.
        SlurmError: when Slurm does not answer.
    """
    site = read_site(slurm)
    facts = limit_facts(ledger, site.cluster)
    known = balances(ledger, everything=True, ended=True)
    age = None if facts.last_ingest is None else max(known.taken - facts.last_ingest, 0)
    ledgered = Ledgered(
        balances=known.rows,
        taken=known.taken,
        age=age,
        last_limits=facts.last,
        clusters=facts.clusters,
        weighted=facts.weighted,
        parts=facts.parts,
        unknown=facts.unknown,
        free_qos=facts.free_qos,
    )
    wanted = plan_limits(ledgered, site, section, free)
    enforcing = {one.target for one in wanted}
    remarks = site_remarks(
        site, section, clusters=facts.clusters, enforcing=enforcing, free_qos=facts.free_qos
    )
    old, stale = (_why_stale(site.cluster, age, most) for most in (FRESH, OLDEST))
    moves = (section.enforce, section.at_end) == ("qos", "lower") and facts.free_qos
    lower_qos = facts.free_qos[0] if moves else ""
    return LimitPlan(site, tuple(wanted), tuple(remarks), old, stale, lower_qos)


def apply_limits(
    ledger: AnyLedger, slurm: SlurmCommands, site: SlurmSite, wanted: Sequence[WantedLimit]
) -> Iterator[AppliedLimit]:
    """Set each limit that has commands; yield what came of it. A failed one does not stop others.

    Limits that no balance needs any more are taken away last, and only if all others were set.

    Raises:
        LedgerError: when the ledger has not read the latest jobs, or cannot be written; that limit
            is not set.
    """
    if any(one.after is not None for one in wanted if one.commands):
        _require_fresh(ledger, site)
    needed = [one for one in wanted if one.commands and one.holder is not None]
    failed = False
    for done in _set_all(ledger, slurm, site, needed):
        failed = failed or done.outcome != "set"
        yield done
    rest = [one for one in wanted if one.commands and one.holder is None]
    if not failed:
        yield from _set_all(ledger, slurm, site, rest)
        return
    for one in rest:
        yield AppliedLimit(one, "failed", "it stays until all other limits are set")


def _set_all(
    ledger: AnyLedger, slurm: SlurmCommands, site: SlurmSite, some: Sequence[WantedLimit]
) -> Iterator[AppliedLimit]:
    """Set limits, read all of them back at once, then set the counters to 0 that need it."""
    numbers, troubles = [], dict[int, str]()
    for place, one in enumerate(some):
        numbers.append(record_limit(ledger, site.cluster, one))
        if why := _run_all(slurm, one.commands):
            troubles[place] = why
    good = {place: one for place, one in enumerate(some) if place not in troubles}
    troubles |= _read_back(slurm, good, _limit_is_wrong)
    resets = {place: one for place, one in good.items() if one.reset and place not in troubles}
    failed = {place: _run_all(slurm, (one.reset,)) for place, one in resets.items()}
    troubles |= {place: why for place, why in failed.items() if why}
    reset = {place: one for place, one in resets.items() if place not in troubles}
    troubles |= _read_back(slurm, reset, _counter_is_wrong)
    for place, one in enumerate(some):
        why = troubles.get(place, "")
        outcome = "failed" if why else "set"
        record_limit_outcome(ledger, numbers[place], outcome, why)
        yield AppliedLimit(one, outcome, why)


def _run_all(slurm: SlurmCommands, commands: Iterable[tuple[str, ...]]) -> str:
    """Run commands of sacctmgr; return why one failed, empty if none did."""
    try:
        for argv in commands:
            slurm.run(argv)
    except SlurmError as error:
        return str(error)
    return ""


def _require_fresh(ledger: AnyLedger, site: SlurmSite) -> None:
    """Refuse to set limits from a ledger that has not read the latest jobs.

    Slurm has counted these jobs, and the ledger has not: each limit would give their use back.
    """
    read_at = limit_facts(ledger, site.cluster).last_ingest
    age = None if read_at is None else max(int(time.time()) - read_at, 0)
    if why := _why_stale(site.cluster, age, FRESH):
        raise LedgerError(f"{why}: no limit was set; run: slurmkit ledger ingest")


def _why_stale(cluster: str, age: int | None, most: int) -> str:
    """Return why the ledger is too old; empty if it is not."""
    if age is not None and age <= most:
        return ""
    when = "never" if age is None else f"{age // 60} minutes ago"
    when = when if age is None or age < 2 * 3600 else f"{age // 3600} hours ago"
    return f"the ledger read the jobs of cluster {cluster} {when}, which is too old"


def _read_back(
    slurm: SlurmCommands,
    some: dict[int, WantedLimit],
    wrong: Callable[[WantedLimit, Counter], str],
) -> dict[int, str]:
    """Ask slurmctld, which enforces the limits, what it has now; return what is wrong."""
    left: dict[int, str] = dict.fromkeys(some, "")
    for wait in _READ_BACK:
        if not left:
            break
        try:
            counters = read_site(slurm).counters
        except SlurmError as error:
            return dict.fromkeys(left, str(error))
        nothing = Counter(None, 0, 0, 0)
        for place in tuple(left):
            one = some[place]
            left[place] = wrong(one, counters.get((one.target_kind, one.target, one.tres), nothing))
            if not left[place]:
                del left[place]
        if left:
            time.sleep(wait)
    return left


def _limit_is_wrong(one: WantedLimit, there: Counter) -> str:
    if there.limit == one.after:
        return ""
    return f"slurmctld has {_minutes(there.limit)}, not {_minutes(one.after)}; look at its log"


def _counter_is_wrong(one: WantedLimit, there: Counter) -> str:
    """Return why the counter was not reset; empty if jobs that ran since explain its value."""
    if there.counted < (one.counted or 0) or there.counted <= one.slack:
        return ""
    return f"the counter of QOS {one.target} was not set to 0: it is at {there.counted:,} minutes"


def _minutes(limit: int | None) -> str:
    return "no limit" if limit is None else f"{limit:,} minutes"


def _last_limits(connection: Connection, cluster: str) -> Iterator[LastLimit]:
    table, outcomes = allocation_limits.c, allocation_limit_outcomes.c
    joined = allocation_limits.join(clusters).outerjoin(allocation_limit_outcomes)
    newest = (
        select(func.max(table.id))
        .select_from(joined)
        .where(clusters.c.name == cluster)
        .group_by(table.target_kind, table.target, table.tres)
    )
    key = (table.target_kind, table.target, table.tres)
    seen = select(*key, table.after).where(table.id.in_(newest.where(outcomes.outcome == "set")))
    read_back = {tuple(row[:3]): row.after for row in connection.execute(seen)}
    query = (
        select(
            *key, table.after, table.last_entry, table.at,
            func.coalesce(outcomes.outcome, "unknown"),
        )
        .outerjoin_from(allocation_limits, allocation_limit_outcomes)
        .where(table.id.in_(newest))
    )  # fmt: skip
    for row in connection.execute(query):
        yield LastLimit(*row, read_back=read_back.get(tuple(row[:3])))


def _weighted_types(connection: Connection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the GPU types in the ledger that do not count as one GPU, and the shards and MPS."""
    rates = Rates()
    query = select(usage_keys.c.gpu_type, usage_keys.c.partition).distinct()
    whole, parts = set(), set()
    for gpu_type, partition in connection.execute(query):
        kind = rates.kind(gpu_type, partition)
        if gpu_type.partition(":")[0] in GPU_PARTS:
            parts.add(kind.name)
        elif gpu_type != NO_GPU and kind.weight != 1:
            whole.add(kind.name)
    return tuple(sorted(whole)), tuple(sorted(parts))


def _unknown_holders(connection: Connection) -> Iterator[UnknownHolder]:
    """Yield the holders whose use cannot be found by their name, and why."""
    names = select(allocations.c.holder_kind, allocations.c.holder).distinct()
    holders: Holders | None = None
    for holder in sorted(Holder(*row) for row in connection.execute(names)):
        holders = holders or Holders(connection)
        why = ""
        if holder.kind == "project" and not holders.accounts_of(holder):
            why = f"the configuration has no [project.{holder.name}] with accounts"
        if holder.kind == "pi":
            why = _why_no_pi(connection, holders, holder.name)
        if why:
            yield UnknownHolder(holder, f"{why}, so its use is not known")


def _why_no_pi(connection: Connection, holders: Holders, name: str) -> str:
    """Return why no use is that of a PI of this name; empty if some may be."""
    login = name.partition(" (")[0].lower()  # of two persons: `vogel (Hans Vogel)`
    query = select(usernames.c.person_id).where(func.lower(usernames.c.username) == login)
    labels = {holders.people.label(row[0]) for row in connection.execute(query.distinct())}
    if name in labels:
        return ""
    if labels:
        return f"the directory has {' and '.join(sorted(labels))}, not {name}"
    for known in (pi_overrides.c.pi, coordinators.c.user):
        if connection.scalar(select(known).where(known == name).limit(1)) is not None:
            return ""
    return f"the ledger knows no PI {name}"


def _require_operator(scope: Scope) -> None:
    if not scope.is_everything:
        raise NotAllowed("only operators may compare or set limits; see: slurmkit balance")


def _name_of(uid: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"uid {uid}"
