"""The site's settings of its GPUs: prices by date, power, weights, and aliases of types.

[gpu.a100]
aliases = ["A100-SXM4-80GB"]
watts = 400
shard_weight = 0.25
[[gpu.a100.prices]]
since = 2026-01-01
currency = "EUR"
on_premises = 0.85
cloud = 3.20

[gpu."a100_3g.20gb"]
part_of = "a100"
weight = 0.5

[[cpu.prices]]
since = 2026-01-01
currency = "EUR"
on_premises = 0.01

[[grid.factors]]
since = 2026-01-01
kg_per_kwh = 0.38
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from slurmkit.config.files import load_section, load_tables
from slurmkit.errors import BadConfig

UNTYPED = "untyped"
"""The `[gpu.TYPE]` for GPUs without a type in Slurm and in `[partition.NAME] gpu_type`."""

Currency = Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")]
Weight = Annotated[float, msgspec.Meta(gt=0, le=1)]
Watts = Annotated[float, msgspec.Meta(gt=0)]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of one hour of one GPU (or CPU, or GiB) from a day on; None is unknown.

    Attributes:
        since: first day on which the price is valid, in the reader's time zone.
        currency: three letters of ISO 4217, e.g. EUR.
        on_premises: what the site charges, or its full cost, per hour.
        cloud: what the same hour costs in a public cloud.
    """

    since: dt.date
    currency: Currency
    on_premises: Decimal | None = None
    cloud: Decimal | None = None

    def __post_init__(self) -> None:
        for amount in (self.on_premises, self.cloud):
            if amount is not None and not (amount.is_finite() and amount >= 0):
                raise ValueError(f"{amount} is not a price; write 0 or more, e.g. 0.85")


class GpuSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[gpu.TYPE]`.

    Attributes:
        aliases: other names for the type; upper and lower case are the same.
        prices: prices of one GPU-hour, each valid from a day on; for a MIG slice, of one hour of
            the slice.
        watts: power that one GPU draws under load.
        part_of: for a MIG slice, the type of the whole GPU.
        weight: number of whole GPUs that one counts as; less than 1 for a MIG slice.
        shard_weight: number of whole GPUs that one shard of such a GPU counts as.
        mps_weight: number of whole GPUs that one MPS unit of such a GPU counts as.
    """

    aliases: tuple[str, ...] = ()
    prices: tuple[Price, ...] = ()
    watts: Watts | None = None
    part_of: str | None = None
    weight: Weight = 1.0
    shard_weight: Weight | None = None
    mps_weight: Weight | None = None

    def __post_init__(self) -> None:
        _check_dates(self.prices)


class CpuSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[cpu]`.

    Attributes:
        prices: prices of one CPU-hour, each valid from a day on; without any, CPUs cost nothing
            extra.
    """

    prices: tuple[Price, ...] = ()

    def __post_init__(self) -> None:
        _check_dates(self.prices)


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[memory]`.

    Attributes:
        prices: prices of one GiB-hour, each valid from a day on; without any, memory costs
            nothing extra.
    """

    prices: tuple[Price, ...] = ()

    def __post_init__(self) -> None:
        _check_dates(self.prices)


class GridFactor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The CO2 of the site's electricity from a day on.

    Attributes:
        since: first day, in the reader's time zone.
        kg_per_kwh: kg of CO2 of one kWh, with the losses of cooling if they are to count.
    """

    since: dt.date
    kg_per_kwh: Decimal

    def __post_init__(self) -> None:
        if not (self.kg_per_kwh.is_finite() and self.kg_per_kwh >= 0):
            raise ValueError(
                f"{self.kg_per_kwh} kg of CO2 is no amount; write 0 or more, e.g. 0.38"
            )


class GridSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[grid]`.

    Attributes:
        factors: CO2 of one kWh, each valid from a day on; without any, reports show no CO2.
    """

    factors: tuple[GridFactor, ...] = ()

    def __post_init__(self) -> None:
        _check_dates(self.factors, "factors")


class PartitionSettings(msgspec.Struct, frozen=True):
    """`[partition.NAME]`.

    Attributes:
        gpu_type: type of the partition's GPUs, if Slurm knows no type for them; the site must
            make sure that it is correct.
    """

    gpu_type: str | None = None


