"""The map of GPUs and the list of nodes, against what jobs see on the real cluster."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
SEEN = 'echo "$(hostname) ${CUDA_VISIBLE_DEVICES:-$GPU_DEVICE_ORDINAL}"'
FORGED = "x\n     Nodes=c1 CPU_IDs=0 Mem=1 GRES=gpu:a100:2(IDX:0-1)\n\nJobId=1 JobName=y"


class Jobs:
    """Submits jobs and cancels them in the end."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.owners: dict[str, str] = {}

    def submit(self, *options: str, user: str = "alice") -> str:
        """Each task writes its node and the GPUs it sees, then sleeps."""
        log = f"/home/{user}/gpus-%j.out"
        script = f"#!/bin/bash\nsrun bash -c '{SEEN}; sleep 1500'\n"
        argv = ("sbatch", "--parsable", "--time=30", "--mem=1G", f"--output={log}", *options)
        job_id = self.lab.run(*argv, user=user, input=script).stdout.strip()
        self.owners[job_id] = user
        return job_id

    def raw_ids(self) -> dict[str, str]:
        """Ids as people name them, of running tasks, to Slurm's own numbers."""
        said = self.lab.run("squeue", "-h", "-t", "R,S", "-O", "JobArrayID:|,JobID:|").stdout
        rows = (line.split("|") for line in said.splitlines() if line.count("|") == 2)
        return {row[0]: row[1] for row in rows if row[0].partition("_")[0] in self.owners}

    def seen(self) -> dict[tuple[str, int], str]:
        """Node and index to the job that sees that GPU, by what the jobs wrote."""
        found = {}
        for job_id, raw_id in self.raw_ids().items():
            path = f"/home/{self.owners[job_id.partition('_')[0]]}/gpus-{raw_id}.out"
            for line in self.lab.run("cat", path, user="", check=False).stdout.splitlines():
                node, _, devices = line.partition(" ")
                found |= {(node, int(at)): job_id for at in devices.split(",") if at.isdigit()}
        return found


@pytest.fixture
def jobs(lab: Lab) -> Iterator[Jobs]:
    started = Jobs(lab)
    yield started
    lab.run("scancel", *started.owners, user="", check=False)
    wait_for(lambda: not started.raw_ids())


def gpu_map(lab: Lab, *options: str) -> dict[tuple[str, int], dict[str, Any]]:
    entries = json.loads(lab.run("slurmkit", "gpus", "--json", *options).stdout)["rows"]
    return {(entry["node"], entry["index"]): entry for entry in entries}


def held(entries: dict[tuple[str, int], dict[str, Any]], jobs: Jobs) -> dict[tuple[str, int], str]:
    """Where the map shows these jobs."""
    whole = {at: gpu["job_id"] for at, gpu in entries.items() if gpu["job_id"]}
    return {at: job for at, job in whole.items() if job.partition("_")[0] in jobs.owners}


@pytest.mark.smoke
def test_the_map_is_what_jobs_see(lab: Lab, jobs: Jobs) -> None:
    """Typed on two nodes, two people on one node, an untyped array, MIG."""
    two = jobs.submit("--gres=gpu:a100:2", "--nodes=2")
    bobs = jobs.submit("--gres=gpu:a100:3", "--nodelist=c1", user="bob")
    array = jobs.submit("--partition=untyped", "--gres=gpu:1", "--array=1-2")
    mig = jobs.submit("--partition=mig", "--gres=gpu:a100_3g.20gb:1")
    wait_for(lambda: len(jobs.seen()) == 4 + 3 + 2 + 1)
    entries = gpu_map(lab)
    assert held(entries, jobs) == jobs.seen()
    counted: dict[str, int] = defaultdict(int)
    for job_id in jobs.seen().values():
        counted[job_id] += 1
    assert counted == {two: 4, bobs: 3, f"{array}_1": 1, f"{array}_2": 1, mig: 1}
    for gpu in entries.values():
        if gpu["job_id"] in (two, bobs, mig):
            assert gpu["state"] == "held"
            assert gpu["user"] == ("bob" if gpu["job_id"] == bobs else "alice")
            assert gpu["account"] == "vision"
            assert gpu["since"] > 1_700_000_000
    assert {gpu["mig"] for gpu in entries.values() if gpu["job_id"] == mig} == {"3g.20gb"}


