"""GPU metrics from Slurm itself: gres/gpuutil and gres/gpumem of running steps.

slurmd samples the processes of a step with NVML or RSMI and sums their use over all GPUs, so Slurm
does not say which of several GPUs is busy. The plugin therefore returns samples only for jobs with
one GPU, and for jobs whose steps use no GPU at all. Parts of GPUs and MIG slices are left out, as
slurmd does not sample them. sstat answers only root, SlurmUser and the owner of a job.
"""

from __future__ import annotations

import getpass
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from slurmkit.errors import SlurmError, SlurmkitError
from slurmkit.formats.memory import parse_mib
from slurmkit.formats.tres import parse_tres
from slurmkit.slurm.commands import LocalSlurmCommands, SlurmCommands
from slurmkit.state.gpu_metrics import GpuSample
from slurmkit.state.gpumap import read_gpus
from slurmkit.state.gpumap_model import Gpu

_UTIL, _MEM = "gres/gpuutil", "gres/gpumem"


class StepGpuUse(msgspec.Struct, frozen=True):
    """GPU use of a step, from sstat or sacct.

    Attributes:
        job: job id as a plain number (JobIDRaw).
        most: highest utilization of any task so far, percent; None if unknown.
        now: present utilization of all tasks, percent; only of a running step.
        mem: GPU memory in use, MiB; only of a running step.
        end: epoch seconds; None while it runs.
    """

    job: str
    most: int | None
    now: int | None = None
    mem: int | None = None
    end: int | None = None


class SlurmUsage:
    """GPU metrics (`slurmkit.state.gpu_metrics.GpuMetrics`) from sstat and sacct."""

    def __init__(self, slurm: SlurmCommands | None = None) -> None:
        self._slurm = slurm or LocalSlurmCommands()

    def read(self, nodes: Iterable[str], *, seconds: float = 0) -> dict[str, tuple[GpuSample, ...]]:
        """Read samples by node; raises `SlurmkitError` if the cluster does not sample GPUs."""
        _check_tracking(self._slurm.run(["scontrol", "show", "config"]))
        wanted, by_node = frozenset(nodes), defaultdict[str, list[GpuSample]](list)
        held = _whole_gpus_by_job(read_gpus(self._slurm).gpus)
        steps = self._steps(held) if held else {}
        for job, gpus in held.items():
            for gpu in gpus if job in steps else ():
                if gpu.node in wanted:
                    by_node[gpu.node] += _samples(gpu, steps[job], len(gpus), seconds)
        return {node: tuple(samples) for node, samples in by_node.items() if samples}

    def _steps(self, held: Mapping[str, Sequence[Gpu]]) -> dict[str, list[StepGpuUse]]:
        """Read the steps of jobs, as far as sacct and sstat answer."""
        fields = "JobID,JobIDRaw,End,TRESUsageInMax"
        output = self._slurm.run(["sacct", "-a", "-n", "-P", "-j", ",".join(held), "-o", fields])
        numbers, ended = _parse_sacct(output)
        running = list(self._running(held, numbers))
        if running and all(step.now is None for step in running):
            raise SlurmkitError(
                f"no running step has a sample of {_UTIL}; slurmd takes samples only where"
                " gres.conf has AutoDetect=nvml or rsmi"
            )
        steps: dict[str, list[StepGpuUse]] = {}
        for job, number in numbers.items():
            if own := [step for step in running if step.job == number]:
                steps[job] = own + [step for step in ended if step.job == number]
        return steps

    def _running(
        self, held: Mapping[str, Sequence[Gpu]], numbers: Mapping[str, str]
    ) -> Iterator[StepGpuUse]:
        """Read the running steps: of all jobs, or if sstat refuses, of our own jobs."""
        try:
            yield from self._sstat([numbers[job] for job in held if job in numbers])
        except SlurmError as error:  # some jobs belong to other users
            me = getpass.getuser()
            own = [job for job, gpus in held.items() if job in numbers and gpus[0].user == me]
            if not own:
                raise SlurmkitError(
                    "sstat shows what a job uses only to root, SlurmUser and the owner of the job;"
                    " run this as one of them"
                ) from error
            yield from self._sstat([numbers[job] for job in own])

    def _sstat(self, jobs: Sequence[str]) -> list[StepGpuUse]:
        fields = "JobID,TRESUsageInMax,TRESUsageInTot"
        if not jobs:
            return []
        return _parse_sstat(
            self._slurm.run(["sstat", "-a", "-n", "-P", "-j", ",".join(jobs), "-o", fields])
        )


