"""What the jobs of a workflow come to together: numbers of jobs, budgets, cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal

import msgspec

from slurmkit.checks.balance import Balance, balances
from slurmkit.checks.counts import in_queue
from slurmkit.checks.inforce import Limit
from slurmkit.checks.say import error, tres_minutes, warning
from slurmkit.estimate import Estimate
from slurmkit.facts import rounded
from slurmkit.findings import Finding
from slurmkit.planner import Plan, requests_of
from slurmkit.planning.requests import Site
from slurmkit.request import Request


def whole(plans: Mapping[str, Plan], site: Site) -> tuple[Finding, ...]:
    """What no job's own plan can say: all are in the queue at once, and share a budget."""
    requests = [found[0] for plan in plans.values() if (found := requests_of(plan.spec, site))]
    return (*_submitted(requests), *_job_count(requests, site), *_budgets(requests))


def _submitted(requests: Iterable[Request]) -> Iterator[Finding]:
    wanted: dict[str, int] = {}
    limits: dict[str, Limit] = {}
    for request in requests:
        for limit in in_queue(request):
            limits[limit.source] = limit
            wanted[limit.source] = wanted.get(limit.source, 0) + request.tasks_in_array
    for source, limit in limits.items():
        room = max(limit.value - limit.usage.submitted, 0)
        if wanted[source] > room:
            message = (
                f"the workflow is {wanted[source]} jobs: {limit.holder} allows {limit.value} in the"
                f" queue and has {limit.usage.submitted} ({limit.setting}); sbatch would refuse the"
                " last of them; split it, or pack jobs together"
            )
            yield error(limit.code, message, source)


def _job_count(requests: Iterable[Request], site: Site) -> Iterator[Finding]:
    most = site[0].config.get("MaxJobCount", "")
    count = sum(request.tasks_in_array for request in requests)
    if most.isdigit() and count >= int(most):
        message = f"the workflow is {count} jobs: this cluster holds {most} in all (MaxJobCount)"
        yield error("max-job-count", message, f"slurm.conf: MaxJobCount={most}")


def _budgets(requests: Iterable[Request]) -> Iterator[Finding]:
    found: dict[str, Balance] = {}
    wanted: dict[str, int] = {}
    for request in requests:
        for balance in balances(request):
            source = balance.limit.source
            found[source] = balance
            wanted[source] = wanted.get(source, 0) + (balance.wanted or 0) * request.tasks_in_array
    for source, balance in found.items():
        if wanted[source] > balance.left:
            limit = balance.limit
            message = (
                f"all jobs together take up to {tres_minutes(limit.tres, wanted[source])},"
                f" {limit.holder} has {tres_minutes(limit.tres, balance.left)} left"
                f" ({limit.setting}): the last ones may wait for ever"
            )
            yield warning(f"workflow-{limit.code}", message, source)


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """Use of all jobs over their whole time limits; None is unknown, not nothing.

    Attributes:
        jobs: jobs of Slurm, each array task one.
        gpu_hours: of all types together.
        cpu_hours: CPU-hours.
        billing_hours: billing × time.
        cost: on the site's own GPUs.
        cloud_cost: in a public cloud.
        currency: of both; None where jobs have no price.
    """

    jobs: int
    gpu_hours: float | None
    cpu_hours: float | None
    billing_hours: float | None
    cost: Decimal | None
    cloud_cost: Decimal | None
    currency: str | None

    def words(self) -> str:
        """All that in one line."""
        gpus = "unknown" if self.gpu_hours is None else rounded(self.gpu_hours)
        cpus = "unknown" if self.cpu_hours is None else rounded(self.cpu_hours)
        cloud = "" if self.cloud_cost is None else f", in a cloud {self.cloud_cost:,}"
        cost = "cost unknown" if self.cost is None else f"{self.cost:,}{cloud} {self.currency}"
        priced = "" if not self.gpu_hours and self.cost is None else f", {cost}"
        return f"{self.jobs} jobs, at most {gpus} GPU-hours, {cpus} CPU-hours{priced}"


def total(plans: Iterable[Plan]) -> Total:
    """Add up the estimates; one that is unknown leaves the sum unknown."""
    made = [plan.estimate for plan in plans]
    currencies = {each.currency for each in made if each and each.currency}
    return Total(
        jobs=sum(each.tasks if each else 1 for each in made),
        gpu_hours=_sum(made, lambda e: None if e.gpu_hours is None else sum(e.gpu_hours.values())),
        cpu_hours=_sum(made, lambda e: e.cpu_hours),
        billing_hours=_sum(made, lambda e: e.billing_hours),
        cost=_money(made, lambda e: e.cost) if len(currencies) == 1 else None,
        cloud_cost=_money(made, lambda e: e.cloud_cost) if len(currencies) == 1 else None,
        currency=next(iter(currencies)) if len(currencies) == 1 else None,
    )


def _sum(made: Iterable[Estimate | None], of: Callable[[Estimate], float | None]) -> float | None:
    parts = [None if each is None else of(each) for each in made]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _money(
    made: Iterable[Estimate | None], of: Callable[[Estimate], Decimal | None]
) -> Decimal | None:
    """A job that holds no GPU has no price of its own, and costs nothing more."""
    parts = [None if each is None else _price(each, of(each)) for each in made]
    known = [part for part in parts if part is not None]
    return sum(known, Decimal(0)) if len(known) == len(parts) else None


def _price(each: Estimate, cost: Decimal | None) -> Decimal | None:
    return Decimal(0) if cost is None and each.gpu_hours == {} and each.currency is None else cost
