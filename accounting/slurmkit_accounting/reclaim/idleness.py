"""Judge whether a job's GPUs are idle, from their curves; the same for a running and an ended run.

A point of a curve is the mean of the samples of some seconds. A window that starts inside a point
is extended to that point's start, so it is never shorter than the policy says. A GPU is idle if no
point of the window can have a sample at or above the policy's utilization, and samples cover enough
of the window. So the coarse points of a long run never hide a short burst of work; they may find
idle GPUs later.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal

import msgspec

from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.reclaim.policy import ReclaimJob, ReclaimPolicy

State = Literal["idle", "busy", "unknown"]
Step = Literal["report", "mail", "take"]
_OLD = 4  # intervals; an older last sample says nothing about now
# Until a step that failed is tried again; doubled with each failure.
_WAIT_SECONDS, _LONGEST_WAIT = 600, 86400


class IdleGpu(msgspec.Struct, frozen=True):
    """What the samples of one GPU say of a window.

    Attributes:
        mean: mean utilization, percent; None without samples.
        samples: number of samples with a known utilization.
        covered: share of the window that they cover, 0 to 1.
    """

    node: str
    gpu: str
    state: State
    mean: float | None
    samples: int
    covered: float


class Idleness(msgspec.Struct, frozen=True):
    """What the samples of a job's GPUs say of a window.

    Attributes:
        state: `unknown` if it is unknown of any GPU that the job holds.
        begin: epoch seconds at which the window begins.
        at: epoch seconds of the judgement, at which the window ends.
        gpus: each GPU with samples.
    """

    state: State
    begin: float
    at: float
    gpus: tuple[IdleGpu, ...] = ()

    @property
    def idle_gpus(self) -> int:
        """Number of GPUs that are idle."""
        return sum(each.state == "idle" for each in self.gpus)

    @property
    def mean(self) -> float | None:
        """Mean utilization of the idle GPUs, percent."""
        known = [each.mean for each in self.gpus if each.state == "idle" and each.mean is not None]
        return sum(known) / len(known) if known else None

    @property
    def samples(self) -> int:
        """Number of samples of all GPUs."""
        return sum(each.samples for each in self.gpus)

    @property
    def covered(self) -> float:
        """Share of the window that the samples of the GPU with the fewest cover."""
        return min((each.covered for each in self.gpus), default=0.0)


class PastAct(msgspec.Struct, frozen=True):
    """Something that was done about a run before.

    Attributes:
        step: the step; `take` for a requeue or a cancellation.
        at: epoch seconds.
        failed: whether it was not done after all.
    """

    step: Step
    at: float
    failed: bool = False


class GpuIdleCurve:
    """The curve of one GPU, prepared so that any window of it is judged at once.

    Args:
        use: the GPU's summary, with its curve.
        below: a sample with at least this utilization is busy, percent; see
            `CurvePoint.may_be_busy`.
    """

    def __init__(self, use: GpuUse, below: float) -> None:
        self.use = use
        self.begin, self.step = use.start, use.interval
        self._busy = array("q")  # of each point: the last busy one up to it, -1 without one
        known, sums = [0], [0.0]
        if use.curve is not None:
            self.begin, self.step = use.curve.begin, use.curve.step
            last = -1
            for place, point in enumerate(use.curve.points()):
                percent = point.utilization
                if point.may_be_busy(below):
                    last = place
                self._busy.append(last)
                known.append(0 if percent is None else point.samples)
                sums.append(0.0 if percent is None else percent * point.samples)
        covered = (min(each * use.interval, self.step) for each in known)
        self._known, self._sums = list(accumulate(known)), list(accumulate(sums))
        self._covered = list(accumulate(covered))
        self.size = len(self._busy)

    def judge(self, begin: float, at: float, covered: float) -> IdleGpu:
        """Judge the window from `begin` to `at`, in which points must cover a share."""
        last = self._last_place(at)
        first = max(int((begin - self.begin) // self.step), 0)
        samples = self._known[last + 1] - self._known[first] if first <= last else 0
        where = (self.use.node, self.use.gpu.key)
        if not samples:
            return IdleGpu(*where, "unknown", None, 0, 0.0)
        seconds = self._covered[last + 1] - self._covered[first]
        share = min(seconds / max(at - (self.begin + first * self.step), 1.0), 1.0)
        mean = (self._sums[last + 1] - self._sums[first]) / samples
        state: State = "idle" if self._busy[last] < first else "busy"
        if state == "idle" and (share < covered or self._is_old(last, at)):
            state = "unknown"
        return IdleGpu(*where, state, mean, samples, share)

    def is_busy_since(self, begin: float, at: float) -> bool:
        """Return whether a point that ended after `begin` is busy."""
        last = self._last_place(at)
        busy = self._busy[last] if last >= 0 else -1
        return busy >= 0 and self.begin + (busy + 1) * self.step > begin

    def longest_idle(self) -> int:
        """Return the length of the longest stretch without a busy point, in seconds."""
        stretches = (place - busy for place, busy in enumerate(self._busy))
        return max(stretches, default=0) * self.step

    def moments(self) -> Iterator[int]:
        """Yield the end of each point, epoch seconds."""
        yield from range(
            self.begin + self.step, self.begin + (self.size + 1) * self.step, self.step
        )

    def _last_place(self, at: float) -> int:
        """Return the last point that began before a time."""
        return min(int(-(-(at - self.begin) // self.step)) - 1, self.size - 1)

    def _is_old(self, last: int, at: float) -> bool:
        """Return whether the last sample is too old to say anything about now."""
        while last >= 0 and self._known[last + 1] == self._known[last]:
            last -= 1
        point_end = self.begin + (last + 1) * self.step
        exact = self.use.last if self.use.last is not None and self.use.last <= at else at
        oldest = at - _OLD * self.use.interval
        return point_end < oldest or exact < oldest - self.use.interval


def make_curves(uses: Iterable[GpuUse], policy: ReclaimPolicy) -> list[GpuIdleCurve]:
    """Prepare the curves of a run's GPUs for a policy."""
    return [GpuIdleCurve(use, policy.below) for use in uses]


