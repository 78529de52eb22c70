"""What the GPUs of a running job do: samples of plugins and of the driver, and what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import cast

import msgspec

from slurmkit.config.files import has_section
from slurmkit.config.plugins import OWN_DISTRIBUTION, load_plugin, plugins
from slurmkit.diagnose.model import RunningFact, RunningFinding
from slurmkit.diagnose.probe import DriverGpu, ProbedNode
from slurmkit.errors import SlurmkitError
from slurmkit.formats.display import format_seconds, join_names
from slurmkit.state.gpu_metrics import IDLE_BELOW, GpuMetrics, GpuSample, plausible_percent

_DRIVER = "NVIDIA's driver"
_PROMETHEUS = "prometheus"
_SECONDS = 900  # that samples look back
_OLD = 300  # seconds; an older sample is not the present
_IDLE_SECONDS = 120  # for which a GPU must have been idle
_BUSY = 30  # percent
_FULL = 0.97  # of a GPU's memory
# What holds clocks back and should not. A power cap is usual for a GPU that works hard.
_THROTTLED = {
    "hw_thermal": "is throttled for heat",
    "sw_thermal": "is throttled for heat",
    "hw_power_brake": "is slowed down by the node's power supply (power brake)",
    "hw_slowdown": "is slowed down by its hardware (heat or power)",
}


class HeldGpu(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU of the job does now; None is unknown.

    Attributes:
        name: `GPU 3`, or its device file if Slurm's index is not known.
        utilization: percent, newest.
        busiest: the highest utilization since `since`.
        since: epoch seconds of the oldest sample.
        throttled: what holds its clocks back.
        degrees: temperature in degrees Celsius.
        taken: epoch seconds of the newest sample.
        source: who measured it.
    """

    node: str
    name: str
    utilization: float | None
    busiest: float | None
    since: float | None
    memory_used: int | None
    memory_total: int | None
    throttled: tuple[str, ...] | None
    degrees: int | None = None
    clock: int | None = None
    top_clock: int | None = None
    taken: float
    source: str

    @property
    def title(self) -> str:
        """Name for messages: `GPU 3 on c2`."""
        return f"{self.name} on {self.node}"


class SampledGpus(msgspec.Struct, frozen=True):
    """Samples of a source, by node; `problem` says why there are none."""

    samples: Mapping[str, tuple[GpuSample, ...]]
    source: str = ""
    problem: str = ""


def read_samples(nodes: Sequence[str]) -> SampledGpus:
    """Read the samples of the last quarter of an hour from the first source that has any.

    The sources are plugins of `slurmkit.gpu_metrics`: the site's own, then the ledger, and a
    Prometheus if one is configured. Slurm itself is not asked: that plugin asks about all jobs.
    """
    problems = []
    for name in gpu_sources():
        try:
            metrics = cast("Callable[[], GpuMetrics]", load_plugin("gpu_metrics", name))()
            found = metrics.read(nodes, seconds=_SECONDS)
        except SlurmkitError as error:
            problems.append(f"{name}: {error}")
            continue
        if any(found.values()):
            return SampledGpus(found, name)
        problems.append(f"{name}: it has no samples of {join_names(list(nodes))} that you may see")
    return SampledGpus({}, problem="; ".join(problems) or "no plugin measures GPUs")


def samples_since(sampled: SampledGpus, started: int | None) -> SampledGpus:
    """Return the samples since a job started; what the GPUs did before was not this job's."""
    if started is None:
        return sampled
    samples = {
        node: tuple(each for each in found if each.taken >= started)
        for node, found in sampled.samples.items()
    }
    problem = sampled.problem
    if any(sampled.samples.values()) and not any(samples.values()):
        problem = f"{sampled.source}: it has no samples since the job started"
    return SampledGpus(samples, sampled.source, problem)


def gpu_sources() -> list[str]:
    """List the plugins to ask: the site's own, the ledger, and Prometheus if it is configured."""
    known = plugins("gpu_metrics")
    site = [name for name, each in known.items() if each.distribution != OWN_DISTRIBUTION]
    own = ["ledger", *([_PROMETHEUS] if has_section(f"gpu_metrics.{_PROMETHEUS}") else [])]
    return [*site, *(name for name in own if name in known and name not in site)]


