"""What a site says of its GPUs: prices by date, power, weights, and the names of types.

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
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from slurmkit.config import load_section, load_tables
from slurmkit.errors import BadConfig

UNTYPED = "untyped"
"""The section for GPUs that Slurm has no type of, where no partition vouches for one."""

Currency = Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")]
Weight = Annotated[float, msgspec.Meta(gt=0, le=1)]
Watts = Annotated[float, msgspec.Meta(gt=0)]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one hour of one GPU (or CPU, or GiB) costs from a day on; None is not known.

    Attributes:
        since: first day, in the zone of whoever asks, on which it holds.
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
                raise ValueError(f"{amount} is not a price")


class GpuSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[gpu.TYPE]`.

    Attributes:
        aliases: other names that people use for the type; case does not count.
        prices: per GPU-hour, each from a day on; of a MIG slice, per hour of the slice.
        watts: power that one GPU draws under load.
        part_of: of a MIG slice, the type of the whole GPU.
        weight: what one counts in whole GPUs; of a MIG slice less than 1.
        shard_weight: what one shard of such a GPU counts in whole GPUs.
        mps_weight: what one MPS unit of such a GPU counts in whole GPUs.
    """

    aliases: tuple[str, ...] = ()
    prices: tuple[Price, ...] = ()
    watts: Watts | None = None
    part_of: str | None = None
    weight: Weight = 1.0
    shard_weight: Weight | None = None
    mps_weight: Weight | None = None

    def __post_init__(self) -> None:
        _each_once(self.prices)


class CpuSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[cpu]`.

    Attributes:
        prices: per CPU-hour, each from a day on; CPUs cost nothing of their own without any.
    """

    prices: tuple[Price, ...] = ()

    def __post_init__(self) -> None:
        _each_once(self.prices)


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[memory]`.

    Attributes:
        prices: per GiB-hour, each from a day on; memory costs nothing of its own without any.
    """

    prices: tuple[Price, ...] = ()

    def __post_init__(self) -> None:
        _each_once(self.prices)


class PartitionSettings(msgspec.Struct, frozen=True):
    """`[partition.NAME]`.

    Attributes:
        gpu_type: the type of its GPUs where Slurm has them untyped; the site vouches for it.
    """

    gpu_type: str | None = None


def gpu_settings() -> dict[str, GpuSettings]:
    """Every `[gpu.TYPE]`, by type.

    Raises:
        BadConfig: for a wrong file, and for a name that stands for two types.
    """
    settings = load_tables("gpu", GpuSettings)
    _names(settings)
    return settings


def partition_gpu_types() -> dict[str, str]:
    """The GPU type of each partition that configuration names one for.

    Raises:
        BadConfig: for a wrong file.
    """
    found = load_tables("partition", PartitionSettings)
    return {name: each.gpu_type for name, each in found.items() if each.gpu_type}


def cpu_prices() -> tuple[Price, ...]:
    """Prices of a CPU-hour.

    Raises:
        BadConfig: for a wrong file.
    """
    return load_section("cpu", CpuSettings).prices


def memory_prices() -> tuple[Price, ...]:
    """Prices of a GiB-hour.

    Raises:
        BadConfig: for a wrong file.
    """
    return load_section("memory", MemorySettings).prices


def canonical_type(name: str, settings: Mapping[str, GpuSettings] | None = None) -> str:
    """The type that `name` stands for, by type or alias without case; an unknown one as it is.

    Args:
        name: what somebody calls a GPU type.
        settings: as `gpu_settings` gives them, which is asked when they are left out.
    """
    known = _names(gpu_settings() if settings is None else settings)
    return known.get(name.casefold(), name)


def price_at(
    name: str, when: dt.date, settings: Mapping[str, GpuSettings] | None = None
) -> Price | None:
    """What an hour of one GPU of a type costs on a day, or None when nobody has said.

    A MIG slice without prices costs its weight's part of the whole GPU.

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
        return price_of(own.prices, when)
    price = price_of(whole.prices, when)
    return price and _share(price, Decimal(str(own.weight)))


def part_weight(
    name: str,
    part: Literal["shard", "mps"],
    settings: Mapping[str, GpuSettings] | None = None,
) -> float | None:
    """What one shard or MPS unit of a GPU of a type counts in whole GPUs, None if nobody said.

    Args:
        name: type or alias.
        part: which of them.
        settings: as for `canonical_type`.
    """
    known = gpu_settings() if settings is None else settings
    own = known.get(canonical_type(name, known))
    if own is None:
        return None
    return own.shard_weight if part == "shard" else own.mps_weight


def price_of(prices: tuple[Price, ...], when: dt.date) -> Price | None:
    """Which of some prices holds on a day."""
    begun = [price for price in prices if price.since <= when]
    return max(begun, key=lambda price: price.since, default=None)


def _each_once(prices: tuple[Price, ...]) -> None:
    days = [price.since for price in prices]
    twice = next((day for day in days if days.count(day) > 1), None)
    if twice:
        raise ValueError(f"two prices begin on {twice}; keep one of them")


def _share(price: Price, weight: Decimal) -> Price:
    amounts = {
        name: None if amount is None else amount * weight
        for name in ("on_premises", "cloud")
        for amount in [getattr(price, name)]
    }
    return msgspec.structs.replace(price, **amounts)


def _names(settings: Mapping[str, GpuSettings]) -> dict[str, str]:
    """Every name of every type without case; a type's own name goes before an alias."""
    names = {name.casefold(): name for name in settings}
    if len(names) < len(settings):
        raise BadConfig("two [gpu.TYPE] sections differ in case alone; keep one of them")
    for name, each in settings.items():
        for alias in each.aliases:
            taken = names.setdefault(alias.casefold(), name)
            if taken != name:
                raise BadConfig(
                    f"[gpu.{name}]: alias {alias!r} already stands for {taken}; take it out of one"
                )
    return names
