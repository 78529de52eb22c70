"""A request anew with some options changed, to see whether a fix would pass."""

from __future__ import annotations

from collections.abc import Callable

from slurmkit.checks.say import Pairs
from slurmkit.errors import BadInput
from slurmkit.options import with_options
from slurmkit.planning.kinds import Kind, Names, Pool, kind_of
from slurmkit.planning.layout import Layout, layout_of
from slurmkit.planning.requests import request_for
from slurmkit.prices import gpu_settings, partition_gpu_types
from slurmkit.request import Request
from slurmkit.spec import JobSpec

Again = Callable[[Pairs], Request | None]


def rebuilder(request: Request) -> Again:
    """Make a function from options to the request they would make, None when it makes none."""
    names = _names()

    def again(pairs: Pairs) -> Request | None:
        try:
            spec = with_options(request.spec, pairs)
        except BadInput:
            return None
        return _rebuild(request, spec, names)

    return again


def _rebuild(request: Request, spec: JobSpec, names: Names) -> Request | None:
    known = request.capabilities
    asked = (spec.partition or request.partition.name).split(",")
    name = request.partition.name if request.partition.name in asked else asked[0]
    partition = known.partition(name)
    if partition is None:
        return None
    made = _shape(spec, request, tuple(asked), names)
    if made is None:
        return None
    return request_for(spec, made, partition, (known, request.standing))


def _shape(
    spec: JobSpec, request: Request, partitions: tuple[str, ...], names: Names
) -> tuple[Kind | None, Layout] | None:
    nodes = request.capabilities.nodes_of(*partitions)
    kind = None
    if spec.gpus is not None:
        many = (spec.nodes or 1) > 1 or bool(spec.ntasks) or spec.gpus.per != "node"
        pool = Pool(nodes, partitions, request.capabilities.nodes, names)
        kind = kind_of(spec.gpus, pool, many=many)
    fitting = kind.fitting if kind else nodes
    layout = layout_of(spec, kind, max((node.cpus for node in fitting), default=0))
    found = (*(kind.findings if kind else ()), *layout.findings)
    return None if any(f.severity == "error" for f in found) else (kind, layout)


def _names() -> Names:
    settings = gpu_settings()
    aliases = {alias.casefold(): name for name, gpu in settings.items() for alias in gpu.aliases}
    return Names(aliases, partition_gpu_types())
