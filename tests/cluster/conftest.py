"""The Docker cluster as a fixture."""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator

import pytest
from cluster_lab import DOCKER, Lab, cluster_command

# Files that take minutes: begun last, one would keep a cluster busy when the others are done.
LONGEST = (
    "test_differential", "test_cluster_up", "test_gpu_use", "test_jobs", "test_why_running",
    "test_allocations", "test_workflows", "test_service_restart", "test_tui", "test_survive",
    "test_launch", "test_tui_faults", "test_ssh_in_job", "test_limits", "test_node_check",
    "test_backend_contract", "test_faults", "test_mail", "test_executor_ssh", "test_benchmark",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files for `--dist loadfile --no-loadscope-reorder`, the longest first."""
    tests = Counter(item.path.stem for item in items)

    def order(item: pytest.Item) -> tuple[int, int]:
        name = item.path.stem
        return LONGEST.index(name) if name in LONGEST else len(LONGEST), -tests[name]

    items.sort(key=order)


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
