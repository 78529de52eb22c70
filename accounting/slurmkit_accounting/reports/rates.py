"""What types of GPUs count and cost: weights and dated prices of the configuration."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from typing import Literal, NamedTuple, cast

from slurmkit.errors import BadConfig
from slurmkit.prices import (
    UNTYPED,
    Price,
    canonical_type,
    cpu_prices,
    gpu_settings,
    memory_prices,
    part_weight,
    partition_gpu_types,
    price_at,
    price_of,
)
from slurmkit_accounting.bins import NO_GPU

PARTS = ("shard", "mps")
NONE = "none"
_ONE = Fraction(1)


class Kind(NamedTuple):
    """A type of GPU, or a part of one.

    Attributes:
        name: as a report shows it.
        whole: the type of the GPU that is priced; empty where nobody said.
        weight: what one counts in whole GPUs; None where nobody said.
        share: what one costs of the price of `whole`.
    """

    name: str
    whole: str
    weight: Fraction | None
    share: Fraction = _ONE


class Cost(NamedTuple):
    """Money by where the hours were, or would have been, used; None is unknown."""

    on_premises: Fraction | None
    cloud: Fraction | None


class Rates:
    """The site's weights and prices; read once.

    Attributes:
        currency: of all prices; None without any.
        dates: days on which any price changes.

    Raises:
        BadConfig: for a wrong file, and for prices in several currencies.
    """

    def __init__(self) -> None:
        self._settings = gpu_settings()
        self._partitions = partition_gpu_types()
        self._cpu, self._memory = cpu_prices(), memory_prices()
        of_gpus = [price for each in self._settings.values() for price in each.prices]
        prices = [*of_gpus, *self._cpu, *self._memory]
        self.dates = frozenset(price.since for price in prices)
        self.currency = _currency(prices)
        self.of_cpus, self.of_memory = bool(self._cpu), bool(self._memory)
        self._kinds: dict[tuple[str, str], Kind] = {}

    def kind(self, gpu_type: str, partition: str) -> Kind:
        """What a type of the books is in a partition; the site may vouch for untyped GPUs."""
        asked = (gpu_type, partition)
        if asked not in self._kinds:
            self._kinds[asked] = self._kind(gpu_type, self._partitions.get(partition, ""))
        return self._kinds[asked]

    def gpu_hour(self, kind: Kind, day: dt.date) -> Cost:
        """What an hour of one of them costs."""
        price = price_at(kind.whole, day, self._settings) if kind.whole else None
        return _times(price, kind.share)

    def cpu_hour(self, day: dt.date) -> Cost:
        """What an hour of a CPU costs."""
        return _times(price_of(self._cpu, day), _ONE)

    def gib_hour(self, day: dt.date) -> Cost:
        """What an hour of a GiB of memory costs."""
        return _times(price_of(self._memory, day), _ONE)

    def kilowatts(self, kind: Kind) -> Fraction | None:
        """What one of them draws under load; None where nobody said."""
        settings = self._settings.get(kind.whole)
        share = kind.share
        if settings and settings.watts is None and settings.part_of:
            share *= Fraction(str(settings.weight))
            settings = self._settings.get(canonical_type(settings.part_of, self._settings))
        if settings is None or settings.watts is None:
            return None
        return Fraction(str(settings.watts)) * share / 1000

    def _kind(self, gpu_type: str, vouched: str) -> Kind:
        if gpu_type == NO_GPU:
            return Kind(NONE, "", Fraction(0))
        part, _, of = gpu_type.partition(":")
        if part in PARTS:
            return self._part(cast("Literal['shard', 'mps']", part), of or vouched)
        # The site may have a price for GPUs of no type: [gpu.untyped].
        name = canonical_type(gpu_type or vouched or UNTYPED, self._settings)
        settings = self._settings.get(name)
        weight = Fraction(str(settings.weight)) if settings else _ONE
        return Kind(name, name, weight)

    def _part(self, part: Literal["shard", "mps"], of: str) -> Kind:
        named = canonical_type(of, self._settings) if of else ""
        whole = named or self._only_one_with(part)
        found = part_weight(whole, part, self._settings) if whole else None
        weight = None if found is None else Fraction(str(found))
        return Kind(f"{part}:{named}" if named else part, whole, weight, weight or Fraction(0))

    def _only_one_with(self, part: Literal["shard", "mps"]) -> str:
        """Where one type alone is shared, it is the one that untyped parts are of."""
        named = [
            name for name in self._settings if part_weight(name, part, self._settings) is not None
        ]
        return named[0] if len(named) == 1 else ""


def _times(price: Price | None, share: Fraction) -> Cost:
    if price is None:
        return Cost(None, None)
    amounts = (price.on_premises, price.cloud)
    return Cost(*(None if each is None else Fraction(each) * share for each in amounts))


def _currency(prices: list[Price]) -> str | None:
    named = sorted({price.currency for price in prices})
    if len(named) > 1:
        raise BadConfig(
            f"prices are in {' and '.join(named)}, which cannot be added up; write them in one"
        )
    return named[0] if named else None
