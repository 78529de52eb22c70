"""A small cluster and its queue, from which tests make the scene of one pending job."""

from __future__ import annotations

from typing import Any

import msgspec

from slurmkit.diagnose.snapshot import PendingRequest, PendingSnapshot
from slurmkit.formats.tres import Gres
from slurmkit.spec.gpus import Gpus
from slurmkit.state.model import (
    Association,
    Capabilities,
    Limits,
    LimitUsage,
    Node,
    Partition,
    Qos,
    Reservation,
    Standing,
)
from slurmkit.state.nodes import GpuCount, NodeRow
from slurmkit.state.queue_rows import QueueRow

NOW = 1_800_000_000
CONFIG = {
    "AccountingStorageEnforce": "associations,limits,qos",
    "PreemptType": "preempt/qos",
    "PriorityWeightFairShare": "100000",
    "PriorityWeightAge": "1000",
    "PriorityWeightQOS": "10000",
    "PriorityDecayHalfLife": "7-00:00:00",
    "DefMemPerCPU": "1024",
}


def row(raw_id: str, **values: Any) -> QueueRow:
    """A job of alice that waits for resources, unless something else is given."""
    usual: dict[str, Any] = {
        "job_id": raw_id,
        "raw_id": raw_id,
        "user": "alice",
        "account": "vision",
        "partition": "gpu",
        "qos": "normal",
        "state": "PENDING",
        "nodes": 1,
        "cpus": 1,
        "tres": "cpu=1,mem=1G,node=1,billing=1,gres/gpu=2,gres/gpu:a100=2",
        "gpus": 2,
        "priority": 100,
        "submitted": NOW - 60,
        "started": None,
        "time_used": "0:00",
        "time_limit": "1:00:00",
        "node_list": "",
        "reason": "Resources",
        "workdir": "/home/alice",
        "output": "/home/alice/slurm-%j.out",
        "comment": "",
        "name": "job",
        "eligible": NOW - 60,
    }
    return QueueRow(**usual | values)


def running(raw_id: str, node: str, gpus: str, minutes: int, **values: Any) -> QueueRow:
    """A job that holds GPUs, `a100=8`, of a node for so many minutes more."""
    kind, _, count = gpus.partition("=")
    return row(
        raw_id,
        **{
            "user": "bob",
            "state": "RUNNING",
            "priority": 50,
            "reason": "None",
            "node_list": node,
            "tres": f"cpu=1,mem=1G,node=1,billing=1,gres/gpu={count},gres/gpu:{kind}={count}",
            "gpus": int(count),
            "started": NOW - 600,
            "time_limit": f"{minutes + 10}:00",
        }
        | values,
    )


def _node(name: str, gres: str | None, count: int, partition: str) -> Node:
    return Node(
        name=name,
        states=("IDLE",),
        cpus=64,
        sockets=2,
        cores_per_socket=32,
        threads_per_core=1,
        memory=512000,
        gres=(Gres("gpu", gres, count),) if count else (),
        partitions=(partition,),
    )


SHAPES = (
    _node("c1", "a100", 8, "gpu"),
    _node("c2", "a100", 8, "gpu"),
    _node("c3", "h100", 4, "gpu"),
    _node("c4", None, 4, "untyped"),
    _node("c7", None, 0, "cpu"),
)


def nodes(rows: tuple[QueueRow, ...]) -> tuple[NodeRow, ...]:
    """The nodes with what the running jobs hold of them."""
    return tuple(_as_it_is(shape, rows) for shape in SHAPES)


def _as_it_is(shape: Node, rows: tuple[QueueRow, ...]) -> NodeRow:
    there = [r for r in rows if r.state != "PENDING" and shape.name in r.node_list.split(",")]
    used = sum(r.gpus // max(1, len(r.node_list.split(","))) for r in there)
    values = {name: getattr(shape, name) for name in shape.__struct_fields__}
    return NodeRow(
        **values,
        cpus_allocated=sum(r.cpus for r in there),
        memory_allocated=1024 * len(there),
        gpus=tuple(GpuCount(g.type, g.count, used) for g in shape.gres),
    )


def partition(name: str, **values: Any) -> Partition:
    own = tuple(shape.name for shape in SHAPES if name in shape.partitions)
    return Partition(
        **{"name": name, "max_time": 7 * 1440, "default_time": 60, "nodes": own} | values
    )


def capabilities(**values: Any) -> Capabilities:
    usual: dict[str, Any] = {
        "taken": NOW,
        "release": (24, 11, 5),
        "cluster_name": "test",
        "config": CONFIG,
        "nodes": SHAPES,
        "partitions": (partition("gpu", default=True), partition("untyped"), partition("cpu")),
    }
    return Capabilities(**usual | values)


def standing(**values: Any) -> Standing:
    """Alice in vision and in genomics, whose GPUs are limited to 4."""
    limited = Limits(grp_tres={"gres/gpu": 4})
    usual: dict[str, Any] = {
        "taken": NOW,
        "user": "alice",
        "default_account": "vision",
        "associations": (
            Association(account="root"),
            Association(account="vision", parent="root"),
            Association(
                account="genomics",
                parent="root",
                limits=limited,
                usage=LimitUsage(tres={"gres/gpu": 4}),
            ),
            _alice("vision"),
            _alice("genomics"),
        ),
        "qos": (
            Qos(name="normal", priority=100),
            Qos(name="high", priority=1000, limits=Limits(max_wall=60)),
        ),
    }
    return Standing(**usual | values)


def _alice(account: str) -> Association:
    return Association(
        account=account,
        user="alice",
        parent=account,
        default_qos="normal",
        qos=("normal", "high"),
    )


def asked(**values: Any) -> PendingRequest:
    usual: dict[str, Any] = {
        "evaluated": NOW - 10,
        "planned_nodes": "",
        "restarts": 0,
        "max_nodes": 1,
        "tasks": 1,
        "cpus_per_task": 1,
        "tasks_per_node": 0,
        "memory": 1024,
        "time_min": "",
        "exclude": "",
        "exclusive": False,
        "contiguous": False,
        "switches": 0,
        "licenses": "",
        "batch": True,
        "nice": 0,
        "error": "",
        "deadline": None,
        "gpus": Gpus(2, "a100"),
    }
    return PendingRequest(**usual | values)


def scene(job: QueueRow, *others: QueueRow, **values: Any) -> PendingSnapshot:
    """The scene of a job among others."""
    rows = (job, *others)
    usual: dict[str, Any] = {
        "job": job,
        "asked": asked(),
        "rows": rows,
        "nodes": nodes(rows),
        "capabilities": capabilities(),
        "standing": standing(),
        "taken": float(NOW),
    }
    return PendingSnapshot(**usual | values)


def maintenance(minutes: int, *names: str) -> Reservation:
    start = NOW + minutes * 60
    return Reservation(name="maint", start=start, end=start + 3600, nodes=names, flags=("MAINT",))


def with_reservation(made: Standing, reservation: Reservation) -> Standing:
    return msgspec.structs.replace(made, reservations=(reservation,))
