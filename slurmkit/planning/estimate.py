"""Estimates, before a job is sent: the most it can use, bill and cost."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Literal, NamedTuple, TypeVar

import msgspec

from slurmkit.config.prices import (
    UNTYPED,
    Price,
    cpu_prices,
    memory_prices,
    part_weight,
    partition_gpu_types,
    price_at,
    price_on,
)
from slurmkit.formats.display import format_number, format_quantity, format_time
from slurmkit.planning.amounts import takes_whole_nodes
from slurmkit.planning.checks.fixes import request_builder
from slurmkit.planning.checks.limits_use import (
    TresMinutesBudget,
    time_limit_minutes,
    tres_minutes_budgets,
)
from slurmkit.planning.request import Request
from slurmkit.state.past_waits import JobKind, WaitsOfKind, job_kind

PriceAt = Callable[[str, dt.date], Price | None]
"""Returns the price per GPU-hour of a GPU type on a day."""
GpuPart = Literal["shard", "mps"]
WeightOf = Callable[[str, GpuPart], float | None]
"""Returns how many whole GPUs one shard or MPS unit of a GPU type counts as; None if unknown."""
Number = TypeVar("Number", float, Decimal)
_TYPED = "gres/gpu:"
_PARTS: tuple[GpuPart, ...] = ("shard", "mps")
# Options that slurmkit only passes on, and the TRES whose amounts they set.
_PASSED_ON = {
    "tres-per-task": ("gres/gpu", "cpu", "mem"),
}


class BudgetShare(msgspec.Struct, frozen=True, kw_only=True):
    """A job's part of a TRES-minutes budget; of several budgets, the one it uses up most.

    Attributes:
        tres: what is budgeted, e.g. `gres/gpu`.
        wanted: the most TRES-hours this job can use; None without a time limit.
        left: TRES-hours left in the budget.
        share: wanted / left, above 1 when too little is left; None when unknown, and when
            nothing is left.
        source: whose budget: `account vision: GrpTRESMins gres/gpu=600000`.
    """

    tres: str
    wanted: float | None
    left: float
    share: float | None
    source: str

    def describe(self) -> str:
        """Describe it: `4 of 10 hours of gres/gpu left (40 %), account vision: …`."""
        wanted = _rounded_or_unknown(self.wanted)
        part = "" if self.share is None else f" ({self.share:.1%})"
        return (
            f"{wanted} of {format_number(self.left)} hours of {self.tres} left{part}, {self.source}"
        )


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The most that all tasks can use over the whole time limit; None means unknown, not zero.

    Attributes:
        nodes: nodes of one task; where Slurm chooses, the most that the job can get.
        least: the same estimate for the fewest nodes, or of whole nodes for the smallest; None
            where that makes no difference.
        hours: the time limit of one task; None when it has none.
        tasks: array tasks, 1 without an array.
        gpu_hours: by type, untyped GPUs under the empty type; shards and MPS units by the weight
            in the site's price table. None without a time limit or a weight, and where the number
            of GPUs is in an option that slurmkit only passes on.
        cpu_hours: CPU-hours.
        memory_hours: GiB-hours; None also when its memory is not known.
        billing: billing TRES of one task, by the partition's TRESBillingWeights.
        billing_hours: billing × time.
        cost: on the site's own GPUs by the price table; None when a type has no price.
        cloud_cost: cost of the same GPU-hours in a public cloud.
        currency: of both costs.
        share: the part of the association's or QOS's budget; None where there is no budget.
        start: epoch seconds of the estimated start; None when slurmctld was not asked.
        job_kind: what makes other jobs wait as this one does; None if unknown.
        waited: how long jobs like this one waited, as text; empty where no source knows it.
        past_waits: the same as numbers; None where unknown.
        sources: field name to where its number comes from.
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
    share: BudgetShare | None = None
    start: int | None = None
    start_source: str = ""
    job_kind: JobKind | None = None
    waited: str = ""
    past_waits: WaitsOfKind | None = None
    sources: dict[str, str] = msgspec.field(default_factory=dict)

    def facts(self) -> list[tuple[str, str]]:
        """Describe the estimate as lines of (title, text)."""
        lines = [("Uses", self._uses()), ("Bills", self._bills())]
        if self.least is not None:
            uses, few, most = self.least._uses(), self.least.nodes, self.nodes  # noqa: SLF001
            chosen = f"{few} to {most}, as Slurm finds them free; the lines below are for {most}"
            if few == most:
                chosen = f"{most}, as Slurm finds them free; the lines below are for the largest"
            on = "the smallest" if few == most else few
            lines.insert(0, ("Nodes", f"{chosen}; on {on}: {uses}"))
        unsaid = self.gpu_hours is None and self.hours is not None
        if self.gpu_hours or self.currency or unsaid:
            lines.append(("Costs", self._costs()))
        if self.share is not None:
            lines.append(("Budget", self.share.describe()))
        if self.start_source:
            lines.append(
                ("Starts", f"{format_time(self.start)} at the earliest ({self.start_source})")
            )
        if self.waited:
            lines.append(("Waited", self.waited))
        return lines

    def _uses(self) -> str:
        if self.hours is None:
            return "unknown: the job has no time limit"
        parts = [*self._gpus(), format_quantity(self.cpu_hours, "CPU-hour")]
        if self.memory_hours is not None:
            parts.append(format_quantity(self.memory_hours, "GiB-hour"))
        return f"at most {', '.join(parts)}"

    def _gpus(self) -> list[str]:
        """Describe the GPU-hours, and how parts of GPUs were counted."""
        source = f" ({self.sources['gpu_hours']})" if "gpu_hours" in self.sources else ""
        if self.gpu_hours is None:
            return [f"unknown GPU-hours{source}"]
        amounts = [
            format_quantity(n, f"{kind} GPU-hour".strip()) for kind, n in self.gpu_hours.items()
        ]
        return [f"{each}{source}" for each in amounts]

    def _bills(self) -> str:
        if self.billing is None:
            return f"unknown: slurmkit does not count {self.sources['billing']}"
        hours = format_quantity(self.billing_hours, "billing-hour")
        return f"at most {hours} ({self.billing} × time, {self.sources['billing']})"

    def _costs(self) -> str:
        if self.cost is None and self.cloud_cost is None:
            if self.gpu_hours is None:
                return "unknown, because the GPU-hours are unknown"
            return "unknown: no price of these GPUs in the configuration"
        own = "unknown" if self.cost is None else f"{self.cost:,} {self.currency}"
        cloud = (
            "" if self.cloud_cost is None else f", in a cloud {self.cloud_cost:,} {self.currency}"
        )
        return f"at most {own}{cloud} ({self.sources['cost']})"


class PricedHours(NamedTuple):
    """Hours that may have a price; None means unknown."""

    gpu_hours: dict[str, float] | None
    cpu_hours: float | None
    memory_hours: float | None


def _rounded_or_unknown(number: float | None) -> str:
    return "unknown" if number is None else format_number(number)


def estimate_in_all(requests: Sequence[Request]) -> Estimate:
    """Estimate the most that the job can use in any of the partitions it may run in.

    Args:
        requests: the job in each partition in which it can start, at least one.
    """
    able = [request for request in requests if request.fitting] or requests
    return reduce(_most_of_both, map(estimate_range, able))


def _most_of_both(one: Estimate, other: Estimate) -> Estimate:
    """Return the most of each amount in two partitions; unknown where one of them is."""
    ours, theirs = one.gpu_hours, other.gpu_hours
    gpus = None
    if ours is not None and theirs is not None:
        gpus = {kind: max(ours.get(kind, 0), theirs.get(kind, 0)) for kind in ours | theirs}
    bills = max(one, other, key=lambda e: (e.billing_hours is None, e.billing_hours or 0))
    shares = [each.share for each in (one, other) if each.share]
    same_currency = one.currency == other.currency
    return msgspec.structs.replace(
        one,
        nodes=max(one.nodes, other.nodes),
        hours=_larger(one.hours, other.hours),
        gpu_hours=gpus,
        cpu_hours=_larger(one.cpu_hours, other.cpu_hours),
        memory_hours=_larger(one.memory_hours, other.memory_hours),
        billing=bills.billing,
        billing_hours=bills.billing_hours,
        cost=_larger(one.cost, other.cost) if same_currency else None,
        cloud_cost=_larger(one.cloud_cost, other.cloud_cost) if same_currency else None,
        share=max(shares, key=_tightness, default=None),
        sources=other.sources | one.sources | {"billing": bills.sources["billing"]},
    )


def _larger(one: Number | None, other: Number | None) -> Number | None:
    return None if one is None or other is None else max(one, other)


def _tightness(share: BudgetShare) -> tuple[bool, float]:
    return share.left <= 0, share.share or 0.0


def estimate_range(request: Request) -> Estimate:
    """Estimate for the most nodes the job can get, and include the estimate for the fewest."""
    builder = request_builder(request)
    wanted = request.most_nodes or 1
    everywhere = builder((("nodelist", ""),)) if request.spec.nodelist and wanted > 1 else None
    fitting = (everywhere or request).counted  # to a shorter list Slurm adds other nodes
    limits = [wanted, len(fitting), request.partition.max_nodes]
    most = min(number for number in limits if number)
    if most <= request.nodes:
        return _estimate_spread(request)
    widest = builder((("nodes", str(most)),))
    fewest = estimate(msgspec.structs.replace(request, most={}))
    return msgspec.structs.replace(estimate(widest or request), least=fewest)


def _estimate_spread(request: Request) -> Estimate:
    """Estimate for a job that gets more on more nodes, or on larger ones that it has whole."""
    most, total = request.most, request.total
    names = (most.keys() | total.keys()) - {"node"}
    several = most.get("node", 0) > request.nodes
    several = several or takes_whole_nodes(request.spec, request.partition)
    if not most or not several or all(most.get(n) == total.get(n) for n in names):
        return estimate(request)
    fewest = estimate(msgspec.structs.replace(request, most={}))
    return msgspec.structs.replace(estimate(request), nodes=most["node"], least=fewest)


def estimate(
    request: Request, price: PriceAt = price_at, weight: WeightOf = part_weight
) -> Estimate:
    """Estimate the most that `request` can use: the most TRES, for the whole time limit."""
    request = msgspec.structs.replace(request, total=request.most or request.total)
    time = time_limit_minutes(request)
    hours = None if time is None else time / 60
    gpus = estimate_gpu_hours(request, hours, weight)
    unknown = uncounted_tres(request)
    cpu_hours = None if "cpu" in unknown else _tres_hours(request, "cpu", hours)
    used = PricedHours(gpus.by_type, cpu_hours, _memory_hours(request, hours))
    cost, cloud, currency = _cost_and_currency(request, used, price)
    billing = None if unknown else request.total.get("billing", 0)
    return Estimate(
        nodes=request.nodes,
        hours=hours,
        tasks=request.tasks_in_array,
        gpu_hours=gpus.by_type,
        cpu_hours=used.cpu_hours,
        memory_hours=used.memory_hours,
        billing=billing,
        billing_hours=None if unknown else _tres_hours(request, "billing", hours),
        cost=cost,
        cloud_cost=cloud,
        currency=currency,
        share=_tightest_budget(request),
        job_kind=_job_kind(request),
        sources=_sources(request, currency) | _sources_of_unknown(gpus.source, unknown),
    )


def _job_kind(request: Request) -> JobKind | None:
    """Return the kind of job; None where its GPUs are not known, and for parts of GPUs."""
    if uncounted_tres(request) or any(request.total.get(f"gres/{part}") for part in _PARTS):
        return None
    qos = request.qos.name if request.qos else None
    return job_kind(request.partition.name, qos, request.total, request.seconds)


def _tres_hours(request: Request, tres: str, hours: float | None) -> float | None:
    return None if hours is None else request.total.get(tres, 0) * hours * request.tasks_in_array


def _memory_hours(request: Request, hours: float | None) -> float | None:
    if "mem" not in request.total or "mem" in uncounted_tres(request):
        return None
    mib_hours = _tres_hours(request, "mem", hours)
    return None if mib_hours is None else mib_hours / 1024


def _cost_and_currency(
    request: Request, used: PricedHours, price: PriceAt
) -> tuple[Decimal | None, Decimal | None, str | None]:
    """Return the cost here and in a cloud, and the currency; None where a price is unknown."""
    if used.gpu_hours is None:
        return None, None, None
    day = dt.datetime.fromtimestamp(request.standing.taken).astimezone().date()
    untyped = possible_gpu_types(request)
    hours_and_prices: list[tuple[float | None, Price | None]] = [
        (hours, _dearest([price(name, day) for name in ([kind] if kind else untyped)]))
        for kind, hours in used.gpu_hours.items()
    ]
    others = ((used.cpu_hours, cpu_prices()), (used.memory_hours, memory_prices()))
    priced = ((hours, price_on(prices, day)) for hours, prices in others)
    hours_and_prices += [(hours, each) for hours, each in priced if each]
    currencies = {each.currency for _, each in hours_and_prices if each}
    if len(currencies) != 1:
        return None, None, None
    own = _total_cost(
        [(hours, each.on_premises if each else None) for hours, each in hours_and_prices]
    )
    cloud = _total_cost([(hours, each.cloud if each else None) for hours, each in hours_and_prices])
    return own, cloud, currencies.pop()


def _dearest(prices: Sequence[Price | None]) -> Price | None:
    """Return the highest price of GPUs of which one may be given; None if one is unknown."""
    known = [price for price in prices if price]
    if len(known) < len(prices) or len({price.currency for price in known}) != 1:
        return None
    on_premises = [price.on_premises for price in known if price.on_premises is not None]
    cloud = [price.cloud for price in known if price.cloud is not None]
    return msgspec.structs.replace(
        known[0],
        on_premises=max(on_premises) if len(on_premises) == len(known) else None,
        cloud=max(cloud) if len(cloud) == len(known) else None,
    )


def _total_cost(parts: list[tuple[float | None, Decimal | None]]) -> Decimal | None:
    total = Decimal(0)
    for hours, amount in parts:
        if amount is None or hours is None:
            return None
        total += Decimal(str(hours)) * amount
    return total.quantize(Decimal("0.01"))


def _tightest_budget(request: Request) -> BudgetShare | None:
    """Return the job's part of a budget; of several budgets, the one it uses up most."""
    unknown = {*uncounted_tres(request), *(["billing"] if uncounted_tres(request) else [])}
    known = (
        balance for balance in tres_minutes_budgets(request) if balance.limit.tres not in unknown
    )
    shares = [_budget_share(balance, request.tasks_in_array) for balance in known]
    return max(shares, key=_tightness, default=None)


