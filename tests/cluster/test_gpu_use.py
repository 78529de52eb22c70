"""What jobs play on the nodes' GPUs is what the ledger keeps of each run, from both sources."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from cluster_lab import cluster_command
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.service, pytest.mark.timeout(1800)]
WATTS = 300
GPU_NODES = 6
# Seconds between two samples: of the site's service, and of the cluster's Prometheus.
INTERVALS = {"exporters": 10, "prometheus": 5}
CACHED = 1  # seconds for which an exporter gives the same reading again
# How long a job plays at least. The Makefile makes it five minutes with SLOW=1.
SECONDS = int(os.environ.get("SLURMKIT_TEST_GPU_SECONDS", "100"))
# One GPU is busy, the other is not; both draw power until the test lets them rest: after the job,
# whose last sample may be from just after its end.
SCRIPT = f"""#!/bin/bash
gpu-play idle # whatever a job before it left behind
IFS=, read -ra gpus <<<"$SLURM_JOB_GPUS"
gpu-play --gpu "${{gpus[0]}}" busy 80 memory 2G power {WATTS}
gpu-play power {WATTS}
sleep 3000
"""
REST = 'for each in /run/nvml-stub/*/; do gpu-play --gpu "$(basename "$each")" idle; done'
# Runs with the ledger: the samples of a job as the service has stored them, each as a `Sample` and
# its GPU.
STORED = """
import json, struct, sys
from slurmkit_accounting.gpu_use.recent import SAMPLE_FIELDS, unpack_sample
from slurmkit_accounting.ledger.database import open_for_reading
from slurmkit_accounting.ledger.schema.gpu_use import gpu_samples, gpu_use
from sqlalchemy import select
packed = struct.Struct("<" + "".join(kind for _, kind in SAMPLE_FIELDS))
found = []
with open_for_reading() as ledger, ledger.transaction() as connection:
    job = gpu_use.c.job_id_raw == int(sys.argv[1])
    query = select(gpu_use.c.id, gpu_use.c.gpu).where(job, gpu_use.c.source == "exporter")
    gpus = dict(connection.execute(query).all())
    for row in connection.execute(select(gpu_samples).order_by(gpu_samples.c.taken)):
        for number, _, read in (
            unpack_sample(row.at, fields) for fields in packed.iter_unpack(row.samples)
        ):
            if number in gpus:
                sample = (read.at, read.utilization, read.watts, read.joules, row.taken, read.at)
                found.append((gpus[number], sample))
