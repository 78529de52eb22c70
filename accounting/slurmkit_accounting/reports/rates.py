"""Weights and dated prices of GPU types, CPUs and memory, from the configuration."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from typing import Literal, NamedTuple, cast

from slurmkit.config.prices import (
    UNTYPED,
    Price,
    canonical_type,
    cpu_prices,
    gpu_settings,
    grid_factors,
    memory_prices,
    part_weight,
    partition_gpu_types,
    price_at,
    price_on,
)
from slurmkit.errors import BadConfig
from slurmkit_accounting.usage.bins import NO_GPU

GPU_PARTS = ("shard", "mps")
NO_GPU_NAME = "none"
_ONE = Fraction(1)


class GpuKind(NamedTuple):
    """A GPU type, or a part of a GPU (shard, MPS).

    Attributes:
        name: name in reports.
        whole: the type of the whole GPU, which has the price; empty if unknown.
        weight: how many whole GPUs one counts as; None if unknown.
        share: the share of the price of `whole` that one costs.
    """

    name: str
    whole: str
    weight: Fraction | None
    share: Fraction = _ONE


class Cost(NamedTuple):
    """Price of one hour at this site and in a cloud; None is unknown."""

    on_premises: Fraction | None
    cloud: Fraction | None


class Rates:
    """The site's weights and prices, read from the configuration once.

    Attributes:
        currency: currency of all prices; None without prices.
        dates: days on which a price, or the CO2 of a kWh, changes.
        of_cpus: whether CPUs have prices.
        of_memory: whether memory has prices.
        partitions_have_types: whether the type of untyped GPUs depends on their partition.

    Raises:
        BadConfig: for a wrong file, and for prices in several currencies.
    """

    def __init__(self) -> None:
        self._settings = gpu_settings()
        self._partitions = partition_gpu_types()
        self.partitions_have_types = bool(self._partitions)
        self._cpu, self._memory = cpu_prices(), memory_prices()
        of_gpus = [price for each in self._settings.values() for price in each.prices]
        prices = [*of_gpus, *self._cpu, *self._memory]
        self._grid = grid_factors()
        self.dates = frozenset(
            (*(price.since for price in prices), *(factor.since for factor in self._grid))
        )
        self.currency = _common_currency(prices)
        self.of_cpus, self.of_memory = bool(self._cpu), bool(self._memory)
        self._kinds: dict[tuple[str, str], GpuKind] = {}

    def kind(self, gpu_type: str, partition: str) -> GpuKind:
        """Return the kind of a GPU type as the ledger has it.

        For untyped GPUs the configuration may name the type of a partition's GPUs.
        """
        gpus = (gpu_type, partition)
        if gpus not in self._kinds:
            self._kinds[gpus] = self._kind(gpu_type, self._partitions.get(partition, ""))
        return self._kinds[gpus]

    def whole_type(self, name: str) -> str:
        """Return the type of the whole GPU for shards and MPS; any other name as it is."""
        return self.kind(name, "").whole or name

    def gpu_hour(self, kind: GpuKind, day: dt.date) -> Cost:
        """Return the price of a GPU-hour on a day."""
        price = price_at(kind.whole, day, self._settings) if kind.whole else None
        return _price_of_share(price, kind.share)

    def cpu_hour(self, day: dt.date) -> Cost:
        """Return the price of a CPU-hour on a day."""
        return _price_of_share(price_on(self._cpu, day), _ONE)

    def gib_hour(self, day: dt.date) -> Cost:
        """Return the price of a GiB-hour of memory on a day."""
        return _price_of_share(price_on(self._memory, day), _ONE)

    def co2_per_kwh(self, day: dt.date) -> Fraction | None:
        """Return the kg of CO2 of one kWh on a day; None if unknown."""
        begun = [factor for factor in self._grid if factor.since <= day]
        last = max(begun, key=lambda factor: factor.since, default=None)
        return None if last is None else Fraction(last.kg_per_kwh)

    def kilowatts(self, kind: GpuKind) -> Fraction | None:
        """Return the power of one GPU under full load, in kW; None if unknown."""
        settings = self._settings.get(kind.whole)
        share = kind.share
        if settings and settings.watts is None and settings.part_of:
            share *= Fraction(str(settings.weight))
            settings = self._settings.get(canonical_type(settings.part_of, self._settings))
        if settings is None or settings.watts is None:
            return None
        return Fraction(str(settings.watts)) * share / 1000

    def _kind(self, gpu_type: str, partition_type: str) -> GpuKind:
        if gpu_type == NO_GPU:
            return GpuKind(NO_GPU_NAME, "", Fraction(0))
        part, _, of = gpu_type.partition(":")
        if part in GPU_PARTS:
            return self._part(cast("Literal['shard', 'mps']", part), of or partition_type)
        # The site may have a price for untyped GPUs: [gpu.untyped].
        name = canonical_type(gpu_type or partition_type or UNTYPED, self._settings)
        settings = self._settings.get(name)
        weight = Fraction(str(settings.weight)) if settings else _ONE
        return GpuKind(name, name, weight)

    def _part(self, part: Literal["shard", "mps"], of: str) -> GpuKind:
        named = canonical_type(of, self._settings) if of else ""
        whole = named or self._only_shared_type(part)
        number = part_weight(whole, part, self._settings) if whole else None
        weight = None if number is None else Fraction(str(number))
        return GpuKind(f"{part}:{named}" if named else part, whole, weight, weight or Fraction(0))

    def _only_shared_type(self, part: Literal["shard", "mps"]) -> str:
        """Return the only GPU type that has such parts; empty if there is none or several."""
        shared = [
            name for name in self._settings if part_weight(name, part, self._settings) is not None
        ]
        return shared[0] if len(shared) == 1 else ""


def _price_of_share(price: Price | None, share: Fraction) -> Cost:
    if price is None:
        return Cost(None, None)
    amounts = (price.on_premises, price.cloud)
    return Cost(*(None if each is None else Fraction(each) * share for each in amounts))


def _common_currency(prices: list[Price]) -> str | None:
    currencies = sorted({price.currency for price in prices})
    if len(currencies) > 1:
        raise BadConfig(
            f"prices are in {' and '.join(currencies)}, which cannot be added up; write all prices"
            " in one currency"
        )
    return currencies[0] if currencies else None