def _budget_share(balance: TresMinutesBudget, tasks: int) -> BudgetShare:
    wanted = None if balance.wanted is None else balance.wanted * tasks
    left = balance.left - min(balance.running, balance.left)
    share = None if wanted is None else wanted / left if left else float("inf")
    return BudgetShare(
        tres=balance.limit.tres,
        wanted=None if wanted is None else wanted / 60,
        left=left / 60,
        share=None if share == float("inf") else share,
        source=balance.limit.source,
    )


def _sources(request: Request, currency: str | None) -> dict[str, str]:
    name = request.partition.name
    has_time = request.spec.time is not None
    default = "DefaultTime" if request.partition.default_time else "MaxTime"
    sources = {
        "hours": "--time" if has_time else f"partition {name}: {default}",
        "billing": f"partition {name}: TRESBillingWeights"
        if request.partition.billing_weights
        else "CPUs: the partition has no TRESBillingWeights",
    }
    if currency:
        sources["cost"] = "the prices of the configuration"
    return sources


def _sources_of_unknown(gpus: str, unknown: Mapping[str, str]) -> dict[str, str]:
    """Return the source of GPU-hours of parts, and the option that makes billing unknown."""
    sources = {"gpu_hours": gpus} if gpus else {}
    return sources | ({"billing": next(iter(unknown.values()))} if unknown else {})