print(json.dumps(found))
"""
# On c2 the driver's order is not Slurm's; c5 has MIG instances.
JOBS = {
    "minor-is-not-ordinal": ("--nodelist=c2", "--gres=gpu:a100:2"),
    "mig": ("--partition=mig", "--gres=gpu:a100_1g.5gb:2"),
}
# A second service, on the login node, whose ledger asks Prometheus.
ASKS_PROMETHEUS = """
[ledger]
db = "sqlite:///{folder}/ledger.db"
[ledger.service]
url = ""
listen = "unix:{folder}/socket"
monitor = "127.0.0.1:26831"
[ledger.schedule]
ingest = "* * * * *"
[gpu_use]
source = "prometheus"
interval = 5
[gpu_metrics.prometheus]
url = "http://prometheus:9090"
"""
Shown = Callable[[str], subprocess.CompletedProcess[str]]
Play = Callable[..., str]


class Sample(NamedTuple):
    """What was read of a GPU once; None is unknown.

    Attributes:
        at: epoch seconds that the sample has.
        use: utilization, percent.
        joules: the counter of its energy.
        begun: the exporter was asked not before this; `answered`: and not after this.
    """

    at: float
    use: float
    watts: float | None
    joules: float | None
    begun: float
    answered: float


@pytest.fixture(scope="module")
def play(lab: Lab) -> Iterator[Play]:
    """Submits the script; its job goes on until it is cancelled. Returns the id."""
    started = []

    def submit(*options: str) -> str:
        argv = ("sbatch", "--parsable", "--time=60", "--mem=1G", "--output=/dev/null", *options)
        started.append(lab.run(*argv, input=SCRIPT).stdout.strip())
        return started[-1]

    yield submit
    end(lab, *started)


def end(lab: Lab, *jobs: str) -> None:
    """Cancel jobs, wait until they are gone, and let their GPUs rest."""
    lab.run("scancel", *jobs, check=False)
    for job in jobs:
        wait_for_end(lab, job)
    for node in ("c1", "c2", "c5"):
        lab.run("sh", "-c", REST, service=node, user="")


def wait_for_end(lab: Lab, job: str) -> None:
    wait_for(lambda: not lab.run("squeue", "-h", "-j", job, check=False).stdout.strip())


def rows_of(show: Shown, job: str) -> list[dict[str, Any]]:
    """What a ledger tells of a job; nothing while it cannot be asked."""
    shown = show(job)
    return json.loads(shown.stdout)["rows"] if shown.returncode == 0 else []


def record_of(show: Shown, job: str) -> dict[str, Any]:
    """The ledger's record of a job that has ended, once it has its GPUs.

    Until Prometheus has answered about the whole run, there is what was read while it went on.
    """

    def is_whole(rows: list[dict[str, Any]]) -> bool:
        return bool(rows and rows[0]["end"] is not None and rows[0]["gpus"]) and {
            gpu["source"] for gpu in rows[0]["gpus"]
        } <= {"exporter", "prometheus"}

    return wait_for(lambda: rows_of(show, job), is_whole, 600)[0]


def show_gpus(lab: Lab, job: str) -> subprocess.CompletedProcess[str]:
    """What the site's service tells alice of the GPUs of a job."""
    return lab.run("slurmkit", "job", job, "--gpus", "--json", check=False)


def docker(*argv: str) -> None:
    subprocess.run(["docker", *argv], check=True, capture_output=True)


def wait_for_samples(lab: Lab, job: str, count: int) -> int:
    """Until the site's ledger has so many samples of both GPUs of a job that runs; how many."""

    def fewest() -> int:
        rows = rows_of(lambda job: show_gpus(lab, job), job)
        counts = [gpu["samples"] for gpu in rows[0]["gpus"]] if rows else []
        return min(counts) if len(counts) == 2 else 0

    return wait_for(fewest, lambda found: found >= count, 600)


def wait_for_scrapes(lab: Lab, job: str, count: int) -> int:
    """Until Prometheus has so many samples of both GPUs of a job; how many."""

    def fewest() -> int:
        found = ask_prometheus(
            lab, f'count_over_time(slurmkit_gpu_job{{exported_job="{job}"}}[1h])'
        )
        counts = [int(series["value"][1]) for series in found]
        return min(counts) if len(counts) == 2 else 0

    return wait_for(fewest, lambda found: found >= count, 600)


def ask_prometheus(lab: Lab, query: str, at: str = "") -> list[dict[str, Any]]:
    """The series that answer a query, now or at a time; none while Prometheus cannot be asked."""
    sent = (f"query={query}", *([f"time={at}"] if at else []))
    ask = ("curl", "-sfG", *(part for each in sent for part in ("--data-urlencode", each)))
    said = lab.run(*ask, "http://prometheus:9090/api/v1/query", check=False).stdout
    found: list[dict[str, Any]] = json.loads(said)["data"]["result"] if said else []
    return found


def scraped(lab: Lab, record: dict[str, Any], gpu: dict[str, Any]) -> list[Sample]:
    """The samples that Prometheus has of a GPU in the time of a run, as it scraped them."""

    def values(metric: str, labels: str) -> dict[float, float]:
        length = record["end"] - record["start"]
        found = ask_prometheus(lab, f"{metric}{{{labels}}}[{length}s]", str(record["end"]))
        return {float(at): float(value) for series in found for at, value in series["values"]}

    labels = f'node="{gpu["node"]}",{"mig" if gpu["mig"] else "uuid"}="{gpu["gpu"]}"'
    names = ("utilization_ratio", "power_watts", "energy_joules_total")
    use, watts, joules = (values(f"slurmkit_gpu_{name}", labels) for name in names)
    took = values("scrape_duration_seconds", f'instance="{gpu["node"]}:332"')
    return [
        Sample(at, 100 * share, watts.get(at), joules.get(at), at, at + took[at])
        for at, share in sorted(use.items())
    ]


