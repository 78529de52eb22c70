"""The site's network profile: told to NCCL, shown in the plan, never over what a job sets."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from recorded_lab import capabilities, standing

from slurmkit.errors import BadConfig, BadInput
from slurmkit.planning.fabric import FabricSection, with_nccl_variables
from slurmkit.planning.planner import plan_offline
from slurmkit.planning.request import SiteState
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch

CONFIG = """
[fabric.gpu]
interfaces = ["ib0"]
hcas = ["mlx5_0", "mlx5_1:1"]
network = "IB"
environment = { NCCL_IB_GID_INDEX = "3" }
[fabric.other]
interfaces = ["eth0"]
"""
JOB = JobSpec(command=("x",), gpus=Gpus(2, "a100"))
SAID = {
    "NCCL_SOCKET_IFNAME": "=ib0",
    "NCCL_IB_HCA": "=mlx5_0,mlx5_1:1",
    "NCCL_NET": "IB",
    "GLOO_SOCKET_IFNAME": "ib0",
    "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1,ib0",
    "NCCL_IB_GID_INDEX": "3",
}


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(CONFIG, "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(file))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return file


def test_names_are_exact_and_what_is_not_said_is_not_set() -> None:
    assert FabricSection().variables == {}
    assert FabricSection(network="IB").variables == {"NCCL_NET": "IB"}


def test_gloo_and_ucx_take_the_network_that_nccl_takes() -> None:
    """gloo took another network for barriers and CPU groups."""
    made = FabricSection(interfaces=("a", "b"))
    assert made.variables == {"NCCL_SOCKET_IFNAME": "=a,b", "GLOO_SOCKET_IFNAME": "a,b"}
    made = FabricSection(hcas=("mlx5_0", "mlx5_1:2"))
    assert made.variables == {
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1:2",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:2",
    }


def test_it_is_exported_by_the_script_and_shown() -> None:
    made = plan_offline(JOB, SiteState(capabilities(), standing()))
    assert "export NCCL_IB_HCA==mlx5_0,mlx5_1:1\n" in made.submissions[0].script
    (note,) = (note for note in made.notes if note.code == "fabric")
    assert note.message.startswith("the network of partition gpu: NCCL_SOCKET_IFNAME==ib0 ")


def test_a_secret_of_the_profile_is_not_shown(configured: Path) -> None:
    configured.write_text("[fabric.gpu]\nenvironment = { NET_TOKEN = 's3cr' }\n", "utf-8")
    made, (note,) = with_nccl_variables(JOB, ("gpu",))
    assert made.environment == {"NET_TOKEN": "s3cr"}
    assert note.message.endswith("NET_TOKEN=***")


def test_what_a_job_sets_itself_stays() -> None:
    own = msgspec.structs.replace(JOB, environment={"NCCL_NET": "Socket", "A": "1"})
    made, (note,) = with_nccl_variables(own, ("gpu",))
    assert made.environment == {**SAID, "NCCL_NET": "Socket", "A": "1"}
    assert "NCCL_NET" not in note.message
    every, none = with_nccl_variables(msgspec.structs.replace(JOB, environment=SAID), ("gpu",))
    assert (every.environment, none) == (SAID, ())


@pytest.mark.parametrize(
    ("spec", "partitions"),
    [
        (JOB, ("cpu",)),
        (JobSpec(command=("x",)), ("gpu",)),
        (JobSpec(command=("x",), gpus=Gpus(shard=1)), ("gpu",)),
        (JobSpec(script="#!/bin/sh\n", gpus=Gpus(1)), ("gpu",)),
    ],
)
def test_other_jobs_are_left_alone(spec: JobSpec, partitions: tuple[str, ...]) -> None:
    assert with_nccl_variables(spec, partitions) == (spec, ())


def test_networks_that_differ_are_left_to_nccl_with_a_word() -> None:
    made, (warning,) = with_nccl_variables(JOB, ("gpu", "other"))
    assert (made, warning.code) == (JOB, "fabric-differs")
    assert with_nccl_variables(JOB, ("gpu", "gpu"))[0].environment == SAID


def test_a_wrong_key_is_named(configured: Path) -> None:
    configured.write_text("[fabric.gpu]\ninterface = ['ib0']\n", "utf-8")
    with pytest.raises(BadConfig, match="did you mean 'interfaces'"):
        with_nccl_variables(JOB, ("gpu",))


@pytest.mark.parametrize("spec", [JOB, JobSpec(script="#!/bin/bash\n"), JobSpec(command=("x",))])
def test_nccl_tells_of_itself_on_request_alone(spec: JobSpec) -> None:
    asked = msgspec.structs.replace(spec, launch=Launch(nccl_debug="WARN"))
    site = SiteState(capabilities(), standing())
    assert "NCCL_DEBUG" not in plan_offline(spec, site).submissions[0].script
    assert "export NCCL_DEBUG=WARN\n" in plan_offline(asked, site).submissions[0].script
    set_too = msgspec.structs.replace(asked, environment={"NCCL_DEBUG": "INFO"})
    with pytest.raises(BadInput, match="give one of them"):
        plan_offline(set_too, site)
    with pytest.raises(BadInput, match="nccl-debug must be one of VERSION, WARN, INFO, TRACE, not"):
        Launch(nccl_debug="info")