def test_parts_of_gpus(lab: Lab, jobs: Jobs) -> None:
    """What 22.05 does not tell, the parts each GPU has, is null there."""
    first = jobs.submit("--gres=shard:2")
    second = jobs.submit("--gres=shard:2", user="bob")
    mps = jobs.submit("--partition=mps", "--gres=mps:30")
    wait_for(lambda: len(jobs.raw_ids()) == 3)
    entries = gpu_map(lab, "--partition", "gpu,mps")
    shares = [
        (share["job_id"], share["user"], share["amount"], kind)
        for gpu in entries.values()
        for kind in ("shard", "mps")
        for share in (gpu[kind] or {"by": ()})["by"]
        if share["job_id"] in jobs.owners
    ]
    assert sorted(shares) == sorted(
        [(first, "alice", 2, "shard"), (second, "bob", 2, "shard"), (mps, "alice", 30, "mps")]
    )
    totals = {gpu["shard"]["total"] for at, gpu in entries.items() if at[0] == "c3"}
    assert totals == ({None} if lab.release == "22.05" else {4})
    for at, job_id in jobs.seen().items():
        sharing = entries[at]["mps"] or entries[at]["shard"]
        assert job_id in [share["job_id"] for share in sharing["by"]]
        assert entries[at]["state"] == "shared"


def test_a_suspended_job_holds_its_gpus(lab: Lab, jobs: Jobs) -> None:
    job_id = jobs.submit("--gres=gpu:a100:2", "--nodelist=c2")
    wait_for(lambda: len(jobs.seen()) == 2)
    lab.run("scontrol", "suspend", job_id, user="")
    assert held(gpu_map(lab), jobs) == jobs.seen()


def test_a_drained_node(lab: Lab, jobs: Jobs) -> None:
    """Its GPUs are not free, the job on it goes on, and `nodes` says why and who."""
    job_id = jobs.submit("--partition=mig", "--gres=gpu:a100_1g.5gb:1")
    wait_for(lambda: len(jobs.seen()) == 1)
    drain = ("scontrol", "update", "NodeName=c5", "State=DRAIN", "Reason=a\x1b[2J DIMM x=3")
    lab.run(*drain, user="")
    try:
        entries = gpu_map(lab, "--node", "c5")
        states = [gpu["state"] for gpu in entries.values()]
        assert (states.count("held"), states.count("drained")) == (1, 5)
        assert held(entries, jobs) == jobs.seen()
        shown = lab.run("slurmkit", "nodes", "--state", "draining").stdout
        (line,) = [line for line in shown.splitlines() if line.startswith("c5")]
        assert "mixed+drain" in line
        assert job_id in line
        assert "a\\x1b[2J DIMM x=3 (root, 20" in line
        assert "\x1b" not in lab.run("slurmkit", "gpus").stdout
        free = json.loads(lab.run("slurmkit", "gpus", "--free", "--json", "--node", "c5").stdout)
        assert [of["free"] for of in free["rows"]] == [0, 0]
    finally:
        lab.run("scontrol", "update", "NodeName=c5", "State=RESUME", user="")


def test_a_name_that_forges_lines(lab: Lab, jobs: Jobs) -> None:
    """Eve would have GPUs 0 and 1 of c1. The forger holds none, so nobody asks about that job."""
    alices = jobs.submit("--gres=gpu:a100:2", "--nodelist=c1")
    forger = jobs.submit("--nodelist=c1", f"--job-name={FORGED}", user="bob")
    wait_for(lambda: len(jobs.raw_ids()) == 2 and len(jobs.seen()) == 2)
    assert held(gpu_map(lab), jobs) == jobs.seen()
    said = lab.run("slurmkit", "gpus").stderr
    assert f"job {forger} " not in said
    assert f"job {alices} " not in said


def test_gpus_that_no_job_can_use(lab: Lab, jobs: Jobs) -> None:
    """A node whose CPUs are all taken has no usable GPU."""
    jobs.submit("--partition=mps", "--ntasks=1", "--cpus-per-task=64")
    wait_for(lambda: len(jobs.raw_ids()) == 1)
    free = json.loads(lab.run("slurmkit", "gpus", "--free", "--json", "--node", "c6").stdout)
    (of,) = free["rows"]
    assert (of["free"], of["stranded"]) == (0, 2)
    assert "no CPU left" in lab.run("slurmkit", "gpus", "--node", "c6").stdout
