"""A job's place among those that wait, and what its priority is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurmkit.errors import SlurmError
from slurmkit.queue.rows import QueueRow, record_mark
from slurmkit.slurm import Slurm
from slurmkit.why.model import Factor, Priority, Rank
from slurmkit.why.scene import may_start

# sprio's signs for the weighted factors (sprio(1), --format), and slurm.conf's weight of each.
_FACTORS = {
    "age": ("%A", "PriorityWeightAge"),
    "association": ("%B", "PriorityWeightAssoc"),
    "fairshare": ("%F", "PriorityWeightFairShare"),
    "job size": ("%J", "PriorityWeightJobSize"),
    "partition": ("%P", "PriorityWeightPartition"),
    "QOS": ("%Q", "PriorityWeightQOS"),
    "site": ("%S", ""),
    "TRES": ("%T", ""),
    "nice": ("%N", ""),
}
_MEANS = {
    "age": "it grows while the job waits",
    "association": "an administrator sets it for accounts and people",
    "fairshare": "who has used less of their share goes first",
    "job size": "the site favours larger or smaller jobs",
    "partition": "other partitions may have more",
    "QOS": "another QOS may have more",
}


def place_in(partition: str, job: QueueRow, rows: Iterable[QueueRow], now: float) -> Rank | None:
    """A pending job's rank in one partition; None for one that is not in the race."""
    there = [r for r in rows if r.state == "PENDING" and partition in r.partition.split(",")]
    racing = [row for row in there if may_start(row, now)]
    if not may_start(job, now):
        return None
    before = sum(comes_before(row, job) for row in racing)
    return Rank(partition, before + 1, len(racing), len(there) - len(racing))


def comes_before(other: QueueRow, job: QueueRow) -> bool:
    """Whether another pending job is looked at first: by priority, then by number."""
    return (-other.priority, int(other.raw_id)) < (-job.priority, int(job.raw_id))


def read_priority(slurm: Slurm, job: QueueRow, config: Mapping[str, str]) -> tuple[Priority, ...]:
    """Ask sprio; empty where Slurm does not work out priorities for the job.

    Args:
        slurm: the border to Slurm.
        job: a pending one.
        config: `scontrol show config`, for the weights.
    """
    mark = record_mark()
    signs = ["%r", "%Y", *(sign for sign, _ in _FACTORS.values())]
    try:
        argv = ["sprio", "--noheader", f"--jobs={job.raw_id}", f"--format={mark.join(signs)}{mark}"]
        return parse_priority(slurm.run(argv), mark, config)
    except SlurmError:
        return ()


def parse_priority(text: str, mark: str, config: Mapping[str, str]) -> tuple[Priority, ...]:
    """Read sprio's answer: a row for each partition the job waits in."""
    size = len(_FACTORS) + 2
    parts = text.split(mark)
    rows = (parts[at : at + size] for at in range(0, len(parts) - size, size))
    return tuple(_priority([value.strip() for value in row], config) for row in rows)


def _priority(row: list[str], config: Mapping[str, str]) -> Priority:
    partition, total, *points = row
    factors = tuple(
        Factor(name, _points(name, value), _weight(config.get(setting, "")))
        for (name, (_, setting)), value in zip(_FACTORS.items(), points, strict=True)
    )
    kept = tuple(factor for factor in factors if factor.points or factor.most)
    return Priority(partition, int(float(total)), kept, reading(kept))


def _points(name: str, text: str) -> float:
    """Points of a factor; of TRES, `cpu=1.0,mem=2.0`, their sum. Niceness takes its own away."""
    values = [item.rpartition("=")[2] for item in text.split(",") if item]
    return sum(float(value) for value in values) * (-1 if name == "nice" else 1)


def _weight(text: str) -> float | None:
    return float(text) if text.isdigit() and int(text) else None


def reading(factors: Iterable[Factor]) -> str:
    """Say in one sentence which factor a job lacks most."""
    weighed = [(f.most - f.points, f) for f in factors if f.most is not None]
    if not weighed:
        return "no factor has a weight here: jobs go by their order"
    lack, weakest = max(weighed, key=lambda pair: pair[0])
    if lack <= 0:
        return "every factor is at its best"
    means = _MEANS.get(weakest.name, "")
    return (
        f"{weakest.name} is its weakest factor: {weakest.points:.0f} of {weakest.most:.0f} points"
        + (f" ({means})" if means else "")
    )
