"""A request anew with some options changed, to see whether a fix would pass."""

from __future__ import annotations

from collections.abc import Callable

from slurmkit.checks.say import Pairs
from slurmkit.errors import BadInput
from slurmkit.options import with_options
from slurmkit.planning.kinds import Names
from slurmkit.planning.requests import request_for
from slurmkit.planning.shape import shape_of, site_names
from slurmkit.request import Request
from slurmkit.spec import JobSpec

Again = Callable[[Pairs], Request | None]


def rebuilder(request: Request) -> Again:
    """Make a function from options to the request they would make, None when it makes none."""
    names = site_names()

    def again(pairs: Pairs) -> Request | None:
        try:
            return _rebuild(request, with_options(request.spec, pairs), names)
        except BadInput:
            return None

    return again


def _rebuild(request: Request, spec: JobSpec, names: Names) -> Request | None:
    known = request.capabilities
    asked = (spec.partition or request.partition.name).split(",")
    name = request.partition.name if request.partition.name in asked else asked[0]
    partition = known.partition(name)
    if partition is None:
        return None
    asked_for = tuple(filter(None, map(known.partition, asked)))
    kind, layout = made = shape_of(spec, known, asked_for, names)
    found = (*(kind.findings if kind else ()), *layout.findings)
    if any(f.severity == "error" for f in found):
        return None
    return request_for(spec, made, partition, (known, request.standing))