def stored(lab: Lab, record: dict[str, Any], gpu: dict[str, Any]) -> list[Sample]:
    """The samples of a GPU that the site's service has read and stored."""
    python = ("/opt/slurmkit/venv/bin/python", "-c", STORED, record["job_id"])
    found = json.loads(lab.run(*python, service="ledger", user="slurmkit").stdout)
    return [Sample(*sample) for name, sample in found if name == gpu["gpu"]]


def assert_is_what_was_sampled(
    record: dict[str, Any], gpu: dict[str, Any], samples: list[Sample], interval: int
) -> None:
    """Mean, coverage and energy of a GPU, computed anew from the raw samples."""
    start, end = record["start"], record["end"]
    mean = sum(sample.use for sample in samples) / len(samples)
    times = [start, *(sample.at for sample in samples)]
    covered = sum(min(interval, after - before) for before, after in pairwise(times))
    assert gpu["samples"] == len(samples)
    assert gpu["utilization"] == pytest.approx(mean, rel=0.01)
    assert gpu["idle_share"] == pytest.approx(sum(each.use < 1 for each in samples) / len(samples))
    assert gpu["covered"] == pytest.approx(min(covered / (end - start), 1), rel=0.01)
    if gpu["mig"]:  # the counter is of the whole GPU
        assert gpu["joules"] is None
        return
    first, last = samples[0], samples[-1]
    assert first.watts is not None
    assert last.watts is not None
    left = max(end - last.at, 0)
    after = min(interval, left) if left <= 2 * interval else 0  # else what it did is unknown
    ends = first.watts * min(interval, first.at - start) + last.watts * after
    used = (last.joules or 0) - (first.joules or 0)
    assert gpu["joules"] == pytest.approx(used + ends, rel=0.01)


def assert_is_what_the_driver_counted(lab: Lab, gpu: dict[str, Any], samples: list[Sample]) -> None:
    """What the counter added from the first sample to the last is the integral of the power.

    The driver's stub keeps that as lines of "EPOCH WATTS" for each of Slurm's indices. A reading is
    from some time between a sample's question and its answer.
    """
    folder = f"/run/nvml-stub/{gpu['index']}"
    text = lab.run("cat", f"{folder}/idle_watts", f"{folder}/power", service=gpu["node"]).stdout
    idle, *lines = text.splitlines()
    history = [(0.0, float(idle)), *((float(at), float(w)) for at, w in map(str.split, lines))]
    ends = [at for at, _ in history[1:]] + [float("inf")]

    def integral(begin: float, end: float) -> float:
        return sum(
            watts * max(0.0, min(until, end) - max(at, begin))
            for (at, watts), until in zip(history, ends, strict=True)
        )

    first, last = samples[0], samples[-1]
    used = (last.joules or 0) - (first.joules or 0)
    least = integral(first.answered, last.begun - CACHED)
    most = integral(first.begun - CACHED, last.answered)
    assert 0.97 * least <= used <= 1.03 * most, (gpu, history)


