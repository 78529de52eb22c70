"""How a job spreads over nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_lab import capabilities

from slurmkit.planning.gpu_request import GpuPool, ResolvedGpus, resolve_gpus
from slurmkit.planning.layout import Layout, lay_out
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec


def made(**options: Any) -> tuple[JobSpec, Layout]:
    spec = JobSpec(command=("x",), **options)
    nodes = capabilities().nodes_of("gpu")
    kind: ResolvedGpus | None = None
    if spec.gpus:
        kind = resolve_gpus(spec.gpus, GpuPool(nodes, ("gpu",), capabilities().nodes), many=True)
    return spec, lay_out(spec, kind, 64)


def shape(layout: Layout) -> tuple[int | None, int | None, int | None, int]:
    return layout.nodes, layout.ntasks, layout.ntasks_per_node, layout.gpus


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (1, None, None, 0)),
        ({"ntasks": 100}, (None, 100, None, 0)),
        ({"nodes": 2, "gpus": Gpus(4, "a100")}, (2, None, None, 4)),
        ({"ntasks": 3, "gpus": Gpus(1, "a100", "task")}, (1, None, 3, 3)),
        ({"ntasks": 16, "gpus": Gpus(1, "a100", "task")}, (2, None, 8, 8)),
        ({"nodes": 2, "ntasks_per_node": 2, "gpus": Gpus(2, "a100", "task")}, (2, None, 2, 4)),
        ({"gpus": Gpus(16, "a100", "job")}, (2, None, None, 8)),
        ({"gpus": Gpus(4, "a100", "job")}, (1, None, None, 4)),
        ({"nodes": 2, "gpus": Gpus(4, "a100", "job")}, (2, None, None, 2)),
        ({"gpus": Gpus(shard=3)}, (1, None, None, 3)),
        ({"ntasks": 8, "cpus_per_task": 16, "gpus": Gpus(4, "a100")}, (2, 8, None, 4)),
        ({"ntasks": 8, "ntasks_per_node": 4, "gpus": Gpus(4, "a100")}, (2, 8, 4, 4)),
        ({"ntasks": 4, "ntasks_per_node": 2, "gpus": Gpus(1, "a100", "task")}, (2, None, 2, 2)),
        ({"ntasks": 8, "ntasks_per_node": 4, "gpus": Gpus(8, "a100", "job")}, (2, 8, 4, 4)),
        ({"ntasks": 128, "gpus": Gpus(4, "a100", "job")}, (2, 128, None, 2)),
        ({"ntasks": 128, "gpus": Gpus(shard=1)}, (2, 128, None, 1)),
    ],
)
def test_layouts(options: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    _, layout = made(**options)
    assert shape(layout) == expected
    assert not layout.findings


def test_a_job_count_that_does_not_divide_stays_a_job_count() -> None:
    _, layout = made(nodes=2, gpus=Gpus(5, "a100", "job"))
    assert layout.gpus_in_all == 5
    assert [f.code for f in layout.findings] == ["gpu-uneven"]


@pytest.mark.parametrize("nodes", ["1-3", "1-2", None])
@pytest.mark.parametrize("gpus", [9, 11, 13])
def test_gpus_that_divide_over_no_number_of_nodes_take_the_fewest(
    gpus: int, nodes: str | None
) -> None:
    """As sbatch does; on a node there are 8 at most, and only 2 such nodes."""
    _, layout = made(nodes=nodes, gpus=Gpus(gpus, "a100", "job"))
    assert (layout.nodes, layout.gpus_in_all, layout.most) == (2, gpus, None)
    assert [f.code for f in layout.findings if f.severity != "note"] == ["gpu-uneven"]


@pytest.mark.parametrize(
    ("options", "code", "fix"),
    [
        ({"gpus": Gpus(9, "a100")}, "gpus-per-node", {"nodes": "1", "gpus-per-node": "a100:8"}),
        ({"gpus": Gpus(16, "a100")}, "gpus-per-node", {"nodes": "2", "gpus-per-node": "a100:8"}),
        (
            {"nodes": 2, "ntasks": 3, "gpus": Gpus(1, "a100", "task")},
            "gpu-uneven-tasks",
            {"ntasks": "2", "ntasks-per-node": "1"},
        ),
        (
            {"ntasks": 2, "gpus": Gpus(9, "a100", "task")},
            "gpus-per-node",
            {"gpus-per-task": "a100:8"},
        ),
        (
            {"ntasks": 16, "nodes": 1, "gpus": Gpus(1, "a100", "task")},
            "gpus-per-node",
            {"nodes": "2", "ntasks-per-node": "8"},
        ),
        ({"nodes": 3, "gpus": Gpus(2, None, "job")}, "gpu-fewer-than-nodes", {"nodes": "2"}),
    ],
)
def test_what_does_not_fit_says_what_would(
    options: dict[str, Any], code: str, fix: dict[str, str]
) -> None:
    _, layout = made(**options)
    (finding,) = layout.findings
    assert (finding.severity, finding.code, dict(finding.fix)) == ("error", code, fix)


def test_a_job_has_no_more_nodes_than_tasks() -> None:
    for gpus in (None, Gpus(1, "a100"), Gpus(shard=1)):
        _, layout = made(nodes=4, ntasks=2, gpus=gpus)
        assert layout.nodes == 2
        assert [f.code for f in layout.findings] == ["fewer-tasks-than-nodes"]


@pytest.mark.parametrize(
    ("options", "nodes", "most", "fix"),
    [
        ({"nodes": "1-2", "ntasks": 128}, 2, 2, {}),
        ({"nodes": "1-4", "ntasks": 130}, 3, 4, {}),
        ({"nodes": "1-4", "ntasks": 2}, 1, 2, {}),
        ({"nodes": 1, "ntasks": 4, "ntasks_per_node": 2}, 1, None, {"ntasks-per-node": "4"}),
        (
            {"nodes": 1, "ntasks": 100, "ntasks_per_node": 1},
            1,
            None,
            {"nodes": "2", "ntasks-per-node": "50"},
        ),
        ({"nodes": "1-2", "ntasks": 6, "ntasks_per_node": 2}, 2, 2, {"ntasks-per-node": "3"}),
        ({"ntasks": 4, "ntasks_per_node": 2}, None, None, {}),
    ],
)
def test_tasks_set_the_least_number_of_nodes(
    options: dict[str, Any], nodes: int | None, most: int | None, fix: dict[str, str]
) -> None:
    _, layout = made(**options)
    assert (layout.nodes, layout.most) == (nodes, most)
    assert [dict(f.fix) for f in layout.findings] == ([fix] if fix else [])
    assert all(f.code == "tasks-too-many" for f in layout.findings)


def test_more_tasks_than_fit_beside_one_gpu_leave_the_nodes_to_slurm() -> None:
    """`--gpus a100:1 -n 128` runs, with a GPU on each of its nodes."""
    _, layout = made(gpus=Gpus(1, "a100", "job"), ntasks=128)
    assert (layout.nodes, layout.gpus_in_all) == (None, 1)
    (finding,) = layout.findings
    assert (finding.severity, finding.fix) == ("warning", (("gpus", "a100:2"),))
    _, layout = made(gpus=Gpus(1, "a100", "job"), ntasks=2, ntasks_per_node=1)
    (finding,) = layout.findings
    assert (finding.severity, finding.fix) == ("error", (("gpus", "a100:2"),))


@given(
    tasks=st.integers(1, 40),
    gpus=st.integers(1, 8),
    nodes=st.none() | st.integers(1, 8),
    cpus=st.integers(1, 16),
)
def test_each_task_has_its_gpus_on_its_node(
    tasks: int, gpus: int, nodes: int | None, cpus: int
) -> None:
    spec, layout = made(
        ntasks=tasks, nodes=nodes, cpus_per_task=cpus, gpus=Gpus(gpus, "a100", "task")
    )
    if any(f.severity == "error" for f in layout.findings):
        return
    assert layout.nodes is not None
    assert layout.tasks == tasks
    assert layout.gpus == gpus * tasks // layout.nodes
    assert layout.gpus <= 8
    if nodes is None:
        assert tasks // layout.nodes * spec.cpus_per_task <= 64


@pytest.mark.parametrize(
    ("options", "nodes", "most", "gpus"),
    [
        ({"nodes": "1-4"}, 1, 4, 0),
        ({"nodes": "2-4", "gpus": Gpus(4, "a100")}, 2, 4, 4),
        ({"nodes": "2-4", "gpus": Gpus(shard=1)}, 2, 4, 1),
        ({"nodes": "2-4", "ntasks": 1}, 1, None, 0),
        ({"nodes": "1-4", "gpus": Gpus(12, "a100", "job")}, 2, None, 6),
        ({"nodes": "3-4", "gpus": Gpus(12, "a100", "job")}, 3, None, 4),
        ({"nodes": "1-4", "ntasks": 12, "gpus": Gpus(1, "a100", "task")}, 2, None, 6),
    ],
)
def test_ranges_of_nodes(options: dict[str, Any], nodes: int, most: int | None, gpus: int) -> None:
    """A range is left to Slurm, but where GPUs must divide over the nodes."""
    _, layout = made(**options)
    assert (layout.nodes, layout.most, layout.gpus) == (nodes, most, gpus)
    said = [finding.code for finding in layout.findings]
    assert ("nodes-chosen" in said) is ((nodes == 2 and most is None) or nodes == 3)
    assert not any(finding.severity == "error" for finding in layout.findings)


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({}, 2),
        ({"ntasks_per_node": 2}, 2),
        ({"gpus": Gpus(4, "a100")}, 2),
        ({"ntasks": 8, "gpus": Gpus(4, "a100")}, 2),
        ({"ntasks": 1, "gpus": Gpus(4, "a100")}, 1),
        ({"gpus": Gpus(4, "a100", "job")}, 2),
        ({"ntasks": 4, "gpus": Gpus(1, "a100", "task")}, 2),
        ({"gpus": Gpus(1, "a100", "task")}, 2),
        ({"gpus": Gpus(2, "a100"), "ntasks_per_gpu": 1}, 2),
        ({"nodes": 1, "gpus": Gpus(4, "a100")}, 1),
        ({"ntasks": 8}, None),
    ],
)
def test_a_nodelist_sets_the_least_number_of_nodes(
    options: dict[str, Any], nodes: int | None
) -> None:
    """Differential test, A."""
    _, layout = made(nodelist="c[1-2],c1", **options)
    assert layout.nodes == nodes
    assert not layout.findings


def test_a_gpu_for_the_job_is_too_few_for_the_nodes_of_a_nodelist() -> None:
    """Differential test, A."""
    _, layout = made(nodelist="c[1-2]", gpus=Gpus(1, "a100", "job"))
    assert [finding.code for finding in layout.findings] == ["gpu-fewer-than-nodes"]
