"""Random histories of GPUs, and a second implementation of the rules of `slurmkit reclaim`.

The second implementation looks at every sample of a window again at each moment, one GPU after
another, and knows nothing of curves.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.gpu_use.samples import GpuName, GpuReading
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.reclaim.policy import ReclaimJob, ReclaimPolicy

INTERVAL = 30
START = 1_793_520_000  # 2026-11-01 08:00 UTC
TRES = "cpu=4,gres/gpu:a100={0},gres/gpu={0},mem=8G,node=1"


class History(NamedTuple):
    """A run and its samples: of each GPU the percent at each interval, None without a sample."""

    job: ReclaimJob
    samples: tuple[tuple[int | None, ...], ...]

    @property
    def end(self) -> int:
        return self.job.start + INTERVAL * max(map(len, self.samples))

    def uses(self, until: float) -> list[GpuUse]:
        """The summaries after all samples up to a time, as the ledger has them."""
        new = [self._use(number) for number in range(len(self.samples))]
        return self.grow(new, self.job.start, until)

    def grow(self, uses: list[GpuUse], since: float, until: float) -> list[GpuUse]:
        """Add the samples after one time and up to another."""
        first = int(since - self.job.start) // INTERVAL
        last = int(until - self.job.start) // INTERVAL
        for number, use in enumerate(uses):
            for at, percent in islice(self.of_gpu(number), first, last + 1):
                if since < at <= until and percent is not None:
                    use.add(GpuReading(at=at, utilization=percent))
        return uses

    def _use(self, number: int) -> GpuUse:
        job = self.job
        return GpuUse(
            cluster_id=job.cluster_id, job=job.job_id_raw, start=job.start, node="c1",
            gpu=GpuName(f"GPU-{job.job_id_raw}-{number}", "", number), source="exporter",
            interval=INTERVAL,
        )  # fmt: skip

    def of_gpu(self, number: int) -> Iterator[tuple[int, int | None]]:
        """Time and percent of each sample: it comes in the middle of its interval."""
        for place, percent in enumerate(self.samples[number]):
            yield self.job.start + place * INTERVAL + INTERVAL // 2, percent


def make_job(number: int = 1, gpus: int = 1, **other: Any) -> ReclaimJob:
    facts = {
        "cluster_id": 1, "job_id_raw": number, "job_id": str(number), "user": "alice", "uid": 1001,
        "account": "vision", "partition": "gpu", "qos": "normal", "submit": START - 60,
        "start": START, "limit_end": START + 86400, "gpus": gpus, "alloc_tres": TRES.format(gpus),
    }  # fmt: skip
    return ReclaimJob(**(facts | other))


def random_history(dice: random.Random, number: int) -> History:
    """Stretches of work, idleness and nothing measured, of one to four GPUs."""
    gpus = dice.choice((1, 1, 1, 2, 4))
    length = dice.randint(20, 290)  # a curve of at most 300 points has them all
    samples = []
    kinds = dice.choice(
        (
            ("idle", "idle", "idle", "busy"),
            ("idle", "idle", "busy", "thin"),
            ("idle", "busy", "unknown", "thin", "flicker"),
        )
    )
    # GPUs of a job mostly do the same.
    stretches = [(dice.choice(kinds), dice.randint(1, 120)) for _ in range(length)]
    for _ in range(gpus):
        values: list[int | None] = []
        for usual, count in stretches:
            kind = usual if dice.random() < 0.8 else dice.choice(kinds)
            values += [_value(dice, kind) for _ in range(count)]
        samples.append(tuple(values[:length]))
    other: dict[str, Any] = {
        "user": dice.choice(("alice",) * 9 + ("olga",)),
        "qos": dice.choice(("normal",) * 9 + ("urgent",)),
        "batch": dice.random() < 0.8,
        "het": dice.random() < 0.05,
        "reservation": dice.choice(("",) * 9 + ("course",)),
        "suspended": dice.choice((0,) * 9 + (700,)),
    }
    # Of some jobs not every GPU is known.
    held = gpus + (dice.random() < 0.1)
    return History(make_job(number, held, **other), tuple(samples))


def _value(dice: random.Random, kind: str) -> int | None:
    if kind == "busy":
        return dice.randint(2, 100)
    if kind == "flicker":
        return dice.choice((0, 0, 0, 0, 60))
    if kind == "unknown" or (kind == "thin" and dice.random() < 0.4):
        return None
    return 0


def random_policy(dice: random.Random) -> ReclaimPolicy:
    return ReclaimPolicy(
        action=dice.choice(("report", "mail", "requeue", "cancel")),
        window=dice.choice(("sliding", "sliding", "first")),
        minutes=dice.choice((10, 20, 30)),
        skip_minutes=dice.choice((0, 5, 10)),
        below=dice.choice((1.0, 5.0)),
        idle_share=dice.choice((1.0, 1.0, 0.5)),
        covered=dice.choice((0.5, 0.5, 0.8, 1.0)),
        interactive_minutes=dice.choice((0, 40)),
        warn_minutes=dice.choice((1, 10, 30)),
        hours=dice.choice(("", "", "", "8-9", "9-8")),
        except_users=("olga",),
        except_qos=("urgent",),
        except_reservations=("course",),
    )


def brute_force(history: History, policy: ReclaimPolicy, zone: Zone) -> list[tuple[str, int]]:
    """Steps and times of what a policy does about a run, judged after each interval."""
    job = history.job
    if (
        job.user == "olga" or job.qos == "urgent" or job.reservation == "course" or job.het
        or job.suspended > 300 or (not job.batch and not policy.interactive_minutes)
    ):  # fmt: skip
        return []
    window = 60 * (policy.minutes if job.batch else policy.interactive_minutes)
    done: list[tuple[str, int]] = []
    intervals = (history.end - job.start) // INTERVAL
    for passed in range(1, intervals + 1):
        at = job.start + passed * INTERVAL
        floor = job.start + 60 * policy.skip_minutes
        if at - floor < window or not _within_hours(policy, at, zone):
            continue
        begin = floor if policy.window == "first" else at - window
        if not _is_idle(history, policy, begin, at):
            continue
        step = _next(history, policy, done, at)
        if step:
            done.append((step, at))
            if step == "take":
                break
    return done


def _within_hours(policy: ReclaimPolicy, at: int, zone: Zone) -> bool:
    hour = datetime.fromtimestamp(at, zone.rules).hour
    return {"": True, "8-9": hour == 8, "9-8": hour != 8}[policy.hours]


def _is_idle(history: History, policy: ReclaimPolicy, begin: int, at: int) -> bool:
    job = history.job
    if len(history.samples) != job.gpus:
        return False
    idle = 0
    for number in range(job.gpus):
        # From the begin of the interval in which the window begins.
        first = job.start + (begin - job.start) // INTERVAL * INTERVAL
        inside = [(when, percent) for when, percent in history.of_gpu(number) if first <= when < at]
        known = [percent for _, percent in inside if percent is not None]
        if any(percent >= policy.below for percent in known):
            continue
        latest = max((when for when, percent in inside if percent is not None), default=None)
        if latest is None or len(known) / len(inside) < policy.covered - 1e-12:
            return False  # unknown: never touched
        if at - (latest + INTERVAL // 2) > 4 * INTERVAL:
            return False
        idle += 1
    return idle >= math.ceil(policy.idle_share * job.gpus)


def _next(
    history: History, policy: ReclaimPolicy, done: list[tuple[str, int]], at: int
) -> str | None:
    same = [(step, when) for step, when in done if not _worked(history, policy, when, at)]
    steps = [step for step, _ in same]
    if policy.action == "report":
        return None if steps else "report"
    if "mail" not in steps:
        return "mail"
    mailed = next(when for step, when in same if step == "mail")
    if policy.action == "mail" or at - mailed < 60 * policy.warn_minutes:
        return None
    return "take"


def _worked(history: History, policy: ReclaimPolicy, since: int, at: int) -> bool:
    gpus = history.job.gpus
    worked = sum(
        any(
            percent is not None and percent >= policy.below and since <= when < at
            for when, percent in history.of_gpu(number)
        )
        for number in range(len(history.samples))
    )
    return gpus - worked < math.ceil(policy.idle_share * gpus)
