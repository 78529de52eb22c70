"""All that is known now of one pending job and of what it competes with."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache

import msgspec

from slurmkit.capabilities.cache import load_capabilities
from slurmkit.capabilities.model import Capabilities, Reservation, Standing, Tres
from slurmkit.capabilities.nodes import node_names
from slurmkit.capabilities.standing import read_standing
from slurmkit.capabilities.text import tres
from slurmkit.durations import parse_time_limit
from slurmkit.errors import BadInput
from slurmkit.nodes.read import NODES_ASKED, NodeRow, parse_rows
from slurmkit.queue.rows import QueueRow
from slurmkit.queue.snapshot import read_queue
from slurmkit.slurm import Slurm
from slurmkit.why.asked import Asked, read_asked

# Slurm lists an empty value for them, or says in words that they will not start yet.
_NOT_YET = ("Dependency", "DependencyNeverSatisfied", "BeginTime", "JobHeld", "BadConstraints")


class Scene(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What the explanation of a pending job is made from.

    Attributes:
        job: its row in the queue.
        asked: what else it asks for.
        rows: the whole queue, the job included.
        nodes: all nodes, as they are now.
        standing: of the job's user.
        taken: epoch seconds at which Slurm was asked.
    """

    job: QueueRow
    asked: Asked
    rows: tuple[QueueRow, ...]
    nodes: tuple[NodeRow, ...]
    capabilities: Capabilities
    standing: Standing
    taken: float

    @cached_property
    def partitions(self) -> tuple[str, ...]:
        """Names of the partitions it waits in."""
        return tuple(self.job.partition.split(","))

    @cached_property
    def wants(self) -> Tres:
        """TRES of the whole job; of each task, for an array."""
        return holds(self.job)

    @cached_property
    def per_node(self) -> Tres:
        """TRES on each node, rounded up."""
        return share(self.job)

    @cached_property
    def reservations(self) -> tuple[Reservation, ...]:
        """Those of the cluster that have not ended."""
        return tuple(r for r in self.standing.reservations if r.end > self.taken)

    @cached_property
    def hides_jobs(self) -> bool:
        """Whether slurmctld shows people their own jobs alone."""
        return "jobs" in self.capabilities.config.get("PrivateData", "").lower().split(",")

    def node(self, name: str) -> NodeRow | None:
        """The node of that name."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, NodeRow]:
        return {node.name: node for node in self.nodes}


def read_scene(slurm: Slurm, job: QueueRow) -> Scene:
    """Ask Slurm for all of it at once.

    Raises:
        SlurmError: when slurmctld does not answer or its answer cannot be read.
    """
    taken = time.time()
    capabilities = load_capabilities(slurm, refresh=_is_of_the_partition(job.reason))
    with ThreadPoolExecutor(4) as pool:  # the commands wait, they do not work
        rows = pool.submit(read_queue, slurm)
        nodes = pool.submit(slurm.run, NODES_ASKED)
        standing = pool.submit(read_standing, slurm, job.user)
        asked = pool.submit(read_asked, slurm, job.raw_id, capabilities.release)
    return Scene(
        job=job,
        asked=asked.result(),
        rows=rows.result().rows,
        nodes=parse_rows(nodes.result()),
        capabilities=capabilities,
        standing=standing.result(),
        taken=taken,
    )


def _is_of_the_partition(reason: str) -> bool:
    """Whether what partitions allow has to be known as it is now, not as it was minutes ago."""
    return reason.startswith("Partition") or "partition" in reason or "NotAllowed" in reason


def share(job: QueueRow) -> Tres:
    """What a job holds or wants on each of its nodes, rounded up: Slurm tells only the total."""
    return _share(job.tres, max(1, job.nodes))


@lru_cache(maxsize=4096)  # many jobs are alike
def _share(text: str, nodes: int) -> Tres:
    return {name: -(-value // nodes) for name, value in _tres(text).items() if name != "node"}


@lru_cache(maxsize=4096)
def nodes_of(text: str) -> tuple[str, ...]:
    """The nodes in a list as Slurm writes it; most jobs have one."""
    return node_names(text) if "[" in text or "," in text else tuple(filter(None, [text]))


def holds(job: QueueRow) -> Tres:
    """What a job holds, or asks for, in all."""
    return _tres(job.tres)


@lru_cache(maxsize=4096)
def _tres(text: str) -> Tres:
    return tres(text)


def limit_seconds(job: QueueRow) -> int | None:
    """A job's time limit in seconds, None when it has none."""
    try:
        return parse_time_limit(job.time_limit)
    except BadInput:  # UNLIMITED, NOT_SET, INVALID
        return None


def ends_by(job: QueueRow) -> int | None:
    """When a running job ends at the latest, in epoch seconds; None when unknown."""
    seconds = limit_seconds(job)
    return None if seconds is None or job.started is None else job.started + seconds


def holds_nodes(job: QueueRow) -> bool:
    """Whether a job has its nodes now; completing and suspended jobs do."""
    return job.state != "PENDING" and not job.ended and bool(job.node_list)


def may_start(job: QueueRow, now: float) -> bool:
    """Whether a pending job is in the race: not held, and not waiting for a job or a time."""
    if job.state != "PENDING" or job.priority == 0 or job.reason.startswith(_NOT_YET):
        return False
    return job.eligible is not None and job.eligible <= now
