"""A request anew with some options changed, to see whether a fix would pass."""

from __future__ import annotations

from collections.abc import Callable

from slurmkit.capabilities.model import Node, Partition
from slurmkit.checks.say import Pairs
from slurmkit.errors import BadInput
from slurmkit.options import with_options
from slurmkit.planning.requests import Shape, fitting_nodes, request_for
from slurmkit.planning.shape import shape_of, site_names
from slurmkit.request import Request
from slurmkit.spec import JobSpec

Again = Callable[[Pairs], Request | None]
# Fields of a spec that decide on its shape; most fixes that are tried change only others.
_SHAPING = (
    "nodes ntasks ntasks_per_node cpus_per_task gpus partition constraint nodelist exclude".split()
)


def rebuilder(request: Request) -> Again:
    """Make a function from options to the request they would make, None when it makes none."""
    shapes = _Shapes(request)

    def again(pairs: Pairs) -> Request | None:
        try:
            return _rebuild(request, with_options(request.spec, pairs), shapes)
        except BadInput:
            return None

    return again


def _rebuild(request: Request, spec: JobSpec, shapes: _Shapes) -> Request | None:
    asked = (spec.partition or request.partition.name).split(",")
    name = request.partition.name if request.partition.name in asked else asked[0]
    partition = request.capabilities.partition(name)
    found = shapes.of(spec, asked, partition) if partition else None
    if partition is None or found is None:
        return None
    made, fitting = found
    site = (request.capabilities, request.standing)
    return request_for(spec, made, partition, site, fitting)


Fitted = tuple[Shape, tuple[Node, ...]]


class _Shapes:
    """Shapes of one spec as it is changed, each found once, and the nodes they fit."""

    def __init__(self, request: Request) -> None:
        self._known = request.capabilities
        self._names = site_names()
        self._found: dict[tuple[object, ...], Fitted | None] = {}

    def of(self, spec: JobSpec, asked: list[str], partition: Partition) -> Fitted | None:
        """None where the GPUs asked for cannot be had."""
        given = tuple(getattr(spec, name) for name in _SHAPING)
        key = (*given, *sorted(spec.options.items()), *asked, partition.name)
        if key not in self._found:
            self._found[key] = self._find(spec, asked, partition)
        return self._found[key]

    def _find(self, spec: JobSpec, asked: list[str], partition: Partition) -> Fitted | None:
        partitions = tuple(filter(None, map(self._known.partition, asked)))
        kind, layout = made = shape_of(spec, self._known, partitions, self._names)
        found = (*(kind.findings if kind else ()), *layout.findings)
        if any(finding.severity == "error" for finding in found):
            return None
        return made, fitting_nodes(spec, kind, self._known.nodes_of(partition.name))
