"""`slurmkit reclaim check`: what policies would have done about the runs of a month."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from slurmkit.formats.tres import gpu_count
from slurmkit_accounting.calendar import Zone, month_span
from slurmkit_accounting.gpu_use.store import load_uses
from slurmkit_accounting.gpu_use.summaries import GpuUse, best_source
from slurmkit_accounting.ledger.bulk_write import in_values
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import runs, steps
from slurmkit_accounting.reclaim.acts import load_keeps
from slurmkit_accounting.reclaim.idleness import (
    Idleness,
    Step,
    has_worked_since,
    make_curves,
    replay,
)
from slurmkit_accounting.reclaim.policy import Policies, ReclaimJob, ReclaimPolicy, choose_policy
from slurmkit_accounting.reports import provenance
from slurmkit_accounting.reports.model import Column, Meta, Report, sum_columns
from slurmkit_accounting.reports.rates import Rates
from slurmkit_accounting.reports.reclaimed import whole_gpus
from slurmkit_accounting.reports.selection import runs_ended_within

POLICY_COLUMNS = (
    Column("policy"),
    Column("action"),
    Column("runs", "count", adds_up=True),
    Column("unknown", "count", adds_up=True),
    Column("idle_runs", "count", adds_up=True),
    Column("people", "count"),
    Column("mails", "count", adds_up=True),
    Column("taken", "count", adds_up=True),
    Column("gpu_hours_won_back", "hours", adds_up=True),
    Column("gpu_hours_idle", "hours", adds_up=True),
    Column("worked_again", "count", adds_up=True),
)
RUN_COLUMNS = (
    Column("job"),
    Column("user"),
    Column("account"),
    Column("partition"),
    Column("policy"),
    Column("last_step"),
    Column("at", "time"),
    Column("gpus", "count", adds_up=True),
    Column("idle_gpus", "count"),
    Column("utilization", "share"),
    Column("samples", "count"),
    Column("covered", "share"),
    Column("gpu_hours_won_back", "hours", adds_up=True),
    Column("gpu_hours_idle", "hours", adds_up=True),
    Column("worked_again"),
)
_DEFINITIONS = (
    "runs: that ended in the month and held GPUs, and that the policy is for and does not exempt",
    (
        "unknown: runs long enough for the policy, about which it cannot tell: their GPUs have no"
        " samples, too few, or no curve any more"
    ),
    "idle_runs: runs about which something would have been done; people: their users",
    (
        "taken: runs that would have been requeued held or cancelled; with action requeue only"
        " those of them that survive, which the ledger does not know"
    ),
    (
        "gpu_hours_won_back: from then to the real end of the run; gpu_hours_idle: from the first"
        " step on, also of runs that nothing would have been taken from; both in whole GPUs"
    ),
    (
        "worked_again: idle runs whose GPUs worked again after the first step; if there are many,"
        " the policy is too strict"
    ),
)
_AT_ONCE = 200  # runs whose curves are in memory


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy would have done about one run.

    Attributes:
        job: the run.
        policy: name of the policy.
        end: end of the run, epoch seconds.
        done: each step with what was judged.
        unknown: whether the samples are too few to decide.
        worked_again: whether its GPUs worked again after the first step.
    """

    job: ReclaimJob
    policy: str
    end: int
    done: tuple[tuple[Step, Idleness], ...] = ()
    unknown: bool = False
    worked_again: bool = False


