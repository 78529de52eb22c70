"""`slurmkit job ID --gpus`: what the GPUs of a job did, while it runs and after it ended."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from gpu_lab import steady, store_running, use_of
from slurmkit_accounting import read
from slurmkit_accounting.cli.job_gpus import sparkline
from slurmkit_accounting.gpu_use.recent import delete_old_samples
from slurmkit_accounting.gpu_use.samples import GpuName, GpuReading
from slurmkit_accounting.gpu_use.store import (
    link_ended_runs,
    load_uses,
    store_uses,
    update_uses,
)
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.ledger.schema.runs import clusters, runs
from slurmkit_accounting.remote.served import find_remote_function
from slurmkit_accounting.reports.question import Scope
from slurmkit_plugins.ledger import LedgerGpus
from sqlalchemy import insert, update
from stored_runs import ran, store_runs

from slurmkit.cli.main import cli
from slurmkit.errors import BadInput

START = int(time.time()) - 2000
NO_GPUS = {"gpus": 0, "alloc_tres": "cpu=4,mem=8G,node=1"}


def store(ledger: Any, *uses: GpuUse, run_id: int | None = 1) -> None:
    with ledger.transaction() as connection:
        store_uses(connection, uses, run_id=run_id)


def two_gpus(start: int = START, **other: Any) -> tuple[GpuUse, GpuUse]:
    """One GPU at 80 %, and one that does nothing."""
    idle = steady(start, 600, busy=0, watts=60)
    return (
        use_of(*steady(start, 600), start=start, **other),
        use_of(*idle, start=start, gpu=GpuName("GPU-2", "", 1), **other),
    )


def shown(*words: str) -> str:
    done = CliRunner().invoke(cli, ["job", "--gpus", *words])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.output


def test_one_line_for_each_gpu_and_the_idle_one_is_marked(file_ledger):
    store_runs(file_ledger, ran(START, 600))
    store(file_ledger, *two_gpus())
    head, names, busy, idle = shown("1").splitlines()
    assert head.startswith("Job 1 of alice, ")
    assert head.endswith(", 2 GPUs")
    assert names.split()[:3] == ["NODE", "GPU", "USE"]
    assert busy.split()[:6] == ["c1", "0", "80", "%", "80", "%"]
    assert "10.0 of 80 GiB" in busy
    assert "0.05 kWh" in busy
    assert "100 %" in busy
    assert "▇" * 5 in busy
    assert idle.split()[1:4] == ["1", "0", "%"]
    assert idle.rstrip().endswith("idle")
    assert "▁" * 5 in idle


def test_what_is_unknown_says_so(file_ledger):
    store_runs(file_ledger, ran(START, 600) | {"gpus": 4})
    half = use_of(*steady(START, 150), start=START)
    power = use_of(
        GpuReading(at=START + 30.0, watts=300), start=START, gpu=GpuName("", "01:00.0"), shared=True
    )
    store(file_ledger, half, power)
    text = shown("1")
    assert "25 % !" in text
    assert "2 of 4 GPUs: what they did is unknown" in text
    with file_ledger.transaction() as connection:
        connection.execute(update(runs).values(gpus=1))
    assert "samples of 2 GPUs, but the job held 1" in shown("1")
    assert "!: measured for less than half of the run" in text
    (line,) = [line for line in text.splitlines() if "01:00.0" in line]
    assert line.split()[2:5] == ["?", "?", "?"]
    assert "~0.00 kWh" in line
    assert "shared" in line
    assert "~: power times time" in text


def test_a_job_that_runs_is_shown_as_of_its_last_sample(file_ledger):
    start = int(time.time()) - 600
    store_runs(file_ledger, ran(start, 600) | {"end": None, "state": "RUNNING"})
    store(file_ledger, *two_gpus(start), run_id=None)
    text = shown("1")
    assert "still running" in text
    assert "last sample 0:0" in text
    assert "100 %" in text


NOW = int(time.time())
RUNNING = {"end": None, "state": "RUNNING"}


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    """However long the tests before this one took, what GPUs do now is asked at NOW."""
    monkeypatch.setattr(read, "time", SimpleNamespace(time=lambda: NOW + 5.0))


def store_two_hours(ledger: Any) -> Any:
    """A job of two hours on two GPUs; one has done nothing since it was busy 40 minutes ago."""
    start = NOW - 7200
    store_runs(ledger, ran(start, 600, uid=7) | RUNNING)
    one, two = use_of(start=start), use_of(start=start, gpu=GpuName("GPU-2", "", 1))
    idle = [
        *steady(NOW - 3600, 1200, busy=100),
        *steady(NOW - 2400, 2400, busy=0, watts=60),
    ]
    store_running(ledger, (one, steady(NOW - 3600, 3600)), (two, idle))
    return ledger


@pytest.fixture
def running(ledger):
    return store_two_hours(ledger)


@pytest.fixture
def running_in_file(file_ledger):
    return store_two_hours(file_ledger)


@pytest.mark.sql
def test_what_gpus_do_now(running):
    """For a job of two days, the last point of its curve was the mean of some hours."""
    busy, idle = read.gpu_use_now(running)
    assert (busy.cluster, busy.node, busy.index, busy.job_id, busy.user) == (
        "lab", "c1", 0, "1", "alice",
    )  # fmt: skip
    assert (busy.utilization, busy.busiest, busy.memory_mib, busy.watts) == (80, 80, 10240, 300)
    assert (idle.utilization, idle.busiest, idle.watts) == (0, 0, 60)
    assert NOW - 1800 <= idle.since <= NOW - 1760
    assert (idle.last, idle.memory_total_mib, idle.shared) == (NOW, 81920, False)
    assert idle.age == 5
    assert read.gpu_use_now(running, seconds=3000)[1].busiest == 100
    assert read.gpu_use_now(running, nodes=["c9"]) == ()
    other = Scope(frozenset(), frozenset(), frozenset((8,)))
    mine = Scope(frozenset(), frozenset(), frozenset((7,)))
    assert read.gpu_use_now(running, scope=other) == ()
    assert len(read.gpu_use_now(running, scope=mine)) == 2


def test_a_gpu_that_does_almost_nothing_is_idle(ledger):
    store_runs(ledger, ran(NOW - 600, 600) | RUNNING)
    store_running(ledger, (use_of(start=NOW - 600), steady(NOW - 600, 600, busy=0.96)))
    (gpu,) = read.gpu_use_now(ledger)
    assert (gpu.utilization, gpu.busiest, gpu.idle_seconds) == (0.96, 0.96, 570)


def test_a_gpu_of_which_the_newest_sample_says_nothing_is_not_idle(ledger):
    store_runs(ledger, ran(NOW - 600, 600) | RUNNING)
    readings = [*steady(NOW - 600, 300, busy=0), *steady(NOW - 300, 300, busy=None)]
    store_running(ledger, (use_of(start=NOW - 600), readings))
    (gpu,) = read.gpu_use_now(ledger)
    assert (gpu.utilization, gpu.busiest, gpu.idle_seconds) == (None, 0, None)


@pytest.mark.parametrize(("burst", "hours"), [(0, 40), (1, 20)])
def test_how_long_a_gpu_was_idle_is_seen_beyond_the_last_hour(ledger, burst, hours):
    """A point of such a run is the mean of 16 minutes; one sample of work is 20 hours ago."""
    start = NOW - 40 * 3600
    store_runs(ledger, ran(start, 600) | RUNNING)
    before = steady(start, 39 * 3600, busy=0)
    before[20 * 120] = msgspec.structs.replace(before[20 * 120], utilization=burst)
    store_running(ledger, (use_of(*before, start=start), steady(NOW - 3600, 3600, busy=0)))
    (gpu,) = read.gpu_use_now(ledger, seconds=7 * 86400)
    assert gpu.idle_seconds == pytest.approx(3600 * hours, abs=2 * 960)
    assert gpu.since == gpu.idle_since  # further back, nobody knows what its busiest sample was
    assert gpu.busiest == burst / 10


def test_work_before_a_point_that_may_hide_some_is_seen(ledger):
    start = NOW - 40 * 3600
    store_runs(ledger, ran(start, 600) | RUNNING)
    before = [*steady(start, 20 * 3600, busy=90), *steady(start + 20 * 3600, 19 * 3600, busy=0)]
    before[30 * 120] = msgspec.structs.replace(before[30 * 120], utilization=1)
    store_running(ledger, (use_of(*before, start=start), steady(NOW - 3600, 3600, busy=0)))
    (gpu,) = read.gpu_use_now(ledger, seconds=7 * 86400)
    assert gpu.busiest == 90
    assert NOW - 11 * 3600 < gpu.since < NOW - 9 * 3600


def test_now_as_a_sparkline(running):
    busy, idle = read.gpu_use_now(running, seconds=3600)
    assert (len(busy.recent), busy.recent_step) == (60, 60)
    assert set(busy.recent) == {80}
    assert idle.recent[-40:] == (0,) * 40
    assert set(idle.recent[:19]) == {100}
    shorter = read.gpu_use_now(running, seconds=600)[1]
    assert (shorter.recent_step, set(shorter.recent)) == (30, {0})
    assert len(shorter.recent) == 20


@pytest.mark.sql
def test_a_sparkline_has_gaps_where_samples_are_missing_and_not_where_they_are_late(ledger):
    start = NOW - 600
    store_runs(ledger, ran(start, 600) | RUNNING)
    late = [GpuReading(at=NOW - back + 0.4 * (back % 60 == 0), utilization=50)
            for back in range(570, -1, -30) if not 200 < back < 400]  # fmt: skip
    store_running(ledger, (use_of(start=start), late))
    (gpu,) = read.gpu_use_now(ledger)
    known = "".join("x" if each == 50 else "·" for each in gpu.recent)
    assert known.count("·") in {5, 6}
    assert known.strip("x") == "·" * known.count("·")  # one gap
    assert gpu.since == pytest.approx(NOW - 180, abs=1)  # what was before it is not "since"
    assert gpu.busiest == 50


@pytest.mark.sql
def test_now_of_some_jobs(ledger):
    start = NOW - 600
    ids = {1: "1", 2: "5_1", 3: "5_2", 4: "6+0"}
    store_runs(
        ledger,
        *(ran(start, 600, job_id_raw=raw, job_id=name) | RUNNING for raw, name in ids.items()),
    )
    store_running(
        ledger,
        *((use_of(start=start, job=raw, gpu=GpuName(f"GPU-{raw}")), steady(NOW - 60, 60))
          for raw in ids),
    )  # fmt: skip

    def found(*jobs: str) -> set[str]:
        return {gpu.job_id for gpu in read.gpu_use_now(ledger, jobs=jobs)}

    assert found("1") == {"1"}
    assert found("5_2", "1") == {"5_2", "1"}
    assert found("5") == {"5_1", "5_2"}
    assert found("6") == {"6+0"}
    assert found("9") == found() == set()
    assert len(read.gpu_use_now(ledger, cluster="lab")) == 4
    assert read.gpu_use_now(ledger, cluster="other") == ()
    with pytest.raises(BadInput, match="1,001 jobs are too many"):
        read.gpu_use_now(ledger, jobs=[str(number) for number in range(1001)])
    with pytest.raises(BadInput, match="from 60 to 604,800; not 59"):
        read.gpu_use_now(ledger, seconds=59)


@pytest.mark.sql
def test_before_the_last_hour_the_curve_says_what_was(running):
    """`report idle --minutes 120` looks further back than samples are kept."""
    with running.transaction() as connection:
        update_uses(connection, [use.id for use in load_uses(connection)])
        delete_old_samples(connection, 1, NOW - 1000)
    busy, idle = read.gpu_use_now(running, seconds=7200)
    assert NOW - 3700 < busy.since < NOW - 3500
    assert (busy.busiest, idle.busiest) == (pytest.approx(80), pytest.approx(100))


def test_the_start_of_sacct_may_be_another_than_that_of_squeue(file_ledger):
    store_runs(file_ledger, ran(NOW - 598, 600) | RUNNING)
    store_running(file_ledger, (use_of(start=NOW - 600), steady(NOW - 600, 600)))
    (gpu,) = read.gpu_use_now(file_ledger)
    assert (gpu.job_id, gpu.utilization) == ("1", 80)
    (run,) = _read(file_ledger, "1")
    assert (run.gpus[0].covered, run.gpus[0].samples) == (1, 20)
    with file_ledger.transaction() as connection:
        connection.execute(update(runs).values(end=NOW, state="COMPLETED"))
        assert link_ended_runs(connection) == [1]
    (run,) = _read(file_ledger, "1")
    assert (run.end, run.gpus[0].covered, run.gpus[0].samples) == (NOW, 1, 20)
    assert "80 %" in shown("1")


def test_between_the_end_of_a_run_and_its_link_the_energy_is_the_same(file_ledger):
    store_runs(file_ledger, ran(NOW - 600, 620))
    store_running(file_ledger, (use_of(start=NOW - 600), steady(NOW - 600, 600)))
    (before,) = _read(file_ledger, "1")
    with file_ledger.transaction() as connection:
        assert link_ended_runs(connection) == [1]
    (after,) = _read(file_ledger, "1")
    assert after.gpus[0].energy_seconds == 620
    assert before.gpus[0].energy_seconds == after.gpus[0].energy_seconds
    assert before.gpus[0].joules == after.gpus[0].joules


def test_the_ledger_is_a_source_of_gpu_metrics(running_in_file):
    found = LedgerGpus().read(["c1", "c2"], seconds=1800)
    assert list(found) == ["c1"]
    assert [(each.index, each.utilization) for each in found["c1"]] == [
        (0, 80), (0, 80), (1, 0), (1, 0),
    ]  # fmt: skip
    now = LedgerGpus().read(["c1"])["c1"]
    assert [(each.index, each.memory_used) for each in now] == [(0, 10240), (1, 10240)]


def test_of_a_shared_gpu_one_job_alone_does_not_say_whether_it_is_idle(file_ledger):
    """A user sees only their own jobs; the others on the GPU may work."""
    start = NOW - 1800
    store_runs(file_ledger, *(ran(start, 600, db_index=job) | RUNNING for job in (1, 2)))
    one = use_of(start=start, job=1), steady(start, 1800, busy=0)
    store_running(file_ledger, one, shared=True)
    assert LedgerGpus().read(["c1"], seconds=1800) == {}
    other = use_of(start=start, job=2), steady(start + 1, 1798, busy=90)
    store_running(file_ledger, other, shared=True)
    found = LedgerGpus().read(["c1"], seconds=1800)["c1"]
    assert max(each.utilization for each in found) == 90


def test_of_two_clusters_with_a_node_of_one_name_neither_is_meant(running_in_file):
    with running_in_file.transaction() as connection:
        connection.execute(insert(clusters), {"name": "other"})
        connection.execute(
            insert(runs),
            ran(NOW - 600, 600, job_id_raw=9, job_id="9", cluster_id=2, uid=7) | RUNNING,
        )
    store_running(
        running_in_file,
        (use_of(start=NOW - 600, job=9, cluster_id=2), steady(NOW - 600, 600, busy=10)),
    )
    assert {gpu.cluster for gpu in read.gpu_use_now(running_in_file)} == {"lab", "other"}
    assert LedgerGpus().read(["c1"], seconds=1800) == {}


def test_samples_that_are_old_are_not_the_present(file_ledger):
    store_runs(file_ledger, ran(START, 600) | RUNNING)
    store_running(file_ledger, (use_of(start=START), steady(START, 600)))
    assert LedgerGpus().read(["c1"]) == {}


def test_each_run_of_a_requeued_job_has_its_own(file_ledger):
    first = ran(START, 600, job_id_raw=7, job_id="7", state="REQUEUED")
    store_runs(file_ledger, first, ran(START + 700, 600, job_id_raw=7, job_id="7"))
    store(file_ledger, *two_gpus(job=7))
    runs_of = _read(file_ledger, "7")
    assert [(run.start, len(run.gpus)) for run in runs_of] == [(START, 2), (START + 700, 0)]
    assert "2 of 2 GPUs: what they did is unknown" in shown("7")


def _read(ledger: Any, job: str, **other: Any) -> tuple[read.GpuUseOfRun, ...]:
    return read.gpu_use_of(ledger, job, **other)


def test_the_source_that_covers_most_counts(file_ledger):
    store_runs(file_ledger, ran(START, 600))
    store(file_ledger, *two_gpus(), use_of(*steady(START, 60), start=START, source="prometheus"))
    (run,) = _read(file_ledger, "1")
    assert {gpu.source for gpu in run.gpus} == {"exporter"}


def test_a_job_without_gpus(file_ledger):
    store_runs(file_ledger, ran(START, 600, **NO_GPUS))
    assert shown("1") == "job 1 held no GPUs\n"


def test_only_those_who_may_see_the_job_see_its_gpus(file_ledger):
    store_runs(file_ledger, ran(START, 600, uid=1234))
    store(file_ledger, *two_gpus())
    mine = Scope(frozenset(), frozenset(), frozenset((1234,)))
    assert len(_read(file_ledger, "1", scope=mine)) == 1
    for scope, job in ((Scope(frozenset(), frozenset(), frozenset((99,))), "1"), (mine, "2")):
        with pytest.raises(BadInput, match="no run of job"):
            _read(file_ledger, job, scope=scope)
    assert _read(file_ledger, "1", cluster="lab")
    with pytest.raises(BadInput, match="no run of job"):
        _read(file_ledger, "1", cluster="other")


def test_a_retracted_run_is_not_shown(file_ledger):
    store_runs(file_ledger, ran(START, 600))
    with file_ledger.transaction() as connection:
        connection.execute(update(runs).values(retracted=1))
    with pytest.raises(BadInput, match="no run of job"):
        _read(file_ledger, "1")


def test_too_many_runs_are_refused(file_ledger):
    store_runs(
        file_ledger, *(ran(START, 60, job_id_raw=9 + n, job_id=f"9_{n}") for n in range(101))
    )
    with pytest.raises(BadInput, match="101 runs with GPUs"):
        _read(file_ledger, "9")


def test_as_json(file_ledger):
    store_runs(file_ledger, ran(START, 600))
    store(file_ledger, *two_gpus())
    found = json.loads(shown("--json", "1"))
    assert found["schema"] == "slurmkit.job.gpus/1"
    (row,) = found["rows"]
    assert [gpu["idle"] for gpu in row["gpus"]] == [False, True]
    assert len(row["gpus"][0]["points"]) == 21


def test_the_service_answers_the_same(file_ledger):
    store_runs(file_ledger, ran(START, 600, uid=1234))
    store(file_ledger, *two_gpus())
    remote = find_remote_function("gpu_use_of")
    mine = Scope(frozenset(), frozenset(), frozenset((1234,)))
    sent = msgspec.json.encode(remote.answer(file_ledger, {"job": "1"}, mine))
    found = msgspec.json.decode(sent, type=remote.returns)
    assert found == _read(file_ledger, "1")
    assert [gpu.is_covered for gpu in found[0].gpus] == [True, True]


def test_watch_is_refused(file_ledger):
    done = CliRunner().invoke(cli, ["job", "--gpus", "--watch=5", "1"])
    assert isinstance(done.exception, BadInput)


@pytest.mark.parametrize(
    ("percents", "text"),
    [
        ([], ""),
        ([0.0, 50.0, 100.0, None], "▁▅█·"),
        ([0.0] * 24 + [100.0] * 24, "▁" * 12 + "█" * 12),
        ([None] * 300, "·" * 24),
    ],
)
def test_curves_as_text(percents, text):
    assert sparkline(percents) == text
