"""What the GPUs of running jobs do, where the ledger's source is a site's Prometheus."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fake_sacct import job, lately
from gpu_lab import JobsAndRuns
from prometheus_lab import FakePrometheus, Series, dcgm, times
from slurmkit_accounting import read
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import ScheduleSection
from slurmkit_accounting.gpu_use.collect import GpuUseCollector
from slurmkit_accounting.gpu_use.history import delete_running_uses
from slurmkit_accounting.gpu_use.running import MetricsOfRunning
from slurmkit_accounting.gpu_use.store import link_ended_runs, load_uses
from slurmkit_accounting.gpu_use.summaries import PROMETHEUS, RUNNING_IN_PROMETHEUS
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.service.tasks import ServiceTasks
from slurmkit_plugins.prometheus import Prometheus

from slurmkit.errors import SlurmkitError

NOW = lately()
START = NOW - 700
END = START + 600
TWO = "gres/gpu=2"


class Site:
    """Job 7, which runs on c1 from START on, and a Prometheus that has its GPUs."""

    def __init__(self, ledger: Any, configure: Any, url: str, prometheus: FakePrometheus) -> None:
        self.ledger, self.prometheus = ledger, prometheus
        self.now = float(NOW)
        configure(f"[gpu_use]\nsource = 'prometheus'\n[gpu_metrics.prometheus]\nurl = '{url}'\n")
        self.slurm = JobsAndRuns(job(7, START - 5, START, None, State="RUNNING", NodeList="c1"))
        self.slurm.run_job(7, "c1", START, TWO)
        ingest(ledger, self.slurm)
        source = MetricsOfRunning(Prometheus(), lambda: self.now)
        self.collector = GpuUseCollector(
            open_for_writing, self.slurm, source, interval=15, keep_days=400
        )

    def round(self, at: float) -> str:
        self.now = at
        return self.collector.run("lab", at)

    def uses(self) -> list[Any]:
        with self.ledger.transaction() as connection:
            return load_uses(connection)


@pytest.fixture
def site(file_ledger, configure):
    prometheus = FakePrometheus()
    with prometheus.serving() as url:
        yield Site(file_ledger, configure, url, prometheus)


def two_gpus(**labels: str) -> list[Series]:
    """One GPU at 80 %, one at 0 %."""
    return [
        *dcgm(START, NOW, 80, Hostname="c1", UUID="GPU-1", gpu="0", **labels),
        *dcgm(START, NOW, 0, Hostname="c1", UUID="GPU-2", gpu="1", **labels),
    ]


def test_a_running_job_is_measured_by_prometheus(site, monkeypatch):
    """`slurmkit job ID --gpus` and the TUI showed `?` until the job had ended."""
    site.prometheus.series = two_gpus(hpc_job="7")
    for at in range(START + 30, NOW + 1, 30):
        assert site.round(at + 1) == ""
    monkeypatch.setattr(read, "time", SimpleNamespace(time=lambda: NOW + 5.0))
    busy, idle = sorted(read.gpu_use_now(site.ledger), key=lambda each: each.gpu)
    assert (busy.utilization, busy.memory_mib, busy.watts, busy.shared) == (80, 10240, 300, False)
    assert (idle.utilization, idle.busiest) == (0, 0)
    assert busy.recent[-1] == 80
    assert NOW - 30 <= busy.last <= NOW
    (run,) = read.gpu_use_of(site.ledger, "7")
    assert sorted(gpu.utilization for gpu in run.gpus) == pytest.approx([0, 80])
    assert {gpu.source for gpu in run.gpus} == {RUNNING_IN_PROMETHEUS}
    assert all(gpu.covered > 0.9 for gpu in run.gpus)


def test_a_sample_is_taken_once_although_rounds_come_more_often(site):
    site.prometheus.series = two_gpus(hpc_job="7")
    for at in range(NOW - 120, NOW, 5):
        site.round(at)
    assert {use.samples for use in site.uses()} == {5}


def test_most_rounds_ask_for_three_intervals_only(site):
    site.prometheus.series = two_gpus(hpc_job="7")
    asked = []
    for at in range(NOW - 400, NOW, 30):
        site.prometheus.queries.clear()
        site.round(at)
        (query,) = (each for each in site.prometheus.queries if each.endswith("s]"))
        asked.append(query.rpartition("[")[2])
    assert [asked.count("300s]"), asked.count("90s]")] == [2, 12]
    assert asked[0] == "300s]"
    assert {use.samples for use in site.uses()} == {14}


def test_the_first_sample_counts_for_the_least_interval(site):
    """Nobody knows yet how often the source takes one."""
    site.prometheus.series = two_gpus(hpc_job="7")
    site.round(START + 31)
    assert {(use.samples, use.covered) for use in site.uses()} == {(1, 15)}
    for at in range(START + 61, START + 301, 30):
        site.round(at)
    assert {(use.samples, use.covered) for use in site.uses()} == {(9, 15 + 8 * 30)}


def test_without_labels_of_jobs_all_gpus_of_its_nodes_are_the_jobs(site):
    site.prometheus.series = two_gpus()
    site.round(NOW)
    assert {use.job for use in site.uses()} == {7}
    assert len(site.uses()) == 2


def test_gpus_that_may_be_another_jobs_are_unknown(site):
    site.prometheus.series = two_gpus()
    site.slurm.running.clear()
    site.slurm.run_job(7, "c1", START, "gres/gpu=1")
    site.round(NOW)
    assert site.uses() == []


def test_each_job_of_a_node_has_its_own_gpu(site):
    site.slurm.run_job(8, "c1", START, "gres/gpu=1")
    site.prometheus.series = [
        *dcgm(START, NOW, 80, Hostname="c1", UUID="GPU-1", hpc_job="7"),
        *dcgm(START, NOW, 30, Hostname="c1", UUID="GPU-2", hpc_job="8"),
    ]
    site.round(NOW)
    assert {(use.job, use.gpu.uuid, use.percentile_95) for use in site.uses()} == {
        (7, "GPU-1", 80), (8, "GPU-2", 30),
    }  # fmt: skip


def test_samples_of_the_job_before_are_not_this_jobs(site):
    """Without labels, only the time says whose a sample is."""
    site.slurm.running.clear()
    site.slurm.run_job(9, "c1", NOW - 10, TWO)
    site.prometheus.series = [
        Series("DCGM_FI_DEV_GPU_UTIL", times(START, NOW - 40, 80), Hostname="c1", UUID="GPU-1"),
        Series("DCGM_FI_DEV_GPU_UTIL", times(START, NOW - 40, 80), Hostname="c1", UUID="GPU-2"),
    ]
    site.round(NOW)
    assert site.uses() == []


def test_a_prometheus_that_is_away_fails_the_round_and_nothing_is_invented(site):
    site.prometheus.series = two_gpus(hpc_job="7")
    site.round(NOW - 100)
    site.prometheus.away = True
    with pytest.raises(SlurmkitError, match="gave no answer"):
        site.round(NOW - 60)
    assert {use.samples for use in site.uses()} == {1}


def test_a_node_without_samples_is_named(site):
    site.slurm.run_job(8, "c9", START, "gres/gpu=1")
    site.prometheus.series = two_gpus(hpc_job="7")
    assert site.round(NOW) == (
        "1 of 2 nodes did not answer, e.g. c9: the source has no sample of the last 300 s"
    )
    site.prometheus.series = []
    assert site.round(NOW + 1).startswith("2 of 2 nodes did not answer, e.g. c1: Prometheus at ")


def test_after_the_end_one_source_counts_and_the_other_is_deleted(site, configure):
    site.prometheus.series = two_gpus(hpc_job="7")
    for at in range(START + 30, END, 60):
        site.round(at)
    site.slurm.running.clear()
    site.slurm.jobs = [job(7, START - 5, START, END, NodeList="c1")]
    ingest(site.ledger, site.slurm)
    with site.ledger.transaction() as connection:
        link_ended_runs(connection)
    tasks = ServiceTasks(open_for_writing, site.slurm, lambda: None, find_zone("UTC"))
    by_name = {each.name: each for each in tasks.tasks(ScheduleSection())}
    assert {"gpu_use", "gpu_use_now"} <= set(by_name)
    by_name["gpu_use"].run([])
    assert {use.source for use in site.uses()} == {PROMETHEUS, RUNNING_IN_PROMETHEUS}
    (run,) = read.gpu_use_of(site.ledger, "7")
    assert {gpu.source for gpu in run.gpus} == {PROMETHEUS}
    assert len(run.gpus) == 2
    with site.ledger.transaction() as connection:
        assert delete_running_uses(connection, END + 3600) == 0
        assert delete_running_uses(connection, END + 7200) == 2
    assert {use.source for use in site.uses()} == {PROMETHEUS}
