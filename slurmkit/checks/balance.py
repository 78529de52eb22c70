"""Limits on TRES × time: of one job, of running jobs, and of all that was used so far."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from slurmkit.checks.inforce import Limit, fate, in_force
from slurmkit.checks.say import error, note, tres_minutes, wall, warning
from slurmkit.checks.walls import minutes
from slurmkit.findings import Finding
from slurmkit.request import Request

_RUNNING = ("grp_tres_run_mins", "max_tres_run_mins_per_user", "max_tres_run_mins_per_account")


class Balance(msgspec.Struct, frozen=True):
    """What is left of one budget of TRES-minutes.

    Attributes:
        limit: the budget.
        left: TRES-minutes not used so far; never below 0.
        running: TRES-minutes that running jobs may still take of them.
        wanted: what this job would take at most; None when it has no time limit.
    """

    limit: Limit
    left: int
    running: int
    wanted: int | None


def balances(request: Request) -> Iterator[Balance]:
    """Every GrpTRESMins that holds for TRES of this request."""
    for limit in in_force(request, "grp_tres_mins"):
        count = request.total.get(limit.tres, 0)
        if count and not _is_free(request):
            used = limit.usage.tres_mins.get(limit.tres, 0)
            running = limit.usage.tres_run_mins.get(limit.tres, 0)
            wanted = _wanted(request, limit.tres)
            yield Balance(limit, max(limit.value - used, 0), running, wanted)


def budgets(request: Request) -> Iterator[Finding]:
    """More TRES-minutes than an account or QOS has left (GrpTRESMins)."""
    for balance in balances(request):
        wanted = math.inf if balance.wanted is None else balance.wanted
        if wanted > balance.left or not balance.left:
            yield _over(request, balance)
        elif wanted > balance.left - balance.running:
            yield _maybe_over(request, balance)
        elif wanted * request.tasks_in_array > balance.left:
            yield _not_all_tasks(request, balance)


def _over(request: Request, balance: Balance) -> Finding:
    limit = balance.limit
    left = f"{limit.holder} has {tres_minutes(limit.tres, balance.left)} left ({limit.setting})"
    message = f"{_needs(balance)}; {left}; {_end(request, balance)}"
    return error(limit.code, message, limit.source)


def _end(request: Request, balance: Balance) -> str:
    if request.capabilities.enforces("safe") or not balance.left:
        return "it would pend for ever, or until use decays or is reset"
    lasts = balance.left / max(request.total[balance.limit.tres], 1)
    return f"it would start, and Slurm would kill it after {wall(lasts)} (limits without safe)"


def _maybe_over(request: Request, balance: Balance) -> Finding:
    limit = balance.limit
    left = tres_minutes(limit.tres, balance.left)
    may = tres_minutes(limit.tres, balance.running)
    safe = request.capabilities.enforces("safe")
    end = "it waits until they end" if safe else "it would be killed when nothing is left"
    message = (
        f"{_needs(balance)}; of the {left} that {limit.holder} has left, running jobs may"
        f" take {may} ({limit.setting}): {end}"
    )
    return (note if safe else warning)(limit.code, message, limit.source)


def _not_all_tasks(request: Request, balance: Balance) -> Finding:
    limit, tasks = balance.limit, request.tasks_in_array
    fits = balance.left // (balance.wanted or 1)
    message = (
        f"{limit.holder} has {tres_minutes(limit.tres, balance.left)} left ({limit.setting}):"
        f" enough for {fits} of the {tasks} array tasks if each runs to its time limit"
    )
    return warning(limit.code, message, limit.source)


def _needs(balance: Balance) -> str:
    if balance.wanted is None:
        return "has no time limit"
    return f"needs {tres_minutes(balance.limit.tres, balance.wanted)}"


def job_minutes(request: Request) -> Iterator[Finding]:
    """More TRES-minutes than one job may take (MaxTRESMinsPerJob)."""
    for limit in in_force(request, "max_tres_mins_per_job"):
        if request.total.get(limit.tres, 0) and _exceeds(request, limit):
            yield _too_much(request, limit)


def running_minutes(request: Request) -> Iterator[Finding]:
    """More TRES-minutes than running jobs may hold at a time."""
    for field in _RUNNING:
        for limit in in_force(request, field):
            if not request.total.get(limit.tres, 0):
                continue
            held = limit.usage.tres_run_mins.get(limit.tres, 0)
            if _exceeds(request, limit):
                yield _too_much(request, limit)
            elif (_wanted(request, limit.tres) or 0) + held > limit.value:
                message = (
                    f"will wait: running jobs hold {tres_minutes(limit.tres, held)} of the"
                    f" {tres_minutes(limit.tres, limit.value)} that {limit.holder} allows"
                    f" {limit.whose} at a time ({limit.setting})"
                )
                yield note(limit.code, message, limit.source)


def _exceeds(request: Request, limit: Limit) -> bool:
    wanted = _wanted(request, limit.tres)
    return wanted is None or wanted > limit.value


def _too_much(request: Request, limit: Limit) -> Finding:
    wanted = _wanted(request, limit.tres)
    asks = "has no time limit" if wanted is None else f"needs {tres_minutes(limit.tres, wanted)}"
    allows = f"{limit.holder} allows {limit.whose} {tres_minutes(limit.tres, limit.value)}"
    message = f"{asks}; {allows} ({limit.setting}); {fate(request)}"
    return error(limit.code, message, limit.source)


def _wanted(request: Request, tres: str) -> int | None:
    time = minutes(request)
    qos = request.qos
    if time is None:
        return None
    factor = qos.usage_factor if qos and "UsageFactorSafe" in qos.flags else 1.0
    return int(int(time * factor) * request.total.get(tres, 0))


def _is_free(request: Request) -> bool:
    """Whether the QOS charges nothing: then use does not count either."""
    return request.qos is not None and request.qos.usage_factor == 0