def judge_job(
    curves: Sequence[GpuIdleCurve], job: ReclaimJob, policy: ReclaimPolicy, begin: float, at: float
) -> Idleness:
    """Judge a job's GPUs from `begin` to `at`."""
    if not job.gpus or len(curves) != job.gpus:
        return Idleness("unknown", begin, at)
    gpus = tuple(curve.judge(begin, at, policy.covered) for curve in curves)
    found = Idleness("busy", begin, at, gpus)
    if any(each.state == "unknown" for each in gpus):
        return msgspec.structs.replace(found, state="unknown")
    if found.idle_gpus < needed_gpus(job, policy):
        return found
    return msgspec.structs.replace(found, state="idle")


def next_step(
    curves: Sequence[GpuIdleCurve],
    job: ReclaimJob,
    policy: ReclaimPolicy,
    past: Iterable[PastAct],
    *,
    at: float,
    zone: Zone,
    keep_until: float = 0.0,
) -> tuple[Step, Idleness] | None:
    """Return what a policy does about a run at a time, and the samples that say so.

    Args:
        curves: the curves of its GPUs, as known at that time.
        job: the run.
        policy: the policy that decides about it.
        past: what was done about the run before.
        at: epoch seconds.
        zone: time zone of the policy's hours of day.
        keep_until: when a person's "leave it" ends; epoch seconds.

    Returns:
        The step and what was judged; None if nothing is done.
    """
    length = policy.window_seconds(job)
    floor = max(job.start + 60 * policy.skip_minutes, keep_until)
    if at - floor < length or policy.exemption(job) or not policy.acts_at(at, zone):
        return None
    begin = floor if policy.window == "first" else at - length
    found = judge_job(curves, job, policy, begin, at)
    if found.state != "idle":
        return None
    spell = [
        act
        for act in past
        if act.at >= keep_until and not has_worked_since(curves, job, policy, act.at, at)
    ]
    step = _step_of_spell(policy, spell, at)
    return None if step is None else (step, found)


def replay(
    curves: Sequence[GpuIdleCurve],
    job: ReclaimJob,
    policy: ReclaimPolicy,
    *,
    until: float,
    zone: Zone,
    keep_until: float = 0.0,
) -> list[tuple[Step, Idleness]]:
    """Return what a policy would have done about a run, judged at the end of each point.

    It ends with the step `take`, after which the run would not have gone on.

    Args:
        curves: the whole curves.
        job: the run.
        policy: the policy.
        until: end of the run, or of what is looked at; epoch seconds.
        zone: see `next_step`, as `keep_until`.
        keep_until: see there.
    """
    done: list[tuple[Step, Idleness]] = []
    if not may_be_idle(curves, job, policy):
        return done
    past: list[PastAct] = []
    for at in max(curves, key=lambda curve: curve.step).moments():
        if at > until:
            break
        found = next_step(curves, job, policy, past, at=at, zone=zone, keep_until=keep_until)
        if found is not None:
            done.append(found)
            past.append(PastAct(found[0], at))
            if found[0] == "take":
                break
    return done


def has_worked_since(
    curves: Sequence[GpuIdleCurve], job: ReclaimJob, policy: ReclaimPolicy, since: float, at: float
) -> bool:
    """Return whether so many GPUs worked since a time that the job's spell of idleness ended."""
    worked = sum(curve.is_busy_since(since, at) for curve in curves)
    return job.gpus - worked < needed_gpus(job, policy)


def may_be_idle(curves: Sequence[GpuIdleCurve], job: ReclaimJob, policy: ReclaimPolicy) -> bool:
    """Return whether enough GPUs have a stretch as long as the window; cheap, for many runs."""
    if not job.gpus or len(curves) != job.gpus:
        return False
    length = policy.window_seconds(job)
    return sum(curve.longest_idle() >= length for curve in curves) >= needed_gpus(job, policy)


def needed_gpus(job: ReclaimJob, policy: ReclaimPolicy) -> int:
    """Return how many GPUs of a job must be idle."""
    return max(math.ceil(policy.idle_share * job.gpus - 1e-9), 1)


def _step_of_spell(policy: ReclaimPolicy, spell: Sequence[PastAct], at: float) -> Step | None:
    """Return the next step, after what was done in the same spell."""
    failed = [act.at for act in spell if act.failed]
    pause = min(_WAIT_SECONDS * 2 ** min(len(failed) - 1, 10), _LONGEST_WAIT) if failed else 0
    if failed and at - failed[-1] < pause:
        return None
    done = {act.step for act in spell if not act.failed}
    if policy.action == "report":
        return None if done else "report"
    if "mail" not in done:
        return "mail"
    if policy.action == "mail" or "take" in done:
        return None
    mailed = min(act.at for act in spell if act.step == "mail" and not act.failed)
    return "take" if at - mailed >= 60 * policy.warn_minutes else None
