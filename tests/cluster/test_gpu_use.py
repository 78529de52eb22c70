"""What jobs play on the nodes' GPUs is what the ledger keeps of each run, from both sources."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from cluster_lab import cluster_command

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
WATTS = 300
GPU_NODES = 6
INTERVAL = 5  # seconds between two samples of the cluster's Prometheus
# The Makefile makes it five minutes with SLOW=1.
SECONDS = int(os.environ.get("SLURMKIT_TEST_GPU_SECONDS", "100"))
# One GPU is busy, the other is not; both draw power until the job ends.
SCRIPT = f"""#!/bin/bash
gpu-play idle # whatever a job before it left behind
IFS=, read -ra gpus <<<"$SLURM_JOB_GPUS"
gpu-play --gpu "${{gpus[0]}}" busy 80 memory 2G power {WATTS}
gpu-play --for {SECONDS} power {WATTS}
"""
# On c2 the driver's order is not Slurm's; c5 has MIG instances.
JOBS = {
    "minor-is-not-ordinal": ("--nodelist=c2", "--gres=gpu:a100:2"),
    "mig": ("--partition=mig", "--gres=gpu:a100_1g.5gb:2"),
}
# A second service, on the login node, whose ledger asks Prometheus.
ASKS_PROMETHEUS = """
[ledger.service]
url = ""
listen = "127.0.0.1:26830"
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


def submit(lab: Lab, *options: str, script: str = SCRIPT) -> str:
    argv = ("sbatch", "--parsable", "--time=15", "--mem=1G", "--output=/dev/null", *options)
    return lab.run(*argv, input=script).stdout.strip()


def wait_for_end(lab: Lab, job: str, seconds: float = SECONDS + 120) -> None:
    deadline = time.monotonic() + seconds
    while lab.run("squeue", "-h", "-j", job, check=False).stdout.strip():
        assert time.monotonic() < deadline, f"job {job} does not end"
        time.sleep(1)


def record_of(show: Shown, job: str, seconds: float = 240) -> dict[str, Any]:
    """The ledger's record of a job that has ended, once it has its GPUs.

    Until Prometheus has answered about the whole run, there is what was read while it went on.
    """
    deadline = time.monotonic() + seconds
    while True:
        shown = show(job)
        rows = json.loads(shown.stdout)["rows"] if shown.returncode == 0 else []
        if rows and rows[0]["end"] is not None and rows[0]["gpus"]:
            sources = {gpu["source"] for gpu in rows[0]["gpus"]}
            if sources <= {"exporter", "prometheus"}:
                return rows[0]
        assert time.monotonic() < deadline, shown
        time.sleep(2)


def show_gpus(lab: Lab, job: str) -> subprocess.CompletedProcess[str]:
    """What the site's service tells alice of the GPUs of a job."""
    return lab.run("slurmkit", "job", job, "--gpus", "--json", check=False)


def docker(*argv: str) -> None:
    subprocess.run(["docker", *argv], check=True, capture_output=True)


def counted(lab: Lab, record: dict[str, Any], gpu: dict[str, Any]) -> float:
    """What the counter of a GPU added in the time of a run, in joules: the integral of its power.

    The driver's stub keeps that as lines of "EPOCH WATTS" for each of Slurm's indices.
    """
    folder = f"/run/nvml-stub/{gpu['index']}"
    text = lab.run("cat", f"{folder}/idle_watts", f"{folder}/power", service=gpu["node"]).stdout
    idle, *lines = text.splitlines()
    history = [(0.0, float(idle)), *((float(at), float(w)) for at, w in map(str.split, lines))]
    ends = [at for at, _ in history[1:]] + [float("inf")]
    return sum(
        watts * max(0.0, min(end, record["end"]) - max(at, record["start"]))
        for (at, watts), end in zip(history, ends, strict=True)
    )


def raw_samples(
    lab: Lab, metric: str, record: dict[str, Any], gpu: dict[str, Any]
) -> list[tuple[float, float]]:
    """Times and values that Prometheus has of a GPU in the time of a run, as it scraped them."""
    length = record["end"] - record["start"]
    label = "mig" if gpu["mig"] else "uuid"
    query = f'slurmkit_gpu_{metric}{{node="{gpu["node"]}",{label}="{gpu["gpu"]}"}}[{length}s]'
    sent = (f"query={query}", f"time={record['end']}")
    ask = ("curl", "-sG", *(part for each in sent for part in ("--data-urlencode", each)))
    found = json.loads(lab.run(*ask, "http://prometheus:9090/api/v1/query").stdout)
    (series,) = found["data"]["result"]
    return [(float(at), float(value)) for at, value in series["values"]]