def gpus_of_job(
    held: Mapping[str, Sequence[int]], sampled: SampledGpus, nodes: Mapping[str, ProbedNode]
) -> tuple[HeldGpu, ...]:
    """Return what is known of each GPU of a job, from samples and from the driver.

    Args:
        held: Slurm's indices of the job's GPUs, by node.
        sampled: samples of all GPUs of these nodes.
        nodes: what the probe found.
    """
    now = time.time()
    found: list[HeldGpu] = []
    for node in dict.fromkeys([*held, *nodes]):
        indices = held.get(node, ())
        driver = nodes[node].gpus.gpus if node in nodes else ()
        if len(indices) == len(driver) == 1:
            driver = (msgspec.structs.replace(driver[0], index=indices[0]),)
        named = {}
        for index in indices:
            own = [each for each in sampled.samples.get(node, ()) if each.index == index]
            asked = next((each for each in driver if each.index == index), None)
            gpu = _merge(node, f"GPU {index}", own, sampled.source, asked, now)
            if gpu is not None:
                named[index] = gpu
        found += named.values()
        for each in driver:
            if each.index is None and (gpu := _merge(node, _file_name(each), (), "", each, now)):
                # Which of the samples are of this GPU is unknown: then those count for its use.
                use = None if named else gpu.utilization
                found.append(msgspec.structs.replace(gpu, utilization=use, busiest=use))
    return tuple(found)


def _file_name(gpu: DriverGpu) -> str:
    return "GPU ?" if gpu.minor is None else f"GPU /dev/nvidia{gpu.minor}"


def _merge(
    node: str,
    name: str,
    samples: Sequence[GpuSample],
    source: str,
    asked: DriverGpu | None,
    now: float,
) -> HeldGpu | None:
    newest = max(samples, key=lambda each: each.taken, default=None)
    if newest is not None and now - newest.taken > _OLD:
        newest = None
    if newest is None and asked is None:
        return None
    uses = [(each.taken, plausible_percent(each.utilization)) for each in samples]
    known = [use for _, use in uses if use is not None]
    current: float | None = asked.utilization if asked else None
    if current is None and newest is not None:
        current = plausible_percent(newest.utilization)
    return HeldGpu(
        node=node,
        name=name,
        utilization=current,
        busiest=max([*known, *([current] if current is not None else [])], default=None),
        since=min((taken for taken, use in uses if use is not None), default=None),
        memory_used=asked.memory_used if asked else newest.memory_used if newest else None,
        memory_total=asked.memory_total if asked else newest.memory_total if newest else None,
        throttled=asked.throttled if asked else newest.throttled if newest else None,
        degrees=asked.degrees if asked else None,
        clock=asked.clock if asked else None,
        top_clock=asked.top_clock if asked else None,
        taken=now if asked or newest is None else newest.taken,
        source=_DRIVER if asked else source,
    )


def gpu_findings(gpus: Sequence[HeldGpu], job_seconds: float) -> Iterator[RunningFinding]:
    """Yield what is wrong with the job's GPUs.

    Args:
        gpus: of the job, as far as they are known.
        job_seconds: for how long the job has run.
    """
    for words in dict.fromkeys(_THROTTLED.values()):
        slow = [gpu for gpu in gpus if words in _slowed(gpu)]
        if slow:
            text = f"{join_names([gpu.title for gpu in slow])} {words}"
            if len(slow) > 1:
                text = f"{join_names([gpu.title for gpu in slow])} {words.replace('is', 'are', 1)}"
            advice = (
                f"tell your administrator; in a new job, --exclude={slow[0].node} avoids the node"
            )
            yield _finding("throttled", text + _degrees(slow[0]), slow, advice)
    idle = [gpu for gpu in gpus if _is_idle(gpu)]
    if idle and len(idle) == len(gpus):
        shortest = min(gpu.taken - (gpu.since or gpu.taken) for gpu in idle)
        count = "its GPU does" if len(idle) == 1 else f"its {len(idle)} GPUs do"
        text = f"{count} nothing for {format_seconds(shortest)}"
        yield _finding(
            "idle",
            text,
            idle,
            "its program may not see them: see the guide, Is my job using its GPUs?",
        )
    elif gpus and job_seconds >= _IDLE_SECONDS and all(_is_idle_now(gpu) for gpu in gpus):
        count = "its GPU is" if len(gpus) == 1 else f"its {len(gpus)} GPUs are"
        text = f"{count} idle now; since when is unknown"
        yield _finding(
            "idle", text, gpus, "ask again in a minute; see the guide, Is my job using its GPUs?"
        )
    elif idle:
        text = f"{len(idle)} of {len(gpus)} GPUs do nothing: {_names(idle)}"
        advice = "start a process for each GPU, or ask for fewer"
        yield _finding("uneven", text, idle, advice)
    else:
        yield from _uneven(gpus)
    full = [gpu for gpu in gpus if _memory_share(gpu) >= _FULL]
    if full:
        text = f"the memory of {_names(full)} is almost full ({_memory_share(full[0]):.0%})"
        advice = "a larger batch would fail with `out of memory`"
        yield _finding("gpu-memory", text, full, advice)


