"""Runs put straight into a ledger, and usage worked out from them."""

from __future__ import annotations

from slurmkit_accounting.audit.verify import verify
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import clusters, runs
from slurmkit_accounting.ledger.schema.usage import usage_months
from slurmkit_accounting.usage.tables import rebuild_usage
from sqlalchemy import func, insert, select

TRES = "billing=8,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=8G,node=1"
DEFAULTS = {
    "user": "alice",
    "uid": None,
    "account": "vision",
    "partition": "gpu",
    "qos": "normal",
    "state": "COMPLETED",
    "nodes": 1,
    "cpus": 4,
    "gpus": 2,
    "alloc_tres": TRES,
    "req_tres": TRES,
    "time_limit": "60",
    "exit_code": "0:0",
    "node_list": "c1",
    "name": "train",
}


def gpu_seconds(ledger: Ledger) -> int:
    """Return the GPU-seconds of all runs, as the usage tables have them."""
    with ledger.transaction() as connection:
        return int(connection.scalar(select(func.sum(usage_months.c.gpu_seconds))) or 0)


def checked(ledger: Ledger) -> str:
    """Return the checksum of a ledger in which `verify` finds nothing wrong."""
    with ledger.transaction() as connection:
        found = verify(connection)
    assert found.wrong == []
    return found.checksum


def ran(at: int, seconds: int, **other: object) -> dict[str, object]:
    """A run of alice's on two GPUs and four CPUs that was submitted and began then."""
    return DEFAULTS | {"submit": at, "eligible": at, "start": at, "end": at + seconds} | other


def store_runs(ledger: Ledger, *stored: dict[str, object]) -> None:
    """Make these the runs of cluster `lab`."""
    with ledger.transaction() as connection:
        if connection.scalar(select(clusters.c.id).where(clusters.c.name == "lab")) is None:
            connection.execute(insert(clusters), {"name": "lab"})
        lab = connection.scalars(select(clusters.c.id).where(clusters.c.name == "lab")).one()
        for number, run in enumerate(stored, start=1):
            job = run.get("db_index", number)
            ids = {"cluster_id": lab, "job_id_raw": job, "job_id": str(job)}
            connection.execute(insert(runs), ids | run)
        rebuild_usage(connection)
