"""Some points of a sweep once more: the same job, for these alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec

from slurmkit.arrays import fold
from slurmkit.errors import BadInput
from slurmkit.planning.chunks import throttle
from slurmkit.spec import JobSpec
from slurmkit.sweeps.records import Record


def spec_again(
    run: Record, indices: Iterable[int], environ: Mapping[str, str] = os.environ
) -> JobSpec:
    """The job of a sweep for some of its points; what it waited for at its first submit is over.

    Raises:
        BadInput: when a variable that was not kept is not set here.
    """
    spec = run.spec
    missing = [name for name in run.secrets if name not in environ]
    if missing:
        raise BadInput(
            f"{missing[0]} was given to the sweep and is nowhere kept; export it here and try again"
        )
    limit = throttle(spec.array or "")
    array = fold(indices) + (f"%{limit}" if limit else "")
    given = {name: environ[name] for name in run.secrets}
    return msgspec.structs.replace(
        spec,
        array=array,
        environment=spec.environment | given,
        dependency=None,
        begin=None,
        deadline=None,
        hold=False,
    )
