"""Runs as a test makes them, and what they held in a window, counted run by run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st
from slurmkit_accounting.ledger.schema.people import eras
from slurmkit_accounting.ledger.schema.runs import clusters, ingests, runs, suspensions
from slurmkit_accounting.ledger.schema.types import metadata
from slurmkit_accounting.ledger.schema.usage import usage_keys
from slurmkit_accounting.usage import tables
from sqlalchemy import Connection, Engine, create_engine, delete, insert

CLUSTERS = ("lab", "big")
ENDED_STATES = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "REQUEUED", "NODE_FAIL")
TYPES = ({}, {"a100": 2}, {"": 1}, {"a100": 1, "h100": 3}, {"a100_1g.5gb": 4}, {"shard": 2})


@dataclass(frozen=True)
class Job:
    """A run; `until` is where it counts to when it has no end."""

    submit: int
    start: int | None
    end: int | None
    until: int | None = None
    user: str = "alice"
    cluster: int = 1
    state: str = "COMPLETED"
    redone: bool = False
    gpus: dict[str, int] = field(default_factory=dict)
    cpus: int = 4
    nodes: int = 1
    mem: int = 1024
    energy: int | None = None
    cpu_used_ms: int | None = None
    retracted: int | None = None
    gone_since: int | None = None
    last_seen: int | None = None
    suspended: tuple[tuple[int, int, int], ...] = ()
    other: dict[str, Any] = field(default_factory=dict)

    @property
    def alloc_tres(self) -> str:
        parts = [f"cpu={self.cpus}", f"mem={self.mem}M", f"node={self.nodes}"]
        whole = {kind: n for kind, n in self.gpus.items() if kind != "shard"}
        parts += [f"gres/gpu={sum(whole.values())}"] if whole else []
        parts += [f"gres/gpu:{kind}={n}" for kind, n in whole.items() if kind]
        parts += [f"gres/shard={self.gpus['shard']}"] if "shard" in self.gpus else []
        return ",".join(parts)

    def row(self, number: int) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster,
            "db_index": number,
            "job_id_raw": number,
            "job_id": str(number),
            "user": self.user,
            "uid": 1000,
            "account": "vision",
            "partition": "gpu",
            "qos": "normal",
            "state": self.state,
            "submit": self.submit,
            "eligible": self.submit,
            "start": self.start,
            "end": self.end,
            "nodes": self.nodes,
            "cpus": self.cpus,
            "gpus": sum(n for kind, n in self.gpus.items() if kind != "shard"),
            "alloc_tres": self.alloc_tres,
            "req_tres": self.alloc_tres,
            "time_limit": "60",
            "exit_code": "0:0",
            "node_list": "c1",
            "name": "train",
            "redone": self.redone,
            "retracted": self.retracted,
            "gone_since": self.gone_since,
            "last_seen": self.last_seen,
            "energy_joules": self.energy,
            "cpu_used_ms": self.cpu_used_ms,
            **self.other,
        }


@contextmanager
def new_books(url: str | None = None) -> Iterator[Engine]:
    """An empty ledger; in memory, or in an empty database."""
    engine = create_engine(url or "sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
        names = [{"id": n, "name": name} for n, name in enumerate(CLUSTERS, 1)]
        connection.execute(insert(clusters), names)
    try:
        yield engine
    finally:
        engine.dispose()


def fill(connection: Connection, jobs: list[Job], *, eras_at: tuple[int, ...] = ()) -> None:
    """Empty the books and enter runs as an ingest leaves them."""
    tables.rebuild_usage(connection)
    for table in (suspensions, runs, eras, ingests):
        connection.execute(delete(table))
    tables.rebuild_usage(connection)
    connection.execute(delete(usage_keys))
    if eras_at:
        connection.execute(insert(eras), [{"at": at} for at in eras_at])
    for number, job in enumerate(jobs, 1):
        connection.execute(insert(runs).values(id=number, **job.row(number)))
        for begin, length, seconds in job.suspended:
            span = {"begin": begin, "length": length, "seconds": seconds}
            connection.execute(insert(suspensions).values(run_id=number, **span))
    tables.rebuild_usage(connection)


def counted(jobs: list[Job], span: tuple[int, int], now: int) -> dict[tuple, dict[str, int]]:
    """By cluster, user, state, redone and GPU type; all but GPUs under the first type."""
    found: dict[tuple, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for job in jobs:
        if job.start is None or job.retracted:
            continue
        end = (
            job.end
            if job.end is not None
            else max(now if job.until is None else job.until, job.start)
        )
        seconds = _overlap(job.start, span, end)
        alone = job.start == end and span[0] <= job.start < span[1]
        if not (seconds or alone):
            continue
        kinds = sorted(job.gpus) or ["-"]
        who = (job.cluster, job.user, job.state, job.redone)
        for kind in kinds:
            found[*who, kind]["gpu_seconds"] += job.gpus.get(kind, 0) * seconds
        first = found[*who, kinds[0]]
        first["cpu_seconds"] += job.cpus * seconds
        first["node_seconds"] += job.nodes * seconds
        first["wall_seconds"] += seconds
        first["nodeless_seconds"] += 0 if job.nodes else seconds
        first["mem_mib_seconds"] += job.mem * seconds
        first["runs"] += 1
        if span[0] <= job.start < span[1]:
            first["started"] += 1
            first["waited_seconds"] += job.start - job.submit
        if job.end is None:
            continue
        length = end - job.start
        # No node takes 20 kW.
        if job.energy and length and job.energy * 1000 // length < max(job.nodes, 1) * 20_000_000:
            first["metered_node_seconds"] += job.nodes * seconds
            # The power in whole milliwatts; the rest of the energy is at the end.
            power, whole = job.energy * 1000 // length, job.energy * 1000
            passed = (max(at - job.start, 0) for at in span)
            before, after = (power * n if n < length else whole for n in passed)
            first["energy_millijoules"] += after - before
        if job.cpu_used_ms is not None and length and span[0] < end <= span[1]:
            first["cpu_used_ms"] += job.cpu_used_ms
            first["cpu_measured_ms"] += job.cpus * length * 1000
    return found


def _overlap(start: int, span: tuple[int, int], end: int) -> int:
    return max(min(end, span[1]) - max(start, span[0]), 0)


def jobs_around(begin: int, end: int) -> st.SearchStrategy[list[Job]]:
    """Runs before, over, within and after a window, ended or not."""
    times = st.integers(begin - 4 * 86400, end + 86400)
    months = [int(datetime(2026, month, 1, tzinfo=UTC).timestamp()) for month in (3, 5, 10, 12)]
    edges = st.sampled_from([begin, end, begin - begin % 3600, end - end % 86400, *months])
    lengths = st.one_of(
        st.integers(0, 7200), st.integers(0, 6 * 86400), st.just(0), st.integers(0, 100 * 86400)
    )

    @st.composite
    def one(draw: st.DrawFn) -> Job:
        start = draw(st.one_of(times, edges)) - draw(st.sampled_from([0, 0, 0, 40 * 86400]))
        is_open = draw(st.integers(0, 5)) == 0
        return Job(
            submit=start - draw(st.integers(0, 9999)),
            start=None if draw(st.integers(0, 9)) == 0 else start,
            end=None if is_open else start + draw(lengths),
            user=draw(st.sampled_from(["alice", "bob"])),
            cluster=draw(st.sampled_from([1, 2])),
            state="RUNNING" if is_open else draw(st.sampled_from(ENDED_STATES)),
            gpus=draw(st.sampled_from(TYPES)),
            nodes=draw(st.integers(1, 3)),
            energy=draw(st.sampled_from([None, 0, 1, 1000003])),
            cpu_used_ms=draw(st.sampled_from([None, 5, 7_000_000])),
            retracted=draw(st.sampled_from([None, None, None, 7])),
        )

    return st.lists(one(), max_size=12)
