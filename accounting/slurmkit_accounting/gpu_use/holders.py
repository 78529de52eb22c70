"""The jobs that hold GPUs on which an exporter sees no job, by slurmctld.

An exporter knows a job by the prolog's record or by its processes. On a node where a job runs no
step there may be neither, and the GPUs that it holds there are the commonest waste.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurmkit.formats.tres import gpu_count
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.gpumap import GpuClaim, check_claims, read_claim_records
from slurmkit.state.gres import HoldingJob, read_holding_jobs
from slurmkit.state.nodes import NODES_COMMAND, parse_nodes
from slurmkit_accounting.gpu_use.exporters import most_gpus
from slurmkit_accounting.gpu_use.samples import JobReading, NodeAnswer, parse_job


class NodeHolders(NamedTuple):
    """The jobs that hold GPUs of one node.

    Attributes:
        jobs: all of them, also those that hold parts of GPUs.
        by_index: the one job that holds a whole GPU, by Slurm's index.
    """

    jobs: frozenset[HoldingJob]
    by_index: Mapping[int | None, HoldingJob]


class GpuHolders:
    """Finder of the jobs on GPUs on which pages name none.

    Args:
        slurm: runs Slurm's commands.
    """

    def __init__(self, slurm: SlurmCommands) -> None:
        self._slurm = slurm
        self._last: dict[str, NodeHolders] = {}  # of the last round

    def add_readings(
        self, pages: Mapping[str, NodeAnswer], jobs: Iterable[HoldingJob]
    ) -> dict[str, NodeAnswer]:
        """Add readings of GPUs on which the pages name no job, if it is certain whose they are.

        Slurm is asked after the pages were read. So a job that holds a GPU in this round and the
        last, in the same run, held it when the page was read.

        Args:
            pages: by node.
            jobs: the jobs that held GPUs before the pages were read.

        Raises:
            SlurmError: when slurmctld does not answer or its answer cannot be read.
        """
        nodes = _nodes_in_question(pages, jobs)
        last, self._last = self._last, self._read(nodes) if nodes else {}
        found = dict(pages)
        for node in self._last.keys() & last.keys():
            more = _readings(pages[node], last[node], self._last[node])
            found[node] = pages[node]._replace(readings=(*pages[node].readings, *more))
        return found

    def _read(self, nodes: set[str]) -> dict[str, NodeHolders]:
        """Return who holds the GPUs of some nodes.

        The GPUs of a job stay the same while it runs, except for a resize, which changes its TRES.
        So scontrol is asked only about nodes with other jobs than in the last round.
        """
        there = [
            job
            for job in read_holding_jobs(self._slurm)
            if most_gpus(job.tres) and parse_job(job.raw_id) is not None
        ]
        on: dict[str, set[HoldingJob]] = {node: set() for node in nodes}
        for job in there:
            for node in nodes.intersection(job.nodes):
                on[node].add(job)
        same = {node for node in nodes & self._last.keys() if self._last[node].jobs == on[node]}
        # All jobs of a node: one that claims a GPU of another must be seen beside it.
        asked = [job for job in there if not (nodes - same).isdisjoint(job.nodes)]
        held = self._read_held(asked) if asked else {}
        return {
            node: self._last[node]
            if node in same
            else NodeHolders(frozenset(on[node]), held.get(node, {}))
            for node in nodes
        }

    def _read_held(self, jobs: Sequence[HoldingJob]) -> dict[str, dict[int | None, HoldingJob]]:
        """Return the one job that claims a GPU, and all of it, by node and index."""
        rows = parse_nodes(self._slurm.run(NODES_COMMAND))
        records = read_claim_records(self._slurm, [job.raw_id for job in jobs])
        claims, _ = check_claims(records, jobs, rows)
        by_gpu: dict[tuple[str, int], list[GpuClaim]] = defaultdict(list)
        for claim in claims:
            for index in claim.use.indices or ():
                by_gpu[claim.node, index].append(claim)
        held: dict[str, dict[int | None, HoldingJob]] = defaultdict(dict)
        for (node, index), [claim, *others] in by_gpu.items():
            if claim.use.name == "gpu" and not others:
                held[node][index] = claim.holder
        return held


def _nodes_in_question(pages: Mapping[str, NodeAnswer], jobs: Iterable[HoldingJob]) -> set[str]:
    """Return the nodes that have a GPU without a job, and a job that may hold more than are named.

    Each page counts for its own node only: it may be forged.
    """
    named = {
        node: Counter(reading.job for reading in page.readings)
        for node, page in pages.items()
        if page.without_job
    }
    return {
        node
        for job in jobs
        for node in named.keys() & job.nodes
        if named[node][parse_job(job.raw_id) or 0] < gpu_count(job.tres)
    }


def _readings(page: NodeAnswer, last: NodeHolders, now: NodeHolders) -> Iterator[JobReading]:
    """Yield the readings of GPUs that a job held in the last round and now."""
    if _disagrees(page, now):
        return
    for gpu, reading in page.without_job:
        job = now.by_index.get(gpu.index)
        if job is not None and last.by_index.get(gpu.index) == job:
            yield JobReading(int(job.raw_id), gpu, False, reading)  # noqa: FBT003


def _disagrees(page: NodeAnswer, now: NodeHolders) -> bool:
    """Return whether the page and slurmctld give a job of the node different GPUs.

    Then the exporter's indices are not Slurm's, e.g. after a mistake in its `--gpu-map`.
    """
    there = {int(job.raw_id) for job in now.jobs}
    held = {index: int(job.raw_id) for index, job in now.by_index.items()}
    named = {
        (reading.gpu.index, reading.job)
        for reading in page.readings
        if reading.gpu.index is not None and reading.job in there
    }
    return any(
        held.get(index) != job and (index in held or job in held.values()) for index, job in named
    )