def gpu_settings() -> dict[str, GpuSettings]:
    """Load every `[gpu.TYPE]`, by type.

    Raises:
        BadConfig: for a wrong file, and for a name that means two types.
    """
    settings = load_tables("gpu", GpuSettings)
    _types_by_name(settings)
    return settings


def partition_gpu_types() -> dict[str, str]:
    """Load the GPU type of each partition that has one in the configuration.

    Raises:
        BadConfig: for a wrong file.
    """
    partitions = load_tables("partition", PartitionSettings)
    return {name: each.gpu_type for name, each in partitions.items() if each.gpu_type}


def cpu_prices() -> tuple[Price, ...]:
    """Load the prices of a CPU-hour.

    Raises:
        BadConfig: for a wrong file.
    """
    return load_section("cpu", CpuSettings).prices


def memory_prices() -> tuple[Price, ...]:
    """Load the prices of a GiB-hour.

    Raises:
        BadConfig: for a wrong file.
    """
    return load_section("memory", MemorySettings).prices


def grid_factors() -> tuple[GridFactor, ...]:
    """Load the CO2 of a kWh.

    Raises:
        BadConfig: for a wrong file.
    """
    return load_section("grid", GridSettings).factors


def canonical_type(name: str, settings: Mapping[str, GpuSettings] | None = None) -> str:
    """Return the GPU type that a name or alias means, without case; an unknown name unchanged.

    Args:
        name: type or alias.
        settings: as from `gpu_settings`, which is called by default.
    """
    known = _types_by_name(gpu_settings() if settings is None else settings)
    return known.get(name.casefold(), name)


def price_at(
    name: str, when: dt.date, settings: Mapping[str, GpuSettings] | None = None
) -> Price | None:
    """Return the price of one GPU-hour of a type on a day; None when the site has set none.

    A MIG slice without prices costs the whole GPU's price times its weight.

    Args:
        name: type or alias.
        when: the day of use.
        settings: as for `canonical_type`.
    """
    known = gpu_settings() if settings is None else settings
    own = known.get(canonical_type(name, known))
    if own is None:
        return None
    whole = known.get(canonical_type(own.part_of, known)) if own.part_of else None
    if own.prices or whole is None:
        return price_on(own.prices, when)
    price = price_on(whole.prices, when)
    return price and _weighted_price(price, Decimal(str(own.weight)))


def part_weight(
    name: str,
    part: Literal["shard", "mps"],
    settings: Mapping[str, GpuSettings] | None = None,
) -> float | None:
    """Return how many whole GPUs one shard or MPS unit counts as; None when the site set nothing.

    Args:
        name: type or alias of the GPU.
        part: `shard` or `mps`.
        settings: as for `canonical_type`.
    """
    known = gpu_settings() if settings is None else settings
    own = known.get(canonical_type(name, known))
    if own is None:
        return None
    return own.shard_weight if part == "shard" else own.mps_weight


def price_on(prices: tuple[Price, ...], when: dt.date) -> Price | None:
    """Return the price that holds on a day; None before the first."""
    begun = [price for price in prices if price.since <= when]
    return max(begun, key=lambda price: price.since, default=None)


def _check_dates(dated: tuple[Price, ...] | tuple[GridFactor, ...], what: str = "prices") -> None:
    days = [each.since for each in dated]
    twice = next((day for day in days if days.count(day) > 1), None)
    if twice:
        raise ValueError(f"two {what} begin on {twice}; keep one of them")


def _weighted_price(price: Price, weight: Decimal) -> Price:
    amounts = {
        name: None if amount is None else amount * weight
        for name in ("on_premises", "cloud")
        for amount in [getattr(price, name)]
    }
    return msgspec.structs.replace(price, **amounts)


def _types_by_name(settings: Mapping[str, GpuSettings]) -> dict[str, str]:
    """Map every name and alias, in lower case, to its type; a type's own name wins."""
    names = {name.casefold(): name for name in settings}
    if len(names) < len(settings):
        raise BadConfig(
            "two [gpu.TYPE] sections differ only in upper and lower case; keep one of them"
        )
    for name, each in settings.items():
        for alias in each.aliases:
            taken = names.setdefault(alias.casefold(), name)
            if taken != name:
                raise BadConfig(
                    f"[gpu.{name}]: alias {alias!r} already stands for {taken}; remove it from one"
                    " of them"
                )
    return names