def assert_is_what_prometheus_has(lab: Lab, record: dict[str, Any], gpu: dict[str, Any]) -> None:
    """Mean, coverage and energy of a GPU, computed anew from the raw samples."""
    start, end = record["start"], record["end"]
    used = raw_samples(lab, "utilization_ratio", record, gpu)
    mean = sum(value for _, value in used) / len(used)
    times = [start, *(at for at, _ in used)]
    covered = sum(min(INTERVAL, after - before) for before, after in pairwise(times))
    assert gpu["samples"] == len(used)
    assert gpu["utilisation"] == pytest.approx(mean, rel=0.01)
    assert gpu["covered"] == pytest.approx(covered / (end - start), rel=0.01)
    if gpu["mig"]:
        assert gpu["joules"] is None
        return
    counter = raw_samples(lab, "energy_joules_total", record, gpu)
    power = raw_samples(lab, "power_watts", record, gpu)
    (first, watts), (last, last_watts) = power[0], power[-1]
    ends = watts * min(INTERVAL, first - start) + last_watts * min(INTERVAL, end - last)
    assert gpu["joules"] == pytest.approx(counter[-1][1] - counter[0][1] + ends, rel=0.01)


def wait_for_targets(lab: Lab, seconds: float = 120) -> None:
    """Until Prometheus has had a page of each node's exporter."""
    deadline = time.monotonic() + seconds
    ask = ("curl", "-s", "http://prometheus:9090/api/v1/query?query=up")
    while True:
        found = json.loads(lab.run(*ask, check=False).stdout or '{"data": {"result": []}}')
        values = [series["value"][1] for series in found["data"]["result"]]
        if len(values) == GPU_NODES and set(values) == {"1"}:
            return
        assert time.monotonic() < deadline, found
        time.sleep(1)


def wait_for_service(lab: Lab, seconds: float = 120) -> None:
    """Until the site's service answers: with more parts of the cluster it is started anew."""
    deadline = time.monotonic() + seconds
    while "does not answer" in (said := show_gpus(lab, "1").stderr):
        assert time.monotonic() < deadline, said
        time.sleep(1)


@pytest.fixture(scope="module")
def prometheus(lab: Lab) -> Iterator[Shown]:
    """A service that asks the cluster's Prometheus; returns how one sees a job in its ledger."""
    up = cluster_command("up", "--name", lab.name, "--slurm", lab.release, "--with", "prometheus")
    assert up.returncode == 0, up.stderr
    wait_for_targets(lab)
    wait_for_service(lab)
    folder = lab.run("mktemp", "-d", user="slurmkit").stdout.strip()
    lab.run("mkdir", f"{folder}/slurmkit", user="slurmkit")
    config = f'{ASKS_PROMETHEUS}[ledger]\ndb = "sqlite:///{folder}/ledger.db"\n'
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
def jobs(lab: Lab, prometheus: Shown) -> dict[str, str]:
    """The jobs, all at the same time, after their end."""
    started = {name: submit(lab, *options) for name, options in JOBS.items()}
    for job in started.values():
        wait_for_end(lab, job)
    return started


@pytest.mark.parametrize("source", ["exporters", "prometheus"])
@pytest.mark.parametrize("kind", JOBS)
def test_a_busy_and_an_idle_gpu_of_a_job_are_kept_apart(
    lab: Lab, jobs: dict[str, str], prometheus: Shown, kind: str, source: str
) -> None:
    job = jobs[kind]
    show = {
        "exporters": lambda job: show_gpus(lab, job),
        "prometheus": prometheus,
    }[source]
    record = record_of(show, job)
    assert len(record["gpus"]) == 2, record
    idle, busy = sorted(record["gpus"], key=lambda gpu: gpu["utilisation"])
    assert busy["utilisation"] == pytest.approx(0.8, abs=0.03)
    assert busy["percentile_95"] == pytest.approx(0.8, abs=0.03)
    assert busy["memory_mib"] == 2048
    assert idle["utilisation"] == 0
    assert idle["at_zero"] == 1
    for gpu in (busy, idle):
        assert gpu["covered"] > 0.8
        if kind == "mig":  # the counter is of the whole GPU
            assert gpu["joules"] is None
        else:
            assert gpu["joules"] == pytest.approx(counted(lab, record, gpu), rel=0.03)
        if source == "prometheus":
            assert_is_what_prometheus_has(lab, record, gpu)


