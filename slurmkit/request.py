"""A spec beside the cluster it is meant for: the amounts that every check compares with limits."""

from __future__ import annotations

import msgspec

from slurmkit.capabilities.model import (
    Association,
    Capabilities,
    Node,
    Partition,
    Qos,
    Standing,
    Tres,
)
from slurmkit.spec import JobSpec


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What one spec comes to in one partition, before any limit has been looked at.

    Attributes:
        partition: the partition judged; a spec that names several has a request for each.
        nodes: number of nodes, or the least that can hold `ntasks` where Slurm decides, or the
            least of a range; all amounts are those of so many nodes.
        most_nodes: the most of a range; None where there is one number.
        tasks: processes of the whole job.
        cpus_per_task: CPUs of each.
        seconds: time limit the job would get; None when it would have none.
        per_node: TRES on each node, the largest where nodes differ: `cpu`, `mem` (MiB; absent
            when the job takes what there is), `gres/gpu`, `gres/gpu:TYPE`, `gres/shard`, …
        total: TRES of the whole job, with `node` and `billing`; of an exclusive job all that its
            nodes have at least, which is what it is charged.
        fitting: usable nodes of the partition whose GPUs are of the kind asked for, and that
            `constraint`, `nodelist` and `exclude` leave.
        account: the account charged; None when unknown.
        association: the user's with that account, None when there is none or it is unknown.
        qos: the QOS the job would run under; None when unknown.
        partition_qos: the partition's own QOS.
        tasks_in_array: jobs that the array comes to, 1 without one.
    """

    spec: JobSpec
    capabilities: Capabilities
    standing: Standing
    partition: Partition
    nodes: int
    tasks: int
    seconds: int | None
    per_node: Tres
    total: Tres
    fitting: tuple[Node, ...]
    account: str | None
    association: Association | None
    qos: Qos | None
    partition_qos: Qos | None
    tasks_in_array: int = 1
    cpus_per_task: int = 1
    most_nodes: int | None = None
