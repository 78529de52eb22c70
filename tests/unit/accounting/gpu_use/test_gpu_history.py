"""The windows of ended runs, asked of a server that answers as Prometheus does."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from fake_sacct import FakeSacct
from prometheus_lab import FakePrometheus, Series, counter, dcgm, times
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import ScheduleSection
from slurmkit_accounting.gpu_use.history import usual_interval
from slurmkit_accounting.gpu_use.store import load_uses
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.ledger.schema.gpu_use import gpu_questions
from slurmkit_accounting.ledger.schema.runs import clusters, runs
from slurmkit_accounting.service.tasks import ServiceTasks
from slurmkit_plugins.prometheus import Prometheus
from sqlalchemy import insert, select, update
from stored_runs import ran, store_runs

from slurmkit.errors import BadConfig, BadInput, SlurmkitError
from slurmkit.state.gpu_metrics import GpuSample, JobWindow
from slurmkit.testing import FakeSlurm

NOW = int(time.time())
START, END = NOW - 1000, NOW - 400
ONE = {"gpus": 1, "alloc_tres": "cpu=4,gres/gpu:a100=1,gres/gpu=1,mem=8G,node=1"}


class Site:
    """A ledger with job 1, which ran on c1, and a service that asks Prometheus."""

    def __init__(self, ledger: Any, configure: Any, url: str, prometheus: FakePrometheus) -> None:
        self.ledger, self.prometheus = ledger, prometheus
        configure(f"[gpu_use]\nsource = 'prometheus'\n[gpu_metrics.prometheus]\nurl = '{url}'\n")
        tasks = ServiceTasks(open_for_writing, FakeSacct(), lambda: None, find_zone("UTC"))
        (self.task,) = [each for each in tasks.tasks(ScheduleSection()) if each.name == "gpu_use"]

    def ask(self) -> None:
        self.task.run([])

    def uses(self) -> dict[str, Any]:
        with self.ledger.transaction() as connection:
            return {use.gpu.key: use for use in load_uses(connection)}

    def run(self) -> Any:
        with self.ledger.transaction() as connection:
            return connection.execute(select(runs).order_by(runs.c.id)).first()

    def question(self) -> Any:
        with self.ledger.transaction() as connection:
            return connection.execute(select(gpu_questions)).first()


@pytest.fixture
def site(file_ledger, configure):
    prometheus = FakePrometheus()
    with prometheus.serving() as url:
        yield Site(file_ledger, configure, url, prometheus)


@pytest.mark.parametrize("label", ["Hostname", "hostname"])
def test_both_spellings_of_the_node_are_read(site, label):
    store_runs(site.ledger, ran(START, 600, **ONE))
    mine = {label: "c1.example.org", "UUID": "GPU-1", "gpu": "3", "hpc_job": "1"}
    other = {label: "c1.example.org", "UUID": "GPU-2", "gpu": "0", "hpc_job": "2"}
    site.prometheus.series = [*dcgm(START, END, 80, **mine), *dcgm(START, END, 5, **other)]
    site.ask()
    (use,) = site.uses().values()
    assert (use.gpu.uuid, use.gpu.index, use.source) == ("GPU-1", None, "prometheus")
    assert (use.percentile_95, use.samples, use.node) == (80, 20, "c1")
    assert (use.memory_mib, use.memory_total_mib) == (10240, 81920)
    assert use.joules == pytest.approx(300 * 600)
    assert use.covered_share(END) == 1
    assert site.run().gpu_used_permille == 800


def test_our_own_exporter_scraped_by_prometheus(site):
    store_runs(site.ledger, ran(START, 600))
    series = []
    for number, busy in ((0, 0.8), (1, 0.0), (2, 0.5)):
        labels = {
            "node": "c1", "gpu": str(number), "uuid": f"GPU-{number}", "pci": "", "mig": "",
            "instance": "10.0.0.1:6832", "job": "gpu-exporter",
        }  # fmt: skip
        series += [
            Series("slurmkit_gpu_utilization_ratio", times(START, END, busy), **labels),
            Series(
                "slurmkit_gpu_energy_joules_total",
                [(at, float(mj) / 1000) for at, mj in counter(START, END, 100)],
                **labels,
            ),
            Series(
                "slurmkit_gpu_job",
                times(START, END, 1),
                **labels | {"exported_job": "1" if number < 2 else "9"},
            ),
        ]
    site.prometheus.series = series
    site.ask()
    uses = site.uses()
    assert {key: (use.mean, use.gpu.index) for key, use in uses.items()} == {
        "GPU-0": (pytest.approx(80), 0), "GPU-1": (0, 1),
    }  # fmt: skip
    assert uses["GPU-1"].joules == pytest.approx(100 * 570)
    assert site.run().gpu_used_permille == 400


def test_a_shared_gpu_is_measured_by_process(site):
    store_runs(site.ledger, ran(START, 600, **ONE))
    gpu = {"node": "c1", "uuid": "GPU-1", "instance": "c1:6832"}
    site.prometheus.series = [
        Series("slurmkit_gpu_utilization_ratio", times(START, END, 0.75), **gpu),
        Series("slurmkit_gpu_power_watts", times(START, END, 300), **gpu),
    ]
    for job, busy in (("1", 0.25), ("2", 0.5)):
        of_job = gpu | {"exported_job": job}
        site.prometheus.series += [
            Series("slurmkit_gpu_job", times(START, END, 1), **of_job),
            Series("slurmkit_gpu_job_utilization_ratio", times(START, END, busy), **of_job),
            Series("slurmkit_gpu_job_memory_used_bytes", times(START, END, 2**30), **of_job),
        ]
    site.ask()
    (use,) = site.uses().values()
    assert (use.shared, use.percentile_95, use.memory_mib, use.joules) == (True, 25, 1024, None)


def test_jobstats_exporter_says_the_job_as_a_value(site):
    store_runs(site.ledger, ran(START, 600, **ONE))
    labels = {"instance": "c1:9445", "uuid": "GPU-1", "minor_number": "0"}
    site.prometheus.series = [
        Series("nvidia_gpu_duty_cycle", times(START, END, 60), **labels),
        Series("nvidia_gpu_power_usage_milliwatts", times(START, END, 250_000), **labels),
        Series(
            "nvidia_gpu_jobId", [*times(START, END - 300, 1), *times(END - 300, END, 2)], **labels
        ),
    ]
    site.ask()
    (use,) = site.uses().values()
    assert (use.samples, use.percentile_95) == (10, 60)  # then the GPU was another job's
    assert (use.energy_by, use.joules) == ("power", 250 * 300)
    assert use.covered_share(END) == 0.5


def test_mig_instances_are_apart(site):
    store_runs(site.ledger, ran(START, 600, **ONE))
    whole = {"Hostname": "c1", "UUID": "GPU-1"}
    site.prometheus.series = dcgm(START, END, 50, **whole)
    for instance, job, busy in (("7", "1", 0.9), ("8", "2", 0.1)):
        labels = whole | {"GPU_I_ID": instance, "GPU_I_PROFILE": "1g.10gb", "hpc_job": job}
        site.prometheus.series += [
            Series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", times(START, END, busy), **labels),
            Series("DCGM_FI_DEV_POWER_USAGE", times(START, END, 300), **labels),
        ]
    site.ask()
    (use,) = site.uses().values()
    assert (use.gpu.mig, use.percentile_95) == ("GPU-1/7", 90)
    assert use.joules is None  # the power is the whole GPU's


def test_a_run_that_held_all_gpus_of_its_node_needs_no_label(site):
    store_runs(site.ledger, ran(START, 600))
    for uuid in ("GPU-1", "GPU-2"):
        site.prometheus.series += dcgm(START, END, 70, Hostname="c1", UUID=uuid)
    site.ask()
    assert {use.samples for use in site.uses().values()} == {20}
    assert len(site.uses()) == 2


def test_gpus_that_may_be_another_runs_are_unknown(site):
    store_runs(site.ledger, ran(START, 600, **ONE))
    for uuid in ("GPU-1", "GPU-2"):
        site.prometheus.series += dcgm(START, END, 70, Hostname="c1", UUID=uuid)
    site.ask()
    assert site.uses() == {}
    assert site.run().gpu_used_permille is None


def test_a_gpu_with_two_jobs_is_unknown_where_only_labels_tell(site):
    store_runs(site.ledger, ran(START, 600, **ONE))
    for job in ("1", "2"):
        site.prometheus.series += dcgm(START, END, 70, Hostname="c1", UUID="GPU-1", hpc_job=job)
    site.ask()
    (use,) = site.uses().values()
    assert (use.shared, use.mean, use.joules, use.samples) == (True, None, None, 20)


def test_what_no_gpu_does_is_unknown(site):
    store_runs(site.ledger, ran(START, 600, **ONE))
    labels = {"Hostname": "c1", "UUID": "GPU-1", "hpc_job": "1"}
    site.prometheus.series = [
        Series("DCGM_FI_DEV_GPU_UTIL", times(START, END, 250), **labels),
        Series("DCGM_FI_DEV_POWER_USAGE", times(START, END, "NaN"), **labels),
        Series("DCGM_FI_DEV_FB_USED", times(START, END, 1), **labels),
    ]
    site.ask()
    (use,) = site.uses().values()
    assert (use.mean, use.joules, use.samples, use.memory_mib) == (None, None, 20, 1)


def test_two_minutes_without_samples_are_a_gap(site):
    store_runs(site.ledger, ran(START, 600, **ONE))
    labels = {"Hostname": "c1", "UUID": "GPU-1", "hpc_job": "1"}
    site.prometheus.series = dcgm(START, END, 80, **labels)
    for series in site.prometheus.series:
        series.values = [p for p in series.values if not START + 240 < p[0] <= START + 360]
    site.ask()
    (use,) = site.uses().values()
    assert (use.samples, use.mean) == (16, pytest.approx(80))
    assert use.covered_share(END) == pytest.approx(16 / 20)
    assert use.joules == pytest.approx(300 * 600)  # the counter went on


def test_a_question_that_failed_is_asked_again_and_counts_once(site):
    store_runs(site.ledger, ran(START, 600, **ONE))
    labels = {"Hostname": "c1", "UUID": "GPU-1", "hpc_job": "1"}
    site.prometheus.series = dcgm(START, END, 80, **labels)
    site.prometheus.away = True
    with pytest.raises(SlurmkitError, match="gave no answer"):
        site.ask()
    assert site.question().failures == 1
    site.prometheus.away = False
    site.ask()
    assert site.uses() == {}  # not yet
    for _ in range(2):
        with site.ledger.transaction() as connection:
            connection.execute(update(gpu_questions).values(again=NOW - 1))
        site.ask()
        assert [use.samples for use in site.uses().values()] == [20]
    asked = len(site.prometheus.queries)
    site.ask()
    assert len(site.prometheus.queries) == asked  # once is enough
    assert (site.question().failures, site.question().again) == (0, None)


def test_a_query_that_matches_nothing_is_named(site):
    store_runs(site.ledger, ran(START, 600, **ONE))
    site.prometheus.series = dcgm(START, END, 80, Hostname="c9", UUID="GPU-1", hpc_job="1")
    site.ask()  # the source is there, so the service need not pause
    assert re.search(
        r"has no series of c1: .*Hostname or hostname.*node_label", site.question().error
    )
    assert (site.question().failures, site.question().again > NOW) == (1, True)
    with site.ledger.transaction() as connection:
        connection.execute(update(gpu_questions).values(failures=50, again=NOW - 1))
    began = int(time.time())
    site.ask()
    assert began + 86000 < site.question().again <= time.time() + 86400


@pytest.mark.parametrize("given_up", [True, False])
def test_once_the_labels_are_right_nothing_is_lost(site, given_up):
    """A wrong label for two hours lost these runs; an earlier version has given some up."""
    store_runs(site.ledger, ran(NOW - 5 * 86400, 600, **ONE))
    begin = NOW - 5 * 86400
    site.ask()
    again = None if given_up else NOW - 1
    with site.ledger.transaction() as connection:
        connection.execute(update(gpu_questions).values(failures=6, again=again))
    labels = {"Hostname": "c1", "UUID": "GPU-1", "hpc_job": "1"}
    site.prometheus.series = dcgm(begin, begin + 600, 80, **labels)
    site.ask()
    (use,) = site.uses().values()
    assert use.percentile_95 == 80


def test_parts_of_a_gpu_are_asked_for(site):
    parts = {"gpus": 0, "alloc_tres": "cpu=4,gres/shard=2,mem=8G,node=1"}
    store_runs(site.ledger, ran(START, 600, **parts))
    gpu = {"node": "c1", "uuid": "GPU-1", "instance": "c1:6832"}
    site.prometheus.series = [
        Series("slurmkit_gpu_utilization_ratio", times(START, END, 0.75), **gpu)
    ]
    for job, busy in (("1", 0.25), ("2", 0.5)):
        of_job = gpu | {"exported_job": job}
        site.prometheus.series += [
            Series("slurmkit_gpu_job", times(START, END, 1), **of_job),
            Series("slurmkit_gpu_job_utilization_ratio", times(START, END, busy), **of_job),
            Series("slurmkit_gpu_job_memory_used_bytes", times(START, END, 2**30), **of_job),
        ]
    site.ask()
    (use,) = site.uses().values()
    assert (use.shared, use.percentile_95, use.memory_mib) == (True, 25, 1024)
    assert site.run().gpu_mem_peak_mib == 1024
    assert site.run().gpu_used_permille is None  # it held no whole GPU


def test_gpus_of_others_are_not_taken_for_those_of_a_silent_node(site):
    """A job with 4 and 4 GPUs got all eight of its first node, since the second had no series."""
    eight = {"gpus": 8, "alloc_tres": "cpu=4,gres/gpu=8,mem=8G,node=2", "node_list": "c[1-2]"}
    store_runs(site.ledger, ran(START, 600, **eight))
    for number in range(8):
        site.prometheus.series += dcgm(START, END, 70, Hostname="c1", UUID=f"GPU-{number}")
    window = JobWindow(job_id=1, nodes=("c1", "c2"), begin=START, end=END, gpus=8)
    assert list(Prometheus().read_running([window])) == []
    site.ask()
    assert site.uses() == {}
    site.prometheus.series = site.prometheus.series[: 4 * 5]
    for number in range(4, 8):
        site.prometheus.series += dcgm(START, END, 70, Hostname="c2", UUID=f"GPU-{number}")
    assert len(list(Prometheus().read_running([window]))) == 8
    assert len(list(Prometheus().read_job(window))) == 8


@pytest.mark.parametrize(
    ("at", "interval"),
    [
        ([10, 172], 30),
        ([10, 172, 187], 30),
        ([60, 120, 180, 240, 500, 560], 60),
        ([15, 30, 300, 315], 30),
        ([100, 700, 1300, 1900], 300),
    ],
)
def test_an_outage_is_not_taken_for_the_usual_interval(at, interval):
    """Two samples around an outage of 162 s covered 96 % of a run."""
    samples = [GpuSample(index=0, taken=float(each)) for each in at]
    assert usual_interval(samples, 30) == interval


def test_nodes_without_series_end_no_round(site):
    """Three runs on nodes without an exporter were taken for a server that is away."""
    nobody = [ran(START, 600 - number, node_list="c9", **ONE) for number in range(4)]
    store_runs(site.ledger, *nobody, ran(START - 100, 600, **ONE))
    labels = {"Hostname": "c1", "UUID": "GPU-1", "hpc_job": "5"}
    site.prometheus.series = dcgm(START - 100, END - 100, 80, **labels)
    site.ask()
    (use,) = site.uses().values()
    assert (use.job, use.samples) == (5, 20)


def test_runs_that_nobody_asks_for(site):
    with_cpus = {"gpus": 0, "alloc_tres": "cpu=4,node=1"}
    store_runs(
        site.ledger,
        ran(START, 600, **with_cpus),
        ran(NOW - 30 * 86400, 600),
        ran(int(time.time()) - 600, 600),
        ran(START, 600) | {"end": None},
    )
    site.ask()
    assert site.prometheus.queries == []


def test_runs_of_another_cluster_are_not_asked_for(site):
    """Its Prometheus is another one, and c1 there another node."""
    with site.ledger.transaction() as connection:
        other = connection.execute(insert(clusters), {"name": "other"}).inserted_primary_key[0]
    store_runs(site.ledger, ran(START, 600, cluster_id=other, **ONE))
    labels = {"Hostname": "c1", "UUID": "GPU-1", "hpc_job": "1"}
    site.prometheus.series = dcgm(START, END, 80, **labels)
    site.ask()
    assert (site.uses(), site.question(), site.prometheus.queries) == ({}, None, [])


def test_a_long_run_is_asked_for_in_pieces(site):
    begin = NOW - 20 * 3600
    store_runs(site.ledger, ran(begin, END - begin, **ONE))
    labels = {"Hostname": "c1", "UUID": "GPU-1", "hpc_job": "1"}
    site.prometheus.series = dcgm(begin, END, 80, **labels)
    site.ask()
    (use,) = site.uses().values()
    assert use.samples == (END - begin) // 30
    assert len(site.prometheus.queries) == 4 + 4  # spellings of the node's label, pieces


def test_no_more_than_six_hours_of_samples_are_in_memory(site):
    """A week of 64 GPUs took 4.6 GiB."""
    begin = END - 7 * 86400
    mine = {"Hostname": "c1", "UUID": "GPU-1", "hpc_job": "1"}
    site.prometheus.series = [
        Series("DCGM_FI_DEV_GPU_UTIL", times(begin, END, 80, every=300), **mine)
    ]
    window = JobWindow(job_id=1, nodes=("c1",), begin=begin, end=END, gpus=1)
    sizes = [len(trace.samples) for trace in Prometheus().read_job(window)]
    assert len(sizes) == 28
    assert max(sizes) == 72
    store_runs(site.ledger, ran(begin, END - begin, **ONE))
    site.ask()
    (use,) = site.uses().values()
    assert (use.samples, use.covered_share(END), use.interval) == (7 * 288, 1, 300)


def test_a_gpu_that_comes_later_makes_all_of_them_doubtful(site):
    """The node has two GPUs, of which the run held one: also in the hours in which one is seen."""
    begin = END - 10 * 3600
    store_runs(site.ledger, ran(begin, END - begin, **ONE))
    site.prometheus.series = [
        *dcgm(begin, END, 70, Hostname="c1", UUID="GPU-1"),
        *dcgm(END - 600, END, 70, Hostname="c1", UUID="GPU-2"),
    ]
    site.ask()
    assert site.uses() == {}


def test_a_run_that_ends_the_service_is_not_the_first_again(site, monkeypatch):
    store_runs(site.ledger, ran(START, 600, **ONE))

    def read_job(source, window):
        raise KeyboardInterrupt

    monkeypatch.setattr(Prometheus, "read_job", read_job)
    with pytest.raises(KeyboardInterrupt):
        site.ask()
    assert (site.question().failures, site.question().again > NOW) == (1, True)
    assert site.question().error == "the service ended while it asked"


def test_one_exporter_knows_the_use_and_another_the_jobs(site):
    store_runs(site.ledger, ran(START, 600, **ONE))
    for uuid in ("GPU-1", "GPU-2"):
        site.prometheus.series += dcgm(START, END, 70, Hostname="c1", UUID=uuid)
    holder = {"node": "c1", "uuid": "GPU-1", "exported_job": "1", "instance": "c1:6832"}
    # It is scraped at other times, and for the last two minutes another job had the GPU.
    mine = times(START - 11, END - 131, 1)
    site.prometheus.series += [
        Series("slurmkit_gpu_job", mine, **holder),
        Series("slurmkit_gpu_job", times(END - 131, END, 1), **holder | {"exported_job": "2"}),
    ]
    site.ask()
    (use,) = site.uses().values()
    assert (use.gpu.uuid, use.percentile_95, use.samples) == ("GPU-1", 70, 16)


def test_an_absurd_answer_of_one_run_costs_no_other_run(site):
    """DCGM's blank value is near 2^63; an exporter may name a MIG instance in two ways."""
    store_runs(site.ledger, ran(START, 600, **ONE))
    one = {"Hostname": "c1", "UUID": "MIG-1", "hpc_job": "1"}
    other = {"node": "c1", "uuid": "GPU-1", "mig": "MIG-1", "instance": "c1:6832"}
    blank = times(START, END, 0x7FFFFFFFFFFFFFF0)
    site.prometheus.series = [
        *(each for each in dcgm(START, END, 80, **one) if "FB_USED" not in str(each.labels)),
        Series("DCGM_FI_DEV_FB_USED", blank, **one),
        Series("slurmkit_gpu_utilization_ratio", times(START, END, 0.8), **other),
    ]
    site.ask()
    assert site.question().again is None
    (use,) = site.uses().values()
    assert (use.gpu.key, use.memory_mib, use.percentile_95) == ("MIG-1", None, 80)


