"""What jobs play on the nodes' stub of the GPU driver is what the exporters say."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
WATTS = 300
# One GPU is busy, the other is not; both draw power until the job ends.
SCRIPT = f"""#!/bin/bash
gpu-play idle # whatever a job before it left behind
IFS=, read -ra gpus <<<"$SLURM_JOB_GPUS"
gpu-play --gpu "${{gpus[0]}}" busy 80 memory 2G power {WATTS}
gpu-play --for 3000 power {WATTS}
"""


Samples = list[tuple[str, dict[str, str], float]]


# For a second the exporter gives the same reading again, which others may have asked for: so it is
# asked until the reading is another. That was made after the question before was sent.
FRESH_PAGE = r"""
seconds_of() { grep '^slurmkit_gpu_exporter_scrape_seconds' <<<"$1"; }
asked=$(date +%s.%N)
old=$(curl -sf "$1") || exit
while began=$asked && asked=$(date +%s.%N) && page=$(curl -sf "$1") &&
    [[ $(seconds_of "$page") = $(seconds_of "$old") ]]; do
    sleep 0.1
done
echo "$began"; echo "$page"; date +%s.%N
"""


def scrape(lab: Lab, node: str) -> tuple[tuple[float, float], Samples]:
    """Between which epoch seconds the GPUs were read, and the samples."""
    shell = ("bash", "-c", FRESH_PAGE, "bash", f"http://{node}:332/metrics")
    began, *page, ended = lab.run(*shell).stdout.strip().split("\n")
    return (float(began), float(ended)), [
        (sample.name, sample.labels, sample.value)
        for family in parse("\n".join(page) + "\n")
        for sample in family.samples
    ]


def value(samples: Samples, name: str, /, **labels: str) -> float:
    found = [
        number
        for each, named, number in samples
        if each == f"slurmkit_gpu_{name}" and labels.items() <= named.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


@pytest.fixture
def start(lab: Lab) -> Iterator[Callable[..., tuple[str, list[str]]]]:
    """Start the script; returns the job and Slurm's indices of its two GPUs."""
    started = []

    def job(*options: str) -> tuple[str, list[str]]:
        argv = ("sbatch", "--parsable", "--time=60", "--mem=1G", "--output=/dev/null", *options)
        job_id = lab.run(*argv, input=SCRIPT).stdout.strip()
        started.append(job_id)
        show = ("scontrol", "-d", "show", "job", job_id)
        wait_for(lambda: "IDX:" in lab.run(*show).stdout)
        (listed,) = set(re.findall(r"IDX:([\d,-]+)\)", lab.run(*show).stdout))
        first, _, last = listed.replace(",", "-").partition("-")
        return job_id, [first, last]

    yield job
    lab.run("scancel", *started, check=False)


@pytest.mark.parametrize("node", ["c1", "c2"])
def test_a_busy_and_an_idle_gpu_are_told_apart(
    lab: Lab, start: Callable[..., tuple[str, list[str]]], node: str
) -> None:
    """On c2 the driver's order is not Slurm's."""
    job, (busy, idle) = start(f"--nodelist={node}", "--gres=gpu:a100:2")
    # Power is what the script sees to last, and to that of the idle one after that of the other.
    draws = lambda seen: value(seen[1], "power_watts", gpu=idle) == WATTS  # noqa: E731
    wait_for(lambda: scrape(lab, node), draws)
    first, before = scrape(lab, node)
    time.sleep(10)
    last, after = scrape(lab, node)
    for index, use in ((busy, 0.8), (idle, 0)):
        assert value(after, "utilization_ratio", gpu=index) == use
        assert value(after, "job", gpu=index, job=job) == 1
        joules = value(after, "energy_joules_total", gpu=index) - value(
            before, "energy_joules_total", gpu=index
        )
        assert WATTS * (last[0] - first[1]) * 0.97 <= joules <= WATTS * (last[1] - first[0]) * 1.03
    assert value(after, "memory_used_bytes", gpu=busy) == 2 << 30
    assert value(after, "info", gpu=busy, uuid=f"GPU-{node}00000{busy}-0000-4000-8000-{busy:0>12}")


def test_mig_instances_have_jobs_and_use_of_their_own(
    lab: Lab, start: Callable[..., tuple[str, list[str]]]
) -> None:
    job, (busy, idle) = start("-p", "mig", "--gres=gpu:a100_1g.5gb:2")

    def whole_draws() -> float:
        """The power of the GPU of both; the script sees to it last."""
        _, samples = scrape(lab, "c5")
        (whole,) = {named["uuid"] for _, named, _ in samples if named.get("gpu") == busy}
        return value(samples, "power_watts", uuid=whole, mig="")

    wait_for(whole_draws, lambda watts: watts >= 2 * WATTS)
    _, samples = scrape(lab, "c5")
    for index, use in ((busy, 0.8), (idle, 0)):
        assert value(samples, "utilization_ratio", gpu=index) == use
        assert value(samples, "job", gpu=index, job=job) == 1