def test_one_sees_which_gpu_of_a_job_is_idle(lab: Lab, jobs: dict[str, str]) -> None:
    job = jobs["minor-is-not-ordinal"]
    shown = lab.run("slurmkit", "job", job, "--gpus").stdout
    assert len(re.findall(r"^c2 .* 80 % ", shown, re.MULTILINE)) == 1, shown
    assert len(re.findall(r"^c2 .* idle$", shown, re.MULTILINE)) == 1, shown


def test_a_service_that_was_away_misses_only_its_own_time(lab: Lab) -> None:
    """The mean of what was seen stays right, and nothing is invented for the time between."""
    job = submit(lab, *JOBS["minor-is-not-ordinal"])
    started = time.monotonic()
    time.sleep(30)
    docker("kill", lab.container("ledger"))
    time.sleep(30)
    docker("start", lab.container("ledger"))
    wait_for_end(lab, job)
    lasted = time.monotonic() - started
    record = record_of(lambda job: show_gpus(lab, job), job)
    idle, busy = sorted(record["gpus"], key=lambda gpu: gpu["utilisation"])
    assert busy["utilisation"] == pytest.approx(0.8, abs=0.03)
    assert idle["utilisation"] == 0
    for gpu in (busy, idle):
        assert 0.2 < gpu["covered"] <= (lasted - 20) / lasted
        # A counter goes on counting while nobody reads it.
        assert gpu["joules"] == pytest.approx(counted(lab, record, gpu), rel=0.03)


@pytest.mark.slow
def test_prometheus_tells_of_a_job_that_runs(lab: Lab, prometheus: Shown) -> None:
    job = submit(lab, "--nodelist=c2", "--gres=gpu:a100:2")
    deadline = time.monotonic() + SECONDS + 60
    try:
        while True:
            shown = prometheus(job)
            rows = json.loads(shown.stdout)["rows"] if shown.returncode == 0 else []
            if rows and rows[0]["gpus"]:
                break
            assert time.monotonic() < deadline, shown
            time.sleep(2)
    finally:
        lab.run("scancel", job, check=False)
    assert rows[0]["end"] is None
    assert {gpu["source"] for gpu in rows[0]["gpus"]} == {"prometheus_running"}


@pytest.mark.slow
def test_prometheus_away_in_the_middle_of_a_job(lab: Lab, prometheus: Shown) -> None:
    job = submit(lab, *JOBS["minor-is-not-ordinal"], script=SCRIPT.replace(str(SECONDS), "300"))
    started = time.monotonic()
    time.sleep(60)
    docker("stop", lab.container("prometheus"))
    time.sleep(120)
    docker("start", lab.container("prometheus"))
    wait_for_end(lab, job, 420)
    lasted = time.monotonic() - started
    record = record_of(prometheus, job)
    idle, busy = sorted(record["gpus"], key=lambda gpu: gpu["utilisation"])
    assert busy["utilisation"] == pytest.approx(0.8, abs=0.03)
    assert idle["utilisation"] == 0
    for gpu in (busy, idle):
        assert 0.3 < gpu["covered"] <= (lasted - 90) / lasted
        assert gpu["joules"] == pytest.approx(counted(lab, record, gpu), rel=0.03)
        assert_is_what_prometheus_has(lab, record, gpu)


@pytest.mark.slow
def test_a_job_whose_node_is_lost_keeps_the_samples_that_there_are(lab: Lab) -> None:
    job = submit(lab, *JOBS["minor-is-not-ordinal"], "--no-requeue")
    time.sleep(45)
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
    idle, busy = sorted(record["gpus"], key=lambda gpu: gpu["utilisation"])
    assert busy["utilisation"] == pytest.approx(0.8, abs=0.03)
    assert idle["utilisation"] == 0
    lasted = record["end"] - record["start"]
    for gpu in (busy, idle):
        assert gpu["covered"] < 1
        assert 0.5 * WATTS * lasted < gpu["joules"] <= 1.03 * WATTS * lasted