def check_report(
    ledger: Ledger,
    policies: Policies,
    month: str,
    *,
    zone: Zone,
    now: int,
    by_run: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Report:
    """Report what policies would have done about the runs that ended in a month.

    Args:
        ledger: open for reading.
        policies: by name, in the order in which they are tried.
        month: YYYY-MM.
        zone: time zone of the month, and of the policies' hours of day.
        now: epoch seconds.
        by_run: a row for each run about which something would have been done, not for each policy.
        progress: called with the number of runs looked at, and of all.

    Raises:
        BadInput: for a text that is not a month.
        LedgerError: when the ledger cannot be read.
    """
    window = month_span(month, zone)
    with ledger.transaction() as connection:
        found = list(check_runs(connection, policies, window, zone=zone, progress=progress))
        rates = Rates()
        columns: tuple[Column, ...] = RUN_COLUMNS
        if by_run:
            rows = [_run_row(each, rates) for each in found if each.done]
            rows.sort(key=lambda row: -row["gpu_hours_idle"])
        else:
            columns = POLICY_COLUMNS
            rows = [_policy_row(name, policies[name], found, rates) for name in policies]
        meta = Meta(
            report="reclaim",
            total=sum_columns(columns, rows),
            definitions=_DEFINITIONS,
            notes=tuple(_notes(found)),
            **provenance.ledger_fields(ledger, connection, now),
            **provenance.window_fields(connection, window, zone, now),
        )
    return Report(meta, columns, tuple(rows))


def check_runs(
    connection: Connection,
    policies: Policies,
    window: tuple[int, int],
    *,
    zone: Zone,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Iterator[PolicyResult]:
    """Yield what policies would have done about each run that they decide about.

    Args:
        connection: to the ledger.
        policies: by name, in order.
        window: runs that ended in it, epoch seconds.
        zone: time zone of the policies' hours of day.
        progress: see `check_report`.
    """
    query = select(runs).where(
        *runs_ended_within(window), runs.c.retracted.is_(None), runs.c.gpus > 0
    )
    rows = connection.execute(query.order_by(runs.c.id)).all()
    for first in range(0, len(rows), _AT_ONCE):
        progress(first, len(rows))
        yield from _check_some(connection, policies, rows[first : first + _AT_ONCE], zone)
    progress(len(rows), len(rows))


def _check_some(
    connection: Connection, policies: Policies, rows: Sequence[Any], zone: Zone
) -> Iterator[PolicyResult]:
    without_script = _without_batch_step(connection, [row.id for row in rows])
    chosen: dict[int, tuple[ReclaimJob, str, ReclaimPolicy, int]] = {}
    for row in rows:
        job = job_of_run(row, batch=row.id not in without_script)
        decided = choose_policy(policies, job)
        if decided is not None and not decided[1].exemption(job):
            chosen[row.id] = (job, *decided, row.end)
    long_enough = [
        number
        for number, (job, _, policy, end) in chosen.items()
        if end - job.start - 60 * policy.skip_minutes >= policy.window_seconds(job)
    ]
    uses = _uses_by_run(connection, rows, long_enough)
    keeps = _keeps(connection, [chosen[number][0] for number in long_enough])
    for number, (job, name, policy, end) in chosen.items():
        if number not in uses:
            unknown = number in long_enough
            yield PolicyResult(job=job, policy=name, end=end, unknown=unknown)
            continue
        keep = keeps.get((job.cluster_id, job.job_id_raw, job.uid))
        until = 0.0 if keep is None else keep + 3600.0 * policy.keep_hours
        yield _check_run(job, name, policy, uses[number], end=end, zone=zone, keep_until=until)


def _check_run(
    job: ReclaimJob,
    name: str,
    policy: ReclaimPolicy,
    uses: Sequence[GpuUse],
    *,
    end: int,
    zone: Zone,
    keep_until: float,
) -> PolicyResult:
    curves = make_curves(uses, policy)
    done = tuple(replay(curves, job, policy, until=end, zone=zone, keep_until=keep_until))
    if done:
        again = has_worked_since(curves, job, policy, done[0][1].at, end)
        return PolicyResult(job=job, policy=name, end=end, done=done, worked_again=again)
    thin = len(uses) != job.gpus or any(
        use.curve is None or use.covered_share(end) < policy.covered for use in uses
    )
    return PolicyResult(job=job, policy=name, end=end, unknown=thin)


def job_of_run(row: Any, *, batch: bool) -> ReclaimJob:
    """Return a row of `runs` as policies look at it."""
    limit = _limit_seconds(row.time_limit)
    return ReclaimJob(
        cluster_id=row.cluster_id,
        job_id_raw=row.job_id_raw,
        job_id=row.job_id,
        user=row.user,
        uid=row.uid,
        account=row.account,
        partition=row.partition,
        qos=row.qos,
        reservation=row.reservation,
        name=row.name,
        batch=batch,
        het="+" in row.job_id,
        suspended=row.suspended,
        submit=row.submit,
        start=row.start,
        limit_end=None if limit is None else row.start + limit,
        gpus=gpu_count(row.alloc_tres),
        alloc_tres=row.alloc_tres,
    )


def _limit_seconds(text: str) -> int | None:
    """Parse sacct's TimelimitRaw, minutes; None for a job without a limit."""
    return 60 * int(text) if text.isdecimal() else None


def _without_batch_step(connection: Connection, run_ids: Collection[int]) -> set[int]:
    """Return the runs that have steps, and none named `batch`: salloc and srun."""
    found: dict[int, set[str]] = defaultdict(set)
    query = select(steps.c.run_id, steps.c.step).where(
        in_values(connection, steps.c.run_id, run_ids)
    )
    for run_id, step in connection.execute(query):
        found[run_id].add(step)
    return {run_id for run_id, names in found.items() if "batch" not in names}


def _uses_by_run(
    connection: Connection, rows: Sequence[Any], run_ids: Collection[int]
) -> dict[int, list[GpuUse]]:
    """Return the summaries of runs that have curves; of several sources that which covers most."""
    if not run_ids:
        return {}
    wanted = set(run_ids)
    by_run = {(row.cluster_id, row.job_id_raw, row.start): row.id for row in rows}
    known: dict[int, list[GpuUse]] = defaultdict(list)
    for use in load_uses(connection, run_ids=run_ids):
        number = by_run.get((use.cluster_id, use.job, use.start))
        if number in wanted and number is not None and use.curve is not None:
            known[number].append(use)
    return {number: best_source(uses) for number, uses in known.items()}


def _keeps(
    connection: Connection, jobs: Sequence[ReclaimJob]
) -> dict[tuple[int, int, int | None], int]:
    found: dict[tuple[int, int, int | None], int] = {}
    for cluster in {job.cluster_id for job in jobs}:
        ids = [job.job_id_raw for job in jobs if job.cluster_id == cluster]
        for (job, uid), (at, _) in load_keeps(connection, cluster, ids).items():
            found[cluster, job, uid] = at
    return found


def _hours(result: PolicyResult, since: float, rates: Rates) -> float:
    gpus = whole_gpus(rates, result.job.alloc_tres, result.job.partition)
    return max(result.end - since, 0.0) / 3600 * gpus


def _won_back(result: PolicyResult, rates: Rates) -> float:
    """Return the GPU-hours from the step that takes the GPUs to the end of the run."""
    taken = [found.at for step, found in result.done if step == "take"]
    return _hours(result, taken[0], rates) if taken else 0.0


def _run_row(result: PolicyResult, rates: Rates) -> dict[str, Any]:
    step, found = result.done[-1]
    job = result.job
    return {
        "job": job.job_id,
        "user": job.user,
        "account": job.account,
        "partition": job.partition,
        "policy": result.policy,
        "last_step": step,
        "at": int(found.at),
        "gpus": job.gpus,
        "idle_gpus": found.idle_gpus,
        "utilization": None if found.mean is None else found.mean / 100,
        "samples": found.samples,
        "covered": found.covered,
        "gpu_hours_won_back": _won_back(result, rates),
        "gpu_hours_idle": _hours(result, result.done[0][1].at, rates),
        "worked_again": "yes" if result.worked_again else "no",
    }


def _policy_row(
    name: str, policy: ReclaimPolicy, found: Sequence[PolicyResult], rates: Rates
) -> dict[str, Any]:
    own = [each for each in found if each.policy == name]
    idle = [each for each in own if each.done]
    names = [step for each in idle for step, _ in each.done]
    return {
        "policy": name,
        "action": policy.action,
        "runs": len(own),
        "unknown": sum(each.unknown for each in own),
        "idle_runs": len(idle),
        "people": len({each.job.user for each in idle}),
        "mails": names.count("mail"),
        "taken": names.count("take"),
        "gpu_hours_won_back": sum(_won_back(each, rates) for each in idle),
        "gpu_hours_idle": sum(_hours(each, each.done[0][1].at, rates) for each in idle),
        "worked_again": sum(each.worked_again for each in idle),
    }


def _notes(found: Sequence[PolicyResult]) -> Iterator[str]:
    unknown = sum(each.unknown for each in found)
    if unknown:
        yield f"{unknown:,} of {len(found):,} runs: cannot tell; they have no samples, or too few"
    if not found:
        yield "no run that ended in this month is one that a policy decides about"
