"""What a job would use and cost at most, before it is sent."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import NamedTuple

import msgspec

from slurmkit.checks.balance import Balance, balances
from slurmkit.checks.walls import minutes
from slurmkit.facts import clock, rounded
from slurmkit.gpuhours import WeightOf, gpu_hours, likely_type, uncounted
from slurmkit.prices import (
    UNTYPED,
    Price,
    cpu_prices,
    memory_prices,
    part_weight,
    price_at,
    price_of,
)
from slurmkit.request import Request

PriceAt = Callable[[str, dt.date], Price | None]
"""Type of a GPU and a day to its price per GPU-hour."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What a job would take of a budget of TRES-minutes, the one nearest to its end.

    Attributes:
        tres: what is budgeted, e.g. `gres/gpu`.
        wanted: TRES-hours this request would take at most; None without a time limit.
        left: TRES-hours that are left.
        share: wanted / left, above 1 when it is more than is left; None when unknown, and when
            nothing is left.
        source: whose budget: `account vision: GrpTRESMins gres/gpu=600000`.
    """

    tres: str
    wanted: float | None
    left: float
    share: float | None
    source: str

    def words(self) -> str:
        """For people: `4 of 10 hours of gres/gpu left (40 %), account vision: …`."""
        wanted = _said(self.wanted)
        part = "" if self.share is None else f" ({self.share:.1%})"
        return f"{wanted} of {rounded(self.left)} hours of {self.tres} left{part}, {self.source}"


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Use of all tasks over the whole time limit; None is unknown, not nothing.

    Attributes:
        nodes: nodes of one task; of a range the most that it can get.
        least: the same on the fewest nodes of a range; None where there is one number.
        hours: the time limit of one task; None when it has none.
        tasks: array tasks, 1 without an array.
        gpu_hours: by type, untyped GPUs under the empty type; shards and MPS units by the weight
            of the site's price table. None without a time limit or a weight, and where an option
            that is only passed on says how many.
        cpu_hours: CPU-hours.
        memory_hours: GiB-hours; None also when the job takes what memory there is.
        billing: billing TRES of one task, by the partition's TRESBillingWeights.
        billing_hours: billing × time.
        cost: on the site's own GPUs by the price table; None when a type has no price.
        cloud_cost: what the same GPU-hours cost in a public cloud.
        currency: of both.
        share: of the association's or QOS's budget, None where there is no budget.
        start: epoch seconds at which it might start, None when nobody was asked.
        sources: field to where its number comes from.
    """

    nodes: int = 1
    least: Estimate | None = None
    hours: float | None
    tasks: int
    gpu_hours: dict[str, float] | None
    cpu_hours: float | None
    memory_hours: float | None
    billing: int | None
    billing_hours: float | None
    cost: Decimal | None = None
    cloud_cost: Decimal | None = None
    currency: str | None = None
    share: Share | None = None
    start: int | None = None
    start_source: str = ""
    sources: dict[str, str] = msgspec.field(default_factory=dict)

    def facts(self) -> list[tuple[str, str]]:
        """What there is to say, in words for people; unknown is said as unknown."""
        found = [("Uses", self._uses()), ("Bills", self._bills())]
        if self.least is not None:
            fewest = f"on {self.least.nodes} {self.least._uses()}"  # noqa: SLF001 - of this class
            chosen = f"{self.least.nodes} to {self.nodes}, as Slurm finds them free"
            found.insert(0, ("Nodes", f"{chosen}; what follows is for {self.nodes}, {fewest}"))
        unsaid = self.gpu_hours is None and self.hours is not None
        if self.gpu_hours or self.currency or unsaid:
            found.append(("Costs", self._costs()))
        if self.share is not None:
            found.append(("Budget", self.share.words()))
        if self.start_source:
            found.append(("Starts", f"{clock(self.start)} at the earliest ({self.start_source})"))
        return found

    def _uses(self) -> str:
        if self.hours is None:
            return "unknown: the job has no time limit"
        parts = [*self._gpus(), f"{_said(self.cpu_hours)} CPU-hours"]
        parts += [] if self.memory_hours is None else [f"{rounded(self.memory_hours)} GiB-hours"]
        return f"at most {', '.join(parts)}"

    def _gpus(self) -> list[str]:
        """GPU-hours in words, with how parts of GPUs were counted."""
        source = f" ({self.sources['gpu_hours']})" if "gpu_hours" in self.sources else ""
        if self.gpu_hours is None:
            return [f"unknown GPU-hours{source}"]
        found = [
            " ".join(f"{rounded(n)} {kind} GPU-hours".split()) for kind, n in self.gpu_hours.items()
        ]
        return [f"{each}{source}" for each in found]

    def _bills(self) -> str:
        if self.billing is None:
            return f"unknown: what {self.sources['billing']} asks for is not counted"
        hours = _said(self.billing_hours)
        return f"at most {hours} billing-hours ({self.billing} × time, {self.sources['billing']})"

    def _costs(self) -> str:
        if self.cost is None and self.cloud_cost is None:
            if self.gpu_hours is None:
                return "unknown, as the GPU-hours are"
            return "unknown: no price of these GPUs in the configuration"
        own = "unknown" if self.cost is None else f"{self.cost:,} {self.currency}"
        cloud = (
            "" if self.cloud_cost is None else f", in a cloud {self.cloud_cost:,} {self.currency}"
        )
        return f"at most {own}{cloud} ({self.sources['cost']})"