class GpuHoursEstimate(NamedTuple):
    """GPU-hours by type, untyped GPUs under the empty type; None where they are unknown.

    Attributes:
        source: how parts of GPUs were counted, or why they could not be; empty for whole GPUs.
    """

    by_type: dict[str, float] | None
    source: str = ""


def uncounted_tres(request: Request) -> dict[str, str]:
    """Return the TRES whose amount is unknown, each with the option that sets it."""
    return {
        tres: f"--{name}"
        for name, decided in _PASSED_ON.items()
        if name in request.spec.options
        for tres in decided
        if not (tres == "mem" and request.spec.mem)
    }


def estimate_gpu_hours(request: Request, hours: float | None, weight: WeightOf) -> GpuHoursEstimate:
    """Return the GPU-hours of all array tasks.

    Args:
        request: the job.
        hours: the time limit of each task; None without one.
        weight: how many whole GPUs a shard or an MPS unit counts as.
    """
    if hours is None:
        return GpuHoursEstimate(None)
    if by := uncounted_tres(request).get("gres/gpu"):
        return GpuHoursEstimate(None, f"slurmkit does not count {by}")
    times = hours * request.tasks_in_array
    for part in _PARTS:
        if units := request.total.get(f"gres/{part}", 0):
            return _hours_of_parts(request, part, units * times, weight)
    typed = {
        name.removeprefix(_TYPED): count * times
        for name, count in request.total.items()
        if name.startswith(_TYPED) and count
    }
    rest = request.total.get("gres/gpu", 0) * times - sum(typed.values())
    return GpuHoursEstimate(typed | ({"": rest} if rest > 0 else {}))


