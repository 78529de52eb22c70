"""Limits on numbers of jobs: running, submitted, in an array, in the whole cluster."""

from __future__ import annotations

from collections.abc import Iterator

from slurmkit.checks.inforce import Limit, in_force
from slurmkit.checks.say import error, note
from slurmkit.findings import Finding
from slurmkit.planning.chunks import limits
from slurmkit.planning.requests import highest_index
from slurmkit.request import Request

_RUNNING = ("max_jobs", "max_jobs_per_account", "grp_jobs")
_SUBMITTED = ("max_submit", "max_submit_per_account", "grp_submit")


def running(request: Request) -> Iterator[Finding]:
    """As many jobs run as may: this one waits, for ever where the limit is 0."""
    for limit in _limits(request, _RUNNING):
        if limit.value == 0:
            message = f"{limit.holder} lets no job run ({limit.setting}); it would pend for ever"
            yield error(limit.code, message, limit.source)
        elif limit.usage.jobs >= limit.value:
            message = (
                f"will wait: {limit.usage.jobs} of the {limit.value} jobs that {limit.holder} lets"
                f" run for {_whose(limit)} are running ({limit.setting})"
            )
            yield note(limit.code, message, limit.source)


def submitted(request: Request) -> Iterator[Finding]:
    """More jobs than may be in the queue; every task of an array counts."""
    wanted = request.tasks_in_array
    for limit in in_queue(request):
        room = max(limit.value - limit.usage.submitted, 0)
        if wanted > room:
            asks = f"an array of {wanted} jobs" if wanted > 1 else "one more job"
            message = (
                f"{asks}: {limit.holder} allows {limit.value} in the queue for {_whose(limit)} and"
                f" has {limit.usage.submitted} ({limit.setting}); sbatch would refuse it"
                f"{_wait(room)}"
            )
            yield error(limit.code, message, limit.source)


def in_queue(request: Request) -> Iterator[Limit]:
    """Every limit on how many jobs may be in the queue that holds for `request`."""
    yield from _limits(request, _SUBMITTED)


def _limits(request: Request, fields: tuple[str, ...]) -> Iterator[Limit]:
    for field in fields:
        yield from in_force(request, field)


def _whose(limit: Limit) -> str:
    if limit.kind == "assoc" and not limit.field.startswith("grp_"):
        return "its user"
    return limit.whose


def _wait(room: int) -> str:
    return "" if room else "; submit it when some have ended"


def arrays(request: Request) -> Iterator[Finding]:
    """No arrays at all, or more tasks than MaxJobCount holds; a larger one is sent in parts."""
    text, config = request.spec.array, request.capabilities.config
    if text is None:
        return
    size = limits(config).size
    if size < 2 and highest_index(text) >= size:
        message = f"this cluster has no job arrays (MaxArraySize={size}); sbatch would refuse it"
        yield error("max-array-size", message, f"slurm.conf: MaxArraySize={size}")
    yield from _job_count(request)


def _job_count(request: Request) -> Iterator[Finding]:
    most = request.capabilities.config.get("MaxJobCount", "")
    if most.isdigit() and request.tasks_in_array >= int(most):
        message = (
            f"{request.tasks_in_array} array tasks: this cluster holds {most} jobs in all"
            " (MaxJobCount); sbatch would refuse it, or later jobs"
        )
        yield error("max-job-count", message, f"slurm.conf: MaxJobCount={most}")
