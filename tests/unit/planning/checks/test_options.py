"""Options that Slurm ignores, beside others or on this cluster, and those that it refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from checked_requests import findings, request, with_config
from recorded_lab import capabilities

from slurmkit.planning.checks import options
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch

BOUND = {"options": {"mem-bind": "local"}, "launch": Launch(cpu_bind="cores")}


@pytest.mark.parametrize(
    ("spec", "code", "says", "fix"),
    [
        ({"mincpus": 8, "cpus_per_task": 4}, "mincpus-unused", "only 4 of them", None),
        (
            {"hint": "nomultithread", "threads_per_core": 1},
            "hint-ignored",
            "with --threads-per-core",
            "no --hint",
        ),
        (BOUND, "binding-unused", "--cpu-bind=cores and --mem-bind binds nothing here", None),
        ({"spread_job": True, "switches": "1"}, "switches-unused", "turns the topology off", None),
        ({"spread_job": True, "use_min_nodes": True}, "spread-and-min-nodes", "contradict", None),
        ({"use_min_nodes": True, "nodes": 2}, "min-nodes-unused", "a range of nodes", None),
        ({"options": {"contigous": ""}}, "unknown-option", "did you mean 'contiguous'?", None),
        ({"options": {"wckey": "a"}}, "wckey-unused", "does not track", None),
    ],
)
def test_what_has_no_effect(spec: dict[str, Any], code: str, says: str, fix: str | None) -> None:
    found = findings(**spec)[code]
    assert says in found.message
    assert fix is None or found.fix_words == fix


@pytest.mark.parametrize(
    "spec",
    [
        {"gpus": Gpus(2, "a100"), "cpus_per_gpu": 4},
        {"mincpus": 8},
        {"hint": "nomultithread", "ntasks": 2},
        {"launch": Launch(cpu_bind="none")},
        {"use_min_nodes": True, "nodes": "1-2"},
        {"options": {"contiguous": ""}},
        {"sockets_per_node": 1, "ntasks_per_socket": 1},
    ],
)
def test_what_has_an_effect(spec: dict[str, Any]) -> None:
    asked = request(**spec)
    checks = (
        options.options_for_gpus, options.fewest_cpus, options.ignored_hint,
        options.binding_plugins, options.core_selection, options.spreading,
        options.passed_on_options,
    )  # fmt: skip
    assert [each for check in checks for each in check(asked)] == []


@pytest.mark.parametrize(
    ("release", "warns"),
    [((23, 2, 8), 0), ((23, 11, 0), 1), ((24, 11, 5), 1), ((25, 5, 0), 1), ((25, 5, 1), 0),
     ((25, 11, 0), 0)],
)  # fmt: skip
def test_srun_refuses_cpus_beside_tasks_per_gpu_on_some_releases(
    release: tuple[int, ...], warns: int
) -> None:
    script = "#!/bin/bash\nsrun train\n"
    spec = JobSpec(script=script, gpus=Gpus(2), ntasks_per_gpu=1, cpus_per_task=4)
    found = list(options.unread_options(spec, release))
    assert [each.code for each in found] == ["srun-refuses-cpus"] * warns
    if found:
        assert found[0].message.endswith("unset SLURM_TRES_PER_TASK")
        assert f"Slurm {release[0]}.{release[1]:02} " in found[0].message
    for other in (
        msgspec.structs.replace(spec, cpus_per_task=None),
        msgspec.structs.replace(spec, script="#!/bin/bash\ntrain\n"),
        msgspec.structs.replace(
            spec, script=script.replace("srun", "unset SLURM_TRES_PER_TASK\nsrun")
        ),
        JobSpec(command=("train",), gpus=Gpus(2), ntasks_per_gpu=1, cpus_per_task=4),
    ):
        assert not list(options.unread_options(other, release))


def test_the_release_decides() -> None:
    old = msgspec.structs.replace(capabilities(), release=(22, 5, 11))
    beside = {"hint": "nomultithread", "sockets_per_node": 1}
    assert not list(options.ignored_hint(request(old, **beside)))
    new = msgspec.structs.replace(capabilities(), release=(25, 11, 0))
    (found,) = options.ignored_hint(request(new, **beside))
    assert "with --sockets-per-node" in found.message


@pytest.mark.parametrize("release", [(22, 5, 11), (24, 11, 5), (25, 5, 0)])
def test_expedited_requeue_needs_a_release_that_has_it(release: tuple[int, ...]) -> None:
    old = msgspec.structs.replace(capabilities(), release=release)
    (found,) = options.expedited_requeue(request(old, requeue="expedite"))
    version = ".".join(f"{part:02}" for part in release[:2])
    assert found.severity == "error"
    assert found.message == f"Slurm {version} does not know --requeue=expedite (since 25.11)"
    assert not list(options.expedited_requeue(request(old, requeue=True)))


def test_expedited_requeue_must_be_enabled() -> None:
    new = msgspec.structs.replace(capabilities(), release=(25, 11, 0))
    (found,) = options.expedited_requeue(request(new, requeue="expedite"))
    assert (found.severity, found.code) == ("error", "expedite-disabled")
    enabled = with_config(SlurmctldParameters="idle_on_node_suspend,enable_expedited_requeue")
    new = msgspec.structs.replace(enabled, release=(26, 5, 3))
    assert not list(options.expedited_requeue(request(new, requeue="expedite")))


def test_a_memory_update_must_do_something() -> None:
    asked = {"options": {"mem-update": "20@10"}}
    (found,) = options.memory_update(request(capabilities(), **asked))
    assert (found.severity, found.code) == ("error", "mem-update-unknown")
    works = with_config(
        SlurmctldParameters="enable_stepmgr", JobAcctGatherType="jobacct_gather/cgroup"
    )
    new = msgspec.structs.replace(works, release=(26, 5, 3))
    assert not list(options.memory_update(request(new, **asked)))
    assert not list(options.memory_update(request(new)))
    other = with_config(SlurmctldParameters="", JobAcctGatherType="jobacct_gather/linux")
    other = msgspec.structs.replace(other, release=(26, 5, 3))
    found = list(options.memory_update(request(other, **asked)))
    assert [each.code for each in found] == ["mem-update-unused"] * 2
    by_job = {"options": {"mem-update": "20@10", "stepmgr": ""}}
    (found,) = options.memory_update(request(other, **by_job))
    assert "jobacct_gather/linux" in found.message


def test_the_plugins_decide() -> None:
    bound = with_config(TaskPlugin="task/cgroup,task/affinity", TrackWCKey="yes")
    assert not list(options.binding_plugins(request(bound, **BOUND)))
    assert not list(options.passed_on_options(request(bound, options={"wckey": "a"})))
    by_cpu = with_config(SelectTypeParameters="CR_CPU_MEMORY")
    (found,) = options.core_selection(request(by_cpu, threads_per_core=1))
    assert found.code == "cores-unsupported"
    linear = with_config(SelectType="select/linear", SelectTypeParameters="CR_MEMORY")
    (found,) = options.core_selection(request(linear, ntasks_per_core=1))
    assert found.message.startswith("--ntasks-per-core: not supported")
    asked = {"gpus": Gpus(4, "a100", sockets=2), "sockets_per_node": 2}
    (found,) = options.options_for_gpus(request(linear, **asked))
    assert (found.severity, found.code) == ("error", "cons-tres-only")


def test_an_option_of_a_plugin_is_known() -> None:
    known = msgspec.structs.replace(capabilities(), container_options=("container-image",))
    assert not list(options.passed_on_options(request(known, options={"container-image": "x"})))


def test_a_script_in_a_container_of_its_own_is_noted() -> None:
    """It was passed on unseen."""
    known = msgspec.structs.replace(capabilities(), container_options=("container-image",))
    asked = {"command": (), "script": "#!/bin/sh\nhostname\n"}
    (found,) = options.passed_on_options(request(known, options={"container-image": "x"}, **asked))
    assert (found.severity, found.code) == ("note", "container-of-script")
    assert found.message.startswith("--container-image: pyxis starts the whole script")
