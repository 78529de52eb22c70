"""The policy `gpu_hours`: every GPU job has a time limit, and at most the site's cap of GPU-hours.

The policy is active only if a configuration file has its section:

    [policy.gpu_hours]
    default_time = "4:00:00"
    max_gpu_hours = 500

Each element of an array counts as a job. Whole GPUs count, and MIG slices with the weight of
`[gpu.TYPE]`; shards and MPS do not.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from slurmkit.config.files import has_section, load_section
from slurmkit.config.prices import canonical_type, gpu_settings
from slurmkit.errors import BadInput
from slurmkit.formats.durations import format_duration, parse_time_limit
from slurmkit.planning.policies import Review
from slurmkit.spec.findings import Finding
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Capabilities

SECTION = "policy.gpu_hours"


class GpuHoursSection(msgspec.Struct, frozen=True):
    """`[policy.gpu_hours]`.

    Attributes:
        default_time: time limit of GPU jobs that set none; if left out, it stays unset.
        max_gpu_hours: refuse jobs with more GPUs × hours of time limit; if left out, no cap.
    """

    default_time: str | None = None
    max_gpu_hours: Annotated[float, msgspec.Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        try:
            parse_time_limit(self.default_time or "1")
        except BadInput as error:
            raise ValueError(f"default_time: {error}") from error


class GpuHours:
    """A policy (`planning.policies.Policy`) that fills in time limits and caps GPU-hours."""

    def review(self, spec: JobSpec, capabilities: Capabilities) -> Review:
        """Fill in a missing time limit; refuse a job over the cap."""
        del capabilities
        gpus = spec.gpus
        if gpus is None or gpus.is_part or not has_section(SECTION):
            return Review(spec)
        section = load_section(SECTION, GpuHoursSection)
        findings = []
        if spec.time is None and section.default_time is not None:
            spec = msgspec.structs.replace(spec, time=section.default_time)
            warning = Finding(
                severity="warning",
                code="time-filled-in",
                message=f"no time limit was given, so the site's default {spec.time} was filled in;"
                " give the time that the job needs with --time: shorter jobs start sooner",
            )
            findings.append(warning)
        return Review(spec, (*findings, *_check_cap(spec, gpus, section)))


def _check_cap(spec: JobSpec, gpus: Gpus, section: GpuHoursSection) -> list[Finding]:
    """Return the refusal of a job over the cap; nothing for any other job."""
    count, seconds, cap = _weighted_gpus(spec, gpus), spec.seconds, section.max_gpu_hours
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


def _weighted_gpus(spec: JobSpec, gpus: Gpus) -> float:
    """Return the weighted GPUs of the job; one node is assumed if Slurm chooses their number."""
    nodes = spec.most_nodes or 1
    tasks = spec.ntasks or nodes * (spec.ntasks_per_node or 1)
    times = {"node": nodes, "task": tasks, "job": 1}[gpus.per]
    return gpus.count * times * _weight(gpus)


def _weight(gpus: Gpus) -> float:
    """Return the configured weight of the GPU type or MIG slice; 1 if there is none."""
    settings = gpu_settings()
    name = canonical_type(gpus.type or "", settings)
    if gpus.mig is not None:
        whole = f"{name}_{gpus.mig}" if name else gpus.mig
        name = next((t for t in settings if t.casefold().endswith(whole.casefold())), "")
    return settings[name].weight if name in settings else 1.0
