"""Collect samples of the GPUs of all running jobs, round by round.

Samples are stored after each round, and added to the summaries and curves each ten minutes. So a
service that is restarted goes on with them, and only the samples of the time between are missing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection, select

from slurmkit.errors import SlurmError
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.gres import HoldingJob, read_holding_jobs
from slurmkit_accounting.gpu_use.exporters import (
    describe_silent_nodes,
    keep_confirmed,
    most_gpus,
)
from slurmkit_accounting.gpu_use.holders import GpuHolders
from slurmkit_accounting.gpu_use.recent import (
    RETENTION_SECONDS,
    RecentSample,
    delete_old_samples,
    load_samples,
    sampled_nodes,
    store_samples,
)
from slurmkit_accounting.gpu_use.samples import JobReading, NodeAnswer, parse_job
from slurmkit_accounting.gpu_use.store import (
    delete_old_curves,
    load_linked_keys,
    load_open_ids,
    raise_interval,
    store_uses,
    update_uses,
)
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import clusters

_DAY = 86400
_UPDATE_EVERY = 600  # seconds; curves are large, and each is rewritten as a whole
_NODES_AT_ONCE = 100
UseKey = tuple[int, int, str, str]
"""Job id, start of the run, node, GPU."""


class SampleSource(Protocol):
    """Reads what the GPUs of running jobs do: the exporters of all nodes, or a site's metrics."""

    @property
    def name(self) -> str:
        """The source as summaries name it."""

    @property
    def interval(self) -> int:
        """Seconds between two samples, as far as that is known now; 0 for each round."""

    def read(self, jobs: Sequence[HoldingJob]) -> Mapping[str, NodeAnswer]:
        """Read one sample of each GPU that some jobs hold, by node.

        Raises:
            SlurmkitError: when the source cannot be reached.
        """