def _hours_of_parts(
    request: Request, part: GpuPart, unit_hours: float, weight: WeightOf
) -> GpuHoursEstimate:
    kind = likely_gpu_type(request)
    if not kind:
        return GpuHoursEstimate(
            None, f"the GPUs that the {part} is cut from may be of several types"
        )
    counts = weight(kind, part)
    where = f"{part}_weight of [gpu.{kind}]"
    if counts is None:
        return GpuHoursEstimate(None, f"no {where} in the configuration")
    return GpuHoursEstimate({kind: unit_hours * counts}, f"{where}: {counts:g}")


def likely_gpu_type(request: Request) -> str:
    """Return the type of untyped GPUs or of parts, if the nodes have one only; else empty."""
    gpus = request.spec.gpus
    types = {g.type or "" for node in request.counted for g in node.gres if g.name == "gpu"}
    only = types.pop() if len(types) == 1 else ""
    return gpus.type if gpus and gpus.type else only


def possible_gpu_types(request: Request) -> tuple[str, ...]:
    """Return the types of which Slurm may give untyped GPUs.

    GPUs without a type in Slurm are of the partition's type in the configuration, else `untyped`.
    """
    unnamed = partition_gpu_types().get(request.partition.name, UNTYPED)
    gres = (each for node in request.counted for each in node.gres if each.name == "gpu")
    return tuple(sorted({each.type or unnamed for each in gres})) or (unnamed,)
