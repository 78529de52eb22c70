"""GPU metrics from Slurm itself: gres/gpuutil and gres/gpumem of running steps.

slurmd samples a step's processes by NVML or RSMI and adds up what they use of all GPUs, so Slurm
never says which of several GPUs is busy. Of a single one it tells something where a job has one
GPU, and where its steps have used none at all. All else is left out, as are parts of GPUs and MIG
slices, which the samples do not cover. sstat answers root, SlurmUser, and the owner of a job.
"""

from __future__ import annotations

import getpass
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from slurmkit.errors import SlurmError, SlurmkitError
from slurmkit.gpumap.model import Gpu
from slurmkit.gpumap.read import read_gpus
from slurmkit.plugins import GpuSample
from slurmkit.slurm import LocalSlurm, Slurm
from slurmkit.tres import parse_tres

_UTIL, _MEM = "gres/gpuutil", "gres/gpumem"
_MIB = {"": 2**-20, "K": 2**-10, "M": 1, "G": 2**10, "T": 2**20}


class Step(msgspec.Struct, frozen=True):
    """A step of a job.

    Attributes:
        job: number of its job.
        most: percent that any task has used at once; None is unknown.
        now: percent that all tasks use, where it still runs.
        mem: MiB of GPU memory, likewise.
        end: epoch seconds; None while it runs.
    """

    job: str
    most: int | None
    now: int | None = None
    mem: int | None = None
    end: int | None = None


class SlurmUsage:
    """See `slurmkit.plugins.GpuMetrics`."""

    def __init__(self, slurm: Slurm | None = None) -> None:
        self._slurm = slurm or LocalSlurm()

    def read(self, nodes: Iterable[str], *, seconds: float = 0) -> dict[str, tuple[GpuSample, ...]]:
        """Samples by node; raises where the cluster does not track what GPUs do."""
        _see_that_it_tracks(self._slurm.run(["scontrol", "show", "config"]))
        wanted, found = frozenset(nodes), defaultdict[str, list[GpuSample]](list)
        held = _by_job(read_gpus(self._slurm).gpus)
        steps = self._steps(held) if held else {}
        for job, gpus in held.items():
            for gpu in gpus if job in steps else ():
                if gpu.node in wanted:
                    found[gpu.node] += _samples(gpu, steps[job], len(gpus), seconds)
        return {node: tuple(samples) for node, samples in found.items() if samples}

    def _steps(self, held: Mapping[str, Sequence[Gpu]]) -> dict[str, list[Step]]:
        """Steps of jobs that could be asked about."""
        fields = "JobID,JobIDRaw,End,TRESUsageInMax"
        told = self._slurm.run(["sacct", "-a", "-n", "-P", "-j", ",".join(held), "-o", fields])
        numbers, ended = _ended(told)
        running = list(self._running(held, numbers))
        if running and all(step.now is None for step in running):
            raise SlurmkitError(
                f"no step that runs has a sample of {_UTIL}: slurmd takes them where gres.conf has"
                " AutoDetect=nvml or rsmi"
            )
        steps: dict[str, list[Step]] = {}
        for job, number in numbers.items():
            if own := [step for step in running if step.job == number]:
                steps[job] = own + [step for step in ended if step.job == number]
        return steps

    def _running(
        self, held: Mapping[str, Sequence[Gpu]], numbers: Mapping[str, str]
    ) -> Iterator[Step]:
        try:
            yield from self._sstat([numbers[job] for job in held if job in numbers])
        except SlurmError as error:  # there are jobs of others
            me = getpass.getuser()
            own = [job for job, gpus in held.items() if job in numbers and gpus[0].user == me]
            if not own:
                raise SlurmkitError(
                    "sstat tells only root, SlurmUser and a job's owner what a job uses; ask as one"
                    " of them"
                ) from error
            yield from self._sstat([numbers[job] for job in own])

    def _sstat(self, jobs: Sequence[str]) -> list[Step]:
        fields = "JobID,TRESUsageInMax,TRESUsageInTot"
        if not jobs:
            return []
        return _used(
            self._slurm.run(["sstat", "-a", "-n", "-P", "-j", ",".join(jobs), "-o", fields])
        )


def _see_that_it_tracks(config: str) -> None:
    lines = (line.partition("=") for line in config.splitlines())
    tracked = next((value for name, _, value in lines if name.strip() == _TRACKED), "")
    if _UTIL not in tracked:
        raise SlurmkitError(f"{_TRACKED} lacks {_UTIL}, so Slurm does not sample GPUs")


_TRACKED = "AccountingStorageTRES"


def _by_job(gpus: Iterable[Gpu]) -> dict[str, list[Gpu]]:
    """Whole GPUs by the job that holds them; no job that also holds others."""
    held = defaultdict[str, list[Gpu]](list)
    for gpu in gpus:
        if gpu.state == "held" and gpu.job_id:
            held[gpu.job_id].append(gpu)
    return {
        job: own
        for job, own in held.items()
        if all(gpu.mig is None and gpu.index is not None for gpu in own)
    }


def _ended(text: str) -> tuple[dict[str, str], list[Step]]:
    """Numbers of jobs by their names, and the steps that are over, of lines of sacct."""
    numbers: dict[str, str] = {}
    steps = []
    for line in text.splitlines():
        name, raw, end, most = line.split("|", 3)
        if "." not in name:
            numbers[name] = raw
        elif end.isdecimal():
            number = raw.partition(".")[0]
            steps.append(Step(number, _percent(most), end=int(end)))
    return numbers, steps


def _used(text: str) -> list[Step]:
    """Steps that run, of lines of sstat."""
    found = []
    for line in text.splitlines():
        name, most, now = line.split("|", 2)
        memory = _mebibytes(parse_tres(now).get(_MEM, ""))
        found.append(Step(name.partition(".")[0], _percent(most), _percent(now), memory))
    return found


def _percent(usage: str) -> int | None:
    value = parse_tres(usage).get(_UTIL, "")
    return int(value) if value.isdecimal() else None


def _mebibytes(amount: str) -> int | None:
    digits, unit = (amount, "") if amount[-1:].isdigit() else (amount[:-1], amount[-1:].upper())
    if not digits.replace(".", "", 1).isdecimal() or unit not in _MIB:
        return None
    return int(float(digits) * _MIB[unit])


def _samples(gpu: Gpu, steps: Sequence[Step], gpus: int, seconds: float) -> Iterator[GpuSample]:
    """What the steps of its job say of a GPU: since when it has done nothing, and now."""
    running = [step.now for step in steps if step.end is None]
    if gpu.index is None or any(now is None for now in running):
        return
    now, percent = time.time(), sum(filter(None, running))
    if seconds and (since := _quiet_since(gpu, steps)) is not None:
        yield GpuSample(index=gpu.index, taken=max(since, now - seconds), utilisation=0)
    if percent == 0 or gpus == 1:
        memory = [step.mem for step in steps if step.end is None]
        whole = sum(filter(None, memory)) if gpus == 1 and None not in memory else None
        yield GpuSample(
            index=gpu.index, taken=now, utilisation=min(percent, 100), memory_used=whole
        )


def _quiet_since(gpu: Gpu, steps: Sequence[Step]) -> float | None:
    """The begin of its job, or the end of the last step that used a GPU or did not say."""
    if gpu.since is None or any(step.most != 0 for step in steps if step.end is None):
        return None
    used = [step.end for step in steps if step.end is not None and step.most != 0]
    return max(used, default=gpu.since)
