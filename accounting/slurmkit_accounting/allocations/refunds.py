"""What may be given back of what a job used: which runs, which allocation, how much of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from slurmkit.errors import BadInput
from slurmkit_accounting.allocations.amounts import UNIT_NAMES, format_hours
from slurmkit_accounting.allocations.draws import edges_of
from slurmkit_accounting.allocations.model import Allocation, load_allocations, of_one_holder
from slurmkit_accounting.allocations.uses import Holders, Runner, load_uses, used_by_job
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.ledger.schema.runs import clusters, runs
from slurmkit_accounting.usage.partial import is_of_job
from slurmkit_accounting.usage.redone import CUT_SHORT_STATES

LOST_STATES = CUT_SHORT_STATES | {"BOOT_FAIL"}
_MOST_SHOWN = 4  # runs in a message


class Refundable(NamedTuple):
    """What may be given back.

    Attributes:
        payer: the allocation that gets it.
        cluster_id: row id of the job's cluster.
        used_ms: what the job used; of a requeued job, its lost runs.
        rest_ms: the part of it that was not refunded.
        note: which runs of a requeued job these are; empty for other jobs.
    """

    payer: Allocation
    cluster_id: int
    used_ms: int
    rest_ms: int
    note: str


class _LostRun(NamedTuple):
    job_id: str
    state: str
    start: int
    end: int


class _Payer(NamedTuple):
    """An allocation, what a job used in it, and the part of it that may be given back."""

    allocation: Allocation
    whole_ms: int
    used_ms: int


def find_refundable(
    connection: Connection,
    job: str,
    cluster: str | None,
    allocation: int | None,
    now: int,
    *,
    all_runs: bool,
) -> Refundable:
    """Find what may be given back of an ended job.

    Of a requeued job these are the runs that were requeued, preempted or lost with a node.

    Args:
        connection: to the ledger.
        job: Slurm's id.
        cluster: its name; needed if several clusters have had such a job.
        allocation: which one; needed if several paid for the job.
        now: epoch seconds.
        all_runs: whether all runs of a requeued job are given back.

    Raises:
        BadInput: when there is no such job, it runs, no allocation or several paid for it, or it
            was refunded.
    """
    where = _cluster_of_job(connection, job, cluster)
    lost, others = ([], []) if all_runs else _split_runs(connection, job, where)
    paid = _payers(connection, job, where, others, now)
    payer, whole, used = _choose_payer(paid, job, allocation, others)
    not_refunded = _not_refunded(connection, payer, job, where, whole, now)
    rest = not_refunded - (whole - used)
    more = f". Not lost: {_run_words(others)}; to refund them too, add --all-runs" if others else ""
    if rest <= 0:
        raise BadInput(
            f"job {job} was refunded before: {format_hours(min(used - rest, used))} of the"
            f" {format_hours(used)} {payer.unit_name} that it used; see: slurmkit allocation"
            f" history {payer.id}{more}"
        )
    note = f"job {job} was requeued. Refunded: {_run_words(lost)}{more}" if lost and others else ""
    return Refundable(payer, where, used, rest, note)


def _cluster_of_job(connection: Connection, job: str, cluster: str | None) -> int:
    """Return the cluster of an ended job.

    Raises:
        BadInput: when there is none, several have it, or it has not ended.
    """
    query = (
        select(clusters.c.id, clusters.c.name, func.count(), func.count(runs.c.end))
        .join_from(runs, clusters)
        .where(is_of_job(job), runs.c.retracted.is_(None))
        .group_by(clusters.c.id, clusters.c.name)
    )
    rows = [row for row in connection.execute(query) if cluster in (None, row.name)]
    if not rows:
        raise BadInput(
            f"the ledger has no job {job}; if it ended just now, run: slurmkit ledger ingest"
        )
    if len(rows) > 1:
        names = ", ".join(sorted(row.name for row in rows))
        raise BadInput(f"several clusters have had a job {job}: {names}; name one with --cluster")
    number, _, known, ended = rows[0]
    if ended < known:
        raise BadInput(
            f"job {job} has not ended, as far as the ledger knows; refund it afterwards, or run:"
            " slurmkit ledger ingest"
        )
    return int(number)


def _split_runs(
    connection: Connection, job: str, cluster: int
) -> tuple[list[_LostRun], list[_LostRun]]:
    """Return the runs of requeued jobs that were lost, and those that were not.

    A job or task that ran only once is in neither: the operator named it.
    """
    columns = (runs.c.job_id, runs.c.state, runs.c.start, runs.c.end)
    query = (
        select(*columns)
        .where(
            is_of_job(job), runs.c.cluster_id == cluster, runs.c.retracted.is_(None),
            runs.c.end > runs.c.start,
        )
        .order_by(runs.c.start)
    )  # fmt: skip
    by_id = defaultdict(list)
    for row in connection.execute(query):
        by_id[row.job_id].append(_LostRun(*row))
    several = [run for some in by_id.values() if len(some) > 1 for run in some]
    lost = [run for run in several if run.state in LOST_STATES]
    return lost, [run for run in several if run.state not in LOST_STATES]


def _run_words(some: Sequence[_LostRun]) -> str:
    zone = find_zone("UTC")
    words = [
        f"{run.job_id} from {zone.show(run.start)} ({run.state})" for run in some[:_MOST_SHOWN]
    ]
    more = len(some) - len(words)
    return ", ".join(words) + (f" and {more} more" if more else "")


def _payers(
    connection: Connection, job: str, cluster: int, others: Sequence[_LostRun], now: int
) -> list[_Payer]:
    """Return the allocations in force while a job ran, each with what the job used in it."""
    holders = Holders(connection)
    paid = []
    for one in load_allocations(connection):
        span = (one.begin, min(one.pot.end, now))
        if span[0] >= span[1]:
            continue
        counts = holders.runs_of(one.holder)

        def used_in(
            name: str,
            part: tuple[int, int],
            one: Allocation = one,
            counts: Callable[[Runner], bool] = counts,
        ) -> int:
            used = used_by_job(connection, one.unit, name, part, now)
            return sum(n for who, n in used.items() if who.cluster_id == cluster and counts(who))

        whole = used_in(job, span)
        parts = [(run, max(run.start, span[0]), min(run.end, span[1])) for run in others if whole]
        well = sum(used_in(run.job_id, (begin, end)) for run, begin, end in parts if begin < end)
        if whole > well:
            paid.append(_Payer(one, whole, whole - well))
    return paid


def _not_refunded(
    connection: Connection, payer: Allocation, job: str, cluster: int, used: int, now: int
) -> int:
    """Return what may still be refunded of what a job used.

    A refund of `12` also gives back a part of `12_3`, and the other way round. Several allocations
    of one holder may have been in force while the job ran; each use can be given back only once.
    """
    siblings = of_one_holder(connection, payer.holder, payer.unit)
    refunds = [
        entry for one in siblings for entry in one.entries
        if entry.kind == "refund" and entry.cluster_id == cluster
    ]  # fmt: skip
    whole = re.split(r"[_+]", job)[0]
    rest = used - sum(
        entry.amount_ms for entry in refunds
        if entry.allocation == payer.id and _is_part(entry.job_id or "", job)
    )  # fmt: skip
    for each in {job, whole}:
        of_holder = sum(one.amount_ms for one in refunds if _is_part(one.job_id or "", each))
        if of_holder:
            charged = _charged(connection, siblings, each, cluster, now)
            rest = min(rest, charged - of_holder)
    return rest


def _is_part(job: str, of: str) -> bool:
    """Return whether a job is another one, or a part of it: `12_3` and `12+1` of `12`."""
    return job == of or job.startswith((f"{of}_", f"{of}+"))


def _charged(
    connection: Connection, some: tuple[Allocation, ...], job: str, cluster: int, now: int
) -> int:
    """Return what a job used while any of a holder's allocations was in force."""
    pots = [one.pot for one in some]
    edges = edges_of(pots, now)
    counts = Holders(connection).runs_of(some[0].holder)
    uses = load_uses(connection, some[0].unit, edges, now, job=job)
    used = uses.by_part(lambda runner: runner.cluster_id == cluster and counts(runner))
    return sum(
        amount
        for (begin, end), amount in zip(pairwise(edges), used, strict=True)
        if any(pot.begin <= begin and end <= pot.end for pot in pots)
    )


def _choose_payer(
    paid: list[_Payer], job: str, number: int | None, others: Sequence[_LostRun]
) -> _Payer:
    if number is not None:
        paid = [one for one in paid if one.allocation.id == number]
    if not paid and others:
        raise BadInput(
            f"job {job} was requeued, and no run of it was lost that an allocation paid for. Other"
            f" runs: {_run_words(others)}. To refund all of them, add --all-runs"
        )
    if not paid:
        which = "no allocation" if number is None else f"allocation {number} not"
        raise BadInput(
            f"{which} was in force for job {job}, or it used nothing that counts; see: slurmkit"
            " allocation show --all"
        )
    if len(paid) > 1:
        names = ", ".join(f"{one.id} ({one.holder}, {UNIT_NAMES[one.unit]})" for one, _, _ in paid)
        raise BadInput(
            f"several allocations counted job {job}: {names}; name one with --allocation"
        )
    return paid[0]