class Used(NamedTuple):
    """Hours that may have a price; None is not known."""

    gpu_hours: dict[str, float] | None
    cpu_hours: float | None
    memory_hours: float | None


def _said(number: float | None) -> str:
    return "unknown" if number is None else rounded(number)


def estimate(
    request: Request, price: PriceAt = price_at, weight: WeightOf = part_weight
) -> Estimate:
    """Work out what `request` takes if every task runs to its time limit."""
    time = minutes(request)
    hours = None if time is None else time / 60
    gpus = gpu_hours(request, hours, weight)
    unknown = uncounted(request)
    cpu_hours = None if "cpu" in unknown else _hours(request, "cpu", hours)
    used = Used(gpus.by_type, cpu_hours, _memory_hours(request, hours))
    cost, cloud, currency = _money(request, used, price)
    billing = None if unknown else request.total.get("billing", 0)
    return Estimate(
        nodes=request.nodes,
        hours=hours,
        tasks=request.tasks_in_array,
        gpu_hours=gpus.by_type,
        cpu_hours=used.cpu_hours,
        memory_hours=used.memory_hours,
        billing=billing,
        billing_hours=None if unknown else _hours(request, "billing", hours),
        cost=cost,
        cloud_cost=cloud,
        currency=currency,
        share=_share(request),
        sources=_sources(request, currency) | _counted(gpus.source, unknown),
    )


def _hours(request: Request, tres: str, hours: float | None) -> float | None:
    return None if hours is None else request.total.get(tres, 0) * hours * request.tasks_in_array


def _memory_hours(request: Request, hours: float | None) -> float | None:
    if "mem" not in request.total or "mem" in uncounted(request):
        return None
    found = _hours(request, "mem", hours)
    return None if found is None else found / 1024


def _money(
    request: Request, used: Used, price: PriceAt
) -> tuple[Decimal | None, Decimal | None, str | None]:
    """Cost here and in a cloud, and their currency; a price unknown leaves all of it unknown."""
    if used.gpu_hours is None:
        return None, None, None
    day = dt.datetime.fromtimestamp(request.standing.taken).astimezone().date()
    known: list[tuple[float | None, Price | None]] = [
        (hours, price(kind or likely_type(request) or UNTYPED, day))
        for kind, hours in used.gpu_hours.items()
    ]
    others = ((used.cpu_hours, cpu_prices()), (used.memory_hours, memory_prices()))
    priced = ((hours, price_of(prices, day)) for hours, prices in others)
    known += [(hours, found) for hours, found in priced if found]
    currencies = {found.currency for _, found in known if found}
    if len(currencies) != 1:
        return None, None, None
    own = _sum([(hours, found.on_premises if found else None) for hours, found in known])
    cloud = _sum([(hours, found.cloud if found else None) for hours, found in known])
    return own, cloud, currencies.pop()


def _sum(parts: list[tuple[float | None, Decimal | None]]) -> Decimal | None:
    total = Decimal(0)
    for hours, amount in parts:
        if amount is None or hours is None:
            return None
        total += Decimal(str(hours)) * amount
    return total.quantize(Decimal("0.01"))


def _share(request: Request) -> Share | None:
    """Of several budgets, the one of which the least would remain."""
    unknown = {*uncounted(request), *(["billing"] if uncounted(request) else [])}
    known = (balance for balance in balances(request) if balance.limit.tres not in unknown)
    shares = [_of(balance, request.tasks_in_array) for balance in known]
    return max(shares, key=lambda s: (s.left <= 0, s.share or 0.0), default=None)


def _of(balance: Balance, tasks: int) -> Share:
    wanted = None if balance.wanted is None else balance.wanted * tasks
    left = balance.left - min(balance.running, balance.left)
    share = None if wanted is None else wanted / left if left else float("inf")
    return Share(
        tres=balance.limit.tres,
        wanted=None if wanted is None else wanted / 60,
        left=left / 60,
        share=None if share == float("inf") else share,
        source=balance.limit.source,
    )


def _sources(request: Request, currency: str | None) -> dict[str, str]:
    name = request.partition.name
    given = request.spec.time is not None
    default = "DefaultTime" if request.partition.default_time else "MaxTime"
    sources = {
        "hours": "--time" if given else f"partition {name}: {default}",
        "billing": f"partition {name}: TRESBillingWeights"
        if request.partition.billing_weights
        else "CPUs: the partition has no TRESBillingWeights",
    }
    if currency:
        sources["cost"] = "the prices of the configuration"
    return sources


def _counted(gpus: str, unknown: Mapping[str, str]) -> dict[str, str]:
    """Where GPU-hours of parts are from, and what keeps billing from being known."""
    found = {"gpu_hours": gpus} if gpus else {}
    return found | ({"billing": next(iter(unknown.values()))} if unknown else {})
