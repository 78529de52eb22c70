"""What each GPU of the running jobs did lately, from the samples of many GPUs at once with numpy.

8,000 GPUs have half a million samples in half an hour, and each operator's screen asks for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection

from slurmkit.state.gpu_metrics import IDLE_BELOW
from slurmkit_accounting.gpu_use.recent import (
    SAMPLE_FIELDS,
    RecentSample,
    load_packed,
    unpack_sample,
)

MOST_RECENT = 60  # values for a sparkline
# Rows of nodes and rounds: whoever shows a screen in the same process must not stand still.
_AT_ONCE = 2000
_GAP = 3  # intervals without a sample: then it is unknown what happened between
_SAMPLE = np.dtype([(name, f"<{kind}") for name, kind in SAMPLE_FIELDS])
_NO_VALUE = -1  # percent of a time whose use is unknown


class UseLately(NamedTuple):
    """What one GPU of one run did since a time; None is unknown.

    Attributes:
        last: the newest sample.
        since: epoch seconds from which on no sample of utilization is missing.
        busiest: the largest utilization, percent.
        idle_since: epoch seconds from which on the GPU is idle and no sample is missing; None if
            it is not, or if the newest sample does not say.
        recent: at most `MOST_RECENT` whole percents, oldest first: the mean of each `step` seconds
            up to the newest sample.
    """

    last: RecentSample
    since: float | None
    busiest: float | None
    idle_since: float | None
    recent: tuple[int | None, ...]


class _Samples(NamedTuple):
    """Samples of utilization in columns, ordered by GPU, then as they came; and the newest samples.

    Attributes:
        gpu: which of the GPUs each is of, by its place among them.
        at: epoch seconds.
        percent: utilization.
        last_at: epoch seconds of the newest sample of each GPU; NaN without one.
        last: the newest sample of each GPU, as it is stored.
    """

    gpu: Any
    at: Any
    percent: Any
    last_at: Any
    last: Any


def load_latest(
    connection: Connection,
    begin: float,
    intervals: Mapping[int, int],
    nodes: Collection[str],
    clusters: Collection[int],
    step: int,
) -> dict[int, UseLately]:
    """Load what GPUs did since a time, by row id of the summary; those without a sample lack.

    Args:
        connection: to the ledger.
        begin: epoch seconds.
        intervals: seconds that a sample covers, by row id of the summary.
        nodes: those that the summaries are of.
        clusters: row ids of the clusters that they are of.
        step: seconds of each of `UseLately.recent`.
    """
    if not intervals:
        return {}
    ids = np.array(sorted(intervals), np.int64)
    interval = np.array([intervals[number] for number in ids.tolist()], np.int64)
    parts = (
        part
        for number in sorted(clusters)
        for part in load_packed(connection, begin, number, nodes).partitions(_AT_ONCE)
    )
    samples = _unpack(parts, ids)
    gpu, at, percent, last_at, last = samples
    judged = _judge_samples(gpu, at, percent, interval)
    recent = _recent(gpu, at, percent, last_at, np.minimum(interval, step), step)

    there = np.flatnonzero(~np.isnan(last_at)).tolist()
    return {
        int(ids[place]): UseLately(
            sample,
            since,
            busiest,
            None if sample.reading.utilization is None else idle_since,
            recent.get(place, ()),
        )
        for place in there
        for sample in [unpack_sample(float(last_at[place]), last[place].item())]
        for since, busiest, idle_since in [judged.get(place, (None, None, None))]
    }


def _unpack(parts: Iterable[Sequence[Any]], ids: Any) -> _Samples:
    """Return the samples of some summaries, given by their sorted row ids.

    Args:
        parts: times and packed samples of nodes and rounds, in the order in which they came.
        ids: row ids of summaries, sorted.
    """
    last_at, last = np.full(len(ids), np.nan), np.zeros(len(ids), _SAMPLE)
    gpus, times, percents = [np.zeros(0, np.int64)], [np.zeros(0)], [np.zeros(0)]
    for part in parts:
        rows = np.frombuffer(b"".join(packed for _, packed in part), _SAMPLE)
        counts = [len(packed) // _SAMPLE.itemsize for _, packed in part]
        at = np.repeat(np.array([seconds for seconds, _ in part], np.float64), counts)
        gpu = np.minimum(np.searchsorted(ids, rows["use_id"]), len(ids) - 1)
        ours = ids[gpu] == rows["use_id"]
        # Of several samples of a GPU, the last one stays.
        last[gpu[ours]], last_at[gpu[ours]] = rows[ours], at[ours]
        known = np.flatnonzero(ours & ~np.isnan(rows["utilization"]))
        gpus.append(gpu[known])
        times.append(at[known])
        percents.append(rows["utilization"][known])
    gpu = np.concatenate(gpus)
    order = np.argsort(gpu, kind="stable")
    columns = np.concatenate(times)[order], np.concatenate(percents)[order]
    return _Samples(gpu[order], *columns, last_at, last)


def _firsts(gpu: Any) -> Any:
    """Return the places at which the samples of each GPU begin."""
    return np.flatnonzero(np.diff(gpu, prepend=-1))


def _lasts(gpu: Any) -> Any:
    """Return the places of the last sample of each GPU."""
    return np.append(_firsts(gpu)[1:], len(gpu)) - 1


def _judge_samples(
    gpu: Any, at: Any, percent: Any, interval: Any
) -> dict[int, tuple[float, float, float | None]]:
    """Return `since`, `busiest` and `idle_since` of `UseLately`, by GPU."""
    if not len(gpu):
        return {}
    firsts = _firsts(gpu)
    after_gap = np.diff(at, prepend=-np.inf) > _GAP * interval[gpu]
    after_gap[firsts] = True
    begins = np.flatnonzero(after_gap)
    begins = begins[_lasts(gpu[begins])]  # the last gap of each GPU
    most = np.maximum.reduceat(percent, firsts)
    places = np.arange(len(gpu))
    busy = np.maximum.reduceat(np.where(percent >= IDLE_BELOW, places, -1), firsts)
    idle = np.maximum(begins, busy + 1)  # the first sample after the last busy one
    is_idle = idle <= _lasts(gpu)
    idle_since = np.where(is_idle, at[np.minimum(idle, len(at) - 1)], np.nan)
    return {
        number: (since, busiest, None if np.isnan(idle_at) else idle_at)
        for number, since, busiest, idle_at in zip(
            gpu[firsts].tolist(),
            at[begins].tolist(),
            most.tolist(),
            idle_since.tolist(),
            strict=True,
        )
    }


def _recent(
    gpu: Any, at: Any, percent: Any, last_at: Any, covered: Any, step: int
) -> dict[int, tuple[int | None, ...]]:
    """Return `recent` of `UseLately`, by GPU.

    A sample covers the time since the one before, one interval at most: so a step between two
    samples, which come a little late or early, has the value of the later one.

    Args:
        gpu: which GPU each sample is of.
        at: epoch seconds of each sample.
        percent: utilization of each sample.
        last_at: epoch seconds of the newest sample of each GPU.
        covered: seconds that a sample of each GPU covers, a step at most.
        step: seconds.
    """
    if not len(gpu):
        return {}
    firsts = _firsts(gpu)
    age = last_at[gpu] - at
    steps = (age // step).astype(np.int64)
    count = np.zeros(len(last_at), np.int64)
    count[gpu[firsts]] = np.minimum(steps[firsts] + 1, MOST_RECENT)

    size = len(last_at) * MOST_RECENT
    place = count[gpu] - 1 - steps
    inside = (place >= 0) & (place < count[gpu])
    cell = gpu[inside] * MOST_RECENT + place[inside]
    numbers = np.bincount(cell, minlength=size)
    means = np.bincount(cell, percent[inside], minlength=size) / np.maximum(numbers, 1)

    before = count[gpu] - 1 - ((age + covered[gpu]) // step).astype(np.int64)
    inside = (before >= 0) & (before < count[gpu])
    covering = np.full(size, np.nan)
    covering[gpu[inside] * MOST_RECENT + before[inside]] = percent[inside]

    values = np.where(numbers > 0, means, covering)
    whole = np.where(np.isnan(values), _NO_VALUE, np.rint(values)).astype(np.int64)
    table = whole.reshape(-1, MOST_RECENT)
    return {
        number: tuple(None if value < 0 else value for value in table[number, :length].tolist())
        for number in gpu[firsts].tolist()
        for length in [int(count[number])]
    }