def assert_one_is_busy(
    lab: Lab, record: dict[str, Any], source: str, *, driver: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One GPU of a job does 80 % from when the job begins to play, the other nothing.

    Args:
        lab: the cluster.
        record: of the job, which has ended.
        source: where its samples are from.
        driver: whether the driver's stub still knows what it counted.
    """
    assert len(record["gpus"]) == 2, record
    idle, busy = sorted(record["gpus"], key=lambda gpu: gpu["utilization"])
    assert busy["percentile_95"] == 80
    assert busy["memory_mib"] == 2048
    assert idle["utilization"] == 0
    assert idle["idle_share"] == 1
    samples_of = {"exporters": stored, "prometheus": scraped}[source]
    for gpu in (idle, busy):
        samples = samples_of(lab, record, gpu)
        assert_is_what_was_sampled(record, gpu, samples, INTERVALS[source])
        if driver and not gpu["mig"]:
            assert_is_what_the_driver_counted(lab, gpu, samples)
    uses = [sample.use for sample in samples]  # of the busy one
    playing = next(at for at, use in enumerate(uses) if use)
    assert set(uses[playing:]) == {80}
    return idle, busy


def longest_gap(samples: list[Sample]) -> float:
    """The longest time between two samples."""
    return max(after.at - before.at for before, after in pairwise(samples))


def wait_for_targets(lab: Lab) -> None:
    """Until Prometheus has had a page of each node's exporter."""
    ups = lambda: [series["value"][1] for series in ask_prometheus(lab, "up")]  # noqa: E731
    wait_for(ups, lambda values: values == ["1"] * GPU_NODES)


def wait_for_service(lab: Lab) -> None:
    """Until the site's service answers: with more parts of the cluster it is started anew."""
    wait_for(lambda: show_gpus(lab, "1").stderr, lambda said: "does not answer" not in said)


@pytest.fixture(scope="module")
def prometheus(lab: Lab) -> Iterator[Shown]:
    """A service that asks the cluster's Prometheus; returns how one sees a job in its ledger."""
    up = cluster_command("up", "--name", lab.name, "--slurm", lab.release, "--with", "prometheus")
    assert up.returncode == 0, up.stderr
    wait_for_targets(lab)
    wait_for_service(lab)
    folder = lab.run("mktemp", "-d", user="slurmkit").stdout.strip()
    lab.run("mkdir", f"{folder}/slurmkit", user="slurmkit")
    config = ASKS_PROMETHEUS.format(folder=folder)
    lab.run("tee", f"{folder}/slurmkit/config.toml", user="slurmkit", input=config)
    settings = ("env", f"XDG_CONFIG_HOME={folder}")
    serve = f"{' '.join(settings)} setsid slurmkit ledger serve >{folder}/log 2>&1 & echo $!"
    pid = lab.run("sh", "-c", serve, user="slurmkit").stdout.strip()
    yield lambda job: lab.run(
        *settings, "slurmkit", "job", job, "--gpus", "--json", user="slurmkit", check=False
    )
    lab.run("kill", pid, user="slurmkit", check=False)
    lab.run("rm", "-r", folder, user="")


@pytest.fixture(scope="module")
def jobs(lab: Lab, prometheus: Shown, play: Play) -> dict[str, str]:
    """The jobs, all at the same time, after their end."""
    started = {name: play(*options) for name, options in JOBS.items()}
    for job in started.values():
        wait_for_samples(lab, job, SECONDS // INTERVALS["exporters"])
        wait_for_scrapes(lab, job, SECONDS // INTERVALS["prometheus"])
    end(lab, *started.values())
    return started


@pytest.mark.parametrize("source", INTERVALS)
@pytest.mark.parametrize("kind", JOBS)
def test_a_busy_and_an_idle_gpu_of_a_job_are_kept_apart(
    lab: Lab, jobs: dict[str, str], prometheus: Shown, kind: str, source: str
) -> None:
    show = prometheus if source == "prometheus" else lambda job: show_gpus(lab, job)
    assert_one_is_busy(lab, record_of(show, jobs[kind]), source)


def test_one_sees_which_gpu_of_a_job_is_idle(lab: Lab, jobs: dict[str, str]) -> None:
    job = jobs["minor-is-not-ordinal"]
    record = record_of(lambda job: show_gpus(lab, job), job)
    use = max(gpu["utilization"] for gpu in record["gpus"])
    shown = lab.run("slurmkit", "job", job, "--gpus").stdout
    assert len(re.findall(rf"^c2 .* {use:.0f} % ", shown, re.MULTILINE)) == 1, shown
    assert len(re.findall(r"^c2 .* idle$", shown, re.MULTILINE)) == 1, shown


def test_gpus_on_a_node_where_a_job_runs_no_step_are_measured(lab: Lab, play: Play) -> None:
    job = play("--nodes=2", "--nodelist=c1,c2", "--gres=gpu:a100:1")
    records = f"ls /run/slurmkit/gpus/*/{job}"
    found = lambda: lab.run("sh", "-c", records, service="c2", user="", check=False)  # noqa: E731
    wait_for(found, lambda said: said.returncode == 0)
    lab.run("sh", "-c", f"rm /run/slurmkit/gpus/*/{job}", service="c2", user="")
    wait_for_samples(lab, job, wait_for_samples(lab, job, 0) + 5)
    end(lab, job)
    gpus = record_of(lambda job: show_gpus(lab, job), job)["gpus"]
    assert [gpu["idle_share"] for gpu in gpus if gpu["node"] == "c2"] == [1]


def test_a_service_that_was_away_misses_only_its_own_time(lab: Lab, play: Play) -> None:
    """The mean of what was seen stays right, and nothing is invented for the time between."""
    job = play(*JOBS["minor-is-not-ordinal"])
    seen = wait_for_samples(lab, job, 3)
    docker("kill", lab.container("ledger"))
    since = time.monotonic()
    time.sleep(30)
    away = time.monotonic() - since
    docker("start", lab.container("ledger"))
    wait_for_samples(lab, job, seen + 3)
    end(lab, job)
    record = record_of(lambda job: show_gpus(lab, job), job)
    lasted = record["end"] - record["start"]
    # A counter goes on counting while nobody reads it, and so its energy is all there.
    for gpu in assert_one_is_busy(lab, record, "exporters"):
        assert longest_gap(stored(lab, record, gpu)) >= away
        assert gpu["covered"] <= (lasted - away + INTERVALS["exporters"]) / lasted


@pytest.mark.slow
def test_prometheus_tells_of_a_job_that_runs(lab: Lab, prometheus: Shown, play: Play) -> None:
    job = play(*JOBS["minor-is-not-ordinal"])
    rows = wait_for(lambda: rows_of(prometheus, job), lambda rows: rows and rows[0]["gpus"], 600)
    end(lab, job)
    assert rows[0]["end"] is None
    assert {gpu["source"] for gpu in rows[0]["gpus"]} == {"prometheus_running"}


@pytest.mark.slow
def test_prometheus_away_in_the_middle_of_a_job(lab: Lab, prometheus: Shown, play: Play) -> None:
    job = play(*JOBS["minor-is-not-ordinal"])
    seen = wait_for_scrapes(lab, job, 10)
    docker("stop", lab.container("prometheus"))
    since = time.monotonic()
    time.sleep(120)
    away = time.monotonic() - since
    docker("start", lab.container("prometheus"))
    wait_for_scrapes(lab, job, seen + 20)
    end(lab, job)
    record = record_of(prometheus, job)
    lasted = record["end"] - record["start"]
    for gpu in assert_one_is_busy(lab, record, "prometheus"):
        assert longest_gap(scraped(lab, record, gpu)) >= away
        assert gpu["covered"] <= (lasted - away + INTERVALS["prometheus"]) / lasted


@pytest.mark.slow
def test_a_job_whose_node_is_lost_keeps_the_samples_that_there_are(lab: Lab, play: Play) -> None:
    job = play(*JOBS["minor-is-not-ordinal"], "--no-requeue")
    wait_for_samples(lab, job, 4)
    docker("kill", lab.container("c2"))
    time.sleep(5)
    down = ("scontrol", "update", "node=c2", "state=down", "reason=lost")
    lab.run(*down, user="", service="ctld")
    try:
        wait_for_end(lab, job)
        record = record_of(lambda job: show_gpus(lab, job), job)
    finally:
        assert lab.up().returncode == 0
        resume = ("scontrol", "update", "node=c2", "state=resume")
        lab.run(*resume, user="", service="ctld", check=False)  # it may have come back by itself
    lasted = record["end"] - record["start"]
    for gpu in assert_one_is_busy(lab, record, "exporters", driver=False):
        assert gpu["covered"] < 1
        assert 0 < gpu["joules"] <= 1.03 * WATTS * lasted
