"""The jobs that hold GPUs on which an exporter sees no job, by slurmctld.

An exporter knows a job by the prolog's record or by its processes. On a node where a job runs no
step there may be neither, and the GPUs that it holds there are the commonest waste.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurmkit.errors import NoSuchJob, Refused
from slurmkit.formats.tres import gpu_count
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.gpu_metrics import IDLE_BELOW
from slurmkit.state.gpumap import GpuClaim, check_claims, read_claims_one_by_one
from slurmkit.state.gres import HoldingJob, read_holding_jobs
from slurmkit.state.nodes import NODES_COMMAND, parse_nodes
from slurmkit_accounting.gpu_use.exporters import most_gpus
from slurmkit_accounting.gpu_use.samples import JobReading, NodeAnswer, parse_job

_MOST_JOBS = 20  # that scontrol is asked about in a round: slurmctld never holds so few back


class HoldingRun(NamedTuple):
    """A job in one run, with the same TRES all the time, and so with the same GPUs."""

    job: int
    started: int | None
    nodes: tuple[str, ...]
    tres: str


class NodeHolders(NamedTuple):
    """The jobs that hold GPUs of one node.

    Attributes:
        runs: all of them, also those that hold parts of GPUs.
        by_index: the one that holds a whole GPU, by Slurm's index.
        claimed: indices of all GPUs that any of them claims.
    """

    runs: frozenset[HoldingRun]
    by_index: Mapping[int | None, HoldingRun]
    claimed: frozenset[int | None]


class GpuHolders:
    """Finder of the jobs on GPUs on which pages name none.

    Args:
        slurm: runs Slurm's commands.
    """

    def __init__(self, slurm: SlurmCommands) -> None:
        self._slurm = slurm
        self._known: dict[str, NodeHolders] = {}  # as last asked

    def add_readings(
        self, pages: Mapping[str, NodeAnswer], jobs: Iterable[HoldingJob]
    ) -> dict[str, NodeAnswer]:
        """Add readings of GPUs on which the pages name no job, if it is certain whose they are.

        Slurm is asked after the pages were read, too. So a job that held GPUs before and that holds
        a GPU now, in the same run, held it when the page was read.

        Args:
            pages: by node.
            jobs: the jobs that held GPUs before the pages were read.

        Raises:
            SlurmError: when slurmctld does not answer or its answer cannot be read.
        """
        before = list(jobs)
        nodes = _nodes_in_question(pages, before)
        now = self._read(nodes) if nodes else {}
        runs = set(map(_run, before))
        found = dict(pages)
        for node, holders in now.items():
            more = _readings(pages[node], holders, runs)
            found[node] = pages[node]._replace(readings=(*pages[node].readings, *more))
        return found

    def _read(self, nodes: set[str]) -> dict[str, NodeHolders]:
        """Return who holds the GPUs of some nodes, as far as that is known in this round.

        The GPUs of a run stay the same. So scontrol is asked only about nodes with other runs than
        when it was last asked, and about few at once: the others have their turn in a later round.
        """
        there = [
            job
            for job in read_holding_jobs(self._slurm)
            if most_gpus(job.tres) and parse_job(job.raw_id) is not None
        ]
        on: dict[str, list[HoldingJob]] = {node: [] for node in nodes}
        for job in there:
            for node in nodes.intersection(job.nodes):
                on[node].append(job)
        runs = {node: frozenset(map(_run, some)) for node, some in on.items()}
        same = {n for n in nodes & self._known.keys() if self._known[n].runs == runs[n]}
        wanted, asked = _few_jobs({node: on[node] for node in sorted(nodes - same)})
        with suppress(NoSuchJob, Refused):  # one has just ended: the next round asks again
            claims = self._read_claims(list(asked)) if asked else {}
            for node in wanted:
                self._known[node] = _holders(runs[node], claims.get(node, {}))
            same.update(wanted)
        return {node: self._known[node] for node in same}

    def _read_claims(self, jobs: Sequence[HoldingJob]) -> dict[str, dict[int, list[GpuClaim]]]:
        """Return what the jobs claim, by node and Slurm's index."""
        rows = parse_nodes(self._slurm.run(NODES_COMMAND))
        records = read_claims_one_by_one(self._slurm, [job.raw_id for job in jobs])
        claims, _ = check_claims(records, jobs, rows)
        by_node: dict[str, dict[int, list[GpuClaim]]] = defaultdict(lambda: defaultdict(list))
        for claim in claims:
            for index in claim.use.indices or ():
                by_node[claim.node][index].append(claim)
        return by_node


def _holders(runs: frozenset[HoldingRun], claims: Mapping[int, Sequence[GpuClaim]]) -> NodeHolders:
    """Return the holders of a node's GPUs. A run holds a whole GPU that nobody else claims."""
    by_index: dict[int | None, HoldingRun] = {
        index: _run(claim.holder)
        for index, [claim, *others] in claims.items()
        if claim.use.name == "gpu" and not others
    }
    return NodeHolders(runs, by_index, frozenset(claims))


def _run(job: HoldingJob) -> HoldingRun:
    return HoldingRun(parse_job(job.raw_id) or 0, job.started, job.nodes, job.tres)


def _few_jobs(
    on: Mapping[str, Sequence[HoldingJob]],
) -> tuple[list[str], dict[HoldingJob, None]]:
    """Choose nodes whose jobs together are few; return them, and all their jobs.

    All jobs of a node are read, because two of them may claim the same GPU.
    """
    nodes: list[str] = []
    jobs: dict[HoldingJob, None] = {}
    for node, some in on.items():
        more = jobs | dict.fromkeys(some)
        if len(more) <= _MOST_JOBS:
            nodes.append(node)
            jobs = more
    return nodes, jobs


def _nodes_in_question(pages: Mapping[str, NodeAnswer], jobs: Iterable[HoldingJob]) -> set[str]:
    """Return the nodes that have a GPU without a job, and a job that may hold more than are named.

    Each page counts for its own node only: it may be forged, or come from another node by mistake.
    """
    named = {
        node: Counter(reading.job for reading in page.readings)
        for node, page in pages.items()
        if page.without_job and page.nodes <= {node}
    }
    return {
        node
        for job in jobs
        for node in named.keys() & job.nodes
        if named[node][parse_job(job.raw_id) or 0] < gpu_count(job.tres)
    }


def _readings(
    page: NodeAnswer, now: NodeHolders, before: Collection[HoldingRun]
) -> Iterator[JobReading]:
    """Yield the readings of GPUs that a run held before the page was read, and holds now."""
    if _disagrees(page, now):
        return
    for gpu, reading in page.without_job:
        run = now.by_index.get(gpu.index)
        if run is not None and run in before:
            yield JobReading(run.job, gpu, False, reading)  # noqa: FBT003


def _disagrees(page: NodeAnswer, now: NodeHolders) -> bool:
    """Return whether the page and slurmctld give a job of the node different GPUs.

    Then the exporter's indices are not Slurm's, e.g. after a mistake in its `--gpu-map`. So they
    are if a GPU is at work that nobody holds.
    """
    if any((of.utilization or 0) >= IDLE_BELOW and gpu.index not in now.claimed
           for gpu, of in page.without_job):  # fmt: skip
        return True
    there = {run.job for run in now.runs}
    held = {index: run.job for index, run in now.by_index.items()}
    named = {
        (reading.gpu.index, reading.job)
        for reading in page.readings
        if reading.gpu.index is not None and reading.job in there
    }
    return any(
        held.get(index) != job and (index in held or job in held.values()) for index, job in named
    )
