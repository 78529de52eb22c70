"""`slurmkit benchmark` on real nodes: CPUs and disks are measured, one node is made slow."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from cluster_lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.service]

STANDIN = Path(__file__).parents[1] / "standins" / "all_reduce_perf"
SECONDS = 500  # at most for one run: jobs of others may hold the nodes
QUOTA = 10_000  # of 100,000 microseconds: a tenth of a CPU
EARLIER = 3  # values that a node is compared with, at least
STEADY = 0.2  # the most spread of these; beside other work on this machine, more are measured
RUN = ("slurmkit", "benchmark", "run", "--yes", "--disk-size", "64M", "--seconds", "0.5")
PREFLIGHT = """
[preflight]
program = "{folder}/program"
[preflight.between]
gpu = 90.0
"""
PROGRAM = '#!/bin/sh\nSTANDIN={folder}/setup.json exec {folder}/all_reduce_perf "$@"\n'


class Site:
    """A folder of alice's with a ledger of her own."""

    def __init__(self, lab: Lab, folder: str) -> None:
        self.lab = lab
        self.folder = folder
        self.db = f"sqlite:///{folder}/ledger.db"
        self.run("slurmkit", "ledger", "ingest", "--db", self.db)

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        settings = [f"XDG_STATE_HOME={self.folder}/state", f"SLURMKIT_CONFIG={self.folder}/c.toml"]
        words = ["env", *(settings if self.has_config() else settings[:1]), *argv]
        return self.lab.run(*words, check=check, timeout=SECONDS)

    def has_config(self) -> bool:
        return not self.lab.run("test", "-e", f"{self.folder}/c.toml", check=False).returncode

    def write(self, name: str, text: str) -> None:
        self.lab.run("sh", "-c", f"cat >{self.folder}/{name}", input=text)
        self.lab.run("chmod", "+x", f"{self.folder}/{name}")

    def measure(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run(*RUN, "--db", self.db, *words, check=check)

    def evidence(self, said: subprocess.CompletedProcess[str]) -> str:
        """What a run printed, and the results and logs of all jobs so far."""
        files = f"tail -n 60 {self.folder}/state/slurmkit/benchmarks/*/*/*.{{jsonl,log}}"
        shown = self.lab.run("bash", "-c", files, check=False).stdout
        return f"{said.stdout}\n{said.stderr}\n{shown}"

    def report(self, *words: str) -> list[dict[str, Any]]:
        said = self.run("slurmkit", "report", "benchmark", "--db", self.db, "--json", *words)
        return list(json.loads(said.stdout)["rows"])


@pytest.fixture
def site(lab: Lab) -> Iterator[Site]:
    made = Site(lab, lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip())
    yield made
    lab.run(
        "sh", "-c", "squeue --me -h -o '%i %j' | sed -n 's/ benchmark-.*//p' | xargs -r scancel"
    )
    lab.run("rm", "-r", made.folder)


@contextmanager
def slowed(lab: Lab, node: str) -> Iterator[None]:
    """Leave a node a tenth of a CPU."""

    def limit(quota: int) -> None:
        options = ["--cpu-period", "100000", "--cpu-quota", str(quota)]
        argv = ["docker", "update", *options, lab.container(node)]
        subprocess.run(argv, check=True, capture_output=True)

    limit(QUOTA)
    try:
        yield
    finally:
        limit(-1)


def is_matmul(row: dict[str, Any], node: str) -> bool:
    return (row["benchmark"], row["node"]) == ("cpu_matmul_fp32", node)


def spread(values: list[float]) -> float:
    """The median deviation from the median, as a share of it."""
    middle = median(values)
    return median(abs(each - middle) for each in values) / middle


@pytest.mark.slow
def test_a_node_that_has_become_slow_is_marked(lab: Lab, site: Site) -> None:
    """The measurement is real, and so is the cause: the kernel gives c2 a tenth of a CPU."""
    words = ("--test", "cpu", "--test", "disk", "--nodes", "c[1-2]", "--limit", "1")
    earlier: list[float] = []
    while len(earlier) < EARLIER or spread(earlier) > STEADY:
        site.measure(*words)
        earlier += [row["value"] for row in site.report() if is_matmul(row, "c2")]
    with slowed(lab, "c2"):
        said = site.measure(*words)
    assert "stored 8 values" in said.stderr
    found = {(row["benchmark"], row["node"]): row for row in site.report()}
    kinds = ("cpu_matmul_fp32", "cpu_memory", "disk_read", "disk_write")
    assert sorted(found) == [(kind, node) for kind in kinds for node in ("c1", "c2")]
    assert {row["measured"] for row in found.values()} == {len(earlier) + 1}
    slow = found["cpu_matmul_fp32", "c2"]
    assert slow["verdict"] == "slower"
    assert slow["change"] < -0.3
    assert slow["value"] < found["cpu_matmul_fp32", "c1"]["value"]
    assert slow["torch"]
    assert re.fullmatch(
        r"up to 64 MiB in /tmp \(\w+\), fsync, .*", found["disk_read", "c1"]["method"]
    )
    # The first of the report is one that is marked.
    assert site.report()[0]["verdict"] == "slower"
    left = lab.run("sh", "-c", "ls -A /tmp | grep slurmkit-benchmark", service="c1", check=False)
    assert left.stdout == ""


def test_nccl_between_two_nodes(lab: Lab, site: Site) -> None:
    """A stand-in for all_reduce_perf; the preflight around it is the one of real jobs."""
    config = PREFLIGHT.format(folder=site.folder)
    if lab.release == "26.05":  # of this Debian: no pmix
        config += '[launch]\nmpi = "pmi2"\n'
    site.write("c.toml", config)
    site.write("program", PROGRAM.format(folder=site.folder))
    site.write("all_reduce_perf", STANDIN.read_text("utf-8"))
    setup = {"fast": 95.0, "alone": 230.0, "bad": {}}
    site.write("setup.json", json.dumps(setup))
    said = site.measure("--test", "nccl", "--nodes", "c[1-2]")
    assert "stored 1 values" in said.stderr, site.evidence(said)
    [row] = site.report("--benchmark", "nccl_all_reduce")
    assert (row["node"], row["value"], row["unit"]) == ("c1,c2", 95.0, "GB/s")
    assert row["gpu_type"] == "a100"
    setup["bad"] = {"c2": {"bandwidth": 12.5}}
    site.write("setup.json", json.dumps(setup))
    # It is measured anew, although both nodes were good a moment ago, and then each by itself.
    said = site.measure("--test", "nccl", "--nodes", "c[1-2]", check=False)
    assert said.returncode == 1, site.evidence(said)
    assert "nccl-1: the job is FAILED; its log: " in said.stderr, site.evidence(said)
    assert "stored 3 values" in said.stderr, site.evidence(said)
    rows = site.report("--benchmark", "nccl_all_reduce")
    assert {(row["node"], row["value"], row["measured"]) for row in rows} == {
        ("c1,c2", 12.5, 2),
        ("c1", 230.0, 1),
        ("c2", 230.0, 1),
    }, site.evidence(said)


def test_gpus_that_pytorch_cannot_see_are_unknown(site: Site) -> None:
    """The nodes have device files, and a PyTorch without CUDA."""
    said = site.measure("--test", "gpu", "--nodes", "c1", check=False)
    assert said.returncode == 1
    rows = site.report()
    assert {row["value"] for row in rows} == {None}
    assert {row["verdict"] for row in rows} == {"failed"}
    assert all("PyTorch" in row["trouble"] or "no GPU" in row["trouble"] for row in rows)
    assert {row["gpu_type"] for row in rows} == {"a100"}


def test_only_operators_store_in_the_sites_ledger(lab: Lab, site: Site) -> None:
    site.run(*RUN, "--no-wait", "--test", "cpu", "--test", "disk", "--nodes", "c1")
    [folder] = lab.run(
        "sh", "-c", f"echo {site.folder}/state/slurmkit/benchmarks/*/*"
    ).stdout.split()
    name = folder.rpartition("/")[2]
    site.run("slurmkit", "workflow", "wait", name)
    refused = site.run("slurmkit", "benchmark", "collect", name, check=False)
    assert refused.returncode == 2
    assert "only Slurm's operators store benchmark results" in refused.stderr
    stored = lab.run("slurmkit", "benchmark", "collect", folder, user="")
    assert stored.stdout == f"{name}: 4 values stored, 0 known before\n"
    seen = lab.run("slurmkit", "report", "benchmark", "--json", user="bob")
    rows = json.loads(seen.stdout)["rows"]
    assert "cpu_matmul_fp32" in {row["benchmark"] for row in rows}
