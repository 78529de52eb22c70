"""`slurmkit topo`: what Slurm says of a node's GPUs, and what a job's step there is told."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cluster_lab import Lab
from waiting import wait_for

pytestmark = pytest.mark.cluster

# What `nvidia-smi topo` prints of two GPUs; fails where the step has not the job's two.
STAND_IN = r"""#!/bin/sh
case $CUDA_VISIBLE_DEVICES in *,*) ;; *) echo "GPUs: $CUDA_VISIBLE_DEVICES" >&2; exit 1 ;; esac
if [ "$2" = -m ]; then
  printf '\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n'
  printf 'GPU0\t X \tNV12\t0-31\t0\nGPU1\tNV12\t X \t0-31\t0\n'
else
  printf ' \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n'
fi
"""


@pytest.fixture
def folder(lab: Lab) -> Iterator[str]:
    made = lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip()
    lab.run("sh", "-c", f"cat >{made}/nvidia-smi; chmod +x {made}/nvidia-smi", input=STAND_IN)
    yield made
    lab.run("rm", "-r", made)


def test_slurm_knows_the_gpus_of_a_node_and_nothing_is_made_up(lab: Lab) -> None:
    (told,) = json.loads(lab.run("slurmkit", "topo", "--json", "c1").stdout)["rows"]
    assert (told["sockets"], told["cores_per_socket"]) == (2, 32)
    assert told["gpus"] == [{"type": "a100", "cores": None, "links": None}] * 8
    assert (told["devices"], told["peers"]) == (None, None)


def test_a_step_of_the_job_asks_on_its_nodes(lab: Lab, folder: str) -> None:
    options = ("--parsable", "--time=20", f"--chdir={folder}", "-N2", "--gpus-per-node=a100:2")
    job = lab.run("slurmkit", "submit", *options, "--", "sleep", "1000").stdout.strip()
    try:
        runs = ("squeue", "-h", "-t", "R", "-j", job)
        wait_for(lambda: lab.run(*runs, check=False).stdout)
        asked = f"PATH={folder}:$PATH slurmkit topo --json --job {job}"
        found = json.loads(lab.run("sh", "-c", asked).stdout)["rows"]
        assert [each["node"] for each in found] == ["c1", "c2"]
        for each in found:
            assert each["peers"] == [["GPU0", "GPU1"]]
            assert each["devices"]["GPU0"]["links"] == {"GPU1": "NV12"}
        unknown = lab.run("slurmkit", "topo", "--job", job, "c2")
        assert "nvidia-smi does not answer on c2" in unknown.stderr
        assert "peer access: ?" in unknown.stdout
    finally:
        lab.run("scancel", job)
