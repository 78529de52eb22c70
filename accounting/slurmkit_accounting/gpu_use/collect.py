"""Collect samples from the exporters of all nodes with running GPU jobs, round by round.

Summaries are stored after each round. So a service that is restarted goes on with them, and only
the samples of the time between are missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager

from sqlalchemy import Connection, select

from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.gres import HoldingJob, read_holding_jobs
from slurmkit_accounting.gpu_use.exporters import (
    ExporterAddress,
    NodeAnswer,
    describe_silent_nodes,
    read_exporters,
)
from slurmkit_accounting.gpu_use.samples import JobReading, parse_job
from slurmkit_accounting.gpu_use.store import (
    delete_old_curves,
    load_linked_keys,
    load_uses,
    store_uses,
)
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import clusters

EXPORTER = "exporter"
_DAY = 86400
UseKey = tuple[int, int, str, str]
"""Job id, start of the run, node, GPU."""
ReadExporters = Callable[[ExporterAddress, Collection[str]], Mapping[str, NodeAnswer]]


class GpuUseCollector:
    """Collects samples; keeps the summaries of running jobs in memory between two rounds.

    Args:
        open_ledger: opens the ledger for writing.
        slurm: runs Slurm's commands.
        where: see `ExporterAddress`.
        interval: seconds between two rounds.
        keep_days: days for which curves are kept.
        read: reads the exporters of some nodes.
    """

    def __init__(
        self,
        open_ledger: Callable[[], AbstractContextManager[Ledger]],
        slurm: SlurmCommands,
        where: ExporterAddress,
        *,
        interval: int,
        keep_days: int,
        read: ReadExporters = read_exporters,
    ) -> None:
        self._open_ledger = open_ledger
        self._slurm = slurm
        self._where = where
        self._interval = interval
        self._keep_seconds = keep_days * _DAY
        self._read = read
        self._uses: dict[UseKey, GpuUse] | None = None

    def run(self, cluster: str, now: float) -> str:
        """Run one round; return a line on the nodes that did not answer, empty if all did.

        Args:
            cluster: name of the cluster that `slurm` asks.
            now: epoch seconds.

        Raises:
            SlurmError: when slurmctld does not answer.
            LedgerError: when the ledger cannot be written.
        """
        jobs = [job for job in read_holding_jobs(self._slurm) if _uses_gpus(job)]
        holders = _by_node(jobs)
        answers = self._read(self._where, sorted(holders))
        try:
            with self._open_ledger() as ledger, ledger.transaction() as connection:
                self._enter(connection, cluster, holders, answers)
                delete_old_curves(connection, int(now) - self._keep_seconds)
        except BaseException:
            self._uses = None  # load again what is stored: a sample must not count twice
            raise
        return describe_silent_nodes(answers)

    def _enter(
        self,
        connection: Connection,
        cluster: str,
        holders: Mapping[str, Mapping[int, int]],
        answers: Mapping[str, NodeAnswer],
    ) -> None:
        """Add the samples of a round to the summaries, and store those that changed."""
        number = connection.scalar(select(clusters.c.id).where(clusters.c.name == cluster))
        if number is None:  # nothing was ingested yet
            return
        # Only of a job that Slurm says is on this node: an exporter may be behind.
        samples = {
            (reading.job, holders[node][reading.job], node, reading.gpu.key): reading
            for node, answer in answers.items()
            for reading in answer.readings
            if reading.job in holders[node]
        }
        # The ledger may have the end of a run that squeue shows: of a resized job, for example.
        for key in load_linked_keys(connection, number, EXPORTER, {key[0] for key in samples}):
            samples.pop(key, None)
        known = self._uses or {}
        self._uses = {key: known[key] for key in samples if key in known}
        self._uses |= _load(connection, number, samples.keys() - self._uses.keys())
        changed: dict[UseKey, GpuUse] = {}
        for key, reading in samples.items():
            use = self._uses.get(key)
            if use is None:
                use = self._uses[key] = self._new(number, key, reading)
            if use.add(reading.reading, shared=reading.shared):
                changed[key] = use
        store_uses(connection, list(changed.values()))

    def _new(self, cluster: int, key: UseKey, reading: JobReading) -> GpuUse:
        job, start, node, _ = key
        return GpuUse(
            cluster_id=cluster,
            job=job,
            start=start,
            node=node,
            gpu=reading.gpu,
            source=EXPORTER,
            interval=self._interval,
        )


def _load(connection: Connection, cluster: int, wanted: Collection[UseKey]) -> dict[UseKey, GpuUse]:
    """Load the summaries that an earlier round or service stored."""
    if not wanted:
        return {}
    loaded = {
        (use.job, use.start, use.node, use.gpu.key): use
        for use in load_uses(connection, job_ids={key[0] for key in wanted})
        if use.source == EXPORTER and use.cluster_id == cluster
    }
    return {key: use for key, use in loaded.items() if key in wanted}


def _uses_gpus(job: HoldingJob) -> bool:
    """Return whether a job may use GPUs now; one that is completing has ended."""
    return "gres/" in job.tres and job.state != "COMPLETING"


def _by_node(jobs: Iterable[HoldingJob]) -> dict[str, dict[int, int]]:
    """Return Slurm's own job ids and the starts of the jobs on each node."""
    holders: dict[str, dict[int, int]] = defaultdict(dict)
    for job in jobs:
        number = parse_job(job.raw_id.strip())
        if number is None or job.started is None:
            continue
        for node in job.nodes:
            holders[node][number] = job.started
    return dict(holders)
