"""Limits on wall time of QOS and associations."""

from __future__ import annotations

from collections.abc import Iterator

from slurmkit.checks.inforce import fate, in_force
from slurmkit.checks.say import error, note, wall
from slurmkit.findings import Finding
from slurmkit.request import Request


def minutes(request: Request) -> int | None:
    """The time limit Slurm would give the job, in its whole minutes; None for none.

    Without `--time` and without DefaultTime, a limit on wall time becomes the job's time.
    """
    given = request.seconds
    asked = None if given is None else -(-given // 60)
    if request.spec.time is not None or request.partition.default_time is not None:
        return asked
    most = next((limit.value for limit in in_force(request, "max_wall")), None)
    return min((time for time in (most, asked) if time is not None), default=None)


def job_wall(request: Request) -> Iterator[Finding]:
    """A longer time limit than one job may have (MaxWall)."""
    time = minutes(request)
    for limit in in_force(request, "max_wall"):
        if time is not None and time > limit.value:
            asks = f"asks for {wall(time)}"
            allows = f"{limit.holder} allows one job {wall(limit.value)}"
            message = f"{asks}; {allows} ({limit.setting}); {fate(request)}"
            yield error(limit.code, message, limit.source)


def group_wall(request: Request) -> Iterator[Finding]:
    """More wall time than is left for all jobs together (GrpWall)."""
    time = minutes(request) or 0
    safe = request.capabilities.enforces("safe")
    for limit in in_force(request, "grp_wall"):
        left = max(limit.value - limit.usage.wall, 0)
        if left >= time and left:
            continue
        pends = safe or not left
        end = "pend for ever, or until use decays" if pends else f"be killed after {wall(left)}"
        has = f"{limit.holder} has {wall(left)} of wall time left for {limit.whose}"
        message = f"asks for {wall(time)}; {has} ({limit.setting}); it would {end}"
        yield error(limit.code, message, limit.source)


def default_time(request: Request) -> Iterator[Finding]:
    """No time given: the partition's default is taken."""
    default = request.partition.default_time
    if request.spec.time is None and default:
        name = request.partition.name
        message = f"no --time given: it gets {wall(default)}, DefaultTime of partition {name}"
        yield note("default-time", message, f"partition {name}: DefaultTime={wall(default)}")
