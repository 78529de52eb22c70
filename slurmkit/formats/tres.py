"""TRES strings, e.g. of an allocation: `cpu=4,mem=8G,gres/gpu=2,gres/gpu:a100=2`."""

from __future__ import annotations

import re

import msgspec

from slurmkit.formats.memory import format_mib

Tres = dict[str, int]
_MIG = re.compile(r"(?:^|[_-])(\d+c\.)?\d+g\.\d+gb", re.IGNORECASE)


class Gres(msgspec.Struct, frozen=True, gc=False):
    """Generic resources of one name and type on a node.

    Attributes:
        name: `gpu`, `shard`, `mps` or any other of GresTypes.
        type: as the node declares it, or None for untyped ones.
        count: number on the node.
    """

    name: str
    type: str | None
    count: int

    @property
    def is_mig(self) -> bool:
        """Whether the type is a MIG slice (`a100_3g.20gb`), not a whole GPU."""
        return self.type is not None and _MIG.search(self.type) is not None


GPU_TRES = "gres/gpu"
_PARTS = ("shard", "mps")


def parse_tres(text: str) -> dict[str, str]:
    """Parse a TRES string into names and values; their order differs between releases."""
    pairs = (item.partition("=") for item in text.split(",") if "=" in item)
    return {name.strip(): value.strip() for name, _, value in pairs}


def gpu_count(text: str) -> int:
    """Return the number of whole GPUs or MIG slices in an AllocTRES string; 0 if it has none.

    `gres/gpu` is the total and `gres/gpu:TYPE` its breakdown, so the typed entries are summed only
    where the total is absent. gpumem and gpuutil are measurements, not GPUs.

    Raises:
        ValueError: when a GPU count is not a whole number.
    """
    tres = parse_tres(text)
    if GPU_TRES in tres:
        return int(tres[GPU_TRES])
    return sum(int(value) for name, value in tres.items() if name.startswith(f"{GPU_TRES}:"))


def gpu_types(text: str) -> dict[str, int]:
    """Return the GPUs by type in an AllocTRES string; untyped GPUs under the empty type."""
    typed = {
        name.removeprefix(f"{GPU_TRES}:"): int(value)
        for name, value in parse_tres(text).items()
        if name.startswith(f"{GPU_TRES}:")
    }
    rest = gpu_count(text) - sum(typed.values())
    return typed | ({"": rest} if rest > 0 else {})


def format_gpus(text: str) -> list[str]:
    """Describe the GPUs and parts of GPUs in a TRES string: `4 a100`, `3 shard`."""
    held = [f"{count} {kind}".strip() for kind, count in gpu_types(text).items()]
    return [*held, *(f"{count} {kind}" for kind, count in gpu_parts(text).items())]


def gpu_parts(text: str) -> dict[str, int]:
    """Return the parts of GPUs in a TRES string by kind: shards and MPS units."""
    if "gres/shard=" not in text and "gres/mps=" not in text:  # saves time in a long queue
        return {}
    tres = parse_tres(text)
    counts = {kind: tres.get(f"gres/{kind}", "") for kind in _PARTS}
    return {kind: int(count) for kind, count in counts.items() if count.isdecimal()}


_NOUNS = {
    "cpu": "CPU",
    "node": "node",
    "billing": "billing unit",
    GPU_TRES: "GPU",
    "gres/shard": "shard",
}


def tres_name(name: str) -> str:
    """Format the name of a TRES in the singular: `a100 GPU`, `shard`, `memory`."""
    if name == "mem":
        return "memory"
    if name.startswith(f"{GPU_TRES}:"):
        return f"{name.removeprefix(f'{GPU_TRES}:')} GPU"
    return _NOUNS.get(name, name.removeprefix("gres/"))


def format_tres(name: str, count: int) -> str:
    """Format an amount of one TRES: `8 GPUs`, `1 a100 GPU`, `600 GiB of memory`."""
    if name == "mem":
        return f"{format_mib(count)} of memory"
    if name in _NOUNS or name.startswith(f"{GPU_TRES}:"):
        return f"{count} {tres_name(name)}{'' if count == 1 else 's'}"
    return f"{count} of {name}"


def format_tres_minutes(name: str, minutes: float, *, hours_from: float = 600) -> str:
    """Format TRES-minutes: `90 GPU-minutes`; from `hours_from` minutes on as `480 CPU-hours`."""
    noun = "MiB of memory" if name == "mem" else tres_name(name)
    in_hours = minutes >= hours_from
    count = f"{minutes / 60 if in_hours else max(minutes, 0):.0f}"
    return f"{count} {noun}-{'hour' if in_hours else 'minute'}{'' if count == '1' else 's'}"