class GpuUseCollector:
    """Collects samples; nothing is lost when it ends.

    Args:
        open_ledger: opens the ledger for writing.
        slurm: runs Slurm's commands.
        source: reads the samples.
        interval: seconds between two rounds.
        keep_days: days for which curves are stored.
    """

    def __init__(
        self,
        open_ledger: Callable[[], AbstractContextManager[Ledger]],
        slurm: SlurmCommands,
        source: SampleSource,
        *,
        interval: int,
        keep_days: int,
    ) -> None:
        self._open_ledger = open_ledger
        self._slurm = slurm
        self._source = source
        self._gpu_holders = GpuHolders(slurm)
        self._interval = interval
        self._covered = interval  # seconds that one sample covers
        self._keep_seconds = keep_days * _DAY
        self._ids: dict[UseKey, int] = {}  # row ids of the summaries of the last round
        self._updated: float | None = None  # when the summaries were last brought up to date
        self._unknown: set[tuple[str, int]] = set()  # node and job; see `_without_stale_jobs`

    def run(self, cluster: str, now: float) -> str:
        """Run one round; return a line on what did not answer, empty if all did.

        Args:
            cluster: name of the cluster that `slurm` asks.
            now: epoch seconds.

        Raises:
            SlurmkitError: when squeue fails or the source does not answer.
            LedgerError: when the ledger cannot be written.
        """
        there = read_holding_jobs(self._slurm)
        jobs = [job for job in there if _uses_gpus(job) and job.started is not None]
        holders = _by_node(jobs)
        pages = self._without_stale_jobs(self._source.read(jobs), _by_node(there))
        failure = ""
        try:
            pages = self._gpu_holders.add_readings(pages, jobs)
        except SlurmError as error:  # the jobs that the pages name are known all the same
            failure = f"who holds the GPUs on which exporters see no job is unknown: {error}"
        answers = keep_confirmed(pages, jobs)
        with self._open_ledger() as ledger:
            with ledger.transaction() as connection:
                number = connection.scalar(select(clusters.c.id).where(clusters.c.name == cluster))
            if number is not None:  # else nothing was ingested yet
                self._store(ledger, number, int(now), _by_key(holders, answers), _most_uses(jobs))
                if self._updated is None or not 0 <= now - self._updated < _UPDATE_EVERY:
                    self._update(ledger, number, int(now))
                    self._updated = now
        return "; ".join(filter(None, (describe_silent_nodes(answers), failure)))

    def _without_stale_jobs(
        self, pages: Mapping[str, NodeAnswer], there: Mapping[str, Mapping[int, int]]
    ) -> dict[str, NodeAnswer]:
        """Take a GPU for a job's own where the others on it have ended.

        Their record is left where the epilog did not run. A job that is on the page of two rounds,
        and that Slurm has in neither, has ended; in one round, it may just have begun.

        Args:
            pages: by node.
            there: all jobs that hold nodes, by node.
        """
        unknown = {
            (node, reading.job)
            for node, page in pages.items()
            for reading in page.readings
            if reading.job not in there.get(node, ())
        }
        stale, self._unknown = unknown & self._unknown, unknown
        nodes = {node for node, _ in stale}
        return {
            node: page._replace(readings=tuple(_readings_without(page.readings, node, stale)))
            if node in nodes
            else page
            for node, page in pages.items()
        }

    def _store(
        self,
        ledger: Ledger,
        cluster: int,
        now: int,
        readings: dict[UseKey, JobReading],
        most: Mapping[int, int],
    ) -> None:
        """Store the samples of a round, and a summary for each GPU of a run that is new.

        Args:
            ledger: open for writing.
            cluster: row id of the cluster.
            now: epoch seconds at which the round began.
            readings: of this round.
            most: how many summaries each job's run may have.
        """
        try:
            with ledger.transaction() as connection:
                jobs = {key[0] for key in readings}
                # The ledger may have the end of a run that squeue shows: of a resized job.
                for key in load_linked_keys(connection, cluster, self._source.name, jobs):
                    readings.pop(key, None)
                self._raise_interval(connection, cluster)
                self._find_ids(connection, cluster, readings, most)
                by_node: dict[str, list[RecentSample]] = defaultdict(list)
                for key, number in self._ids.items():
                    found = readings[key]
                    by_node[key[2]].append(RecentSample(number, found.shared, found.reading))
                store_samples(connection, cluster, now, by_node)
        except BaseException:
            self._ids = {}  # some may not have been stored
            raise

    def _raise_interval(self, connection: Connection, cluster: int) -> None:
        """Let a sample cover more, also of runs that go on, once the source's interval is known."""
        if self._source.interval > self._covered:
            self._covered = self._source.interval
            raise_interval(connection, cluster, self._source.name, self._covered)

    def _find_ids(
        self,
        connection: Connection,
        cluster: int,
        readings: Mapping[UseKey, JobReading],
        most: Mapping[int, int],
    ) -> None:
        """Look up the row ids of the summaries, and store those that are new."""
        self._ids = {key: self._ids[key] for key in readings if key in self._ids}
        missing = readings.keys() - self._ids.keys()
        if not missing:
            return
        jobs = {key[0] for key in missing}
        stored = load_open_ids(connection, cluster, self._source.name, jobs)
        self._ids |= {key: stored[key] for key in missing if key in stored}
        counts = Counter(key[:2] for key in stored)
        new = {}
        for key in sorted(missing - stored.keys()):
            if counts[key[:2]] < most[key[0]]:
                counts[key[:2]] += 1
                new[key] = GpuUse(
                    cluster_id=cluster,
                    job=key[0],
                    start=key[1],
                    node=key[2],
                    gpu=readings[key].gpu,
                    source=self._source.name,
                    interval=self._covered,
                    first=readings[key].reading.at,
                )
        store_uses(connection, list(new.values()))
        self._ids |= {key: use.id for key, use in new.items() if use.id is not None}

    def _update(self, ledger: Ledger, cluster: int, now: int) -> None:
        """Bring all summaries and curves up to date; delete what is old.

        Several transactions: others must be able to write in between.
        """
        since = self._updated or 0.0  # at first all that an earlier service has left
        with ledger.transaction() as connection:
            nodes = sampled_nodes(connection, cluster, since)
        for first in range(0, len(nodes), _NODES_AT_ONCE):
            some = nodes[first : first + _NODES_AT_ONCE]
            with ledger.transaction() as connection:
                found = load_samples(connection, since, cluster=cluster, nodes=some)
                update_uses(connection, {sample.use_id for sample in found})
        with ledger.transaction() as connection:
            delete_old_samples(connection, cluster, now - RETENTION_SECONDS)
            delete_old_curves(connection, now - self._keep_seconds)


def _readings_without(
    readings: Iterable[JobReading], node: str, stale: Collection[tuple[str, int]]
) -> Iterator[JobReading]:
    left = [each for each in readings if (node, each.job) not in stale]
    holders = Counter(each.gpu.key for each in left)
    for each in left:
        if each.whole_gpu is not None and holders[each.gpu.key] == 1:
            yield JobReading(each.job, each.gpu, False, each.whole_gpu)  # noqa: FBT003
        else:
            yield each


def _by_key(
    holders: Mapping[str, Mapping[int, int]], answers: Mapping[str, NodeAnswer]
) -> dict[UseKey, JobReading]:
    """Return the readings of jobs that Slurm says are on the node: an exporter may be behind."""
    return {
        (reading.job, holders[node][reading.job], node, reading.gpu.key): reading
        for node, answer in answers.items()
        for reading in answer.readings
        if reading.job in holders[node]
    }


def _most_uses(jobs: Iterable[HoldingJob]) -> dict[int, int]:
    """Return how many summaries a run of each job may have: twice as many as it has GPUs.

    With more than it has GPUs, nothing of it is believed; a page that names others each time must
    not fill the ledger.
    """
    numbers = ((parse_job(job.raw_id.strip()), 2 * most_gpus(job.tres)) for job in jobs)
    return {number: most for number, most in numbers if number is not None}


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