def test_what_is_known_is_counted_although_the_round_is_cut_off(site, monkeypatch):
    store_runs(site.ledger, ran(START, 600, **ONE), ran(START - 100, 600, **ONE))
    labels = {"Hostname": "c1", "UUID": "GPU-1"}
    site.prometheus.series = dcgm(START, END, 80, hpc_job="1", **labels)
    site.prometheus.series += dcgm(START - 100, END - 100, 80, hpc_job="2", **labels)
    asked = []

    def read_job(source, window):
        if asked:
            raise KeyboardInterrupt
        asked.append(window.job_id)
        return read(source, window)

    read = Prometheus.read_job
    monkeypatch.setattr(Prometheus, "read_job", read_job)
    with pytest.raises(KeyboardInterrupt):
        site.ask()
    with site.ledger.transaction() as connection:
        known = connection.execute(select(runs.c.job_id_raw, runs.c.gpu_used_permille)).all()
    assert dict(map(tuple, known))[asked[0]] == 800


def test_a_run_that_breaks_the_source_is_asked_for_later(site, monkeypatch):
    store_runs(site.ledger, ran(START, 600, **ONE))

    def read_job(source, window):
        raise OverflowError("too large")

    monkeypatch.setattr(Prometheus, "read_job", read_job)
    with pytest.raises(SlurmkitError, match="too large"):
        site.ask()
    assert (site.question().failures, site.question().error) == (1, "too large")


def test_a_source_without_history(configure):
    tasks = ServiceTasks(open_for_writing, FakeSlurm({}), lambda: None, find_zone("UTC"))
    configure("[gpu_use]\nsource = 'slurm'\n")
    with pytest.raises(BadConfig, match="keeps no history"):
        tasks.tasks(ScheduleSection())
    configure("[gpu_use]\nsource = 'promethius'\n")
    with pytest.raises(BadInput, match="prometheus"):
        tasks.tasks(ScheduleSection())
