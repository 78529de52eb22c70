"""Curves of held, used and wanted GPUs, up to the present hour."""

from __future__ import annotations

from fake_queue import NOW
from slurmkit_tui.feed.history import GpuCurve

HOUR = 3600
LAST = int(NOW) // HOUR * HOUR  # begin of the present hour


def curve(
    *, held: dict[str, tuple], wanted: tuple = (None,), there: tuple = (None,), **other: tuple
) -> GpuCurve:
    count = len(next(iter(held.values())))
    begins = tuple(LAST - (count - 1 - at) * HOUR for at in range(count))
    unknown = (None,) * count
    return GpuCurve(begins, HOUR, held, other.get("used", unknown), other.get("measured", unknown),
                    there * (count // len(there)), wanted * (count // len(wanted)))  # fmt: skip
