"""What users see while a daemon is away."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster_lab import Lab

pytestmark = pytest.mark.cluster


@pytest.fixture
def stopped(lab: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    """Stop a service for one test and bring the cluster back after it."""
    service = str(request.param)
    subprocess.run(["docker", "stop", lab.container(service)], check=True, capture_output=True)
    yield service
    brought_back = lab.up()
    assert brought_back.returncode == 0, brought_back.stderr


@pytest.mark.parametrize("stopped", ["ctld"], indirect=True)
def test_without_slurmctld(lab: Lab, stopped: str) -> None:
    commands = (("queue",), ("submit", "--", "true"), ("job", "1"), ("cancel", "1"), ("log", "1"))

    def run(args: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return lab.run("slurmkit", *args, check=False)

    # Each waits most of a minute for Slurm's own time-outs.
    with ThreadPoolExecutor(len(commands)) as threads:
        answers = list(threads.map(run, commands))
    for done in answers:
        assert done.returncode == 1
        assert "slurmctld does not answer" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not done.stdout


@pytest.mark.parametrize("stopped", ["dbd"], indirect=True)
def test_without_slurmdbd(lab: Lab, stopped: str) -> None:
    """The queue does not need it; what has left the queue cannot be looked up."""
    assert lab.run("slurmkit", "queue").stdout.startswith("JOBID")
    done = lab.run("slurmkit", "job", "987654", check=False)
    assert done.returncode == 1
    assert "slurmdbd does not answer" in done.stderr
    assert done.stderr.count("\n") == 1
