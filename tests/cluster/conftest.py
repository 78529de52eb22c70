"""The Docker cluster as a fixture."""

import os
import subprocess

import pytest
from cluster_lab import DOCKER, Lab, cluster_command


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The cluster that SLURMKIT_TEST_CLUSTER names, brought up where it is down."""
    name = os.environ.get("SLURMKIT_TEST_CLUSTER", "test")
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
