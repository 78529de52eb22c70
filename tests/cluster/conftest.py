"""The Docker cluster as a fixture."""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator

import pytest
from cluster_lab import DOCKER, Lab, cluster_command


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The cluster that SLURMKIT_TEST_CLUSTER names, brought up where it is down.

    It names one for each process of pytest.
    """
    names = os.environ.get("SLURMKIT_TEST_CLUSTER", "test").split()
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    if worker >= len(names):
        pytest.fail(f"SLURMKIT_TEST_CLUSTER names {len(names)} clusters: pytest -n {len(names)}")
    name = names[worker]
    release = os.environ.get("SLURMKIT_TEST_SLURM", "24.11")
    required = os.environ.get("SLURMKIT_REQUIRE_CLUSTER") == "1"
    engine = subprocess.run(
        [str(DOCKER / "engine")], capture_output=True, text=True, check=False, timeout=900
    )
    if engine.returncode:
        give_up = pytest.fail if required else pytest.skip
        give_up(f"no Docker engine: {engine.stderr.strip()}")
    cluster = Lab(name, release)
    if cluster_command("status", "--name", name).returncode:
        started = cluster.up()
        if started.returncode:
            pytest.fail(f"docker/cluster up failed\n{started.stderr}")
    return cluster


@pytest.fixture
def books(lab: Lab) -> Iterator[str]:
    """URL of a new ledger on the login node, of the user who keeps the books there."""
    folder = lab.run("mktemp", "-d", user="slurmkit").stdout.strip()
    yield f"sqlite:///{folder}/ledger.db"
    lab.run("rm", "-r", folder, user="")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests of the backends' contract ran on which release; show tables of figures."""
    counts: Counter[tuple[str, str]] = Counter()
    ways: Counter[str] = Counter()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            backend = dict(report.user_properties).get("backend")
            if backend is not None and (report.when == "call" or outcome == "error"):
                counts[str(backend), outcome] += 1
                ways.update(str(way) for name, way in report.user_properties if name == "way")
    for backend in sorted({name for name, _ in counts}):
        ran = {outcome: counts[backend, outcome] for outcome in ("passed", "failed", "error")}
        said = ", ".join(f"{count} {outcome}" for outcome, count in ran.items() if count)
        terminalreporter.write_line(f"contract of backends: {backend}: {said}")
    for way, count in ways.most_common():
        terminalreporter.write_line(f"submits of backend pyslurm: {count} by {way}")
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        tables = [text for name, text in report.user_properties if name == "table"]
        for text in tables if report.when == "call" else []:
            terminalreporter.write_line(str(text))
