"""The policy `gpu_hours`: every GPU job has a time limit, and none is larger than the site's cap.

It is off until a configuration file has its section:

    [policy.gpu_hours]
    default_time = "4:00:00"
    max_gpu_hours = 500

A job is one element of an array. Whole GPUs and MIG slices are counted, slices by the weight of
`[gpu.TYPE]`; shards and MPS are not.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from slurmkit.capabilities.model import Capabilities
from slurmkit.config import has_section, load_section
from slurmkit.durations import format_duration, parse_time_limit
from slurmkit.errors import BadInput
from slurmkit.findings import Finding
from slurmkit.plugins import Review
from slurmkit.prices import canonical_type, gpu_settings
from slurmkit.spec import Gpus, JobSpec

SECTION = "policy.gpu_hours"


class GpuHoursSection(msgspec.Struct, frozen=True):
    """`[policy.gpu_hours]`.

    Attributes:
        default_time: time limit filled in for a GPU job that gives none; left out, none is.
        max_gpu_hours: refuse a job of more GPUs × hours of its time limit; left out, no cap.
    """

    default_time: str | None = None
    max_gpu_hours: Annotated[float, msgspec.Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        try:
            parse_time_limit(self.default_time or "1")
        except BadInput as error:
            raise ValueError(f"default_time: {error}") from error


class GpuHours:
    """See `slurmkit.plugins.Policy`."""

    def review(self, spec: JobSpec, capabilities: Capabilities) -> Review:
        """Fill in a missing time limit; refuse what is over the cap."""
        del capabilities
        if spec.gpus is None or spec.gpus.is_part or not has_section(SECTION):
            return Review(spec)
        section = load_section(SECTION, GpuHoursSection)
        timed = _with_time(spec, section)
        found = [_filled_in(timed)] if timed is not spec else []
        return Review(timed, (*found, *_over(timed, spec.gpus, section)))


def _with_time(spec: JobSpec, section: GpuHoursSection) -> JobSpec:
    if spec.time is not None or section.default_time is None:
        return spec
    return msgspec.structs.replace(spec, time=section.default_time)


def _filled_in(spec: JobSpec) -> Finding:
    return Finding(
        severity="warning",
        code="time-filled-in",
        message=f"no time limit was given: {spec.time} was filled in, the site's default; jobs"
        " start sooner with the time they need, --time",
    )


def _over(spec: JobSpec, gpus: Gpus, section: GpuHoursSection) -> list[Finding]:
    count, seconds, cap = _count(spec, gpus), spec.seconds, section.max_gpu_hours
    if cap is None or seconds is None or count * seconds <= cap * 3600:
        return []
    fits = int(cap * 3600 / count) // 60 * 60
    allowed = f"--time={format_duration(fits)} or fewer GPUs" if fits else "fewer GPUs"
    return [
        Finding(
            severity="error",
            code="gpu-hours-cap",
            message=f"{count:g} GPUs for {spec.time} are {count * seconds / 3600:,.1f} GPU-hours,"
            f" and this site allows {cap:,g} for one job; ask for {allowed}",
            source=f"configuration [{SECTION}] max_gpu_hours",
            fix=(("time", format_duration(fits)),) if fits else (),
        )
    ]


def _count(spec: JobSpec, gpus: Gpus) -> float:
    """GPUs of the whole job; where Slurm decides how many nodes there are, of one node."""
    nodes = spec.most_nodes or 1
    tasks = spec.ntasks or nodes * (spec.ntasks_per_node or 1)
    times = {"node": nodes, "task": tasks, "job": 1}[gpus.per]
    return gpus.count * times * _weight(gpus)


def _weight(gpus: Gpus) -> float:
    settings = gpu_settings()
    name = canonical_type(gpus.type or "", settings)
    if gpus.mig is not None:
        whole = f"{name}_{gpus.mig}" if name else gpus.mig
        name = next((t for t in settings if t.casefold().endswith(whole.casefold())), "")
    return settings[name].weight if name in settings else 1.0
