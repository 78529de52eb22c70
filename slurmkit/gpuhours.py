"""GPU-hours of a request by type, parts of a GPU by the site's weights; what cannot be counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from slurmkit.request import Request

Part = Literal["shard", "mps"]
WeightOf = Callable[[str, Part], float | None]
"""Type of a GPU, and `shard` or `mps`, to what one of them counts in whole GPUs."""

_TYPED = "gres/gpu:"
_PARTS: tuple[Part, ...] = ("shard", "mps")
# Options that are passed on, and what of a job they decide.
_PASSED_ON = {
    "gpus-per-socket": ("gres/gpu",),
    "tres-per-task": ("gres/gpu", "cpu", "mem"),
    "ntasks-per-gpu": ("cpu", "mem"),
}


class GpuHours(NamedTuple):
    """GPU-hours by type, untyped GPUs under the empty type; None where they are unknown.

    Attributes:
        source: how parts of GPUs were counted, or why they were not; empty for whole GPUs.
    """

    by_type: dict[str, float] | None
    source: str = ""


def uncounted(request: Request) -> dict[str, str]:
    """TRES of which the request takes an unknown amount, to the option that says how much."""
    return {
        tres: f"--{name}"
        for name, decided in _PASSED_ON.items()
        if name in request.spec.options
        for tres in decided
        if not (tres == "mem" and request.spec.mem)
    }


def gpu_hours(request: Request, hours: float | None, weight: WeightOf) -> GpuHours:
    """Count them for all tasks of an array, each over `hours`; None for no time limit."""
    if hours is None:
        return GpuHours(None)
    if by := uncounted(request).get("gres/gpu"):
        return GpuHours(None, f"what {by} asks for is not counted")
    times = hours * request.tasks_in_array
    for part in _PARTS:
        if units := request.total.get(f"gres/{part}", 0):
            return _of_parts(request, part, units * times, weight)
    typed = {
        name.removeprefix(_TYPED): count * times
        for name, count in request.total.items()
        if name.startswith(_TYPED) and count
    }
    rest = request.total.get("gres/gpu", 0) * times - sum(typed.values())
    return GpuHours(typed | ({"": rest} if rest > 0 else {}))


def _of_parts(request: Request, part: Part, unit_hours: float, weight: WeightOf) -> GpuHours:
    kind = likely_type(request)
    if not kind:
        return GpuHours(None, f"the GPUs that the {part} is cut from may be of several types")
    counts = weight(kind, part)
    where = f"{part}_weight of [gpu.{kind}]"
    if counts is None:
        return GpuHours(None, f"no {where} in the configuration")
    return GpuHours({kind: unit_hours * counts}, f"{where}: {counts:g}")


def likely_type(request: Request) -> str:
    """The type of GPUs that were asked for without one, or of parts; empty when unknown."""
    gpus = request.spec.gpus
    there = {g.type or "" for node in request.fitting for g in node.gres if g.name == "gpu"}
    only = there.pop() if len(there) == 1 else ""
    return gpus.type if gpus and gpus.type else only