def _check_tracking(config: str) -> None:
    """Check that AccountingStorageTRES has gres/gpuutil; raises `SlurmkitError`."""
    lines = (line.partition("=") for line in config.splitlines())
    tracked = next((value for name, _, value in lines if name.strip() == _TRES_SETTING), "")
    if _UTIL not in tracked:
        raise SlurmkitError(
            f"{_TRES_SETTING} lacks {_UTIL}, so Slurm does not sample GPUs; add it in slurm.conf"
        )


_TRES_SETTING = "AccountingStorageTRES"


def _whole_gpus_by_job(gpus: Iterable[Gpu]) -> dict[str, list[Gpu]]:
    """Return GPUs by job, for jobs that hold only whole GPUs of known index."""
    held = defaultdict[str, list[Gpu]](list)
    for gpu in gpus:
        if gpu.state == "held" and gpu.job_id:
            held[gpu.job_id].append(gpu)
    return {
        job: own
        for job, own in held.items()
        if all(gpu.mig is None and gpu.index is not None for gpu in own)
    }


def _parse_sacct(text: str) -> tuple[dict[str, str], list[StepGpuUse]]:
    """Parse the output of sacct: JobIDRaw by JobID, and the steps that have ended."""
    numbers: dict[str, str] = {}
    steps = []
    for line in text.splitlines():
        name, raw, end, most = line.split("|", 3)
        if "." not in name:
            numbers[name] = raw
        elif end.isdecimal():
            number = raw.partition(".")[0]
            steps.append(StepGpuUse(number, _parse_percent(most), end=int(end)))
    return numbers, steps


def _parse_sstat(text: str) -> list[StepGpuUse]:
    """Parse the output of sstat: the running steps."""
    steps = []
    for line in text.splitlines():
        name, most, now = line.split("|", 2)
        memory = parse_mib(parse_tres(now).get(_MEM, ""), rounding="down", plain="")
        steps.append(
            StepGpuUse(name.partition(".")[0], _parse_percent(most), _parse_percent(now), memory)
        )
    return steps


def _parse_percent(usage: str) -> int | None:
    value = parse_tres(usage).get(_UTIL, "")
    return int(value) if value.isdecimal() else None


def _samples(
    gpu: Gpu, steps: Sequence[StepGpuUse], gpus: int, seconds: float
) -> Iterator[GpuSample]:
    """Yield the samples of a GPU that the steps of its job allow.

    The first sample (0 %) is of when the GPU became idle, if that is known; the second is of now.

    Args:
        gpu: the GPU.
        steps: all steps of the job that holds it.
        gpus: number of GPUs that the job holds.
        seconds: oldest age of the first sample; 0 for none.
    """
    running = [step.now for step in steps if step.end is None]
    if gpu.index is None or any(now is None for now in running):
        return
    now, percent = time.time(), sum(filter(None, running))
    if seconds and (since := _idle_since(gpu, steps)) is not None:
        yield GpuSample(index=gpu.index, taken=max(since, now - seconds), utilization=0)
    if percent == 0 or gpus == 1:
        memory = [step.mem for step in steps if step.end is None]
        whole = sum(filter(None, memory)) if gpus == 1 and None not in memory else None
        yield GpuSample(
            index=gpu.index, taken=now, utilization=min(percent, 100), memory_used=whole
        )


def _idle_since(gpu: Gpu, steps: Sequence[StepGpuUse]) -> float | None:
    """Return since when a GPU is unused; None if a running step used it.

    That is the start of its job, or the end of the last step that used a GPU or has no sample.
    """
    if gpu.since is None or any(step.most != 0 for step in steps if step.end is None):
        return None
    used = [step.end for step in steps if step.end is not None and step.most != 0]
    return max(used, default=gpu.since)
