"""Amounts of memory as Slurm's commands write them, and as people read them.

One K is 1024 everywhere in Slurm, and so is one KiB here. The commands write these suffixes:

- sbatch takes whole numbers with K, M, G or T, and a B may follow; without a suffix they are MiB.
- scontrol prints at most two decimals in the largest unit that fits, M to P: `500G`, `1.50T`. A
  node's RealMemory and the limits of a partition have no suffix and are MiB.
- sacct prints AllocTRES and ReqTRES as scontrol does. It prints measured use (MaxRSS, TRESUsageIn…)
  in bytes with --noconvert, and in releases up to 23.02 with a suffix from K to P: `399036K`.
"""

from __future__ import annotations

import re
from typing import Literal, overload

BINARY_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
"""Slurm's suffixes and the factor each stands for."""
_SIZE = re.compile(r"(?=\.?\d)(\d{0,99})\.?(\d{0,99})(?:([KMGTP])B?)?", re.ASCII | re.IGNORECASE)
_MIB = BINARY_UNITS["M"]


def parse_bytes(text: str) -> float | None:
    """Parse an amount of memory, in bytes if it has no suffix; None for text that is no amount."""
    mebibytes = parse_mib(text, rounding="exact", plain="")
    return None if mebibytes is None else mebibytes * _MIB


@overload
def parse_mib(
    text: str, *, rounding: Literal["up", "down"], plain: Literal["", "M"] = "M"
) -> int | None: ...
@overload
def parse_mib(
    text: str, *, rounding: Literal["exact"], plain: Literal["", "M"] = "M"
) -> float | None: ...
def parse_mib(
    text: str, *, rounding: Literal["up", "down", "exact"], plain: Literal["", "M"] = "M"
) -> float | None:
    """Parse an amount of memory such as `64G` or `1.50T` into MiB.

    Args:
        text: the amount.
        rounding: `up` for an amount that must suffice, `down` for one that is not to be exceeded,
            `exact` for the fraction.
        plain: unit of a number without a suffix: `M` for sizes that users ask for and Slurm
            allocates, the empty one (bytes) for measured use.

    Returns:
        None for text that is no amount.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    whole, fraction, unit = match.groups()
    amount = int(whole + fraction) * BINARY_UNITS[unit.upper() if unit else plain]
    divisor: int = 10 ** len(fraction) * _MIB
    if rounding == "exact":
        return amount / divisor
    return amount // divisor if rounding == "down" else -(-amount // divisor)


def format_bytes(size: float) -> str:
    """Format bytes with four digits and a binary unit: `1.5 GiB`, `512 MiB`, `3.2 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} PiB"


def format_mib(mebibytes: float) -> str:
    """Format an amount of memory given in MiB: `1.5 TiB`, `64 GiB`, `512 MiB`."""
    return format_bytes(mebibytes * _MIB) if mebibytes else "0 MiB"


def format_gib(mebibytes: int) -> str:
    """Format memory given in MiB as GiB with three digits, for a column in G: `1.5`, `512`."""
    return f"{mebibytes / 1024:.3g}" if mebibytes < 1024 * 100 else f"{mebibytes // 1024}"


def format_memory_use(used: float | None, total: float | None) -> str:
    """Format the memory of a GPU in use, in MiB, of its total: `12.5 of 80 GiB`; `?` if unknown."""
    if used is None:
        return "?"
    of = "" if total is None else f" of {total / 1024:.0f}"
    return f"{used / 1024:.1f}{of} GiB"


def memory_option(mebibytes: int) -> str:
    """Format MiB as `--mem` takes it, in whole G where possible."""
    whole, rest = divmod(mebibytes, 1024)
    return f"{mebibytes}M" if rest or not whole else f"{whole}G"
