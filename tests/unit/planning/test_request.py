"""What a spec comes to in TRES: the amounts that limits are compared with."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from checked_requests import request, with_config, with_nodes, with_partition, with_settings
from recorded_lab import capabilities

from slurmkit.formats.tres import Gres
from slurmkit.planning.amounts import parse_memory_mib
from slurmkit.planning.gpu_request import GpuTypeNames
from slurmkit.planning.request import array_size, highest_index
from slurmkit.planning.shape import job_shape
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Node, Partition


@pytest.mark.parametrize(
    ("text", "mib"), [("64", 64), ("64G", 65536), ("64gb", 65536), ("1k", 1), ("1T", 1 << 20)]
)
def test_sizes(text: str, mib: int) -> None:
    assert parse_memory_mib(text) == mib


@pytest.mark.parametrize(
    ("spec", "mem"),
    [
        ({"ntasks": 100, "mem": "10G"}, 2 * 10240),
        ({"ntasks": 100, "mem_per_cpu": "1G"}, 100 * 1024),
        ({"nodes": 2, "mem": "10G"}, 2 * 10240),
        ({"nodes": 2, "ntasks_per_node": 4, "mem_per_cpu": "1G"}, 8 * 1024),
        ({"gpus": Gpus(4, "a100", "job"), "nodes": 2, "mem_per_gpu": "2G"}, 4 * 2048),
        ({"gpus": Gpus(5, "a100", "job"), "nodes": 2, "mem_per_gpu": "2G"}, 5 * 2048),
    ],
)
def test_memory_of_the_whole_job(spec: dict[str, Any], mem: int) -> None:
    assert request(**spec).total["mem"] == mem


def test_tasks_that_slurm_spreads_take_as_many_nodes_as_they_need() -> None:
    assert request(ntasks=100).nodes == 2
    assert request(ntasks=8, ntasks_per_node=4).nodes == 2
    assert request(ntasks=8).nodes == 1


def test_what_the_site_gives_for_each_gpu() -> None:
    defaults = "DefCpuPerGPU=8,DefMemPerGPU=1024"
    known = with_settings("gpu", JobDefaults=defaults)
    asked = request(known, gpus=Gpus(2, "a100"), nodes=2)
    assert (asked.per_node["cpu"], asked.per_node["mem"], asked.cpus_per_task) == (16, 2048, 16)
    assert request(known, gpus=Gpus(2, "a100"), ntasks_per_node=2).cpus_per_task == 8
    own = request(known, gpus=Gpus(2, "a100"), cpus_per_task=1, mem="3G")
    assert (own.per_node["cpu"], own.per_node["mem"]) == (1, 3072)
    assert request(known).cpus_per_task == 1
    of_all = with_config(JobDefaults=defaults)
    assert request(of_all, gpus=Gpus(2, "a100")).per_node["cpu"] == 16


def test_cpus_for_each_gpu() -> None:
    asked = request(gpus=Gpus(2, "a100"), cpus_per_gpu=4)
    assert asked.total["cpu"] == 8
    assert request(options={"tres-per-task": "cpu=4"}).total["cpu"] == 4


def test_an_exclusive_job_is_charged_for_whole_nodes() -> None:
    asked = request(gpus=Gpus(2, "a100"), nodes=2, exclusive=True, mem="1G")
    assert asked.per_node["gres/gpu"] == 2
    total = {name: asked.total[name] for name in ("cpu", "gres/gpu", "gres/gpu:a100", "mem")}
    assert total == {"cpu": 128, "gres/gpu": 16, "gres/gpu:a100": 16, "mem": 2048}
    assert request(exclusive=True).total["gres/gpu"] == 4  # of the smallest node
    parts = request(gpus=Gpus(shard=1), exclusive=True).total
    assert (parts["gres/shard"], "gres/gpu" in parts) == (16, False)
    assert "gres/gpu" not in request(exclusive="user").total
    for setting in ({"OverSubscribe": "EXCLUSIVE"}, {"OverSubscribe": "NO", "Exclusive": "NODE"}):
        known = with_settings("gpu", **setting)
        assert request(known, gpus=Gpus(2, "a100")).total["gres/gpu"] == 8
    known = with_settings("gpu", Exclusive="USER")
    assert request(known, gpus=Gpus(2, "a100")).total["gres/gpu"] == 2


@pytest.mark.parametrize(
    ("spec", "mem"),
    [
        ({"mem_per_cpu": "100M"}, 64 * 100),
        ({"gpus": Gpus(2, "a100"), "nodes": 2, "mem_per_gpu": "2G"}, 2 * 8 * 2048),
        ({"mem": "300M", "nodes": 2}, 600),
    ],
)
def test_memory_of_an_exclusive_job_is_that_of_all_its_cpus_or_gpus(
    spec: dict[str, Any], mem: int
) -> None:
    assert request(**spec, exclusive=True).total["mem"] == mem


@pytest.mark.parametrize(
    ("spec", "most"),
    [
        ({"nodes": 2, "gpus": Gpus(1, "a100"), "mem": "0"}, {"mem": 1024000, "billing": 159}),
        ({"exclusive": True, "mem": "1G"}, {"gres/gpu": 8, "cpu": 64, "billing": 192}),
        ({"exclusive": True, "nodes": 3, "mem": "1G"}, {"gres/gpu": 20, "cpu": 192}),
        ({"exclusive": True, "gpus": Gpus(2, "a100"), "mem": "1G"}, {"gres/gpu:a100": 8}),
        ({"nodes": 1, "ntasks": 16, "ntasks_per_node": 64}, {"cpu": 16}),
        ({"exclusive": True, "ntasks": 4, "mem": "1G"}, {"node": 1, "cpu": 64}),
        ({"exclusive": True, "ntasks": 100, "mem": "0"}, {"node": 2, "cpu": 128, "mem": 1024000}),
        ({"nodes": 2, "ntasks": 3}, {"cpu": 3, "node": 2}),
        ({"nodes": 3, "ntasks": 85}, {"cpu": 85}),
        ({"ntasks": 4, "mem": "10G"}, {"cpu": 4, "node": 3, "mem": 30720}),
        ({"ntasks": 128, "gpus": Gpus(1, "a100", "job")}, {"gres/gpu": 2}),
    ],
)
def test_what_slurm_gives_at_most(spec: dict[str, Any], most: dict[str, int]) -> None:
    """Promises with `at most` that were too small."""
    asked = request(**spec)
    assert {name: asked.most[name] for name in most} == most
    assert all(asked.most[name] >= count for name, count in asked.total.items())


def test_a_partition_of_whole_nodes_gives_the_largest_at_most() -> None:
    """`-p excl` promised 0 GPUs, and the job got 2."""
    known = with_settings("gpu", OverSubscribe="EXCLUSIVE")
    none = {"c1": (), "c2": (), "c3": (Gres("gpu", "h100", 2),)}
    nodes = tuple(
        msgspec.structs.replace(node, gres=none.get(node.name, node.gres)) for node in known.nodes
    )
    asked = request(msgspec.structs.replace(known, nodes=nodes))
    assert (asked.total.get("gres/gpu", 0), asked.most["gres/gpu"]) == (0, 2)
    assert asked.most["billing"] > asked.total["billing"]


@pytest.mark.parametrize(
    ("select", "spec", "cpus"),
    [
        ("CR_CORE_MEMORY", {}, 2),
        ("CR_CORE_MEMORY", {"nodes": 2, "ntasks": 3}, 4),
        ("CR_CORE_MEMORY", {"cpus_per_task": 3}, 4),
        ("CR_CORE_MEMORY", {"ntasks_per_node": 4, "ntasks_per_core": 1}, 8),
        ("CR_CORE_MEMORY,CR_ONE_TASK_PER_CORE", {"ntasks_per_node": 4}, 8),
        ("CR_CPU_MEMORY", {}, 1),
        ("CR_SOCKET_MEMORY", {}, 32),
    ],
)
def test_slurm_gives_whole_cores(select: str, spec: dict[str, Any], cpus: int) -> None:
    """With threads a CPU asked for is a core given."""
    known = with_nodes(["c1", "c2", "c3"], cores_per_socket=16, threads_per_core=2)
    asked = request(with_config(known, SelectTypeParameters=select), **spec)
    assert asked.most["cpu"] == cpus


def test_a_site_may_give_out_whole_nodes_only() -> None:
    """select/linear."""
    known = with_config(SelectType="select/linear", SelectTypeParameters="CR_MEMORY")
    assert request(known, nodes=2).most["cpu"] == 128


def test_cpus_that_a_site_gives_per_gpu_are_not_rounded_down() -> None:
    """DefCpuPerGPU=4, 2 GPUs and 3 tasks are 8 CPUs, not 6."""
    known = with_settings("gpu", JobDefaults="DefCpuPerGPU=4")
    asked = request(known, gpus=Gpus(2, "a100"), ntasks=3)
    assert (asked.total["cpu"], asked.per_node["cpu"], asked.cpus_per_task) == (8, 8, 2)


def test_other_generic_resources_count() -> None:
    known = with_nodes(["c1"], gres=(Gres("gpu", "a100", 8), Gres("nvme", "fast", 2)))
    asked = request(known, gres="nvme:fast:2,nic")
    assert (asked.per_node["gres/nvme"], asked.per_node["gres/nvme:fast"]) == (2, 2)
    assert asked.per_node["gres/nic"] == 1


def shaped(there: tuple[Node, ...], **spec: Any) -> tuple[tuple[str, ...], int | None]:
    """Nodes left out, and how many are asked for."""
    known = msgspec.structs.replace(capabilities(), nodes=there)
    partition = Partition(name="p")
    kind, layout = job_shape(JobSpec(command=("x",), **spec), known, (partition,), GpuTypeNames())
    assert kind
    assert not kind.findings or kind.findings[0].severity == "note"
    return kind.exclude, layout.nodes


def test_a_job_of_one_node_may_have_either_typing() -> None:
    base = msgspec.structs.replace(capabilities().nodes[0], partitions=("p",))
    replace = msgspec.structs.replace
    typed = replace(base, name="t", gres=(Gres("gpu", "a100", 8),))
    plain = tuple(replace(base, name=f"u{i}", gres=(Gres("gpu", None, 4),)) for i in (1, 2))
    there = (typed, *plain)
    assert shaped(there, ntasks=1, gpus=Gpus(1)) == ((), 1)
    assert shaped(there, gpus=Gpus(1, per="job")) == ((), 1)
    assert shaped(there, nodes=2, gpus=Gpus(1)) == (("u1", "u2"), 2)
    assert shaped(there, nodes=2, gpus=Gpus(1), nodelist="u[1-2]") == ((), 2)
    assert shaped(there, nodes=2, gpus=Gpus(1), exclude="t") == ((), 2)


def test_arrays() -> None:
    assert (array_size("0-9:3,20%2"), highest_index("0-9:3,20%2")) == (5, 20)
    assert (array_size("0-4000000"), array_size("1-3,2-4")) == (4_000_001, 4)


def test_a_partition_default_goes_before_the_clusters() -> None:
    known = with_partition("gpu", with_config(DefMemPerNode="100"), def_mem_per_cpu=50)
    assert request(known, cpus_per_task=4).per_node["mem"] == 200


@pytest.mark.parametrize(
    ("spec", "cpus"),
    [
        ({"ntasks": 1, "cpus_per_task": 2}, 2),
        ({"ntasks": 1, "cpus_per_task": 4}, 4),
        ({"ntasks": 1}, 2),
        ({"cpus_per_task": 2}, 4),
    ],
)
def test_min_nodes_adds_nodes_not_cpus_to_tasks(spec: dict[str, Any], cpus: int) -> None:
    """Differential test, G."""
    total = request(with_partition("gpu", min_nodes=2), mem="1G", **spec).total
    assert (total["node"], total["cpu"]) == (2, cpus)
