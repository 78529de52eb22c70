"""Nodes measured before the work, with a stand-in for all_reduce_perf: no GPU is there.

Stand-in and real program are told alike, and write the same JSON; the log shows which it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_lab import Lab

pytestmark = pytest.mark.cluster

STANDIN = Path(__file__).parents[1] / "standins" / "all_reduce_perf"
CONFIG = """
[preflight]
program = "{folder}/all_reduce_perf"
policy = "{policy}"
[preflight.between]
gpu = 90.0
[preflight.within]
gpu = 200.0
"""
Bad = dict[str, dict[str, object]]


class Site:
    """A folder of alice's with the stand-in, and what it shall find."""

    def __init__(self, lab: Lab, folder: str) -> None:
        self.lab = lab
        self.folder = folder
        self.jobs: list[str] = []
        self.write("all_reduce_perf", STANDIN.read_text("utf-8"))
        lab.run("chmod", "+x", f"{folder}/all_reduce_perf")

    def write(self, name: str, text: str) -> None:
        self.lab.run("sh", "-c", f"cat >{self.folder}/{name}", input=text)

    def job(self, nodes: int, bad: Bad, policy: str = "stop") -> tuple[str, str]:
        """Its id, and its log once it is over."""
        self.write("setup.json", json.dumps({"fast": 95.0, "alone": 230.0, "bad": bad}))
        config = CONFIG.format(folder=self.folder, policy=policy)
        if self.lab.release == "26.05":  # of this Debian: no pmix
            config += '[launch]\nmpi = "pmi2"\n'
        self.write("config.toml", config)
        words = f"--preflight nccl -N {nodes} --gpus-per-node 2 --time 5 -- echo worked"
        state = f"XDG_STATE_HOME={self.folder} SLURMKIT_CONFIG={self.folder}/config.toml"
        given = f"--env STANDIN={self.folder}/setup.json --env XDG_STATE_HOME={self.folder}"
        command = f"cd {self.folder} && {state} slurmkit submit --parsable {given} {words}"
        job_id = self.lab.run("sh", "-c", command).stdout.strip()
        self.jobs.append(job_id)
        self.lab.run("slurmkit", "wait", job_id, check=False)
        return job_id, self.lab.run("cat", f"{self.folder}/slurm-{job_id}.out").stdout


@pytest.fixture
def site(lab: Lab) -> Iterator[Site]:
    made = Site(lab, lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip())
    yield made
    if made.jobs:
        lab.run("scancel", "-Q", *made.jobs, check=False)
    lab.run("rm", "-r", made.folder)


def test_a_bad_node_of_three_is_named_and_good_ones_are_remembered(site: Site) -> None:
    job_id, log = site.job(3, {"c3": {"bandwidth": 12.5}})
    assert "preflight failed: c3 is bad: 12.5 GB/s with c" in log
    assert "worked" not in log
    why = site.lab.run("slurmkit", "why", job_id).stdout
    assert "c3 is bad" in " ".join(why.split())
    _, log = site.job(3, {})
    assert "c[1-3]: 95.0 GB/s (at least 81.0 expected) on 6 x stand-in, no GPU" in log
    assert log.count("worked") == 3
    _, log = site.job(3, {"c3": {"bandwidth": 12.5}})
    assert "c[1-3]: 95.0 GB/s, measured 0.0 h ago" in log


def test_the_job_comes_back_without_the_bad_node(site: Site) -> None:
    job_id, log = site.job(2, {"c1": {"bandwidth": 9, "inside": True}}, "requeue")
    assert "c1 is bad: 9.0 GB/s by itself, at least 180.0 expected" in log
    assert "goes back to the queue without c1" in log
    assert log.endswith("worked\nworked\n")
    assert "ExcNodeList=c1" in site.lab.run("scontrol", "show", "job", job_id).stdout