def _finding(kind: str, text: str, gpus: Sequence[HeldGpu], advice: str) -> RunningFinding:
    oldest = min(gpus, key=lambda gpu: gpu.taken)
    return RunningFinding(
        kind=kind, text=text, source=oldest.source, taken=oldest.taken, advice=advice
    )


def _slowed(gpu: HeldGpu) -> set[str]:
    named = {_THROTTLED[each] for each in gpu.throttled or () if each in _THROTTLED}
    # hw_slowdown comes with the reason for it.
    return named - {_THROTTLED["hw_slowdown"]} or named


def _degrees(gpu: HeldGpu) -> str:
    parts = []
    if gpu.degrees:
        parts.append(f"{gpu.degrees} °C")
    if gpu.clock and gpu.top_clock:
        parts.append(f"{gpu.clock} of {gpu.top_clock} MHz")
    return f" ({', '.join(parts)})" if parts else ""


def _is_idle(gpu: HeldGpu) -> bool:
    """Return whether a GPU did nothing for so long that it is no pause between two steps."""
    if gpu.busiest is None or gpu.busiest >= IDLE_BELOW or gpu.since is None:
        return False
    return gpu.taken - gpu.since >= _IDLE_SECONDS


def _is_idle_now(gpu: HeldGpu) -> bool:
    """Return whether a GPU is idle, and nothing older is known of it."""
    return gpu.utilization is not None and gpu.utilization < IDLE_BELOW and gpu.since is None


def _uneven(gpus: Sequence[HeldGpu]) -> Iterator[RunningFinding]:
    """Find GPUs that are far below the others now, and were at all times that are known."""
    known = [gpu for gpu in gpus if gpu.utilization is not None]
    if len(known) < 2:
        return
    usual = median(gpu.utilization or 0 for gpu in known)
    low = [gpu for gpu in known if (gpu.busiest or 0) < usual / 2]
    if usual >= _BUSY and low and len(low) <= len(known) // 2:
        worst = min(low, key=lambda gpu: gpu.utilization or 0)
        text = (
            f"{_names(low)} {'does' if len(low) == 1 else 'do'} less than the others:"
            f" {worst.utilization:.0f} %, usual is {usual:.0f} %"
        )
        yield _finding("uneven", text, low, "see what its rank does, and which data it has")


def _memory_share(gpu: HeldGpu) -> float:
    return gpu.memory_used / gpu.memory_total if gpu.memory_used and gpu.memory_total else 0.0


def _names(gpus: Sequence[HeldGpu]) -> str:
    return join_names([gpu.title for gpu in gpus])


def mean_use(gpus: Iterable[HeldGpu]) -> float | None:
    """Return the mean utilization in percent; None if none is known."""
    known = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    return sum(known) / len(known) if known else None


def gpu_fact(gpus: Sequence[HeldGpu], held: int, problem: str) -> RunningFact | None:
    """Describe what the GPUs do, in one line; None for a job without GPUs."""
    if not held and not gpus:
        return None
    mean = mean_use(gpus)
    if mean is None:
        return RunningFact(about="GPUs", text=f"unknown: {problem or 'nobody measures them'}")
    gpus = [gpu for gpu in gpus if gpu.utilization is not None or gpu.throttled]
    shown = [f"{gpu.title} {_percent(gpu.utilization)}{_held_back(gpu)}" for gpu in gpus]
    text = f"{mean:.0f} %"
    if len(gpus) > 1:
        text += f" on average: {join_names(shown, 8)}"
    elif _held_back(gpus[0]):
        text += _held_back(gpus[0])
    missing = held - len(gpus)
    if missing > 0:
        text += f"; {missing} of {held} unknown"
    oldest = min(gpus, key=lambda gpu: gpu.taken)
    return RunningFact(about="GPUs", text=text, source=oldest.source, taken=oldest.taken)


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f} %"


def _held_back(gpu: HeldGpu) -> str:
    return f" ({', '.join(gpu.throttled)})" if gpu.throttled else ""
