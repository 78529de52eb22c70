"""TRES strings: what an allocation is made of (`cpu=4,mem=8G,gres/gpu=2,gres/gpu:a100=2`)."""

from __future__ import annotations

GPU = "gres/gpu"
_PARTS = ("shard", "mps")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


def parse_tres(text: str) -> dict[str, str]:
    """Split a TRES string into name and value; the order of keys differs by Slurm release."""
    pairs = (item.partition("=") for item in text.split(",") if "=" in item)
    return {name.strip(): value.strip() for name, _, value in pairs}


def gpu_count(text: str) -> int:
    """Whole GPUs (or MIG instances) in an AllocTRES string, 0 when it names none.

    `gres/gpu` is the total and `gres/gpu:TYPE` its breakdown, so the total wins and the typed
    entries are summed only where it is absent; gpumem and gpuutil are measurements, not GPUs.

    Raises:
        ValueError: when a GPU count is not a whole number.
    """
    tres = parse_tres(text)
    if GPU in tres:
        return int(tres[GPU])
    return sum(int(value) for name, value in tres.items() if name.startswith(f"{GPU}:"))


def gpu_types(text: str) -> dict[str, int]:
    """GPUs by type in an AllocTRES string; untyped GPUs are under the empty type."""
    typed = {
        name.removeprefix(f"{GPU}:"): int(value)
        for name, value in parse_tres(text).items()
        if name.startswith(f"{GPU}:")
    }
    rest = gpu_count(text) - sum(typed.values())
    return typed | ({"": rest} if rest > 0 else {})


def gres(text: str) -> list[str]:
    """Say what GPUs and parts of GPUs a TRES string holds, for people: `4 a100`, `3 shard`."""
    held = [f"{count} {kind}".strip() for kind, count in gpu_types(text).items()]
    return [*held, *(f"{count} {kind}" for kind, count in gpu_parts(text).items())]


def gpu_parts(text: str) -> dict[str, int]:
    """Parts of GPUs that a TRES string holds, by kind: shards, and percents by MPS."""
    if "gres/shard=" not in text and "gres/mps=" not in text:  # as in most of a long queue
        return {}
    tres = parse_tres(text)
    found = {kind: tres.get(f"gres/{kind}", "") for kind in _PARTS}
    return {kind: int(count) for kind, count in found.items() if count.isdecimal()}


def size_in_bytes(text: str) -> float | None:
    """Bytes of an amount of memory, which old releases print with a unit; None for no amount."""
    digits, unit = (text, "") if text[-1:].isdigit() else (text[:-1], text[-1:].upper())
    if not (digits.isascii() and digits.replace(".", "", 1).isdigit()) or unit not in _UNITS:
        return None
    return float(digits) * _UNITS[unit]
